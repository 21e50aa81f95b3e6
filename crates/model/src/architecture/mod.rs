//! The families of models: each file says which tensors one of its layers has and what they are called.
//!
//! The arithmetic is that of [`crate::transformer`] for all of them. A family that needs other arithmetic brings it in
//! its file; what only differs in numbers belongs in [`Config`].

mod llama;
mod mistral;
mod qwen2;
mod qwen3;

use crate::config::{Architecture, Config};
use crate::load::{Linear, LoadError, Loader};

/// One decoder layer. Shapes are `[out, in]`.
pub(crate) struct Layer {
    /// `[hidden]`; empty: the layer takes its input as it is.
    pub(crate) input_norm: Vec<f32>,
    /// `[heads * head_dim, hidden]`
    pub(crate) q: Linear,
    /// `[kv_heads * head_dim, hidden]`
    pub(crate) k: Linear,
    /// `[kv_heads * head_dim, hidden]`
    pub(crate) v: Linear,
    /// Norms of single query and key heads, `[head_dim]` each, before the rotation.
    pub(crate) qk_norm: Option<[Vec<f32>; 2]>,
    /// `[hidden, heads * head_dim]`
    pub(crate) o: Linear,
    /// `[hidden]`
    pub(crate) post_norm: Vec<f32>,
    /// `[intermediate, hidden]`
    pub(crate) gate: Linear,
    /// `[intermediate, hidden]`
    pub(crate) up: Linear,
    /// `[hidden, intermediate]`
    pub(crate) down: Linear,
    /// Positions that a row sees, its own included; `None`: all.
    pub(crate) window: Option<usize>,
}

/// Loads layer `index`.
pub(crate) fn layer(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Layer, LoadError> {
    match config.architecture {
        Architecture::Llama => llama::layer(loader, config, index),
        Architecture::Mistral => mistral::layer(loader, config, index),
        Architecture::Qwen2 => qwen2::layer(loader, config, index),
        Architecture::Qwen3 => qwen3::layer(loader, config, index),
    }
}
