//! A text that knows where each of its tokens stood before: what suffix decoding counts in.
//!
//! It answers what a suffix tree of limited depth answers (how often did these tokens stand here, and what followed),
//! exactly, but with three numbers a token: the places are found by following a token's earlier places, not by branches.
//! So the oldest document can be forgotten without a trace.

use std::collections::{HashMap, VecDeque};

/// Stands between documents. No token: vocabularies are far smaller.
const END: u32 = u32::MAX;

/// No earlier place.
const NOWHERE: u64 = u64::MAX;

/// Places that are looked at for one question at most, the latest first: bounds its time where a token is frequent.
const MAX_PLACES: usize = 256;

/// Documents of tokens, the oldest first. Places count from the first token ever pushed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Occurrences {
    tokens: VecDeque<u32>,
    /// For each token, where it stood last before.
    earlier: VecDeque<u64>,
    /// The place of the first token that is still there.
    start: u64,
    /// Where each token stood last.
    latest: HashMap<u32, u64>,
    /// Where each complete document ends, its END included.
    ends: VecDeque<u64>,
}

/// A place whose tokens match the end of the text that was asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    /// Where what follows begins.
    next: u64,
    /// Tokens that match before it.
    len: usize,
}

/// How far [`Occurrences::continuation`] goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Reach {
    /// Tokens of the pattern that are compared at most.
    pub(crate) max_match: usize,
    /// Drafts at most.
    pub(crate) max_drafts: usize,
    /// Drafts at most for each matching token.
    pub(crate) drafts_per_match: f64,
    /// A draft that is said less often than this, given the match, ends the path.
    pub(crate) min_probability: f64,
}

/// What usually follows.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Continuation {
    /// Tokens, and how sure each is once those before it are right.
    pub(crate) drafts: Vec<(u32, f64)>,
    /// Drafts that are expected to be right.
    pub(crate) score: f64,
}

impl Occurrences {
    /// Tokens in it, ends of documents included.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Adds a token to the document that is being written.
    pub(crate) fn push(&mut self, token: u32) {
        let place = self.start + self.tokens.len() as u64;
        let earlier = if token == END { NOWHERE } else { self.latest.insert(token, place).unwrap_or(NOWHERE) };
        self.tokens.push_back(token);
        self.earlier.push_back(earlier);
    }

    /// Ends the document that is being written: nothing matches or continues beyond it.
    pub(crate) fn end_document(&mut self) {
        self.push(END);
        self.ends.push_back(self.start + self.tokens.len() as u64);
    }

    /// Removes the oldest complete document.
    pub(crate) fn forget_oldest(&mut self) {
        let Some(end) = self.ends.pop_front() else { return };
        let gone = self.tokens.drain(..(end - self.start) as usize).collect::<Vec<_>>();
        self.earlier.drain(..gone.len());
        self.start = end;
        for token in gone {
            if self.latest.get(&token).is_some_and(|&place| place < end) {
                self.latest.remove(&token);
            }
        }
    }

    fn token(&self, place: u64) -> Option<u32> {
        let index = usize::try_from(place.checked_sub(self.start)?).ok()?;
        self.tokens.get(index).copied().filter(|&token| token != END)
    }

    /// Where the last token of `pattern` stands and something follows it, the latest first.
    fn places(&self, pattern: &[u32], max_match: usize) -> Vec<Place> {
        let latest = pattern.last().and_then(|token| self.latest.get(token)).copied();
        // A place before the start is of a document that was forgotten.
        let known = |place: u64| (place != NOWHERE && place >= self.start).then_some(place);
        let earlier = |&place: &u64| known(self.earlier.get((place - self.start) as usize).copied()?);
        let chain = std::iter::successors(latest.and_then(known), earlier);
        let place = |place: u64| {
            let before = (0..max_match).map_while(|i| self.token(place.checked_sub(i as u64)?));
            let len = before.zip(pattern.iter().rev()).take_while(|(a, b)| a == *b).count();
            Place { next: place + 1, len }
        };
        chain.take(MAX_PLACES).filter(|&place| self.token(place + 1).is_some()).map(place).collect()
    }

    /// What usually follows the end of `pattern`, judged by the places that match it: for every length of match the path
    /// of the commonest next tokens, of which the one with the best score counts (SuffixDecoding, Oliaro et al. 2024).
    pub(crate) fn continuation(&self, pattern: &[u32], reach: Reach) -> Continuation {
        let mut places = self.places(pattern, reach.max_match);
        places.sort_by_key(|place| std::cmp::Reverse(place.len));
        let mut best = Continuation::default();
        let mut end = 0;
        while let Some(&Place { len, .. }) = places.get(end) {
            end += places[end..].iter().take_while(|place| place.len == len).count();
            let found = self.path(&places[..end], len, reach);
            if found.score > best.score {
                best = found;
            }
        }
        best
    }

