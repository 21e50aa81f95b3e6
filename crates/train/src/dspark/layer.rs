//! One layer of a block draft, with gradients: rows look at the target's features before their anchor, and at their block.

use candle_core::Tensor;
use model::config::Config;

use crate::TrainError;
use crate::ops::{Rotation, Visible, rms_norm, rotate, silu_mul, visible_softmax};
use crate::parameters::Parameters;

/// What the rows of a batch see, and where they are; the same in all layers.
pub(super) struct Sight {
    /// For each text the features that its rows may see, from the first.
    pub(super) contexts: Vec<usize>,
    /// For each text its rows.
    pub(super) rows: Vec<usize>,
    /// For each text which keys its rows see: those of its context, then those of its rows.
    pub(super) visible: Vec<Visible>,
    /// The places of all rows.
    pub(super) queries: Rotation,
    /// The places of all keys: of each text its context's, then its rows'.
    pub(super) keys: Rotation,
}

pub(super) struct Layer<'a> {
    pub(super) number: usize,
    pub(super) config: &'a Config,
    pub(super) parameters: &'a Parameters,
}

impl Layer<'_> {
    fn get(&self, name: &str) -> Result<&Tensor, TrainError> {
        self.parameters.get(&format!("layers.{}.{name}", self.number))
    }

    /// `x`: `[rows, hidden]`; `fused`: the features of all texts, `[contexts, hidden]`.
    pub(super) fn forward(&self, x: &Tensor, fused: &Tensor, sight: &Sight) -> Result<Tensor, TrainError> {
        let eps = self.config.norm_eps;
        let normed = rms_norm(x, self.get("input_norm")?, eps)?;
        let attended = self.attend(&normed, &mixed(fused, &normed, sight)?, sight)?;
        let x = (x + attended.matmul(self.get("o")?)?)?;
        let normed = rms_norm(&x, self.get("post_norm")?, eps)?;
        let inner = silu_mul(&normed.matmul(self.get("gate")?)?, &normed.matmul(self.get("up")?)?)?;
        Ok((x + inner.matmul(self.get("down")?)?)?)
    }

    /// A projection to heads, with its bias and the norm of single heads where the family has them.
    fn heads(&self, rows: &Tensor, name: &str) -> Result<Tensor, TrainError> {
        let mut heads = rows.matmul(self.get(name)?)?;
        if self.config.qkv_bias {
            heads = heads.broadcast_add(self.get(&format!("{name}_bias"))?)?;
        }
        if self.config.qk_norm() && name != "v" {
            let (rows, width) = heads.dims2()?;
            let head = self.config.head_dim;
            let single = heads.reshape((rows * width / head, head))?;
            let normed = rms_norm(&single, self.get(&format!("{name}_norm"))?, self.config.norm_eps)?;
            heads = normed.reshape((rows, width))?;
        }
        Ok(heads)
    }

    /// What the `rows` take from the `keyed` ones that they see: `[rows, heads * head_dim]`.
    fn attend(&self, rows: &Tensor, keyed: &Tensor, sight: &Sight) -> Result<Tensor, TrainError> {
        let Config { heads, kv_heads, head_dim, .. } = *self.config;
        let group = heads / kv_heads;
        let q = rotate(&self.heads(rows, "q")?, &sight.queries)?;
        let k = rotate(&self.heads(keyed, "k")?, &sight.keys)?;
        let v = self.heads(keyed, "v")?;
        let (mut row, mut key, mut all) = (0, 0, Vec::with_capacity(sight.rows.len()));
        for ((&context, &rows), visible) in sight.contexts.iter().zip(&sight.rows).zip(&sight.visible) {
            let keys = context + rows;
            let q = q.narrow(0, row, rows)?.reshape((rows, kv_heads, group * head_dim))?.transpose(0, 1)?;
            let q = q.contiguous()?.reshape((kv_heads, rows * group, head_dim))?;
            let part = |all: &Tensor| {
                let part = all.narrow(0, key, keys)?.reshape((keys, kv_heads, head_dim))?.transpose(0, 1)?;
                part.contiguous()
            };
            let weights = visible_softmax(&q.matmul(&part(&k)?.t()?)?, visible)?;
            let out = weights.matmul(&part(&v)?)?.reshape((kv_heads, rows, group * head_dim))?.transpose(0, 1)?;
            all.push(out.reshape((rows, heads * head_dim))?);
            (row, key) = (row + rows, key + keys);
        }
        Ok(Tensor::cat(&all, 0)?)
    }
}

/// What keys are made of: of each text its features, then its rows.
fn mixed(fused: &Tensor, rows: &Tensor, sight: &Sight) -> Result<Tensor, TrainError> {
    let (mut row, mut at, mut parts) = (0, 0, Vec::with_capacity(2 * sight.rows.len()));
    for (&context, &count) in sight.contexts.iter().zip(&sight.rows) {
        parts.push(fused.narrow(0, at, context)?);
        parts.push(rows.narrow(0, row, count)?);
        (row, at) = (row + count, at + context);
    }
    Ok(Tensor::cat(&parts, 0)?)
}
