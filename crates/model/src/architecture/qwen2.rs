//! Qwen2: Llama's layer with biases on queries, keys and values, as its config says.

use super::Layer;
use crate::config::Config;
use crate::load::{LoadError, Loader};

pub(super) fn layer(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Layer, LoadError> {
    super::llama::layer(loader, config, index)
}