    /// The path of the commonest next tokens from `places`, which match `len` tokens and more.
    fn path(&self, places: &[Place], len: usize, reach: Reach) -> Continuation {
        let limit = ((len as f64 * reach.drafts_per_match) as usize).clamp(1, reach.max_drafts.max(1));
        let mut here: Vec<u64> = places.iter().map(|place| place.next).collect();
        let mut found = Continuation::default();
        let mut survival = 1.0;
        while found.drafts.len() < limit {
            let all = here.len();
            let Some((token, count)) = self.commonest(&here) else { break };
            // As seen in `all` places; that there are no others is the surer, the more tokens match.
            let confidence = count as f64 / (all as f64 + 1.0 / (len + found.drafts.len()) as f64);
            survival *= confidence;
            if survival < reach.min_probability {
                break;
            }
            found.drafts.push((token, confidence));
            found.score += survival;
            here.retain_mut(|place| {
                let stays = self.token(*place) == Some(token);
                *place += 1;
                stays
            });
        }
        found
    }

    /// The token that stands at most of `places`, the lowest if several do, and at how many.
    fn commonest(&self, places: &[u64]) -> Option<(u32, usize)> {
        let mut tokens: Vec<u32> = places.iter().filter_map(|&place| self.token(place)).collect();
        tokens.sort_unstable();
        tokens.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).rev().max_by_key(|&(_, count)| count)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FAR: Reach = Reach { max_match: 24, max_drafts: 24, drafts_per_match: 24.0, min_probability: 0.0 };

    fn written(documents: &[Vec<u32>]) -> Occurrences {
        let mut text = Occurrences::default();
        for document in documents {
            document.iter().for_each(|&token| text.push(token));
            text.end_document();
        }
        text
    }

    /// How often each token follows `pattern`, by looking everywhere.
    fn brute_force(documents: &[Vec<u32>], pattern: &[u32]) -> Vec<(u32, usize)> {
        let mut counts = std::collections::BTreeMap::new();
        for document in documents {
            for window in document.windows(pattern.len() + 1).filter(|window| window.starts_with(pattern)) {
                *counts.entry(window[pattern.len()]).or_insert(0) += 1;
            }
        }
        counts.into_iter().collect()
    }

    #[test]
    fn the_commonest_path_is_followed() {
        let text = written(&[vec![1, 2, 3, 4, 5], vec![1, 2, 3, 4, 6], vec![9, 2, 3, 8]]);
        let found = text.continuation(&[7, 1, 2], Reach { max_drafts: 3, ..FAR });
        assert_eq!(found.drafts.iter().map(|draft| draft.0).collect::<Vec<_>>(), [3, 4, 5]);
        assert!(found.drafts[1].1 > found.drafts[2].1, "two of two, then one of two");
        assert!(text.continuation(&[5], FAR).drafts.is_empty(), "nothing follows a document's end");
        assert!(text.continuation(&[77], FAR).drafts.is_empty());
        assert!(text.continuation(&[], FAR).drafts.is_empty());
    }

    #[test]
    fn few_matching_tokens_give_few_drafts() {
        let text = written(&[(0..40).collect()]);
        let reach = Reach { drafts_per_match: 1.0, ..FAR };
        assert_eq!(text.continuation(&[99, 3], reach).drafts.len(), 1);
        assert_eq!(text.continuation(&[1, 2, 3], reach).drafts.len(), 3);
    }

    proptest! {
        #[test]
        fn counts_are_those_of_brute_force_and_forgetting_leaves_no_trace(
            documents in prop::collection::vec(prop::collection::vec(0u32..4, 0..12), 1..8),
            pattern in prop::collection::vec(0u32..4, 1..5),
            forgotten in 0usize..4,
        ) {
            let forgotten = forgotten.min(documents.len());
            let mut text = written(&documents);
            (0..forgotten).for_each(|_| text.forget_oldest());
            let left = &documents[forgotten..];
            prop_assert_eq!(text.ends.len(), left.len());
            for len in 1..=pattern.len() {
                let pattern = &pattern[pattern.len() - len..];
                let places = text.places(pattern, len);
                let mut next: Vec<u32> = places.iter().filter(|place| place.len == len).map(|place| text.token(place.next).unwrap()).collect();
                next.sort_unstable();
                let counts: Vec<(u32, usize)> = next.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect();
                prop_assert_eq!(counts, brute_force(left, pattern));
            }
            prop_assert_eq!(text.continuation(&pattern, FAR), written(left).continuation(&pattern, FAR));
            (0..left.len()).for_each(|_| text.forget_oldest());
            prop_assert!(text.len() == 0 && text.latest.is_empty());
        }
    }
}
