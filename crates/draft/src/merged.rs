//! Several drafters at once: what each proposes is a branch of one tree (SpecInfer, Miao et al. 2023, arXiv 2305.09781).

use std::collections::HashMap;

use kv::KvCache;
use model::Tap;
use spec::{Accepted, Proposal};

use crate::{Ask, Computed, DraftError, Drafter, Key, Outlook, Round, Silence, Verdict};

/// Has all of several drafters' proposals checked in one tree, in which equal beginnings are one path. Where [`Auto`] takes
/// the best guess, this takes all: it pays where rows are cheap and the drafters disagree.
///
/// Each drafter is told what became of its own part. One that fails is passed over.
///
/// [`Auto`]: crate::Auto
pub struct Merged {
    drafters: Vec<Box<dyn Drafter>>,
    /// For the newest proposal of a request and each drafter: where its nodes are in the tree, if it proposed.
    nodes: HashMap<Key, Vec<Option<Vec<usize>>>>,
}

impl Merged {
    /// Merges what `drafters` propose.
    pub fn new(drafters: Vec<Box<dyn Drafter>>) -> Self {
        Self { drafters, nodes: HashMap::new() }
    }
}

impl Drafter for Merged {
    fn name(&self) -> &'static str {
        "merged"
    }

    fn propose(
        &mut self,
        round: &mut Round<'_>,
        asks: &[Ask<'_>],
    ) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
        let drafters = self.drafters.len();
        let mut merged: Vec<Result<Proposal, Silence>> = vec![Err(Silence::NoMatch); asks.len()];
        let mut nodes: Vec<Vec<Option<Vec<usize>>>> = vec![vec![None; drafters]; asks.len()];
        let mut errors = Vec::new();
        for (drafter, part) in self.drafters.iter_mut().enumerate() {
            let answers = match part.propose(round, asks) {
                Ok(answers) => answers,
                Err(error) => {
                    errors.push(error);
                    continue;
                }
            };
            for ((merged, nodes), answer) in merged.iter_mut().zip(&mut nodes).zip(answers) {
                match (answer, merged) {
                    (Ok(proposal), merged @ Err(_)) => {
                        nodes[drafter] = Some((0..proposal.tree().len()).collect());
                        *merged = Ok(proposal);
                    }
                    // All proposals for a request have its anchor.
                    (Ok(proposal), Ok(merged)) => nodes[drafter] = merged.merge(&proposal).ok(),
                    (Err(reason), Err(first)) if drafter == 0 => *first = reason,
                    (Err(_), _) => {}
                }
            }
        }
        if errors.len() == drafters
            && let Some(error) = errors.pop()
        {
            return Err(error);
        }
        self.nodes.extend(asks.iter().map(|ask| ask.key).zip(nodes));
        Ok(merged)
    }

    fn taps(&self) -> Vec<Tap> {
        self.drafters.iter().flat_map(|drafter| drafter.taps()).collect()
    }

    fn readers(&self) -> usize {
        self.drafters.iter().map(|drafter| drafter.readers()).sum()
    }

    fn bytes_per_page(&self) -> usize {
        self.drafters.iter().map(|drafter| drafter.bytes_per_page()).sum()
    }

    fn attach(&mut self, cache: &mut KvCache) {
        self.drafters.iter_mut().for_each(|drafter| drafter.attach(cache));
    }

    fn slots_ahead(&self) -> usize {
        self.drafters.iter().map(|drafter| drafter.slots_ahead()).max().unwrap_or(0)
    }

    /// One that fails is passed over.
    fn computed(&mut self, computed: &mut Computed<'_>) -> Result<(), DraftError> {
        let errors = self.drafters.iter_mut().filter_map(|drafter| drafter.computed(computed).err());
        errors.last().map_or(Ok(()), Err)
    }

    /// All take their time, and the best of them brings what is brought.
    fn outlook(&self, round: &Round<'_>, asks: usize, ask: &Ask<'_>) -> Outlook {
        let parts = self.drafters.iter().map(|drafter| drafter.outlook(round, asks, ask));
        let nothing = Outlook { seconds: 0.0, reading: 0.0, gain: 0.0 };
        parts.fold(nothing, |sum, part| Outlook {
            seconds: sum.seconds + part.seconds,
            reading: sum.reading + part.reading,
            gain: sum.gain.max(part.gain),
        })
    }

    fn judged(&mut self, key: Key, verdict: &Verdict<'_>) {
        let Some(nodes) = self.nodes.get(&key) else { return };
        for (drafter, nodes) in self.drafters.iter_mut().zip(nodes) {
            if let Some(nodes) = nodes {
                tell(drafter.as_mut(), nodes, key, verdict);
            }
        }
    }

    fn heard(&mut self, key: Key, says: &[(usize, u32)]) {
        let Some(nodes) = self.nodes.get(&key) else { return };
        for (drafter, nodes) in self.drafters.iter_mut().zip(nodes) {
            let own = |node| nodes.as_ref()?.iter().position(|&own| own == node);
            let says: Vec<(usize, u32)> = says.iter().filter_map(|&(node, token)| Some((own(node)?, token))).collect();
            if !says.is_empty() {
                drafter.heard(key, &says);
            }
        }
    }

    fn finished(&mut self, key: Key, tokens: &[u32], prompt: usize) {
        self.nodes.remove(&key);
        self.drafters.iter_mut().for_each(|drafter| drafter.finished(key, tokens, prompt));
    }
}

