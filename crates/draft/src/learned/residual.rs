//! Heads of residual blocks, as Medusa and Hydra have them: from a row of numbers to what it says of all words.

use kernels::{Activations, Isa, Pool, Product, multiply};
use model::{Linear, LoadError, Loader};

/// x + SiLU(W x + b), or V x + c + SiLU(W x + b) where the block takes more than it gives.
pub(super) struct ResidualBlock {
    /// `[hidden, inputs]`
    pub(super) linear: Linear,
    /// `[hidden, inputs]`
    pub(super) shortcut: Option<Linear>,
}

/// Blocks, and what makes words of them.
pub(super) struct ResidualHead {
    /// The first takes what the head is given; `[hidden, hidden]` else.
    pub(super) blocks: Vec<ResidualBlock>,
    /// `[vocab, hidden]`
    pub(super) words: Linear,
}

/// The numbers between.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    x: Activations,
    state: Vec<f32>,
    moved: Vec<f32>,
    skipped: Vec<f32>,
    logits: Vec<f32>,
}

impl ResidualHead {
    /// What the head says of all words to each of the `rows`, `[rows, inputs]`: `[rows, vocab]`.
    pub(super) fn logits<'s>(&self, scratch: &'s mut Scratch, pool: &Pool, isa: Isa, rows: &[f32]) -> &'s [f32] {
        let Scratch { x, state, moved, skipped, logits } = scratch;
        rows.clone_into(state);
        for ResidualBlock { linear, shortcut } in &self.blocks {
            product(x, pool, isa, linear, state, moved);
            if let Some(shortcut) = shortcut {
                product(x, pool, isa, shortcut, state, skipped);
                std::mem::swap(state, skipped);
            }
            state.iter_mut().zip(&*moved).for_each(|(state, moved)| *state += moved / (1.0 + (-moved).exp()));
        }
        product(x, pool, isa, &self.words, state, logits);
        logits
    }
}

/// `out = x Wᵀ + b` for all rows.
fn product(
    x: &mut Activations,
    pool: &Pool,
    isa: Isa,
    Linear { matrix, bias }: &Linear,
    rows: &[f32],
    out: &mut Vec<f32>,
) {
    let inputs = matrix.inputs();
    let count = rows.len() / inputs;
    x.fill(pool, isa, (count, inputs), matrix.format().is_quantised(), |row, to| {
        to.copy_from_slice(&rows[row * inputs..(row + 1) * inputs]);
    });
    out.resize(count * matrix.outputs(), 0.0);
    multiply(pool, x, &mut [Product::new(matrix, out)]);
    if let Some(bias) = bias {
        out.chunks_exact_mut(bias.len()).for_each(|row| kernels::add(isa, row, bias));
    }
}

/// `name.weight`, with `name.bias` where the file has one.
pub(super) fn linear(loader: &Loader<'_>, name: &str, shape: [usize; 2]) -> Result<Linear, LoadError> {
    loader.linear(name, shape, loader.weights.has(&format!("{name}.bias")))
}
