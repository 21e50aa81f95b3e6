//! Suffix decoding: what followed the longest earlier matches, in this request and in past answers, weighed by how often
//! (SuffixDecoding, Oliaro et al. 2024, arXiv 2411.04975).

use std::collections::HashMap;

use spec::Proposal;

use crate::occurrences::{Continuation, Occurrences, Reach};
use crate::{Ask, DraftError, Drafter, Key, Round, Silence, chain};

/// How far suffix decoding looks and what it keeps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SuffixOptions {
    /// Tokens that are compared at most, and drafted at most.
    pub depth: usize,
    /// Drafts at most for each matching token.
    pub drafts_per_match: f64,
    /// A path that is likely to be right no further than this ends.
    pub min_probability: f64,
    /// Tokens of past answers that are kept at most (12 bytes each); the oldest answers go first. 0: none.
    pub past_tokens: usize,
}

impl Default for SuffixOptions {
    fn default() -> Self {
        Self { depth: 24, drafts_per_match: 1.0, min_probability: 0.1, past_tokens: 1 << 20 }
    }
}

/// Drafts what usually followed. Keeps an index of each running request, and one of past answers.
#[derive(Debug, Default)]
pub struct Suffix {
    options: SuffixOptions,
    running: HashMap<Key, Occurrences>,
    past: Occurrences,
}

impl Suffix {
    /// Nothing seen yet.
    pub fn new(options: SuffixOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// The request's own text decides unless past answers know better.
    fn draft(&mut self, ask: &Ask<'_>) -> Result<Proposal, Silence> {
        let text = self.running.entry(ask.key).or_default();
        let known = text.len().min(ask.tokens.len());
        ask.tokens[known..].iter().for_each(|&token| text.push(token));
        let SuffixOptions { depth, drafts_per_match, min_probability, .. } = self.options;
        let max_drafts = depth.min(ask.max_drafts);
        let reach = Reach { max_match: depth, max_drafts, drafts_per_match, min_probability };
        let own = text.continuation(ask.tokens, reach);
        let past = self.past.continuation(ask.tokens, reach);
        let Continuation { drafts, .. } = if past.score > own.score { past } else { own };
        chain(ask.anchor(), drafts)
    }
}

impl Drafter for Suffix {
    fn name(&self) -> &'static str {
        "suffix"
    }

    fn propose(&mut self, _: &mut Round<'_>, asks: &[Ask<'_>]) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
        Ok(asks.iter().map(|ask| self.draft(ask)).collect())
    }

    fn finished(&mut self, key: Key, tokens: &[u32], prompt: usize) {
        self.running.remove(&key);
        let outputs = tokens.get(prompt..).unwrap_or_default();
        // One more for the end of the document.
        if outputs.is_empty() || outputs.len() >= self.options.past_tokens {
            return;
        }
        while self.past.len() + outputs.len() + 1 > self.options.past_tokens {
            self.past.forget_oldest();
        }
        outputs.iter().for_each(|&token| self.past.push(token));
        self.past.end_document();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alone::ask;

    const KEY: Key = Key { request: 3, choice: 0 };

    fn drafts(suffix: &mut Suffix, tokens: &[u32]) -> Vec<u32> {
        let ask = Ask { key: KEY, ..ask(tokens) };
        suffix.draft(&ask).map_or(Vec::new(), |proposal| proposal.tree().tokens()[1..].to_vec())
    }

    #[test]
    fn a_request_that_grows_is_as_one_that_is_new() {
        let text: Vec<u32> = (0..60).map(|i| i * i % 7).collect();
        let mut growing = Suffix::default();
        for len in 1..text.len() {
            assert_eq!(drafts(&mut growing, &text[..len]), drafts(&mut Suffix::default(), &text[..len]), "at {len}");
        }
    }

    #[test]
    fn past_answers_are_drafted_from_until_they_are_forgotten() {
        let mut suffix = Suffix::new(SuffixOptions { past_tokens: 12, ..SuffixOptions::default() });
        suffix.finished(KEY, &[50, 1, 2, 3, 4, 5], 1);
        assert_eq!(drafts(&mut suffix, &[9, 1, 2]), [3, 4], "two match, two are drafted");
        suffix.finished(KEY, &[50, 6, 7, 8], 1);
        assert_eq!(drafts(&mut suffix, &[9, 1, 2]), [3, 4]);
        suffix.finished(KEY, &[50, 6, 7, 8], 1);
        assert!(drafts(&mut suffix, &[9, 1, 2]).is_empty(), "14 tokens are more than 12");
        assert_eq!(drafts(&mut suffix, &[6, 7]), [8]);
        suffix.finished(KEY, &[0; 100], 1);
        assert_eq!(drafts(&mut suffix, &[6, 7]), [8], "an answer that does not fit is not kept");
    }

    #[test]
    fn a_finished_request_leaves_nothing_of_its_own() {
        let mut suffix = Suffix::new(SuffixOptions { past_tokens: 0, ..SuffixOptions::default() });
        drafts(&mut suffix, &[1, 2, 3]);
        suffix.finished(KEY, &[1, 2, 3], 1);
        assert!(suffix.running.is_empty() && suffix.past.len() == 0);
    }
}
