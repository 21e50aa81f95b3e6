//! The files of block drafters: those of DeepSpec (DSpark) and z-lab (DFlash), or of the library speculators where the draft
//! knows fewer tokens than the target.

use candle_core::Tensor;
use serde_json::{Value, json};

use super::Block;
use crate::TrainError;
use crate::drafter::{Base, Method};
use crate::export::{self, Files};
use crate::files::Written;

impl Block {
    pub(crate) fn files(&self, base: &Base, target: &str) -> Result<Files, TrainError> {
        Ok(Files { config: config(base, target)?, tensors: tensors(base)? })
    }
}

fn config(base: &Base, target: &str) -> Result<Value, TrainError> {
    let Base { shape, vocabulary, .. } = base;
    let layers = export::layers(&base.config)?;
    let is_dspark = shape.method == Method::Dspark;
    let rows = shape.drafts + usize::from(!is_dspark);
    let mut config = match (vocabulary.is_reduced(), is_dspark) {
        (true, _) => json!({
            "architectures": [if is_dspark { "DSparkSpeculator" } else { "DFlashSpeculator" }],
            "speculators_model_type": shape.method.name(),
            "draft_vocab_size": vocabulary.len(),
            "sample_from_anchor": is_dspark,
            // The ids of layers whose inputs are read.
            "aux_hidden_state_layer_ids": shape.taps.iter().map(|tap| tap + 1).collect::<Vec<_>>(),
            "speculators_config": {
                "algorithm": shape.method.name(),
                "default_proposal_method": "greedy",
                "proposal_methods": [{ "proposal_type": "greedy", "speculative_tokens": shape.drafts }],
                "verifier": { "name_or_path": target },
            },
            "transformer_layer_config": layers,
            "mask_token_id": shape.mask,
        }),
        (false, true) => {
            let mut config = layers;
            config["architectures"] = json!(["Qwen3DSparkModel"]);
            config["target_layer_ids"] = json!(shape.taps);
            config["mask_token_id"] = json!(shape.mask);
            config
        }
        (false, false) => {
            let mut config = layers;
            config["architectures"] = json!(["DFlashDraftModel"]);
            config["dflash_config"] = json!({ "mask_token_id": shape.mask, "target_layer_ids": shape.taps });
            config["num_target_layers"] = json!(base.target_layers);
            config
        }
    };
    config["block_size"] = json!(rows);
    config["torch_dtype"] = json!("float16");
    if !vocabulary.is_reduced() {
        config["layer_types"] = json!(vec!["full_attention"; shape.layers.len()]);
    }
    if is_dspark {
        config["markov_rank"] = json!(shape.rank);
        config["markov_head_type"] = json!("vanilla");
        config["enable_confidence_head"] = json!(true);
        config["confidence_head_with_markov"] = json!(true);
    }
    Ok(config)
}

/// All weights as f16, as `[out, in]`, and what the draft's tokens are.
fn tensors(base: &Base) -> Result<Vec<Written>, TrainError> {
    let (shape, vocabulary) = (&base.shape, &base.vocabulary);
    let mut all = Vec::new();
    let mut add = |name: &str, tensor: &Tensor| -> Result<(), TrainError> {
        all.push(export::half(name.to_owned(), tensor)?);
        Ok(())
    };
    add("fc.weight", &base.get("fc")?.t()?)?;
    add("hidden_norm.weight", base.get("hidden_norm")?)?;
    add("norm.weight", base.get("norm")?)?;
    let is_dspark = shape.method == Method::Dspark;
    if is_dspark {
        add("markov_head.markov_w1.weight", base.get("markov_w1")?)?;
        add("markov_head.markov_w2.weight", &base.get("markov_w2")?.t()?)?;
        let sure = Tensor::cat(&[base.get("confidence.hidden")?, base.get("confidence.before")?], 0)?;
        add("confidence_head.proj.weight", &sure.t()?)?;
        add("confidence_head.proj.bias", base.get("confidence.bias")?)?;
    }
    // DFlash's own files have neither: they are the target's.
    if is_dspark || vocabulary.is_reduced() {
        add("lm_head.weight", &base.head.weights)?;
    }
    if is_dspark && !vocabulary.is_reduced() {
        add("embed_tokens.weight", &base.embedding)?;
    }
    for number in 0..shape.layers.len() {
        let name = format!("layers.{number}");
        all.extend(export::layer_tensors(&base.parameters, &name, &format!("{name}."))?);
    }
    if vocabulary.is_reduced() {
        all.extend(export::known(vocabulary, base.config.vocab));
    }
    Ok(all)
}
