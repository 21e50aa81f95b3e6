//! The tokens that a row's logits are judged against.

use std::collections::HashMap;

/// All tokens of a request, prompt first, and how often each occurs, kept up token by token.
///
/// Speculation pushes its drafts to process row j as if drafts 1..j−1 had been committed, and truncates afterwards.
#[derive(Debug, Clone, Default)]
pub struct History {
    tokens: Vec<u32>,
    prompt_len: usize,
    counts: HashMap<u32, Count>,
}

/// Occurrences of one token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) in_prompt: bool,
    pub(crate) outputs: u32,
}

impl History {
    /// The history of a request that has its prompt and no output yet.
    pub fn new(prompt: &[u32]) -> Self {
        let counts = prompt.iter().map(|&token| (token, Count { in_prompt: true, outputs: 0 })).collect();
        Self { tokens: prompt.to_vec(), prompt_len: prompt.len(), counts }
    }

    /// Prompt and output, each token at its absolute position.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The output tokens so far, in order.
    pub fn outputs(&self) -> &[u32] {
        &self.tokens[self.prompt_len..]
    }

    /// Appends an output token.
    pub fn push(&mut self, token: u32) {
        self.tokens.push(token);
        self.counts.entry(token).or_default().outputs += 1;
    }

    /// Takes back the newest output tokens until `outputs` are left. Does nothing if there are no more than that.
    pub fn truncate(&mut self, outputs: usize) {
        let len = self.tokens.len().min(self.prompt_len + outputs);
        for token in self.tokens.drain(len..) {
            if let Some(count) = self.counts.get_mut(&token) {
                count.outputs -= 1;
                if *count == Count::default() {
                    self.counts.remove(&token);
                }
            }
        }
    }

    /// Each token that is in the prompt or the output, once, in no particular order.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (u32, Count)> {
        self.counts.iter().map(|(&token, &count)| (token, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn counts_equal_those_of_a_recount(
            prompt in prop::collection::vec(0u32..8, 0..12),
            kept in prop::collection::vec(0u32..8, 0..12),
            drafts in prop::collection::vec(0u32..8, 0..12),
        ) {
            let mut history = History::new(&prompt);
            kept.iter().chain(&drafts).for_each(|&token| history.push(token));
            history.truncate(kept.len());
            prop_assert_eq!(history.outputs(), &kept[..]);
            prop_assert_eq!(history.tokens(), [&prompt[..], &kept[..]].concat());
            let mut counts: Vec<_> = history.counts().collect();
            counts.sort_unstable_by_key(|&(token, _)| token);
            let recount: Vec<_> = (0u32..8)
                .map(|token| {
                    let outputs = kept.iter().filter(|&&t| t == token).count() as u32;
                    (token, Count { in_prompt: prompt.contains(&token), outputs })
                })
                .filter(|&(_, count)| count != Count::default())
                .collect();
            prop_assert_eq!(counts, recount);
        }
    }
}
