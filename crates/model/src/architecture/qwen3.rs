//! Qwen3: Llama's layer with a norm on every query and key head; the width of a head is its own number.

use super::Layer;
use crate::config::Config;
use crate::load::{LoadError, Loader};

pub(super) fn layer(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Layer, LoadError> {
    let norm =
        |part: &str| loader.vector(&loader.in_layer(index, &format!("self_attn.{part}_norm.weight")), config.head_dim);
    Ok(Layer { qk_norm: Some([norm("q")?, norm("k")?]), ..super::llama::layer(loader, config, index)? })
}
