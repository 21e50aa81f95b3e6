//! From a checkpoint to such a layer: what the families call their tensors, and which of them each has.

use std::sync::Arc;

use kernels::{Matrix, Pool};

use super::super::Model;
use super::{Eagle, EagleKind, EagleShape, Joint};
use crate::architecture::Layer;
use crate::config::{Architecture, Config};
use crate::load::{LoadError, LoadOptions, Loader};
use crate::weights::Weights;

impl Eagle {
    /// Loads the layer of a draft for `target`.
    ///
    /// # Errors
    /// When a tensor is missing, has the wrong shape or a format that cannot be used.
    pub fn load(
        weights: &Weights,
        config: Config,
        shape: EagleShape,
        target: &Model,
        pool: &Pool,
        options: LoadOptions,
    ) -> Result<Eagle, LoadError> {
        let loader = Loader::new(weights, pool, options, "");
        let (hidden, tapped) = (config.hidden, target.config.hidden);
        let names = Names::of(shape.kind, weights);
        let less_one = matches!(shape.kind, EagleKind::Next { .. });
        let norm = |name: &str, len: usize| -> Result<Vec<f32>, LoadError> {
            let mut weight = loader.vector(name, len)?;
            weight.iter_mut().filter(|_| less_one).for_each(|weight| *weight += 1.0);
            Ok(weight)
        };
        let joint = joint(&loader, &norm, shape.kind, &names.layer, hidden)?;
        let fuse = match shape.kind {
            EagleKind::Third { taps, .. } => {
                Some(loader.linear("fc", [hidden, taps * tapped], weights.has("fc.bias"))?)
            }
            _ => None,
        };
        let head = match shape.head {
            Some(known) => Some(Arc::new(loader.matrix(&names.head, [known, hidden])?)),
            None => target.head.clone(),
        };
        let inputs = if matches!(joint, Joint::Wide { .. }) { 2 * hidden } else { hidden };
        let normed = shape.kind != EagleKind::First;
        let model = Model {
            layers: vec![Arc::new(pair_layer(&loader, &norm, &config, &names.layer, (inputs, normed))?)],
            norm: names.norm.map(|name| norm(&name, hidden)).transpose()?,
            embedding: embedding(&loader, &config, target)?,
            head,
            isa: options.isa,
            rope: Model::rope(&config),
            config: Config { layers: 1, ..config },
        };
        Ok(Eagle { model, joint, fuse, tapped, depth: shape.depth, normed_feature: less_one })
    }
}

/// What a checkpoint calls the tensors of a draft.
struct Names {
    /// Before those of the layer.
    layer: String,
    norm: Option<String>,
    head: String,
}

impl Names {
    fn of(kind: EagleKind, weights: &Weights) -> Names {
        let (norm, head) = (Some("norm.weight".to_owned()), "lm_head.weight".to_owned());
        match kind {
            EagleKind::First => Names { layer: "layers.0.".into(), norm: None, head },
            EagleKind::Third { .. } if weights.has("midlayer.self_attn.q_proj.weight") => {
                Names { layer: "midlayer.".into(), norm, head }
            }
            EagleKind::Third { .. } => Names { layer: "layers.0.".into(), norm, head },
            EagleKind::Module { layer } => {
                let layer = format!("model.layers.{layer}.");
                let (norm, head) =
                    (format!("{layer}shared_head.norm.weight"), format!("{layer}shared_head.head.weight"));
                Names { layer, norm: Some(norm), head }
            }
            EagleKind::Next { layer } => {
                Names { layer: format!("mtp.layers.{layer}."), norm: Some("mtp.norm.weight".into()), head }
            }
        }
    }
}

/// What loads a norm of this name and length.
type Norm<'a> = &'a dyn Fn(&str, usize) -> Result<Vec<f32>, LoadError>;

/// What puts a token's embedding and a feature together, for the layer whose names begin with `layer`.
fn joint(loader: &Loader<'_>, norm: Norm<'_>, kind: EagleKind, layer: &str, hidden: usize) -> Result<Joint, LoadError> {
    let at = |part: &str| format!("{layer}{part}");
    let both = |name: &str| loader.linear(name, [hidden, 2 * hidden], loader.weights.has(&format!("{name}.bias")));
    let two = |[embedding, feature]: [&str; 2]| Ok::<_, LoadError>([norm(embedding, hidden)?, norm(feature, hidden)?]);
    Ok(match kind {
        EagleKind::First => Joint::Fused { fuse: both("fc")?, norms: None, first_embedding_is_zero: false },
        EagleKind::Third { normed_residual, .. } => {
            Joint::Wide { feature_norm: norm(&at("hidden_norm.weight"), hidden)?, normed_residual }
        }
        EagleKind::Module { .. } => {
            let norms = Some(two([&at("enorm.weight"), &at("hnorm.weight")])?);
            Joint::Fused { fuse: both(&at("eh_proj"))?, norms, first_embedding_is_zero: true }
        }
        EagleKind::Next { .. } => {
            let norms = Some(two(["mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight"])?);
            Joint::Fused { fuse: both("mtp.fc")?, norms, first_embedding_is_zero: false }
        }
    })
}

/// The layer's tensors, its norms by `norm`. Its projections take `inputs`, `normed` unless it has no norm before them.
fn pair_layer(
    loader: &Loader<'_>,
    norm: Norm<'_>,
    config: &Config,
    name: &str,
    (inputs, normed): (usize, bool),
) -> Result<Layer, LoadError> {
    let Config { hidden, intermediate, head_dim, .. } = *config;
    let (q_width, kv_width) = (config.q_width(), config.kv_width());
    let at = |part: &str| format!("{name}{part}");
    let head_norm = |part: &str| norm(&at(&format!("self_attn.{part}_norm.weight")), head_dim);
    Ok(Layer {
        input_norm: if normed { norm(&at("input_layernorm.weight"), hidden)? } else { Vec::new() },
        q: loader.linear(&at("self_attn.q_proj"), [q_width, inputs], config.qkv_bias)?,
        k: loader.linear(&at("self_attn.k_proj"), [kv_width, inputs], config.qkv_bias)?,
        v: loader.linear(&at("self_attn.v_proj"), [kv_width, inputs], config.qkv_bias)?,
        qk_norm: match config.architecture {
            Architecture::Qwen3 => Some([head_norm("q")?, head_norm("k")?]),
            _ => None,
        },
        o: loader.linear(&at("self_attn.o_proj"), [hidden, q_width], config.output_bias)?,
        post_norm: norm(&at("post_attention_layernorm.weight"), hidden)?,
        gate: loader.linear(&at("mlp.gate_proj"), [intermediate, hidden], config.mlp_bias)?,
        up: loader.linear(&at("mlp.up_proj"), [intermediate, hidden], config.mlp_bias)?,
        down: loader.linear(&at("mlp.down_proj"), [hidden, intermediate], config.mlp_bias)?,
        window: None,
    })
}

/// Its own, or else the target's.
fn embedding(loader: &Loader<'_>, config: &Config, target: &Model) -> Result<Arc<Matrix>, LoadError> {
    if loader.weights.has("embed_tokens.weight") {
        return Ok(Arc::new(loader.matrix("embed_tokens.weight", [config.vocab, config.hidden])?));
    }
    Ok(Arc::clone(&target.embedding))
}
