//! One layer of a draft, with gradients: the parts that all kinds put together, each in its own way.

use std::ops::Range;

use candle_core::Tensor;
use model::config::Config;

use crate::TrainError;
use crate::ops::{Rotation, Visible, rms_norm, rotate, silu_mul, visible_softmax};
use crate::parameters::Parameters;

/// The parameters of a layer.
pub(crate) struct Layer<'a> {
    /// What their names begin with.
    pub(crate) name: &'a str,
    pub(crate) config: &'a Config,
    pub(crate) parameters: &'a Parameters,
}

impl Layer<'_> {
    fn get(&self, part: &str) -> Result<&Tensor, TrainError> {
        self.parameters.get(&format!("{}.{part}", self.name))
    }

    /// Rows through one of its norms.
    pub(crate) fn norm(&self, rows: &Tensor, norm: &str) -> Result<Tensor, TrainError> {
        Ok(rms_norm(rows, self.get(norm)?, self.config.norm_eps)?)
    }

    /// A projection to heads, with its bias and the norm of single heads where the family has them.
    pub(crate) fn heads(&self, rows: &Tensor, part: &str) -> Result<Tensor, TrainError> {
        let mut heads = rows.matmul(self.get(part)?)?;
        if self.config.qkv_bias {
            heads = heads.broadcast_add(self.get(&format!("{part}_bias"))?)?;
        }
        if self.config.qk_norm() && part != "v" {
            let (rows, width) = heads.dims2()?;
            let head = self.config.head_dim;
            let single = heads.reshape((rows * width / head, head))?;
            heads = self.norm(&single, &format!("{part}_norm"))?.reshape((rows, width))?;
        }
        Ok(heads)
    }

    /// The same, turned to the rows' places.
    pub(crate) fn turned(&self, rows: &Tensor, part: &str, places: &Rotation) -> Result<Tensor, TrainError> {
        Ok(rotate(&self.heads(rows, part)?, places)?)
    }

    /// From what heads took back to rows.
    pub(crate) fn out(&self, attended: &Tensor) -> Result<Tensor, TrainError> {
        Ok(attended.matmul(self.get("o")?)?)
    }

    /// The rows, and what the layer's second half adds to them.
    pub(crate) fn feed_forward(&self, x: &Tensor) -> Result<Tensor, TrainError> {
        let normed = self.norm(x, "post_norm")?;
        let inner = silu_mul(&normed.matmul(self.get("gate")?)?, &normed.matmul(self.get("up")?)?)?;
        Ok((x + inner.matmul(self.get("down")?)?)?)
    }
}

/// How scores are scaled, and which rows of them share keys.
pub(crate) struct Attention {
    group: usize,
    scale: f32,
}

impl Attention {
    pub(crate) fn of(config: &Config) -> Attention {
        Attention { group: config.heads / config.kv_heads, scale: 1.0 / (config.head_dim as f32).sqrt() }
    }

    /// `keys`: for each row two ranges that it sees.
    pub(crate) fn visible(&self, keys: Vec<[Range<usize>; 2]>) -> Visible {
        Visible::new(keys, self.group, self.scale)
    }
}

/// What rows take from the keys of their text: `q`: `[rows, heads * head_dim]`; `k`, `v`: `[keys, kv_heads * head_dim]`.
pub(crate) fn attend(
    config: &Config,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    visible: &Visible,
) -> Result<Tensor, TrainError> {
    let Config { heads, kv_heads, head_dim, .. } = *config;
    let (group, rows, keys) = (heads / kv_heads, q.dim(0)?, k.dim(0)?);
    let q = q.reshape((rows, kv_heads, group * head_dim))?.transpose(0, 1)?;
    let q = q.contiguous()?.reshape((kv_heads, rows * group, head_dim))?;
    let part = |all: &Tensor| all.reshape((keys, kv_heads, head_dim))?.transpose(0, 1)?.contiguous();
    let weights = visible_softmax(&q.matmul(&part(k)?.t()?)?, visible)?;
    let out = weights.matmul(&part(v)?)?.reshape((kv_heads, rows, group * head_dim))?.transpose(0, 1)?;
    Ok(out.reshape((rows, heads * head_dim))?)
}
