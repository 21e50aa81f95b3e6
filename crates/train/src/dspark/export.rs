//! A drafter's files: DeepSpec's format, or that of the library speculators where the draft knows fewer tokens than the target.

use std::path::Path;

use candle_core::Tensor;
use half::f16;
use model::config::{Architecture, RopeScaling};
use safetensors::Dtype;
use serde_json::{Map, Value, json};

use super::Dspark;
use crate::TrainError;
use crate::files::{self, Written, write_tensors};
use crate::ops::values;

/// What the files say beside the weights.
#[derive(Debug, Clone, Default)]
pub struct About {
    /// The target's name.
    pub target: String,
    /// The model card, in Markdown.
    pub card: String,
}

/// Writes `config.json`, `model.safetensors` and `README.md`.
pub(super) fn write(drafter: &Dspark, dir: &Path, about: &About) -> Result<(), TrainError> {
    std::fs::create_dir_all(dir).map_err(|source| TrainError::io("make", dir, source))?;
    let config = config(drafter, &about.target)?;
    write_tensors(&dir.join("model.safetensors"), None, tensors(drafter)?)?;
    files::write(&dir.join("config.json"), format!("{config:#}\n").as_bytes())?;
    files::write(&dir.join("README.md"), about.card.as_bytes())
}

fn config(drafter: &Dspark, target: &str) -> Result<Value, TrainError> {
    let Dspark { shape, vocabulary, .. } = drafter;
    let layers = layers(drafter)?;
    let mut config = match vocabulary.is_reduced() {
        true => json!({
            "architectures": ["DSparkSpeculator"],
            "speculators_model_type": "dspark",
            "draft_vocab_size": vocabulary.len(),
            "sample_from_anchor": true,
            // The ids of layers whose inputs are read.
            "aux_hidden_state_layer_ids": shape.taps.iter().map(|tap| tap + 1).collect::<Vec<_>>(),
            "speculators_config": {
                "algorithm": "dspark",
                "default_proposal_method": "greedy",
                "proposal_methods": [{ "proposal_type": "greedy", "speculative_tokens": shape.block }],
                "verifier": { "name_or_path": target },
            },
            "transformer_layer_config": layers,
        }),
        false => {
            let mut config = layers;
            config["architectures"] = json!(["Qwen3DSparkModel"]);
            config["target_layer_ids"] = json!(shape.taps);
            config["layer_types"] = json!(vec!["full_attention"; shape.layers.len()]);
            config
        }
    };
    let more = json!({
        "block_size": shape.block,
        "mask_token_id": shape.mask,
        "markov_rank": shape.rank,
        "markov_head_type": "vanilla",
        "enable_confidence_head": true,
        "confidence_head_with_markov": true,
        "tie_word_embeddings": false,
        "torch_dtype": "float16",
    });
    if let (Value::Object(config), Value::Object(more)) = (&mut config, more) {
        config.extend(more);
    }
    Ok(config)
}

/// The description of the layers, as the transformers library has it.
fn layers(drafter: &Dspark) -> Result<Value, TrainError> {
    let config = &drafter.config;
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

/// All weights as f16, as `[out, in]`, and what the draft's tokens are.
fn tensors(drafter: &Dspark) -> Result<Vec<Written>, TrainError> {
    let (parameters, vocabulary) = (&drafter.parameters, &drafter.vocabulary);
    let mut all = Vec::new();
    for (name, parameter) in &parameters.all {
        if let Some((name, turned)) = published(name) {
            let tensor = parameter.var.as_tensor();
            all.push(half(name, &if turned { tensor.t()? } else { tensor.clone() })?);
        }
    }
    let part = |name: &str| parameters.get(name);
    let sure = Tensor::cat(&[part("confidence.hidden")?, part("confidence.before")?], 0)?;
    all.push(half("confidence_head.proj.weight".into(), &sure.t()?)?);
    all.push(half("lm_head.weight".into(), &drafter.head.weights)?);
    if vocabulary.is_reduced() {
        let distances = (0i64..).zip(vocabulary.ids()).flat_map(|(at, &id)| (i64::from(id) - at).to_le_bytes());
        all.push(("d2t".into(), Dtype::I64, vec![vocabulary.len()], distances.collect()));
        let vocab = drafter.config.vocab;
        let known = (0..vocab as u32).map(|id| u8::from(vocabulary.index(id).is_some()));
        all.push(("t2d".into(), Dtype::BOOL, vec![vocab], known.collect()));
    } else {
        all.push(half("embed_tokens.weight".into(), &drafter.embedding)?);
    }
    Ok(all)
}

/// What a parameter is called in published files, and whether it is turned there; `None`: it is a part of another.
fn published(name: &str) -> Option<(String, bool)> {
    let whole = |name: &str, turned| Some((name.to_owned(), turned));
    match name {
        "fc" => return whole("fc.weight", true),
        "hidden_norm" => return whole("hidden_norm.weight", false),
        "norm" => return whole("norm.weight", false),
        "markov_w1" => return whole("markov_head.markov_w1.weight", false),
        "markov_w2" => return whole("markov_head.markov_w2.weight", true),
        "confidence.bias" => return whole("confidence_head.proj.bias", false),
        _ => {}
    }
    let (layer, part) = name.strip_prefix("layers.")?.split_once('.')?;
    let (part, turned) = match part {
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
    };
    Some((format!("layers.{layer}.{part}"), turned))
}

fn half(name: String, tensor: &Tensor) -> Result<Written, TrainError> {
    let bytes = values(tensor)?.into_iter().flat_map(|x| f16::from_f32(x).to_le_bytes()).collect();
    Ok((name, Dtype::F16, tensor.dims().to_vec(), bytes))
}