/// Tells a drafter what became of its part of the tree, whose `nodes` are its own, as if nothing else had been checked.
fn tell(drafter: &mut dyn Drafter, nodes: &[usize], key: Key, verdict: &Verdict<'_>) {
    let own: HashMap<usize, usize> = nodes.iter().enumerate().map(|(own, &node)| (node, own)).collect();
    let own: Vec<Option<usize>> = verdict.proposed.iter().map(|node| own.get(node).copied()).collect();
    // With a node its own parents were proposed, and with one that was checked its parents were checked.
    let Ok((tree, was)) = verdict.tree.keep(&own.iter().map(Option::is_some).collect::<Vec<_>>()) else { return };
    if tree.drafts() == 0 {
        return;
    }
    let mut now = vec![None; verdict.tree.len()];
    was.iter().enumerate().for_each(|(new, &old)| now[old] = Some(new));
    let Accepted { path: all, next } = verdict.accepted;
    let path: Vec<usize> = all.iter().map_while(|&node| now[node]).collect();
    // Where others knew how to go on, the target said their token.
    let next = all.get(path.len()).map_or(*next, |&node| Some(verdict.tree.tokens()[node]));
    let proposed: Vec<usize> = was.iter().filter_map(|&node| own[node]).collect();
    drafter.judged(key, &Verdict { tree: &tree, proposed: &proposed, accepted: &Accepted { path, next } });
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use proptest::prelude::*;
    use spec::{Opinion, Tree};

    use super::*;

    const KEY: Key = Key { request: 1, choice: 0 };

    type Opinions = Vec<(usize, usize, bool)>;

    /// Proposes a tree, and writes down what it hears of it.
    #[derive(Clone)]
    struct Script {
        says: Result<Tree, Silence>,
        heard: Arc<Mutex<Vec<Opinions>>>,
        fails: bool,
    }

    impl Script {
        fn new(says: Result<Tree, Silence>) -> Script {
            Script { says, heard: Arc::default(), fails: false }
        }
    }

    fn opinions(verdict: &Verdict<'_>) -> Opinions {
        let mut opinions: Opinions = (verdict.accepted.opinions(verdict.tree))
            .map(|Opinion { node, depth, stands }| (verdict.proposed[node], depth, stands))
            .collect();
        opinions.sort_unstable();
        opinions
    }

    impl Drafter for Script {
        fn name(&self) -> &'static str {
            "script"
        }

        fn propose(
            &mut self,
            _: &mut Round<'_>,
            asks: &[Ask<'_>],
        ) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
            if self.fails {
                return Err(DraftError { drafter: "script", message: "it is lost".into() });
            }
            Ok(asks.iter().map(|_| self.says.clone().map(Proposal::from)).collect())
        }

        fn judged(&mut self, _: Key, verdict: &Verdict<'_>) {
            self.heard.lock().unwrap().push(opinions(verdict));
        }

        fn finished(&mut self, _: Key, _: &[u32], _: usize) {}
    }

    fn propose(merged: &mut Merged) -> Result<Result<Proposal, Silence>, DraftError> {
        let ask = Ask { key: KEY, ..crate::alone::ask(&[9]) };
        let mut lent = crate::alone::Lent::new();
        let mut round = lent.round(1.0, 0.1);
        merged.propose(&mut round, &[ask]).map(|mut answers| answers.remove(0))
    }

    fn merged(scripts: &[Script]) -> Merged {
        Merged::new(scripts.iter().map(|script| Box::new(script.clone()) as Box<dyn Drafter>).collect())
    }

    fn chain(tokens: &[u32]) -> Tree {
        Tree::chain(9, tokens, &vec![0.5; tokens.len()]).unwrap()
    }

    /// What a step makes of a tree when the text goes on with `text`.
    fn judge(tree: &Tree, text: &[u32]) -> Accepted {
        let sample = |node: usize| Ok::<_, Infallible>(text.get(tree.depths()[node] as usize).copied());
        let Ok(accepted) = spec::keyed(tree, sample);
        accepted
    }

    #[test]
    fn equal_beginnings_are_one_path_and_each_hears_of_its_own() {
        let scripts = [chain(&[1, 2, 3]), chain(&[1, 5]), chain(&[4])].map(|tree| Script::new(Ok(tree)));
        let mut merged = merged(&scripts);
        let proposal = propose(&mut merged).unwrap().unwrap();
        let tree = proposal.tree();
        assert_eq!((tree.tokens(), tree.depths()), (&[9, 1, 2, 3, 5, 4][..], &[0, 1, 2, 3, 2, 1][..]));
        let accepted = judge(tree, &[1, 5, 7]);
        merged.judged(KEY, &Verdict { tree, proposed: &[0, 1, 2, 3, 4, 5], accepted: &accepted });
        let heard = scripts.map(|script| script.heard.lock().unwrap().remove(0));
        assert_eq!(heard[0], [(1, 1, true), (2, 2, false)]);
        assert_eq!(heard[1], [(1, 1, true), (2, 2, true)]);
        assert_eq!(heard[2], [(1, 1, false)]);
        merged.finished(KEY, &[9], 1);
        assert!(merged.nodes.is_empty());
    }

    #[test]
    fn who_fails_or_is_silent_is_passed_over() {
        let ill = Script { fails: true, ..Script::new(Ok(chain(&[7]))) };
        let silent = |reason| Script::new(Err(reason));
        let some = [ill.clone(), silent(Silence::Context), Script::new(Ok(chain(&[1])))];
        assert_eq!(propose(&mut merged(&some)).unwrap().unwrap().tree().tokens(), [9, 1]);
        let none = [silent(Silence::Context), silent(Silence::NoMatch)];
        assert_eq!(propose(&mut merged(&none)).unwrap(), Err(Silence::Context));
        let error = propose(&mut merged(&[ill.clone(), ill])).unwrap_err();
        assert_eq!(error.to_string(), "the drafter script failed: it is lost");
    }

    #[test]
    fn who_has_probes_hears_what_was_said_there() {
        /// Wants to hear what the target says after one token, and writes it down.
        struct Listener(u32, Arc<Mutex<Vec<(usize, u32)>>>);
        impl Drafter for Listener {
            fn name(&self) -> &'static str {
                "listener"
            }
            fn propose(
                &mut self,
                _: &mut Round<'_>,
                _: &[Ask<'_>],
            ) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
                let mut proposal = Proposal::new(9);
                proposal.add_probe(0, self.0, 0.5, true).unwrap();
                Ok(vec![Ok(proposal)])
            }
            fn heard(&mut self, _: Key, says: &[(usize, u32)]) {
                self.1.lock().unwrap().extend(says);
            }
            fn finished(&mut self, _: Key, _: &[u32], _: usize) {}
        }
        let heard = [(); 2].map(|()| Arc::<Mutex<Vec<(usize, u32)>>>::default());
        let listener = |token, heard: &Arc<_>| Box::new(Listener(token, Arc::clone(heard))) as Box<dyn Drafter>;
        let chain = Box::new(Script::new(Ok(chain(&[1, 2]))));
        let mut merged = Merged::new(vec![chain, listener(1, &heard[0]), listener(4, &heard[1])]);
        let proposal = propose(&mut merged).unwrap().unwrap();
        assert_eq!([1, 2, 3].map(|node| proposal.is_heard(node)), [true, false, true]);
        merged.heard(KEY, &[(1, 70), (3, 80)]);
        assert_eq!(heard.map(|heard| heard.lock().unwrap().clone()), [vec![(1, 70)], vec![(1, 80)]], "its own node");
    }

    fn trees() -> impl Strategy<Value = Tree> {
        let nodes = prop::collection::vec((any::<prop::sample::Index>(), 0u32..3), 1..10);
        nodes.prop_map(|nodes| {
            let mut tree = Tree::new(9);
            for (parent, token) in nodes {
                tree.add(parent.index(tree.len()), token, 0.5).unwrap();
            }
            tree
        })
    }

    proptest! {
        #[test]
        fn a_drafter_hears_what_it_would_hear_alone(
            trees in prop::collection::vec(trees(), 1..4),
            text in prop::collection::vec(0u32..3, 0..6),
            flags in prop::collection::vec(any::<bool>(), 40),
        ) {
            let scripts: Vec<Script> = trees.iter().map(|tree| Script::new(Ok(tree.clone()))).collect();
            let mut merged = merged(&scripts);
            let proposal = propose(&mut merged).unwrap().unwrap();
            let whole = proposal.tree();
            // Any part of it may be checked.
            let mut kept = vec![true];
            for (node, flag) in flags.iter().enumerate().take(whole.len()).skip(1) {
                kept.push(*flag && whole.parent(node).is_some_and(|parent| kept[parent]));
            }
            let (checked, proposed) = whole.keep(&kept).unwrap();
            merged.judged(KEY, &Verdict { tree: &checked, proposed: &proposed, accepted: &judge(&checked, &text) });
            let path = |tree: &Tree, node| -> Vec<u32> { tree.path(node).iter().map(|&node| tree.tokens()[node]).collect() };
            let all: Vec<Vec<u32>> = (0..checked.len()).map(|node| path(&checked, node)).collect();
            for (script, own) in scripts.iter().zip(&trees) {
                let kept: Vec<bool> = (0..own.len()).map(|node| all.contains(&path(own, node))).collect();
                let (tree, proposed) = own.keep(&kept).unwrap();
                let alone = opinions(&Verdict { tree: &tree, proposed: &proposed, accepted: &judge(&tree, &text) });
                let heard = script.heard.lock().unwrap().pop();
                prop_assert_eq!(heard, (tree.drafts() > 0).then_some(alone));
            }
        }
    }
}
