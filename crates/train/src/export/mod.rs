//! A drafter's files, in the formats that others write and read.
//!
//! What all formats have in common: the description of layers, their tensors' names, a reduced vocabulary. What only one kind
//! has is that kind's.

use std::path::Path;

use candle_core::Tensor;
use half::f16;
use model::config::{Architecture, Config, RopeScaling};
use safetensors::Dtype;
use serde_json::{Map, Value, json};

use crate::TrainError;
use crate::files::{self, Written, write_tensors};
use crate::ops::values;
use crate::parameters::Parameters;
use crate::vocabulary::DraftVocabulary;

/// What the files say beside the weights.
#[derive(Debug, Clone, Default)]
pub struct About {
    /// The target's name.
    pub target: String,
    /// The model card, in Markdown.
    pub card: String,
}

/// A drafter's `config.json` and its tensors.
pub(crate) struct Files {
    pub(crate) config: Value,
    pub(crate) tensors: Vec<Written>,
}

/// Writes `config.json`, `model.safetensors` and `README.md`.
pub(crate) fn write(files: Files, dir: &Path, card: &str) -> Result<(), TrainError> {
    let Files { config, tensors } = files;
    std::fs::create_dir_all(dir).map_err(|source| TrainError::io("make", dir, source))?;
    write_tensors(&dir.join("model.safetensors"), None, tensors)?;
    files::write(&dir.join("config.json"), format!("{config:#}\n").as_bytes())?;
    files::write(&dir.join("README.md"), card.as_bytes())
}

/// The description of the layers, as the transformers library has it.
pub(crate) fn layers(config: &Config) -> Result<Value, TrainError> {
    let kind = match config.architecture {
        Architecture::Llama | Architecture::Mistral => "llama",
        Architecture::Qwen2 => "qwen2",
        Architecture::Qwen3 => "qwen3",
    };
    let mut layers = json!({
        "model_type": kind,
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.context,
        "rms_norm_eps": short(config.norm_eps),
        "rope_theta": config.rope.theta,
        "hidden_act": "silu",
        "attention_bias": false,
        "mlp_bias": false,
        "tie_word_embeddings": false,
        "torch_dtype": "float16",
    });
    if let Some(scaling) = scaling(&config.rope.scaling)? {
        layers["rope_scaling"] = Value::Object(scaling);
    }
    Ok(layers)
}

/// A number with no more digits than it has.
fn short(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

fn scaling(scaling: &RopeScaling) -> Result<Option<Map<String, Value>>, TrainError> {
    let scaling = match scaling {
        RopeScaling::None => return Ok(None),
        RopeScaling::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor,
            "original_max_position_embeddings": original_context,
        }),
        RopeScaling::Yarn {
            factor,
            original_context,
            beta_fast,
            beta_slow,
            attention_factor,
            mscale,
            mscale_all_dim,
            truncate,
        } => json!({
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original_context,
            "beta_fast": beta_fast,
            "beta_slow": beta_slow,
            "attention_factor": attention_factor,
            "mscale": mscale,
            "mscale_all_dim": mscale_all_dim,
            "truncate": truncate,
        }),
        RopeScaling::Factors(_) => {
            let problem = "is a GGUF file whose rope scaling is a list of divisors, which config.json cannot say: \
                           give the model's safetensors";
            return Err(TrainError::option("--target", problem));
        }
    };
    Ok(scaling.as_object().cloned())
}

/// The tensors of a layer, whose parameters begin with `ours`, under names that begin with `theirs`.
pub(crate) fn layer_tensors(parameters: &Parameters, ours: &str, theirs: &str) -> Result<Vec<Written>, TrainError> {
    let mut all = Vec::new();
    for (name, parameter) in &parameters.all {
        let part = name.strip_prefix(ours).and_then(|rest| rest.strip_prefix('.')).and_then(published);
        if let Some((name, turned)) = part {
            let tensor = parameter.var.as_tensor();
            all.push(half(format!("{theirs}{name}"), &if turned { tensor.t()? } else { tensor.clone() })?);
        }
    }
    Ok(all)
}

/// What a layer's parameter is called in published files, and whether it is turned there.
fn published(part: &str) -> Option<(&'static str, bool)> {
    Some(match part {
        "input_norm" => ("input_layernorm.weight", false),
        "post_norm" => ("post_attention_layernorm.weight", false),
        "q" => ("self_attn.q_proj.weight", true),
        "k" => ("self_attn.k_proj.weight", true),
        "v" => ("self_attn.v_proj.weight", true),
        "q_bias" => ("self_attn.q_proj.bias", false),
        "k_bias" => ("self_attn.k_proj.bias", false),
        "v_bias" => ("self_attn.v_proj.bias", false),
        "q_norm" => ("self_attn.q_norm.weight", false),
        "k_norm" => ("self_attn.k_norm.weight", false),
        "o" => ("self_attn.o_proj.weight", true),
        "gate" => ("mlp.gate_proj.weight", true),
        "up" => ("mlp.up_proj.weight", true),
        "down" => ("mlp.down_proj.weight", true),
        _ => return None,
    })
}

/// Which of the target's `vocab` tokens the draft's are, and the other way round.
pub(crate) fn known(vocabulary: &DraftVocabulary, vocab: usize) -> [Written; 2] {
    let distances = (0i64..).zip(vocabulary.ids()).flat_map(|(at, &id)| (i64::from(id) - at).to_le_bytes());
    let known = (0..vocab as u32).map(|id| u8::from(vocabulary.index(id).is_some()));
    [
        ("d2t".into(), Dtype::I64, vec![vocabulary.len()], distances.collect()),
        ("t2d".into(), Dtype::BOOL, vec![vocab], known.collect()),
    ]
}

/// A tensor as f16.
pub(crate) fn half(name: String, tensor: &Tensor) -> Result<Written, TrainError> {
    let bytes = values(tensor)?.into_iter().flat_map(|x| f16::from_f32(x).to_le_bytes()).collect();
    Ok((name, Dtype::F16, tensor.dims().to_vec(), bytes))
}
