//! Qwen2: Llama's layer with biases on queries, keys and values, and a window in some layers where the config asks.

use super::Layer;
use crate::config::Config;
use crate::load::{LoadError, Loader};

pub(super) fn layer(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Layer, LoadError> {
    Ok(Layer { window: config.windows[index], ..super::llama::layer(loader, config, index)? })
}
