//! A drafter that knows what plain decoding says, and is wrong as often as it is told to be: what speculation earns
//! with drafts of a given quality, whoever might make them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use draft::{Ask, DraftError, Drafter, Key, Round, Silence};
use spec::Proposal;

use crate::bench::random::Random;

/// Answers by prompt.
type Answers = HashMap<Vec<u32>, Arc<[u32]>>;

/// Answers of plain decoding. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Truths(Arc<Mutex<Answers>>);

impl Truths {
    pub(crate) fn insert(&self, prompt: &[u32], answer: &[u32]) {
        self.lock().insert(prompt.to_vec(), answer.into());
    }

    fn get(&self, prompt: &[u32]) -> Option<Arc<[u32]>> {
        self.lock().get(prompt).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Answers> {
        // Nothing that panics runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Drafts the true continuation, each token of it with probability `acceptance`, and a wrong one otherwise.
///
/// Whether the draft of a position is right is a function of seed, prompt and position: it is the same whatever else
/// was drafted or checked, so that schedules are compared on the same luck.
pub(crate) struct Oracle {
    pub(crate) truths: Truths,
    pub(crate) acceptance: f64,
    pub(crate) seed: u64,
    /// Tokens of the vocabulary. At least 2.
    pub(crate) vocab: u32,
    known: HashMap<Key, Known>,
}

/// What is known of a request.
struct Known {
    answer: Arc<[u32]>,
    /// Where its luck begins.
    seed: u64,
}

impl Oracle {
    pub(crate) fn new(truths: Truths, acceptance: f64, seed: u64, vocab: u32) -> Self {
        Self { truths, acceptance, seed, vocab, known: HashMap::new() }
    }

    fn draft(&mut self, ask: &Ask<'_>) -> Result<Proposal, Silence> {
        let (prompt, outputs) = ask.tokens.split_at(ask.prompt);
        if !self.known.contains_key(&ask.key) {
            let answer = self.truths.get(prompt).ok_or(Silence::NoMatch)?;
            let mix = |seed: u64, token: &u32| Random::new(seed ^ u64::from(*token)).bits();
            let seed = prompt.iter().fold(self.seed, mix);
            self.known.insert(ask.key, Known { answer, seed });
        }
        let Known { answer, seed } = &self.known[&ask.key];
        let rest = answer.strip_prefix(outputs).ok_or(Silence::NoMatch)?;
        let mut proposal = Proposal::new(ask.anchor());
        for (node, (&token, position)) in rest.iter().take(ask.max_drafts).zip(outputs.len() as u64..).enumerate() {
            let right = Random::new(seed.wrapping_add(position)).unit() <= self.acceptance;
            let token = if right { token } else { (token + 1) % self.vocab };
            // The parent is the node before, and the confidence is a probability: the tree cannot refuse.
            if proposal.add_point(node, token, self.acceptance).is_err() {
                break;
            }
        }
        if proposal.tree().drafts() == 0 { Err(Silence::NoMatch) } else { Ok(proposal) }
    }
}

impl Drafter for Oracle {
    fn name(&self) -> &'static str {
        "synthetic"
    }

    fn propose(&mut self, _: &mut Round<'_>, asks: &[Ask<'_>]) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
        Ok(asks.iter().map(|ask| self.draft(ask)).collect())
    }

    fn finished(&mut self, key: Key, _: &[u32], _: usize) {
        self.known.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use draft::Greedy;

    use super::*;

    const VOCAB: u32 = 50;

    static NOWHERE: kv::Sequence = kv::Sequence::new();

    fn drafts(oracle: &mut Oracle, tokens: &[u32], prompt: usize, max_drafts: usize) -> Result<Vec<u32>, Silence> {
        let key = Key { request: 0, choice: 0 };
        let ask =
            Ask { key, tokens, prompt, predicted: &[], max_drafts, remaining: 64, choose: &Greedy, sequence: &NOWHERE };
        Ok(oracle.draft(&ask)?.tree().tokens()[1..].to_vec())
    }

    fn truth() -> Vec<u32> {
        (0..4000).map(|at| at * 7 % VOCAB).collect()
    }

    fn oracle(acceptance: f64) -> Oracle {
        let truths = Truths::default();
        truths.insert(&[1, 2], &truth());
        Oracle::new(truths, acceptance, 3, VOCAB)
    }

    #[test]
    fn at_1_it_is_always_right_and_at_0_never() {
        let tokens = [&[1, 2][..], &truth()[..3]].concat();
        assert_eq!(drafts(&mut oracle(1.0), &tokens, 2, 4).unwrap(), truth()[3..7]);
        let wrong = drafts(&mut oracle(0.0), &tokens, 2, 4).unwrap();
        assert!(wrong.iter().zip(&truth()[3..]).all(|(draft, truth)| draft != truth && *draft < VOCAB));
    }

    #[test]
    fn a_draft_is_right_as_often_as_asked_and_the_same_from_wherever_it_is_drafted() {
        let mut oracle = oracle(0.8);
        let all = drafts(&mut oracle, &[1, 2, 0], 2, 4000).unwrap();
        let right = all.iter().zip(&truth()[1..]).filter(|(draft, truth)| draft == truth).count();
        // Five standard deviations of 3,999 coins.
        assert!((right as f64 - 0.8 * 3999.0).abs() < 127.0, "{right}");
        let tokens = [&[1, 2][..], &truth()[..9]].concat();
        assert_eq!(drafts(&mut oracle, &tokens, 2, 5).unwrap(), all[8..13]);
    }

    #[test]
    fn it_says_nothing_of_what_it_does_not_know() {
        let mut oracle = oracle(1.0);
        assert_eq!(drafts(&mut oracle, &[1, 2, 49], 2, 4), Err(Silence::NoMatch), "another answer");
        oracle.finished(Key { request: 0, choice: 0 }, &[], 0);
        assert_eq!(drafts(&mut oracle, &[1, 3, 0], 2, 4), Err(Silence::NoMatch), "another prompt");
        let whole = [&[1, 2][..], &truth()].concat();
        assert_eq!(drafts(&mut oracle, &whole, 2, 4), Err(Silence::NoMatch), "the end");
    }
}
