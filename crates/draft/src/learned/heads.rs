//! The small heads that go along a block: what a draft owes to the one before it, and how sure it is (DSpark, section 3).

use kernels::{Activations, Isa, Matrix, Pool, Product, add, multiply};
use model::{Linear, LoadError, Loader};

use super::format::{Markov, MarkovKind};

/// The bias that the draft before gives to the logits of the next one.
pub(super) struct MarkovHead {
    rank: usize,
    kind: Kind,
    /// Embeddings of tokens: `[vocab, rank]`.
    before: Matrix,
    /// From what is left of an embedding to a bias: `[tokens that the head knows, rank]`.
    bias: Matrix,
    isa: Isa,
}

enum Kind {
    Vanilla,
    /// `[rank, hidden + rank]`
    Gated(Linear),
    /// `[3 * rank, 2 * rank + hidden]`
    Rnn(Linear),
}

/// The numbers of a step of several blocks, one row for each.
#[derive(Debug, Default)]
pub(super) struct Step {
    rank: usize,
    /// Embeddings of the drafts before, `[rows, rank]`.
    embeddings: Vec<f32>,
    /// What goes along a block, `[rows, rank]`.
    states: Vec<f32>,
    x: Activations,
    /// `[rows, rank or 3 * rank]`
    mixed: Vec<f32>,
    /// `[rows, vocab]`
    pub(super) biases: Vec<f32>,
}

/// The numbers of one block; empty where no draft depends on the one before.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepOf<'a> {
    /// Of the draft before, `[rank]`.
    pub(super) embedding: &'a [f32],
    /// The biases of its next draft, `[tokens that the head knows]`.
    pub(super) bias: &'a [f32],
}

impl Step {
    /// The numbers of block `row`.
    pub(super) fn of(&self, row: usize) -> StepOf<'_> {
        let blocks = self.embeddings.len() / self.rank.max(1);
        let part = |all: &'_ [f32]| {
            let width = all.len() / blocks.max(1);
            row * width..(row + 1) * width
        };
        StepOf { embedding: &self.embeddings[part(&self.embeddings)], bias: &self.biases[part(&self.biases)] }
    }
}

impl MarkovHead {
    pub(super) fn load(
        loader: &Loader<'_>,
        isa: Isa,
        Markov { rank, kind }: Markov,
        [vocab, known, hidden]: [usize; 3],
    ) -> Result<MarkovHead, LoadError> {
        let bias = loader.matrix("markov_head.markov_w2.weight", [known, rank])?;
        Ok(MarkovHead {
            rank,
            kind: match kind {
                MarkovKind::Vanilla => Kind::Vanilla,
                MarkovKind::Gated => {
                    Kind::Gated(loader.linear("markov_head.gate_proj", [rank, hidden + rank], true)?)
                }
                MarkovKind::Rnn => {
                    Kind::Rnn(loader.linear("markov_head.joint_proj", [3 * rank, 2 * rank + hidden], true)?)
                }
            },
            before: loader.matrix("markov_head.markov_w1.weight", [vocab, rank])?,
            bias,
            isa,
        })
    }

    /// Begins blocks: one for each row.
    pub(super) fn begin(&self, step: &mut Step, rows: usize) {
        step.rank = self.rank;
        step.biases.clear();
        step.states.clear();
        step.states.resize(rows * self.rank, 0.0);
    }

