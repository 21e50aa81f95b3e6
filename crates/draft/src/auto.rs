//! `auto`: for each request and step the proposal that is expected to help most, of several drafters'.

use std::collections::HashMap;

use spec::{OnlineCalibration, Proposal};

use crate::{Ask, DraftError, Drafter, Key, Opinion, Round, Silence, Verdict};

/// Drafts on a path of which acceptance is learnt by position; deeper ones share the last's.
const POSITIONS: usize = 16;

/// Drafts that count in what all requests have taught of a drafter.
const MEMORY: usize = 2000;

/// Drafts that count in what one request has.
const MEMORY_OF_A_REQUEST: usize = 40;

/// Lets several drafters propose and takes, for each request, the proposal of which most drafts are expected to stand.
///
/// What drafters say of themselves is not believed: it is corrected by what became of their drafts, in all requests and
/// in this one. So the choice follows the text, from quotation to free prose and back.
pub struct Auto {
    drafters: Vec<Rated>,
    /// Who made the proposal of a request that is being checked, and what it said of each node.
    chosen: HashMap<Key, (usize, Vec<f64>)>,
}

/// A drafter and what its confidences are worth.
struct Rated {
    drafter: Box<dyn Drafter>,
    all: OnlineCalibration,
    /// By request, on top of it.
    own: HashMap<Key, OnlineCalibration>,
}

impl Rated {
    /// The proposal with its confidences corrected, and how many of its drafts are expected to stand.
    fn correct(&self, key: Key, proposal: &Proposal) -> (Proposal, f64) {
        let own = self.own.get(&key);
        let tree = proposal.tree();
        let corrected = proposal.with_confidences(|node| {
            let position = tree.depths()[node] as usize - 1;
            let corrected = self.all.confidence(position, tree.confidences()[node]);
            own.map_or(corrected, |own| own.confidence(position, corrected))
        });
        let expected = corrected.tree().survivals()[1..].iter().sum();
        (corrected, expected)
    }
}

impl Auto {
    /// Chooses among `drafters`.
    pub fn new(drafters: Vec<Box<dyn Drafter>>) -> Self {
        let rated = |drafter| Rated { drafter, all: OnlineCalibration::new(POSITIONS, MEMORY), own: HashMap::new() };
        Self { drafters: drafters.into_iter().map(rated).collect(), chosen: HashMap::new() }
    }
}

impl Drafter for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn propose(&mut self, round: &Round<'_>, asks: &[Ask<'_>]) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
        let mut best: Vec<Option<(Proposal, f64)>> = vec![None; asks.len()];
        for (index, rated) in self.drafters.iter_mut().enumerate() {
            for ((ask, answer), best) in asks.iter().zip(rated.drafter.propose(round, asks)?).zip(&mut best) {
                let Ok(proposal) = answer else { continue };
                let (corrected, expected) = rated.correct(ask.key, &proposal);
                if best.as_ref().is_none_or(|best| expected > best.1) {
                    *best = Some((corrected, expected));
                    self.chosen.insert(ask.key, (index, proposal.tree().confidences().to_vec()));
                }
            }
        }
        Ok(best.into_iter().map(|best| best.map(|(proposal, _)| proposal).ok_or(Silence::NoMatch)).collect())
    }

    fn judged(&mut self, key: Key, verdict: &Verdict<'_>) {
        let Some((index, said)) = self.chosen.get(&key) else { return };
        let rated = &mut self.drafters[*index];
        let own = rated.own.entry(key).or_insert_with(|| OnlineCalibration::new(POSITIONS, MEMORY_OF_A_REQUEST));
        for Opinion { node, depth, stands } in verdict.opinions() {
            let Some(&said) = said.get(node) else { continue };
            own.observe(depth - 1, rated.all.confidence(depth - 1, said), stands);
            rated.all.observe(depth - 1, said, stands);
        }
        rated.drafter.judged(key, verdict);
    }

    fn finished(&mut self, key: Key, tokens: &[u32], prompt: usize) {
        self.chosen.remove(&key);
        for rated in &mut self.drafters {
            rated.own.remove(&key);
            rated.drafter.finished(key, tokens, prompt);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use kernels::Pool;
    use spec::Accepted;

    use super::*;
    use crate::Greedy;

    /// Always proposes the same token, and says that it is sure.
    struct Parrot(u32);

    impl Drafter for Parrot {
        fn name(&self) -> &'static str {
            "parrot"
        }

        fn propose(&mut self, _: &Round<'_>, asks: &[Ask<'_>]) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
            Ok(asks.iter().map(|ask| crate::chain(ask.anchor(), [(self.0, 0.9), (self.0, 0.9)])).collect())
        }

        fn finished(&mut self, _: Key, _: &[u32], _: usize) {}
    }

    /// What is proposed to a request at each step when the text goes `says`.
    fn proposed(auto: &mut Auto, request: u64, says: &[u32]) -> Vec<u32> {
        let key = Key { request, choice: 0 };
        let pool = Pool::new(NonZeroUsize::MIN);
        let step = |&token: &u32| {
            let ask = Ask { key, tokens: &[9], prompt: 1, predicted: &[], max_drafts: 2, choose: &Greedy };
            let proposal = auto.propose(&Round { pool: &pool, step_seconds: 1.0 }, &[ask]).unwrap().remove(0).unwrap();
            let tree = proposal.tree();
            let path = if tree.tokens()[1] == token { vec![1, 2] } else { vec![] };
            let accepted = Accepted { path, next: Some(token) };
            auto.judged(key, &Verdict { tree, proposed: &[0, 1, 2], accepted: &accepted });
            tree.tokens()[1]
        };
        says.iter().map(step).collect()
    }

    #[test]
    fn it_follows_the_text_and_each_request_for_itself() {
        let mut auto = Auto::new(vec![Box::new(Parrot(1)), Box::new(Parrot(2))]);
        let ones = proposed(&mut auto, 0, &[1; 30]);
        assert!(ones.iter().all(|&token| token == 1));
        let changed = proposed(&mut auto, 0, &[2; 60]);
        assert_eq!(changed[0], 1, "nobody knows the future");
        assert!(changed[20..].iter().all(|&token| token == 2), "{changed:?}");
        auto.finished(Key { request: 0, choice: 0 }, &[9], 1);
        assert!(auto.chosen.is_empty() && auto.drafters.iter().all(|rated| rated.own.is_empty()));
    }
}
