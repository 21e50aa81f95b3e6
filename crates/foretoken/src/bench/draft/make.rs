//! Drafters that nobody has trained: checkpoints of a shape, with random weights, for who wants to know what one would cost.

use std::path::Path;

use anyhow::Result;
use model::config::Config;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::json;

use crate::bench::random::Random;

/// A family of drafters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Kind {
    Dspark,
    Dflash,
    Eagle3,
}

/// A drafter's shape.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) kind: Kind,
    /// Layers of a block drafter; EAGLE-3 has one.
    pub(super) layers: usize,
    /// Drafts of a round.
    pub(super) drafts: usize,
    /// Of the head that makes a draft depend on the one before.
    pub(super) rank: usize,
    /// Hidden states of the target that are read.
    pub(super) taps: usize,
    /// Tokens that the drafter's own head knows; `None`: it has the target's.
    pub(super) known: Option<usize>,
}

/// The logit of a confidence that is as good as certain.
const SURE: f32 = 20.0;

impl Shape {
    /// Writes a checkpoint of this shape for a target.
    ///
    /// # Errors
    /// When the files cannot be written.
    pub(super) fn write(&self, dir: &Path, target: &Config) -> Result<()> {
        std::fs::write(dir.join("config.json"), self.config(target).to_string())?;
        let mut random = Random::new(1);
        let tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = self
            .tensors(target)
            .into_iter()
            .map(|(name, shape)| {
                let spread = 1.0 / (shape[shape.len() - 1] as f64).sqrt();
                let mut value = || ((random.unit() * 2.0 - 1.0) * spread) as f32;
                let bytes = (0..shape.iter().product()).flat_map(|_: usize| value().to_le_bytes()).collect();
                // Sure of all drafts, so that all are said.
                let sure = name == "confidence_head.proj.bias";
                (name, Dtype::F32, shape, if sure { SURE.to_le_bytes().to_vec() } else { bytes })
            })
            .chain(self.ids(target))
            .collect();
        let views = tensors
            .iter()
            .map(|(name, dtype, shape, bytes)| Ok((name, TensorView::new(*dtype, shape.clone(), bytes)?)))
            .collect::<Result<Vec<_>>>()?;
        Ok(safetensors::serialize_to_file(views, None, &dir.join("model.safetensors"))?)
    }

    /// The target's token of each that the drafter's head knows, as distances: every so many-th.
    fn ids(&self, target: &Config) -> Option<(String, Dtype, Vec<usize>, Vec<u8>)> {
        let known = self.known?;
        let offset = |id: usize| (id * target.vocab / known - id) as i64;
        let bytes = (0..known).flat_map(|id| offset(id).to_le_bytes()).collect();
        Some(("d2t".into(), Dtype::I64, vec![known], bytes))
    }

    /// In DeepSpec's format; block drafters whose heads know less than the target in that of speculators.
    fn config(&self, target: &Config) -> serde_json::Value {
        let mut config = self.plain_config(target);
        let Some(known) = self.known else { return config };
        config["draft_vocab_size"] = known.into();
        if self.kind == Kind::Eagle3 {
            return config;
        }
        let ids = config["target_layer_ids"].as_array().cloned().unwrap_or_default();
        let inputs: Vec<u64> = ids.iter().filter_map(|id| id.as_u64()).map(|id| id + 1).collect();
        let part = config.clone();
        config["architectures"] = json!(["DSparkSpeculator"]);
        config["speculators_model_type"] = "dspark".into();
        config["aux_hidden_state_layer_ids"] = json!(inputs);
        config["sample_from_anchor"] = true.into();
        config["transformer_layer_config"] = part;
        config
    }

    fn plain_config(&self, target: &Config) -> serde_json::Value {
        let Shape { kind, layers, drafts, rank, taps, .. } = *self;
        let last = target.layers.saturating_sub(3).max(1);
        let tap = |at: usize| (1 + at * (last - 1) / taps.saturating_sub(1).max(1)).min(target.layers - 1);
        let is_dspark = kind == Kind::Dspark;
        json!({
            "architectures": [if kind == Kind::Eagle3 { "Qwen3Eagle3Model" } else { "Qwen3DSparkModel" }],
            "model_type": "qwen3",
            "hidden_size": target.hidden,
            "intermediate_size": target.intermediate,
            "num_attention_heads": target.heads,
            "num_key_value_heads": target.kv_heads,
            "head_dim": target.head_dim,
            "num_hidden_layers": if kind == Kind::Eagle3 { 1 } else { layers },
            "vocab_size": target.vocab,
            "max_position_embeddings": target.context,
            "rms_norm_eps": target.norm_eps,
            "rope_theta": target.rope.theta,
            "block_size": drafts,
            "ttt_length": drafts,
            "mask_token_id": 0,
            "target_layer_ids": (0..taps).map(tap).collect::<Vec<_>>(),
            "markov_rank": if is_dspark { rank } else { 0 },
            "enable_confidence_head": is_dspark,
            "confidence_head_with_markov": is_dspark,
        })
    }

    fn tensors(&self, target: &Config) -> Vec<(String, Vec<usize>)> {
        let Config { hidden, intermediate, head_dim, vocab, .. } = *target;
        let (q, kv) = (target.q_width(), target.kv_width());
        let eagle = self.kind == Kind::Eagle3;
        let inputs = if eagle { 2 * hidden } else { hidden };
        let mut all: Vec<(String, Vec<usize>)> =
            vec![("fc.weight".into(), vec![hidden, self.taps * hidden]), ("norm.weight".into(), vec![hidden])];
        for layer in 0..if eagle { 1 } else { self.layers } {
            let parts: [(&str, Vec<usize>); 11] = [
                ("input_layernorm", vec![hidden]),
                ("post_attention_layernorm", vec![hidden]),
                ("self_attn.q_proj", vec![q, inputs]),
                ("self_attn.k_proj", vec![kv, inputs]),
                ("self_attn.v_proj", vec![kv, inputs]),
                ("self_attn.o_proj", vec![hidden, q]),
                ("self_attn.q_norm", vec![head_dim]),
                ("self_attn.k_norm", vec![head_dim]),
                ("mlp.gate_proj", vec![intermediate, hidden]),
                ("mlp.up_proj", vec![intermediate, hidden]),
                ("mlp.down_proj", vec![hidden, intermediate]),
            ];
            all.extend(parts.map(|(part, shape)| (format!("layers.{layer}.{part}.weight"), shape)));
        }
        let norm = if eagle { "layers.0.hidden_norm.weight" } else { "hidden_norm.weight" };
        all.push((norm.into(), vec![hidden]));
        if let Some(known) = self.known {
            all.push(("lm_head.weight".into(), vec![known, hidden]));
        }
        if self.kind == Kind::Dspark {
            all.push(("markov_head.markov_w1.weight".into(), vec![vocab, self.rank]));
            all.push(("markov_head.markov_w2.weight".into(), vec![self.known.unwrap_or(vocab), self.rank]));
            all.push(("confidence_head.proj.weight".into(), vec![1, hidden + self.rank]));
            all.push(("confidence_head.proj.bias".into(), vec![1]));
        }
        all
    }
}
