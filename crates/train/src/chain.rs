//! Feature-level drafters: one draft after the other, each from the feature that the one before it gave (EAGLE-3, Li et al.
//! 2025, arXiv 2503.01840; modules for multi-token prediction, DeepSeek-V3, arXiv 2412.19437).
//!
//! They learn as they draft: from the second draft of a block on a row takes the feature that the row before it gave, and sees
//! its own block's rows instead of the target's features ("training-time test"). The forward here is the one of
//! [`model::Eagle`], with gradients. How the weights move may not enter.

use candle_core::{Device, Tensor};
use model::config::Architecture;
use serde_json::json;

use crate::TrainError;
use crate::batch::{Batch, BatchText};
use crate::begin;
use crate::drafter::{Base, Hidden, Method};
use crate::export::{self, Files};
use crate::layer::{Attention, Layer, attend};
use crate::ops::{Rotation, Visible, rms_norm, times_constant};
use crate::target::TargetWeights;

/// A feature-level drafter; all that it knows is in its parameters.
pub(crate) struct Chain;

/// Pairs of a feature and the token after it, as a layer takes them.
struct Pairs {
    /// What goes on beside the attention.
    residual: Tensor,
    /// What the projections take.
    normed: Tensor,
}

/// The keys and values of a text, in parts.
struct Keys {
    /// Those of the pairs before the last anchor, `[context - 1, kv_heads * head_dim]` each.
    context: [Tensor; 2],
    /// Those of the blocks' rows, for each draft so far: `[blocks, kv_heads * head_dim]` each.
    drafts: [Vec<Tensor>; 2],
}

const LAYER: &str = "layers.0";

impl Chain {
    pub(crate) fn begin(base: &mut Base, target: &TargetWeights<'_>, seed: u64) -> Result<Chain, TrainError> {
        let Base { shape, config, parameters, .. } = base;
        let hidden = config.hidden;
        let source = shape.layers[0];
        if shape.method == Method::Eagle3 {
            parameters.add("fc", &begin::fusion(hidden, shape.taps.len(), seed)?)?;
            parameters.add("hidden_norm", &begin::ones(hidden)?)?;
            begin::layer(parameters, LAYER, config, target, (source, 2 * hidden))?;
        } else {
            parameters.add("embedding_norm", &begin::ones(hidden)?)?;
            parameters.add("hidden_norm", &begin::ones(hidden)?)?;
            let both = Tensor::eye(hidden, candle_core::DType::F32, &Device::Cpu)?;
            parameters.add("join", &Tensor::cat(&[&both, &both], 0)?)?;
            begin::layer(parameters, LAYER, config, target, (source, hidden))?;
        }
        parameters.add("norm", &target.norm()?)?;
        Ok(Chain)
    }

    pub(crate) fn forward(&self, base: &Base, batch: &Batch) -> Result<Hidden, TrainError> {
        let layer = Layer { name: LAYER, config: &base.config, parameters: &base.parameters };
        let features = batch.texts.iter().map(|text| features(base, &text.features)).collect::<Result<Vec<_>, _>>()?;
        let mut keys = Vec::with_capacity(batch.texts.len());
        for (text, features) in batch.texts.iter().zip(&features) {
            // The first token has no feature before it, and the last anchor's pair is a row.
            let pairs = text.tokens.len() - 1;
            let embedded = context_embeddings(base, &text.tokens)?;
            let pairs = pairs_of(base, &embedded, &features.narrow(0, 0, pairs)?)?;
            let places: Vec<u32> = (0..text.tokens.len() as u32 - 1).collect();
            let context =
                [layer.turned(&pairs.normed, "k", &places_of(base, &places))?, layer.heads(&pairs.normed, "v")?];
            keys.push(Keys { context, drafts: [Vec::new(), Vec::new()] });
        }
        let before = |text: &BatchText| text.anchors.iter().map(|&anchor| anchor as u32 - 1).collect::<Vec<_>>();
        let first = batch.texts.iter().zip(&features).map(|(text, features)| {
            Ok::<_, TrainError>(features.index_select(&Tensor::new(before(text), &Device::Cpu)?, 0)?)
        });
        let mut feature = Tensor::cat(&first.collect::<Result<Vec<_>, _>>()?, 0)?;
        let mut drafts = Vec::with_capacity(batch.shape.rows);
        for draft in 0..batch.shape.rows {
            let rows = |all: &[u32]| all.iter().skip(draft).step_by(batch.shape.rows).copied().collect::<Vec<u32>>();
            let pairs = pairs_of(base, &base.embed(&rows(&batch.before))?, &feature)?;
            // The pair of a token is where the feature before it was.
            let places: Vec<u32> = rows(&batch.positions).iter().map(|position| position - 1).collect();
            let x = self.draft(base, &layer, batch, (&pairs, &places), &mut keys)?;
            let hidden = rms_norm(&x, base.get("norm")?, base.config.norm_eps)?;
            drafts.push(hidden);
            feature = x;
        }
        let (blocks, width) = drafts[0].dims2()?;
        let hidden = Tensor::stack(&drafts, 1)?.reshape((blocks * batch.shape.rows, width))?;
        Ok(Hidden { hidden, before: None, sure: None })
    }

