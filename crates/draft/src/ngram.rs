//! Prompt lookup: what followed the last few tokens when they stood in the text before (Saxena 2023; vLLM's `ngram`).

use spec::Proposal;

use crate::{Ask, DraftError, Drafter, Key, Round, Silence, chain};

/// Which of several places that match equally far is copied from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Occurrence {
    /// The earliest in the text, as vLLM and prompt lookup have it.
    First,
    /// The one nearest to the end: what was said last is the likeliest to be said again.
    #[default]
    Last,
}

/// How far prompt lookup looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NgramOptions {
    /// Tokens that must match at least. At least 1.
    pub min: usize,
    /// Tokens that are compared at most: places that match further are equals. At least `min`.
    pub max: usize,
    /// Tokens to copy at most.
    pub drafts: usize,
    /// Which of equals.
    pub occurrence: Occurrence,
}

impl Default for NgramOptions {
    fn default() -> Self {
        Self { min: 1, max: 4, drafts: 10, occurrence: Occurrence::Last }
    }
}

/// Copies what followed the longest earlier match of the last tokens. Keeps nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ngram(pub NgramOptions);

/// A place in a text whose tokens match the text's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Match {
    /// Where what follows begins.
    pub(crate) next: usize,
    /// Tokens that match before it.
    pub(crate) len: usize,
}

impl Ngram {
    /// The longest match of the last tokens of `text` before its end.
    fn find(&self, text: &[u32]) -> Option<Match> {
        let NgramOptions { min, max, occurrence, .. } = self.0;
        let mut best: Option<Match> = None;
        for next in 1..text.len() {
            let len = common_suffix(&text[..next], text, max);
            let better = match (best, occurrence) {
                (None, _) => true,
                (Some(best), Occurrence::First) => len > best.len,
                (Some(best), Occurrence::Last) => len >= best.len,
            };
            if len >= min.max(1) && better {
                best = Some(Match { next, len });
                if len == max && occurrence == Occurrence::First {
                    break;
                }
            }
        }
        best
    }

    fn draft(&self, ask: &Ask<'_>) -> Result<Proposal, Silence> {
        let found = self.find(ask.tokens).ok_or(Silence::NoMatch)?;
        let drafts = &ask.tokens[found.next..];
        let take = drafts.len().min(self.0.drafts).min(ask.max_drafts);
        chain(ask.anchor(), (found.len..).zip(&drafts[..take]).map(|(len, &token)| (token, confidence(len))))
    }
}

impl Drafter for Ngram {
    fn name(&self) -> &'static str {
        "ngram"
    }

    fn propose(&mut self, _: &mut Round<'_>, asks: &[Ask<'_>]) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
        Ok(asks.iter().map(|ask| self.draft(ask)).collect())
    }

    fn finished(&mut self, _: Key, _: &[u32], _: usize) {}
}

/// Tokens that two texts have in common at their ends, `max` at most.
pub(crate) fn common_suffix(a: &[u32], b: &[u32], max: usize) -> usize {
    a.iter().rev().zip(b.iter().rev()).take(max).take_while(|(a, b)| a == b).count()
}

/// A first guess of how sure a copy is after `len` matching tokens, those that were copied before it among them; calibration
/// makes it true. SmolLM2-135M's answers to everyday questions: 0.27, 0.51, 0.6 and 0.75 after 1 to 4, 0.9 after 8.
pub(crate) fn confidence(len: usize) -> f64 {
    let power = (len as f64).powf(1.5);
    power / (power + 2.5)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Greedy;

    fn drafts(tokens: &[u32], options: NgramOptions) -> Vec<u32> {
        let key = Key { request: 0, choice: 0 };
        let ask = Ask {
            key,
            tokens,
            prompt: tokens.len(),
            predicted: &[],
            max_drafts: 100,
            remaining: 100,
            choose: &Greedy,
            sequence: &crate::alone::NOWHERE,
        };
        let proposal = Ngram(options).draft(&ask);
        proposal.map_or(Vec::new(), |proposal| proposal.tree().tokens()[1..].to_vec())
    }

    #[test]
    fn goldens_of_vllm() {
        let options = |min, max, drafts| NgramOptions { min, max, drafts, occurrence: Occurrence::First };
        assert_eq!(drafts(&[1, 2, 3, 4, 2, 3], options(2, 3, 4)), [4, 2, 3]);
        assert_eq!(drafts(&[1, 2, 3, 1, 2, 3, 1, 2], options(1, 3, 5)), [3, 1, 2]);
        assert!(drafts(&[1, 2, 3, 4], options(1, 3, 5)).is_empty());
        assert!(drafts(&[1, 2, 3, 4, 3], options(2, 3, 5)).is_empty(), "shorter than the least match");
    }

    #[test]
    fn of_equal_matches_the_first_or_the_last_is_copied() {
        let text = [7, 1, 5, 7, 2, 5, 7];
        let options = |occurrence| NgramOptions { min: 1, max: 1, drafts: 2, occurrence };
        assert_eq!(drafts(&text, options(Occurrence::First)), [1, 5]);
        assert_eq!(drafts(&text, options(Occurrence::Last)), [2, 5]);
    }

    #[test]
    fn no_more_is_drafted_than_may_be_said() {
        let tokens = [1, 2, 3, 4, 5, 1];
        let ask = Ask {
            key: Key { request: 0, choice: 0 },
            tokens: &tokens,
            prompt: 6,
            predicted: &[],
            max_drafts: 2,
            remaining: 64,
            choose: &Greedy,
            sequence: &crate::alone::NOWHERE,
        };
        assert_eq!(Ngram::default().draft(&ask).unwrap().tree().tokens(), [1, 2, 3]);
    }

    /// The longest n from `max` down to `min`, and for it the first or last place, by trying all.
    fn brute_force(text: &[u32], options: NgramOptions) -> Option<Match> {
        (options.min..=options.max.min(text.len().saturating_sub(1))).rev().find_map(|len| {
            let pattern = &text[text.len() - len..];
            let mut places = (len..text.len()).filter(|&next| &text[next - len..next] == pattern);
            let next = match options.occurrence {
                Occurrence::First => places.next(),
                Occurrence::Last => places.next_back(),
            };
            next.map(|next| Match { next, len })
        })
    }

    proptest! {
        #[test]
        fn the_match_is_that_of_brute_force(
            text in prop::collection::vec(0u32..3, 1..60),
            min in 1usize..4,
            more in 0usize..4,
            last: bool,
        ) {
            let occurrence = if last { Occurrence::Last } else { Occurrence::First };
            let options = NgramOptions { min, max: min + more, drafts: 5, occurrence };
            prop_assert_eq!(Ngram(options).find(&text), brute_force(&text, options));
        }
    }
}
