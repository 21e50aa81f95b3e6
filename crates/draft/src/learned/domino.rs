//! Domino's correction: a recurrent state reads the drafts of a block one after another, and with a row's hidden state
//! makes a correction of its logits (Huang et al. 2026, arXiv 2605.29707).

use kernels::{Activations, Isa, Matrix, Pool, Product, multiply};
use model::{LoadError, Loader};

use super::format::DominoShape;
use super::heads::sigmoid;

/// A gated recurrent unit over embeddings, and a small network to logits.
pub(super) struct DominoHead {
    pub(super) shape: DominoShape,
    /// Of what is read, `[3 * states, hidden]`: gates of reset and update, and candidate.
    read: Matrix,
    /// Of the state before, `[3 * states, states]`.
    keep: Matrix,
    /// `[rank, hidden + states]`
    narrow: Matrix,
    /// `[known, rank]`
    bias: Matrix,
    isa: Isa,
}

/// The buffers of a step of it.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    /// `[rows, 3 * states]` each.
    read: Vec<f32>,
    kept: Vec<f32>,
    /// `[rows, rank]`
    narrow: Vec<f32>,
}

impl DominoHead {
    pub(super) fn load(
        loader: &Loader<'_>,
        isa: Isa,
        shape: DominoShape,
        [known, hidden]: [usize; 2],
    ) -> Result<DominoHead, LoadError> {
        let DominoShape { states, rank, .. } = shape;
        Ok(DominoHead {
            shape,
            read: loader.matrix("prefix_gru.weight_ih_l0", [3 * states, hidden])?,
            keep: loader.matrix("prefix_gru.weight_hh_l0", [3 * states, states])?,
            narrow: loader.matrix("embed_proj.0.weight", [rank, hidden + states])?,
            bias: loader.matrix("embed_proj.2.weight", [known, rank])?,
            isa,
        })
    }

    /// Moves the states of all rows on, `[rows, states]`: `embedding` writes what a row reads, `[hidden]`.
    pub(super) fn read(
        &self,
        x: &mut Activations,
        pool: &Pool,
        buffers: &mut Buffers,
        states: &mut [f32],
        embedding: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        let width = self.shape.states;
        let rows = states.len() / width;
        let Buffers { read, kept, .. } = buffers;
        self.product(x, pool, rows, &self.read, read, embedding);
        self.product(x, pool, rows, &self.keep, kept, |row, out| out.copy_from_slice(&states[row * width..][..width]));
        pool.for_each_row(states, rows, |row, state| {
            let part = |from: &[f32], gate: usize, at: usize| from[(row * 3 + gate) * width + at];
            for (at, state) in state.iter_mut().enumerate() {
                let reset = sigmoid(part(read, 0, at) + part(kept, 0, at));
                let update = sigmoid(part(read, 1, at) + part(kept, 1, at));
                let candidate = (part(read, 2, at) + reset * part(kept, 2, at)).tanh();
                *state = (1.0 - update) * candidate + update * *state;
            }
        });
    }

    /// The corrections of all rows' logits, `[rows, known]`, by their hidden states and what has been read.
    pub(super) fn correct<'h>(
        &self,
        x: &mut Activations,
        pool: &Pool,
        buffers: &mut Buffers,
        states: &[f32],
        hidden: impl Fn(usize) -> &'h [f32] + Sync,
        out: &mut Vec<f32>,
    ) {
        let (width, rank) = (self.shape.states, self.shape.rank);
        let rows = states.len() / width;
        let narrow = &mut buffers.narrow;
        self.product(x, pool, rows, &self.narrow, narrow, |row, out| {
            let (first, second) = out.split_at_mut(out.len() - width);
            first.copy_from_slice(hidden(row));
            second.copy_from_slice(&states[row * width..(row + 1) * width]);
        });
        narrow.iter_mut().for_each(|value| *value *= sigmoid(*value));
        self.product(x, pool, rows, &self.bias, out, |row, out| out.copy_from_slice(&narrow[row * rank..][..rank]));
    }

    fn product(
        &self,
        x: &mut Activations,
        pool: &Pool,
        rows: usize,
        matrix: &Matrix,
        out: &mut Vec<f32>,
        write: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        x.fill(pool, self.isa, (rows, matrix.inputs()), matrix.format().is_quantised(), write);
        out.resize(rows * matrix.outputs(), 0.0);
        multiply(pool, x, &mut [Product::new(matrix, out)]);
    }
}
