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

    /// Numbers of the state that goes along a block.
    pub(super) fn state_len(&self) -> usize {
        if matches!(self.kind, Kind::Rnn(_)) { self.rank } else { 0 }
    }

    /// The biases of all rows' next drafts, `[rows, known]`, after the tokens `before` of each: `hidden` is the hidden state
    /// of the row that says them. Leaves the embeddings of those tokens in `embeddings`, `[rows, rank]`, and moves `states` on,
    /// `[rows, state_len]`.
    #[allow(clippy::too_many_arguments, reason = "what a step reads and what it leaves")]
    pub(super) fn advance<'h>(
        &self,
        x: &mut Activations,
        pool: &Pool,
        before: &[u32],
        hidden: impl Fn(usize) -> &'h [f32] + Sync,
        states: &mut [f32],
        [embeddings, mixed, biases]: [&mut Vec<f32>; 3],
    ) {
        let (rows, rank) = (before.len(), self.rank);
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
