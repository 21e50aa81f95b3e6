//! Llama: the plain layer that the other families vary.

use super::Layer;
use crate::config::Config;
use crate::load::{LoadError, Loader};

pub(super) fn layer(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Layer, LoadError> {
    let Config { hidden, intermediate, .. } = *config;
    let (q_width, kv_width) = (config.q_width(), config.kv_width());
    let at = |part: &str| loader.in_layer(index, part);
    Ok(Layer {
        input_norm: loader.vector(&at("input_layernorm.weight"), hidden)?,
        q: loader.linear(&at("self_attn.q_proj"), [q_width, hidden], config.qkv_bias)?,
        k: loader.linear(&at("self_attn.k_proj"), [kv_width, hidden], config.qkv_bias)?,
        v: loader.linear(&at("self_attn.v_proj"), [kv_width, hidden], config.qkv_bias)?,
        qk_norm: None,
        o: loader.linear(&at("self_attn.o_proj"), [hidden, q_width], config.output_bias)?,
        post_norm: loader.vector(&at("post_attention_layernorm.weight"), hidden)?,
        gate: loader.linear(&at("mlp.gate_proj"), [intermediate, hidden], config.mlp_bias)?,
        up: loader.linear(&at("mlp.up_proj"), [intermediate, hidden], config.mlp_bias)?,
        down: loader.linear(&at("mlp.down_proj"), [hidden, intermediate], config.mlp_bias)?,
        window: config.windows[index],
    })
}