    /// The biases of all blocks' next drafts, after the tokens `before` of each: `hidden` is the hidden state of a
    /// block's row that says them.
    pub(super) fn advance<'h>(
        &self,
        step: &mut Step,
        pool: &Pool,
        before: &[u32],
        hidden: impl Fn(usize) -> &'h [f32] + Sync,
    ) {
        let (rows, rank) = (before.len(), self.rank);
        let Step { embeddings, states, x, mixed, biases, .. } = step;
        embeddings.resize(rows * rank, 0.0);
        pool.for_each_row(embeddings, rows, |row, out| self.before.row(before[row] as usize, out));
        match &self.kind {
            Kind::Vanilla => mixed.clone_from(embeddings),
            Kind::Gated(gate) => {
                self.mix(x, pool, mixed, gate, rows, |row, out| {
                    let (first, second) = out.split_at_mut(out.len() - rank);
                    first.copy_from_slice(hidden(row));
                    second.copy_from_slice(&embeddings[row * rank..(row + 1) * rank]);
                });
                mixed.iter_mut().zip(&*embeddings).for_each(|(gate, embedding)| *gate = sigmoid(*gate) * embedding);
            }
            Kind::Rnn(joint) => {
                self.mix(x, pool, mixed, joint, rows, |row, out| {
                    out[..rank].copy_from_slice(&states[row * rank..(row + 1) * rank]);
                    out[rank..2 * rank].copy_from_slice(&embeddings[row * rank..(row + 1) * rank]);
                    out[2 * rank..].copy_from_slice(hidden(row));
                });
                let outputs = advance_states(states, mixed, rank);
                *mixed = outputs;
            }
        }
        x.fill(pool, self.isa, (rows, rank), self.bias.format().is_quantised(), |row, out| {
            out.copy_from_slice(&mixed[row * rank..(row + 1) * rank]);
        });
        biases.resize(rows * self.bias.outputs(), 0.0);
        multiply(pool, x, &mut [Product::new(&self.bias, biases)]);
    }

    /// One product with a bias, of rows that `write` makes.
    fn mix(
        &self,
        x: &mut Activations,
        pool: &Pool,
        out: &mut Vec<f32>,
        Linear { matrix, bias }: &Linear,
        rows: usize,
        write: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        out.resize(rows * matrix.outputs(), 0.0);
        x.fill(pool, self.isa, (rows, matrix.inputs()), matrix.format().is_quantised(), write);
        multiply(pool, x, &mut [Product::new(matrix, out)]);
        if let Some(bias) = bias {
            out.chunks_exact_mut(bias.len()).for_each(|row| add(self.isa, row, bias));
        }
    }
}

/// Moves the states of all rows on by `mixed`, `[rows, 3 * rank]`: gate, candidate, output. Returns the outputs.
fn advance_states(states: &mut [f32], mixed: &[f32], rank: usize) -> Vec<f32> {
    let mut outputs = Vec::with_capacity(states.len());
    for (state, mixed) in states.chunks_exact_mut(rank).zip(mixed.chunks_exact(3 * rank)) {
        let (gates, rest) = mixed.split_at(rank);
        let (candidates, out) = rest.split_at(rank);
        for ((state, gate), candidate) in state.iter_mut().zip(gates).zip(candidates) {
            let gate = sigmoid(*gate);
            *state = gate * *state + (1.0 - gate) * candidate.tanh();
        }
        outputs.extend(out.iter().map(|out| out.tanh()));
    }
    outputs
}

/// How likely a draft is to stand, by its row's hidden state and the draft before it.
pub(super) struct ConfidenceHead {
    /// `[hidden]`, or with the embedding of the draft before `[hidden + rank]`.
    weights: Vec<f32>,
    bias: f32,
}

impl ConfidenceHead {
    pub(super) fn load(loader: &Loader<'_>, inputs: usize) -> Result<ConfidenceHead, LoadError> {
        let weights = loader.weights.tensor("confidence_head.proj.weight", &[1, inputs])?.to_f32()?;
        let bias = loader.vector("confidence_head.proj.bias", 1)?[0];
        Ok(ConfidenceHead { weights, bias })
    }

    /// The logit of the confidence: `embedding` is that of the draft before, which a head without it does not look at.
    pub(super) fn logit(&self, hidden: &[f32], embedding: &[f32]) -> f32 {
        self.weights.iter().zip(hidden.iter().chain(embedding)).map(|(a, b)| a * b).sum::<f32>() + self.bias
    }
}

pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
