//! DFlash 2's choice: among the likeliest tokens of each row, by how well they follow the draft before.

use std::collections::HashMap;

use kernels::{Activations, Isa, Matrix, Pool, Product, multiply};
use model::{LoadError, Loader};

use super::format::SelectorShape;

/// Scores the likeliest tokens of a row: its logit and <A[before] * (H h), B[token]>.
pub(super) struct Selector {
    pub(super) shape: SelectorShape,
    /// A, by the draft before: `[vocab, rank]`, or of the head's tokens alone: `[known, rank]`.
    predecessors: Matrix,
    /// Where the rows of A are of the head's tokens: which row each of the target's tokens has.
    rows: Option<HashMap<u32, usize>>,
    /// B, by token of the head: `[known, rank]`.
    successors: Matrix,
    /// H: `[rank, hidden]`.
    hidden: Matrix,
    isa: Isa,
}

impl Selector {
    pub(super) fn load(
        loader: &Loader<'_>,
        isa: Isa,
        shape: SelectorShape,
        [vocab, known, hidden]: [usize; 3],
        ids: Option<&[u32]>,
    ) -> Result<Selector, LoadError> {
        // Some files hold the codebooks as embeddings, under a longer name, and then both of them in the head's tokens.
        let embeddings = loader.weights.has("candidate_selector.predecessor_codebook.weight");
        let own = ids.filter(|_| embeddings);
        let codebook = |name: &str, rows: usize| {
            let bare = format!("candidate_selector.{name}_codebook");
            let name = if loader.weights.has(&bare) { bare } else { format!("{bare}.weight") };
            loader.matrix(&name, [rows, shape.rank])
        };
        Ok(Selector {
            predecessors: codebook("predecessor", if own.is_some() { known } else { vocab })?,
            rows: own.map(|ids| ids.iter().copied().zip(0..).collect()),
            successors: codebook("successor", known)?,
            hidden: loader.matrix("candidate_selector.hidden_projection.weight", [shape.rank, hidden])?,
            shape,
            isa,
        })
    }

    /// H h of rows, `[rows, rank]`; `hidden` writes a row's h.
    pub(super) fn project(
        &self,
        x: &mut Activations,
        pool: &Pool,
        rows: usize,
        out: &mut Vec<f32>,
        hidden: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        x.fill(pool, self.isa, (rows, self.hidden.inputs()), self.hidden.format().is_quantised(), hidden);
        out.resize(rows * self.shape.rank, 0.0);
        multiply(pool, x, &mut [Product::new(&self.hidden, out)]);
    }

    /// Adds to the logits of a row's candidates, tokens of the head, what they owe to the draft `before`; `projected` is
    /// the row's H h.
    pub(super) fn add(&self, before: u32, projected: &[f32], candidates: &[u32], scores: &mut [f32]) {
        let (mut a, mut b) = (vec![0.0; self.shape.rank], vec![0.0; self.shape.rank]);
        let row = self.rows.as_ref().map_or(Some(before as usize), |rows| rows.get(&before).copied());
        // Nothing is known of what follows a token that the head does not know.
        let Some(row) = row else { return };
        self.predecessors.row(row, &mut a);
        a.iter_mut().zip(projected).for_each(|(a, h)| *a *= h);
        for (&token, score) in candidates.iter().zip(scores) {
            self.successors.row(token as usize, &mut b);
            *score += a.iter().zip(&b).map(|(a, b)| a * b).sum::<f32>();
        }
    }
}