    /// What comes out of the layer for one draft of every block, `[blocks, hidden]`.
    fn draft(
        &self,
        base: &Base,
        layer: &Layer<'_>,
        batch: &Batch,
        (pairs, places): (&Pairs, &[u32]),
        keys: &mut [Keys],
    ) -> Result<Tensor, TrainError> {
        let places = places_of(base, places);
        let q = layer.turned(&pairs.normed, "q", &places)?;
        let [k, v] = [layer.turned(&pairs.normed, "k", &places)?, layer.heads(&pairs.normed, "v")?];
        let (mut row, mut all) = (0, Vec::with_capacity(batch.texts.len()));
        for (text, keys) in batch.texts.iter().zip(keys) {
            let blocks = text.anchors.len();
            for (drafts, new) in keys.drafts.iter_mut().zip([&k, &v]) {
                drafts.push(new.narrow(0, row, blocks)?);
            }
            let [k, v] = keys.all()?;
            let visible = keys.visible(base, &text.anchors);
            all.push(attend(layer.config, &q.narrow(0, row, blocks)?, &k, &v, &visible)?);
            row += blocks;
        }
        layer.feed_forward(&(&pairs.residual + layer.out(&Tensor::cat(&all, 0)?)?)?)
    }

    /// The files: EAGLE-3's, or those of a checkpoint with a module behind the target's layers.
    pub(crate) fn files(&self, base: &Base, target: &str) -> Result<Files, TrainError> {
        let Base { shape, config, vocabulary, .. } = base;
        let mut layers = export::layers(config)?;
        let mut tensors = Vec::new();
        let (names, layer): (&[(&str, &str, bool)], String) = match shape.method {
            Method::Eagle3 => (
                &[
                    ("fc", "fc.weight", true),
                    ("hidden_norm", "midlayer.hidden_norm.weight", false),
                    ("norm", "norm.weight", false),
                ],
                "midlayer.".into(),
            ),
            _ => (
                &[
                    ("embedding_norm", "enorm.weight", false),
                    ("hidden_norm", "hnorm.weight", false),
                    ("join", "eh_proj.weight", true),
                    ("norm", "shared_head.norm.weight", false),
                ],
                format!("model.layers.{}.", base.target_layers),
            ),
        };
        for &(ours, theirs, turned) in names {
            let prefix = if shape.method == Method::Eagle3 { "" } else { layer.as_str() };
            let tensor = base.get(ours)?;
            tensors
                .push(export::half(format!("{prefix}{theirs}"), &if turned { tensor.t()? } else { tensor.clone() })?);
        }
        tensors.extend(export::layer_tensors(&base.parameters, LAYER, &layer)?);
        if shape.method == Method::Eagle3 {
            layers["architectures"] = json!(["LlamaForCausalLMEagle3"]);
            layers["draft_vocab_size"] = json!(vocabulary.len());
            layers["target_layer_ids"] = json!(shape.taps);
            layers["ttt_length"] = json!(shape.drafts);
            layers["target_model"] = json!(target);
            // The ids of layers whose inputs are read, for engines that follow SGLang's naming.
            layers["eagle_config"] =
                json!({ "eagle_aux_hidden_state_layer_ids": shape.taps.iter().map(|tap| tap + 1).collect::<Vec<_>>() });
            tensors.push(export::half("lm_head.weight".into(), &base.head.weights)?);
            tensors.extend(export::known(vocabulary, config.vocab));
        } else {
            let kind = match config.architecture {
                Architecture::Qwen2 => "Qwen2ForCausalLM",
                Architecture::Qwen3 => "Qwen3ForCausalLM",
                Architecture::Llama | Architecture::Mistral => "LlamaForCausalLM",
            };
            layers["architectures"] = json!([kind]);
            layers["num_hidden_layers"] = json!(base.target_layers);
            layers["num_nextn_predict_layers"] = json!(1);
            layers["ttt_length"] = json!(shape.drafts);
        }
        Ok(Files { config: layers, tensors })
    }
}

