//! Predicted output: the client says what the answer will be, but for a few changes (OpenAI's `prediction`).

use spec::Proposal;

use crate::ngram::{Match, common_suffix};
use crate::{Ask, DraftError, Drafter, Key, Round, Silence, chain};

/// Tokens that are compared at most to find the place in the prediction.
const MAX_MATCH: usize = 16;

/// Copies from the predicted output: from its beginning, and after a change from where the output has come back to it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Predicted;

impl Predicted {
    /// Where the output stands in the prediction: what of it matches the output's end furthest, and of equals what is
    /// nearest to where it would stand without changes.
    fn find(outputs: &[u32], predicted: &[u32]) -> Option<Match> {
        if outputs.is_empty() {
            return Some(Match { next: 0, len: MAX_MATCH });
        }
        let matches = (1..=predicted.len())
            .map(|next| Match { next, len: common_suffix(&predicted[..next], outputs, MAX_MATCH) });
        matches
            .filter(|found| found.len > 0)
            .max_by_key(|found| (found.len, std::cmp::Reverse(found.next.abs_diff(outputs.len()))))
    }

    fn draft(ask: &Ask<'_>) -> Result<Proposal, Silence> {
        let outputs = ask.tokens.get(ask.prompt..).unwrap_or_default();
        let found = Self::find(outputs, ask.predicted).ok_or(Silence::NoMatch)?;
        let drafts = ask.predicted[found.next..].iter().take(ask.max_drafts);
        chain(ask.anchor(), drafts.map(|&token| (token, confidence(found.len))))
    }
}

/// A first guess of how sure a prediction is after `len` tokens that came true: its client should know.
fn confidence(len: usize) -> f64 {
    let len = len as f64;
    (len + 0.5) / (len + 1.5)
}

impl Drafter for Predicted {
    fn name(&self) -> &'static str {
        "predicted"
    }

    fn propose(&mut self, _: &mut Round<'_>, asks: &[Ask<'_>]) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
        Ok(asks.iter().map(Self::draft).collect())
    }

    fn finished(&mut self, _: Key, _: &[u32], _: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Greedy;

    fn drafts(outputs: &[u32], predicted: &[u32], max_drafts: usize) -> Vec<u32> {
        let tokens = [&[99], outputs].concat();
        let ask = Ask {
            key: Key { request: 0, choice: 0 },
            tokens: &tokens,
            prompt: 1,
            predicted,
            max_drafts,
            remaining: 64,
            choose: &Greedy,
            sequence: &crate::alone::NOWHERE,
        };
        Predicted::draft(&ask).map_or(Vec::new(), |proposal| proposal.tree().tokens()[1..].to_vec())
    }

    #[test]
    fn it_begins_at_the_beginning_and_goes_on_where_the_output_stands() {
        let predicted = [1, 2, 3, 4, 5, 6, 7];
        assert_eq!(drafts(&[], &predicted, 3), [1, 2, 3]);
        assert_eq!(drafts(&[1, 2], &predicted, 3), [3, 4, 5]);
        assert_eq!(drafts(&[1, 2, 9, 4], &predicted, 9), [5, 6, 7], "a change of one token");
        assert_eq!(drafts(&[8, 9, 1, 2], &predicted, 2), [3, 4], "an insertion");
        assert!(drafts(&[1, 9], &predicted, 9).is_empty(), "lost");
        assert!(drafts(&[6, 7], &predicted, 9).is_empty(), "at its end");
        assert!(drafts(&[], &[], 9).is_empty(), "nothing predicted");
    }

    #[test]
    fn of_equal_places_the_nearest_is_taken() {
        assert_eq!(drafts(&[5, 1], &[1, 2, 1, 3, 1, 4], 1), [3], "between the second and the third");
        assert_eq!(drafts(&[1, 3, 1], &[1, 2, 1, 3, 1, 4], 1), [4]);
    }
}
