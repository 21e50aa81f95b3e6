//! The chain of drafts of one request, as it grows.

use kv::Sequence;
use model::{Logits, Segment, Visibility};
use spec::Proposal;

use super::DraftModelOptions;
use crate::{Ask, Silence};

/// One request in a round: what of it is computed next, and what has been drafted.
pub(super) struct Chain<'a> {
    /// Which of the round's asks.
    pub(super) index: usize,
    pub(super) ask: &'a Ask<'a>,
    /// Committed tokens that are already computed.
    start: usize,
    /// Committed tokens that the first forward computes.
    rows: usize,
    max_drafts: usize,
    proposal: Proposal,
    drafts: Vec<u32>,
    /// Chance that all drafts stand, by their confidences.
    pub(super) survival: f64,
    /// The chain may go on.
    pub(super) open: bool,
}

impl<'a> Chain<'a> {
    /// A chain that begins by reading `rows` committed tokens from `start` on.
    pub(super) fn new(index: usize, ask: &'a Ask<'a>, start: usize, rows: usize, max_drafts: usize) -> Self {
        let proposal = Proposal::new(ask.anchor());
        Self { index, ask, start, rows, max_drafts, proposal, drafts: Vec::new(), survival: 1.0, open: true }
    }

    /// What the next forward computes: the position and the tokens from there on.
    pub(super) fn next(&self) -> (usize, &[u32]) {
        match self.drafts.len() {
            0 => (self.start, &self.ask.tokens[self.start..self.start + self.rows]),
            depth => (self.ask.tokens.len() + depth - 1, &self.drafts[depth - 1..]),
        }
    }

    /// Whether everything that is committed is computed after the next forward, so that its logits say something.
    pub(super) fn is_up_to_date(&self) -> bool {
        self.start + self.rows == self.ask.tokens.len()
    }

    /// The rows of the next forward.
    pub(super) fn segment<'s>(&'s self, sequence: &'s Sequence) -> Segment<'s> {
        let (start, tokens) = self.next();
        let logits = if self.is_up_to_date() { Logits::Last } else { Logits::None };
        Segment { sequence, start, tokens, visibility: Visibility::Causal, logits }
    }

    /// Adds the draft that the request chooses by `logits`, `[vocab of the draft model]`.
    pub(super) fn extend(&mut self, logits: &[f32], options: &DraftModelOptions) {
        let known = logits.len();
        self.open = self.add(logits, options.vocab).is_some_and(|token| {
            self.drafts.len() < self.max_drafts && self.survival >= options.min_survival && (token as usize) < known
        });
    }

    /// Adds a draft; `None` if there is none to be had.
    fn add(&mut self, logits: &[f32], vocab: usize) -> Option<u32> {
        let padded: Vec<f32>;
        let logits = match logits.get(..vocab) {
            Some(logits) => logits,
            // The target's embedding has more padding.
            None => {
                let missing = std::iter::repeat_n(f32::NEG_INFINITY, vocab - logits.len());
                padded = logits.iter().copied().chain(missing).collect();
                &padded
            }
        };
        let chosen = self.ask.choose.choose(&self.drafts, logits)?;
        let confidence = chosen.confidence;
        let token = chosen.add_to(&mut self.proposal, self.drafts.len(), confidence)?;
        self.drafts.push(token);
        self.survival *= confidence;
        Some(token)
    }

    /// Of the newest draft.
    pub(super) fn newest_confidence(&self) -> Option<f64> {
        self.drafts.len().checked_sub(1).map(|last| self.proposal.tree().confidences()[last + 1])
    }

    /// What has been drafted.
    pub(super) fn into_answer(self) -> Result<Proposal, Silence> {
        match (self.is_up_to_date(), self.drafts.is_empty()) {
            (false, _) => Err(Silence::Behind),
            (true, true) => Err(Silence::NoMatch),
            (true, false) => Ok(self.proposal),
        }
    }
}