impl Keys {
    /// Those of the context, then of each block its rows so far.
    fn all(&self) -> Result<[Tensor; 2], TrainError> {
        let part = |at: usize| {
            let drafts = Tensor::stack(&self.drafts[at], 1)?;
            let (blocks, rows, width) = drafts.dims3()?;
            Tensor::cat(&[&self.context[at], &drafts.reshape((blocks * rows, width))?], 0)
        };
        Ok([part(0)?, part(1)?])
    }

    /// What the newest row of each block sees: the pairs before its anchor's, and its block.
    fn visible(&self, base: &Base, anchors: &[usize]) -> Visible {
        let (context, rows) = (self.context[0].dims()[0], self.drafts[0].len());
        let sees = |(block, &anchor): (usize, &usize)| {
            let first = context + block * rows;
            [0..anchor - 1, first..first + rows]
        };
        Attention::of(&base.config).visible(anchors.iter().enumerate().map(sees).collect())
    }
}

/// What stands for the target at the positions of a text: `[context, hidden]`.
fn features(base: &Base, states: &Tensor) -> Result<Tensor, TrainError> {
    match base.shape.method {
        Method::Eagle3 => Ok(times_constant(states, base.get("fc")?)?),
        _ => Ok(states.clone()),
    }
}

fn places_of(base: &Base, places: &[u32]) -> Rotation {
    let (inv_freq, grows) = base.config.inv_freq();
    Rotation::new(&inv_freq, grows, places)
}

/// Embeddings of the tokens of a text but the first. A module does not look at that of its first pair, as DeepSeek's do not.
fn context_embeddings(base: &Base, tokens: &[u32]) -> Result<Tensor, TrainError> {
    if base.shape.method == Method::Eagle3 {
        return base.embed(&tokens[1..]);
    }
    let none = begin::zeros(&[1, base.config.hidden])?;
    Ok(if tokens.len() > 2 { Tensor::cat(&[none, base.embed(&tokens[2..])?], 0)? } else { none })
}

/// Embeddings of tokens and the features before them, put together.
fn pairs_of(base: &Base, embedded: &Tensor, features: &Tensor) -> Result<Pairs, TrainError> {
    let eps = base.config.norm_eps;
    let norm = |rows: &Tensor, name: &str| Ok::<_, TrainError>(rms_norm(rows, base.get(name)?, eps)?);
    let feature = norm(features, "hidden_norm")?;
    if base.shape.method == Method::Eagle3 {
        let embedded = norm(embedded, &format!("{LAYER}.input_norm"))?;
        return Ok(Pairs { residual: features.clone(), normed: Tensor::cat(&[embedded, feature], 1)? });
    }
    let residual = Tensor::cat(&[norm(embedded, "embedding_norm")?, feature], 1)?.matmul(base.get("join")?)?;
    let normed = norm(&residual, &format!("{LAYER}.input_norm"))?;
    Ok(Pairs { residual, normed })
}
