//! Asking a drafter along texts that the target has written, to learn what its drafts are worth before anybody is served.
//!
//! The target computes each text once; a drafter then sees it position by position, as it would while it is written. What
//! follows from the answers is the caller's business.

use kernels::Pool;
use kv::{KvCache, Sequence};
use model::{ForwardError, Logits, Segment, Tap, Visibility, Workspace};
use spec::{Expansion, Proposal};

use crate::{Ask, Choose, Chosen, Computed, DraftError, Drafter, Greedy, Key, Round, Target, Unread, Words};

/// A text that the target has written, and its hidden states there.
pub struct Text {
    /// What was given and what the target said then, greedily.
    tokens: Vec<u32>,
    /// Tokens that were given.
    given: usize,
    /// For each tap the hidden states at all tokens but the last, `[tokens - 1, hidden]`.
    states: Vec<(Tap, Vec<f32>)>,
}

/// A text that cannot be written or followed.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// The target cannot compute it.
    #[error("the target cannot write a text: {0}")]
    Forward(#[from] ForwardError),
    /// There is no room for its keys and values.
    #[error("no room for the keys and values of {tokens} tokens")]
    Room {
        /// Tokens of the text.
        tokens: usize,
    },
    /// The drafter failed.
    #[error(transparent)]
    Draft(#[from] DraftError),
}

impl Text {
    /// Has the target go on from `given` tokens, by at most `more`, until it says one of `ends`. `taps` are what a drafter
    /// will read.
    ///
    /// # Errors
    /// When the target cannot compute it.
    pub fn write(
        target: Target<'_>,
        pool: &Pool,
        given: &[u32],
        more: usize,
        ends: &[u32],
        taps: &[Tap],
    ) -> Result<Text, TrialError> {
        let (mut cache, sequence) = room(target, given.len() + more)?;
        let mut workspace = Workspace::new();
        let mut text = Text { tokens: given.to_vec(), given: given.len(), states: Vec::new() };
        text.states.extend(taps.iter().map(|&tap| (tap, Vec::new())));
        let mut start = 0;
        while text.tokens.len() < given.len() + more {
            // Prompts in parts, so that no buffer grows with them.
            let end = text.tokens.len().min(start + ROWS);
            let (tokens, visibility, logits) = (&text.tokens[start..end], Visibility::Causal, Logits::Last);
            let segment = Segment { sequence: &sequence, start, tokens, visibility, logits };
            let output = target.model.forward(&mut workspace, pool, &mut cache, &[segment], taps)?;
            for ((_, all), new) in text.states.iter_mut().zip(output.taps) {
                all.extend_from_slice(new);
            }
            start = end;
            if end < text.tokens.len() {
                continue;
            }
            let said = Greedy.choose(&[], &output.logits[..target.vocab.min(output.logits.len())]);
            let Some(said) = said else { break };
            text.tokens.push(said.token);
            if ends.contains(&said.token) {
                break;
            }
        }
        cache.free(sequence);
        Ok(text)
    }

    /// Its tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Asks a drafter for a chain of up to `most` drafts at every token from the last given one on, and tells `said` where the
    /// anchor was and what came.
    ///
    /// # Errors
    /// When there is no room, or the drafter fails.
    pub fn follow(
        &self,
        drafter: &mut dyn Drafter,
        target: Target<'_>,
        pool: &Pool,
        most: usize,
        mut said: impl FnMut(usize, &Proposal),
    ) -> Result<(), TrialError> {
        let (mut cache, sequence) = room(target, self.tokens.len() + drafter.slots_ahead())?;
        drafter.attach(&mut cache);
        let (width, first) = (target.model.config().hidden, self.given.saturating_sub(1));
        let mut start = 0;
        for anchor in first.max(1)..self.tokens.len().saturating_sub(1) {
            while start < anchor {
                let end = anchor.min(start + ROWS);
                let rows = start * width..end * width;
                let taps: Vec<(Tap, &[f32])> =
                    self.states.iter().map(|(tap, all)| (*tap, &all[rows.clone()])).collect();
                let (tokens, visibility, logits) = (&self.tokens[start..end], Visibility::Causal, Logits::None);
                let batch = [Segment { sequence: &sequence, start, tokens, visibility, logits }];
                drafter.computed(&mut Computed { pool, cache: &mut cache, taps: &taps, batch: &batch })?;
                start = end;
            }
            let ask = Ask {
                key: Key { request: 0, choice: 0 },
                tokens: &self.tokens[..=anchor],
                prompt: self.given,
                predicted: &[],
                max_drafts: most,
                remaining: usize::MAX,
                choose: &OneWay,
                sequence: &sequence,
            };
            // Rows cost nothing, so that nothing is left out.
            let mut round = Round {
                pool,
                cache: &mut cache,
                step_seconds: 1.0,
                row_seconds: 0.0,
                checks_all: false,
                unread: &mut Unread::default(),
            };
            if let Some(Ok(proposal)) = drafter.propose(&mut round, &[ask])?.pop() {
                said(anchor, &proposal);
            }
        }
        cache.free(sequence);
        Ok(())
    }
}

/// Rows of one forward.
const ROWS: usize = 128;

/// A cache with room for so many tokens, and all of it taken.
fn room(target: Target<'_>, tokens: usize) -> Result<(KvCache, Sequence), TrialError> {
    let mut cache = KvCache::new(target.model.kv_layout(target.kv_format), tokens.div_ceil(kernels::PAGE));
    let mut sequence = Sequence::new();
    cache.reserve(&mut sequence, tokens).map_err(|_| TrialError::Room { tokens })?;
    Ok((cache, sequence))
}

/// Takes the likeliest token and nothing beside it: whoever drafts trees drafts a chain.
struct OneWay;

impl Choose for OneWay {
    fn choose(&self, drafts: &[u32], logits: &[f32]) -> Option<Chosen> {
        Greedy.choose(drafts, logits)
    }

    fn choices(&self, _: &[u32], words: Words<'_>, most: usize) -> Expansion {
        words.likeliest(most.min(1))
    }

    fn draws(&self) -> bool {
        false
    }
}
