//! One run of keys and values, and the choices that continue it.

use std::cmp::Reverse;

use kernels::PAGE;
use kv::{KvCache, Salt, Sequence};
use model::{Logits, Segment, Visibility};
use spec::{Accepted, Proposal};

use super::plan::Demand;
use super::{Outcome, RequestId};
use crate::request::Request;

/// One choice of a request.
pub(super) struct Choice {
    /// Which of the request's n.
    pub(super) index: u32,
    pub(super) request: Request,
}

/// The part of a proposal that a step checks.
pub(super) struct Checked {
    pub(super) proposal: Proposal,
    /// Which node of the whole proposal each of its nodes is.
    pub(super) proposed: Vec<usize>,
}

/// One sequence in the cache and the choices that have exactly its tokens: all n of a request until its prompt is
/// computed, one each from then on.
pub(super) struct Lane {
    pub(super) id: RequestId,
    pub(super) priority: i32,
    pub(super) salt: Salt,
    /// Never empty but for a lane that is about to be removed.
    pub(super) choices: Vec<Choice>,
    pub(super) sequence: Sequence,
    /// Tokens whose keys and values are in the cache: the next forward starts there.
    pub(super) computed: usize,
    /// Committed tokens that this step computes.
    pub(super) rows: usize,
    /// What this step checks beyond them. Only a lane that decodes has drafts; its anchor is its one committed row.
    pub(super) checked: Option<Checked>,
    /// What stands of it.
    pub(super) accepted: Accepted,
    /// The target's likeliest token after nodes of what was checked, where the drafter wants to hear it.
    pub(super) heard: Vec<(usize, u32)>,
    /// The first of the step's rows of logits that are this lane's, if it has any: one, and one for each draft.
    pub(super) logits_row: Option<usize>,
    /// What came of the choices in this step.
    pub(super) outcomes: Vec<(u32, Outcome)>,
    /// It has run before: what the prefix cache holds of it now may be its own.
    pub(super) has_run: bool,
}

impl Lane {
    pub(super) fn new(id: RequestId, priority: i32, salt: Salt, requests: Vec<Request>) -> Lane {
        let choices = (0..).zip(requests).map(|(index, request)| Choice { index, request }).collect();
        let sequence = Sequence::new();
        Lane {
            id,
            priority,
            salt,
            choices,
            sequence,
            computed: 0,
            rows: 0,
            checked: None,
            accepted: Accepted { path: Vec::new(), next: None },
            heard: Vec::new(),
            logits_row: None,
            outcomes: Vec::new(),
            has_run: false,
        }
    }

    /// A lane for the last choice of this one, on a `sequence` forked from its own.
    pub(super) fn split(&mut self, sequence: Sequence) -> Lane {
        let choices = self.choices.pop().into_iter().collect();
        let Lane { id, priority, computed, rows, logits_row, has_run, .. } = *self;
        let requests = Vec::new();
        Lane {
            choices,
            sequence,
            computed,
            rows,
            logits_row,
            has_run,
            ..Lane::new(id, priority, self.salt.clone(), requests)
        }
    }

    /// Who is served first: high priority, then early arrival.
    pub(super) fn order(&self) -> (Reverse<i32>, RequestId, u32) {
        (Reverse(self.priority), self.id, self.choices.first().map_or(0, |choice| choice.index))
    }

    /// The tokens so far, prompt first.
    pub(super) fn tokens(&self) -> &[u32] {
        self.choices.first().map_or(&[], |choice| choice.request.tokens())
    }

    pub(super) fn demand(&self) -> Demand {
        let pending = self.tokens().len() - self.computed;
        let begun = self.choices.first().is_some_and(|choice| !choice.request.outputs().is_empty());
        Demand { pending, context: self.computed, decodes: begun && pending == 1 }
    }

    /// Pages that the lane will soon want beyond the `held` ones: for all of its tokens, and one for each choice to
    /// grow into.
    pub(super) fn wanted_pages(&self, held: usize) -> usize {
        (self.tokens().len().div_ceil(PAGE) + self.choices.len()).saturating_sub(held)
    }

    /// Makes the pages findable that are full of what is computed.
    pub(super) fn remember(&mut self, cache: &mut KvCache) {
        let Lane { choices, sequence, computed, salt, .. } = self;
        if let Some(choice) = choices.first() {
            cache.remember(sequence, &choice.request.tokens()[..*computed], salt);
        }
    }

    /// Keeps the keys and values of the accepted drafts, right after the anchor's.
    pub(super) fn keep(&mut self, cache: &mut KvCache) {
        let anchor = self.computed - 1;
        let kept: Vec<usize> = std::iter::once(0).chain(self.accepted.path.iter().copied()).collect();
        cache.keep(&mut self.sequence, anchor, &kept);
        self.computed = anchor + kept.len();
    }

    /// Drafts that this step checks.
    pub(super) fn drafts(&self) -> usize {
        self.checked.as_ref().map_or(0, |checked| checked.proposal.tree().drafts())
    }

    /// The step's rows of this lane; its sequence has room for them.
    pub(super) fn segment(&self) -> Segment<'_> {
        if let Some(Checked { proposal, .. }) = &self.checked {
            let tree = proposal.tree();
            let visibility = Visibility::Tree { parents: tree.parents() };
            let (start, tokens) = (self.computed, tree.tokens());
            return Segment { sequence: &self.sequence, start, tokens, visibility, logits: Logits::All };
        }
        let tokens = self.tokens();
        let end = self.computed + self.rows;
        Segment {
            sequence: &self.sequence,
            start: self.computed,
            tokens: &tokens[self.computed..end],
            visibility: Visibility::Causal,
            logits: if end == tokens.len() { Logits::Last } else { Logits::None },
        }
    }
}
