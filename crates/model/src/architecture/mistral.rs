//! Mistral: Llama's layer; its sliding window is a number of the config.

use super::Layer;
use crate::config::Config;
use crate::load::{LoadError, Loader};

pub(super) fn layer(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Layer, LoadError> {
    super::llama::layer(loader, config, index)
}
