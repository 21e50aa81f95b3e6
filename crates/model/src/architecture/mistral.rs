//! Mistral: Llama's layer with a sliding window.

use super::Layer;
use crate::config::Config;
use crate::load::{LoadError, Loader};

pub(super) fn layer(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Layer, LoadError> {
    Ok(Layer { window: config.windows[index], ..super::llama::layer(loader, config, index)? })
}
