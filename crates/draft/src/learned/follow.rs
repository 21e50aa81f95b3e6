//! What a draft of a block owes to those before it: one step of the heads of all blocks at a time.
//!
//! A step's rows are places where something may follow: one for each block, or several where trees are drafted. What a row
//! says next is the logits of the block's row at its depth, corrected by what its head makes of the words before.

use std::borrow::Cow;

use kernels::{Activations, Isa, Pool};
use model::{Backbone, LoadError, Loader};

use super::domino::{self, DominoHead};
use super::format::{BlockFormat, Follows};
use super::heads::MarkovHead;
use super::selector::Selector;
use crate::Words;

/// The head that makes a draft depend on those before it.
pub(super) enum Follow {
    Nothing,
    Markov(MarkovHead),
    Domino(DominoHead),
    Selector(Selector),
}

/// The numbers of a step, one row for each place.
#[derive(Debug, Default)]
pub(super) struct Step {
    x: Activations,
    /// What goes along a block, `[rows, state_len]`: before a step of the words so far, after it with the newest.
    pub(super) states: Vec<f32>,
    /// Embeddings of the newest words, `[rows, rank]`, where the head has some.
    embeddings: Vec<f32>,
    mixed: Vec<f32>,
    /// What is added to logits, `[rows, known]`; empty: nothing.
    biases: Vec<f32>,
    domino: domino::Buffers,
    rows: usize,
}

/// What becomes of a head's logits before anything is added to them: cap * tanh(scale * z / cap).
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound {
    pub(super) scale: f32,
    pub(super) cap: Option<f32>,
}

impl Bound {
    fn of(self, logit: f32) -> f32 {
        let logit = logit * self.scale;
        self.cap.map_or(logit, |cap| (logit / cap).tanh() * cap)
    }

    fn is_nothing(self) -> bool {
        self.scale == 1.0 && self.cap.is_none()
    }
}

/// A place where something may follow.
pub(super) struct Place {
    /// Which block.
    pub(super) block: usize,
    /// The newest word there.
    pub(super) before: u32,
}

impl Follow {
    pub(super) fn load(
        loader: &Loader<'_>,
        isa: Isa,
        format: &BlockFormat,
        [vocab, known, hidden]: [usize; 3],
        ids: Option<&[u32]>,
    ) -> Result<Follow, LoadError> {
        Ok(match format.follows {
            Follows::Nothing => Follow::Nothing,
            Follows::Markov(markov) => Follow::Markov(MarkovHead::load(loader, isa, markov, [vocab, known, hidden])?),
            Follows::Domino(shape) => Follow::Domino(DominoHead::load(loader, isa, shape, [known, hidden])?),
            Follows::Selector(shape) => {
                Follow::Selector(Selector::load(loader, isa, shape, [vocab, known, hidden], ids)?)
            }
        })
    }

    /// Numbers of a place's state.
    pub(super) fn state_len(&self) -> usize {
        match self {
            Follow::Markov(head) => head.state_len(),
            Follow::Domino(head) => head.shape.states,
            Follow::Nothing | Follow::Selector(_) => 0,
        }
    }

    /// Works out what the heads make of the newest words of all places, whose states are in `step`. They stand before the
    /// draft number `depth` of their blocks, from 0, that `hidden` has the hidden states of.
    pub(super) fn advance<'h>(
        &self,
        step: &mut Step,
        pool: &Pool,
        backbone: &Backbone,
        places: &[Place],
        depth: usize,
        hidden: impl Fn(&Place) -> &'h [f32] + Sync,
    ) {
        let Step { x, states, embeddings, mixed, biases, domino, rows } = step;
        *rows = places.len();
        biases.clear();
        match self {
            Follow::Nothing => {}
            Follow::Markov(head) => {
                let before: Vec<u32> = places.iter().map(|place| place.before).collect();
                head.advance(x, pool, &before, |row| hidden(&places[row]), states, [embeddings, mixed, biases]);
            }
            Follow::Domino(head) => {
                head.read(x, pool, domino, states, |row, out| backbone.embedding(places[row].before, out));
                if depth >= head.shape.uncorrected {
                    head.correct(x, pool, domino, states, |row| hidden(&places[row]), biases);
                }
            }
            Follow::Selector(selector) => {
                selector.project(x, pool, places.len(), mixed, |row, out| out.copy_from_slice(hidden(&places[row])));
            }
        }
    }

    /// The logits of the words that may follow at a place, and which words of the head they are of; `None`: all.
    pub(super) fn corrected<'l>(
        &self,
        step: &Step,
        row: usize,
        before: u32,
        logits: &'l [f32],
        bound: Bound,
    ) -> (Cow<'l, [f32]>, Option<Vec<u32>>) {
        if let Follow::Selector(selector) = self {
            let likeliest = Words::new(logits, None, logits.len()).likeliest(selector.shape.candidates);
            let candidates: Vec<u32> = likeliest.into_iter().map(|(token, _)| token).collect();
            let mut scores: Vec<f32> = candidates.iter().map(|&token| bound.of(logits[token as usize])).collect();
            selector.add(before, part(&step.mixed, row, step.rows), &candidates, &mut scores);
            return (Cow::Owned(scores), Some(candidates));
        }
        let biases = part(&step.biases, row, step.rows);
        let corrected = match (biases.is_empty(), bound.is_nothing()) {
            (true, true) => Cow::Borrowed(logits),
            (true, false) => logits.iter().map(|&logit| bound.of(logit)).collect(),
            (false, _) => logits.iter().zip(biases).map(|(&logit, bias)| bound.of(logit) + bias).collect(),
        };
        (corrected, None)
    }
}

impl Step {
    /// The embedding of the newest word of a row, `[rank]`; empty where the head has none.
    pub(super) fn embedding(&self, row: usize) -> &[f32] {
        part(&self.embeddings, row, self.rows)
    }

    /// The state of a row.
    pub(super) fn state(&self, row: usize) -> &[f32] {
        part(&self.states, row, self.rows)
    }
}

/// The part of a row in the numbers of all rows.
fn part(all: &[f32], row: usize, rows: usize) -> &[f32] {
    let width = all.len() / rows.max(1);
    &all[row * width..(row + 1) * width]
}
