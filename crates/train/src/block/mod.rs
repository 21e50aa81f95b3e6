//! Block drafters: layers over the target's features and a block of masks (DFlash, Chen et al. 2026), and with DSpark (section
//! 3) a head that makes a draft depend on the one before, and one that says how sure each is.
//!
//! The forward here is the one of [`model::Backbone`], with gradients. How the weights move may not enter.

mod export;

use candle_core::{Device, Tensor};

use crate::TrainError;
use crate::batch::{Batch, BatchText};
use crate::begin;
use crate::drafter::{Base, Hidden, Method};
use crate::layer::{Attention, Layer, attend};
use crate::ops::{Rotation, Visible, rms_norm, times_constant};
use crate::target::TargetWeights;

/// A block drafter; all that it knows is in its parameters.
pub(crate) struct Block;

/// What the rows of a batch see, and where they are; the same in all layers.
struct Sight {
    /// For each text the features that its rows may see, from the first.
    contexts: Vec<usize>,
    /// For each text its rows.
    rows: Vec<usize>,
    /// For each text which keys its rows see: those of its context, then those of its rows.
    visible: Vec<Visible>,
    /// The places of all rows.
    queries: Rotation,
    /// The places of all keys: of each text its context's, then its rows'.
    keys: Rotation,
}

impl Block {
    /// Layers are some of the target's; the feature that they look at is at first the target's last tap.
    pub(crate) fn begin(base: &mut Base, target: &TargetWeights<'_>, seed: u64) -> Result<Block, TrainError> {
        let Base { shape, config, parameters, vocabulary, embedding, .. } = base;
        let hidden = config.hidden;
        parameters.add("fc", &begin::fusion(hidden, shape.taps.len(), seed)?)?;
        parameters.add("hidden_norm", &begin::ones(hidden)?)?;
        for (number, &source) in shape.layers.iter().enumerate() {
            begin::layer(parameters, &format!("layers.{number}"), config, target, (source, hidden))?;
        }
        parameters.add("norm", &target.norm()?)?;
        if shape.method == Method::Dspark {
            parameters.add("markov_w1", &begin::shadows(embedding, shape.rank, seed)?)?;
            parameters.add("markov_w2", &begin::zeros(&[shape.rank, vocabulary.len()])?)?;
            parameters.add("confidence.hidden", &begin::zeros(&[hidden, 1])?)?;
            parameters.add("confidence.before", &begin::zeros(&[shape.rank, 1])?)?;
            parameters.add("confidence.bias", &begin::zeros(&[1])?)?;
        }
        Ok(Block)
    }

    pub(crate) fn forward(&self, base: &Base, batch: &Batch) -> Result<Hidden, TrainError> {
        let get = |name: &str| base.get(name);
        let eps = base.config.norm_eps;
        let features: Vec<&Tensor> = batch.texts.iter().map(|text| &text.features).collect();
        let fused = times_constant(&Tensor::cat(&features, 0)?, get("fc")?)?;
        let fused = rms_norm(&fused, get("hidden_norm")?, eps)?;
        let sight = sight(base, batch);
        let mut x = base.embed(&batch.tokens)?;
        for number in 0..base.shape.layers.len() {
            let name = format!("layers.{number}");
            x = forward(
                &Layer { name: &name, config: &base.config, parameters: &base.parameters },
                &x,
                &fused,
                &sight,
            )?;
        }
        let hidden = rms_norm(&x, get("norm")?, eps)?;
        if base.shape.method != Method::Dspark {
            return Ok(Hidden { hidden, before: None, sure: None });
        }
        let before = get("markov_w1")?.index_select(&Tensor::new(&batch.before[..], &Device::Cpu)?, 0)?;
        let sure = (hidden.matmul(get("confidence.hidden")?)? + before.matmul(get("confidence.before")?)?)?;
        let sure = sure.broadcast_add(get("confidence.bias")?)?.flatten_all()?;
        Ok(Hidden { hidden, before: Some(before), sure: Some(sure) })
    }
}

/// What the rows of a batch see, and where they are.
fn sight(base: &Base, batch: &Batch) -> Sight {
    let (block, config) = (batch.shape.rows, &base.config);
    let attention = Attention::of(config);
    let context = |text: &BatchText| text.tokens.len();
    let visible = |text: &BatchText| {
        let row = |row: usize| {
            let first = context(text) + row / block * block;
            [0..text.anchors[row / block], first..first + block]
        };
        attention.visible((0..text.rows.len()).map(row).collect())
    };
    let (inv_freq, grows) = config.inv_freq();
    let mut keys = Vec::new();
    for text in &batch.texts {
        keys.extend(0..context(text) as u32);
        keys.extend_from_slice(&batch.positions[text.rows.clone()]);
    }
    Sight {
        contexts: batch.texts.iter().map(context).collect(),
        rows: batch.texts.iter().map(|text| text.rows.len()).collect(),
        visible: batch.texts.iter().map(visible).collect(),
        queries: Rotation::new(&inv_freq, grows, &batch.positions),
        keys: Rotation::new(&inv_freq, grows, &keys),
    }
}

/// A layer: rows look at the target's features before their anchor, and at their block. `x`: `[rows, hidden]`; `fused`: the
/// features of all texts, `[contexts, hidden]`.
fn forward(layer: &Layer<'_>, x: &Tensor, fused: &Tensor, sight: &Sight) -> Result<Tensor, TrainError> {
    let normed = layer.norm(x, "input_norm")?;
    let keyed = mixed(fused, &normed, sight)?;
    let q = layer.turned(&normed, "q", &sight.queries)?;
    let (k, v) = (layer.turned(&keyed, "k", &sight.keys)?, layer.heads(&keyed, "v")?);
    let (mut row, mut key, mut all) = (0, 0, Vec::with_capacity(sight.rows.len()));
    for ((&context, &rows), visible) in sight.contexts.iter().zip(&sight.rows).zip(&sight.visible) {
        let keys = context + rows;
        let part = |all: &Tensor| all.narrow(0, key, keys);
        all.push(attend(layer.config, &q.narrow(0, row, rows)?, &part(&k)?, &part(&v)?, visible)?);
        (row, key) = (row + rows, key + keys);
    }
    layer.feed_forward(&(x + layer.out(&Tensor::cat(&all, 0)?)?)?)
}

/// What keys are made of: of each text its features, then its rows.
fn mixed(fused: &Tensor, rows: &Tensor, sight: &Sight) -> Result<Tensor, TrainError> {
    let (mut row, mut at, mut parts) = (0, 0, Vec::with_capacity(2 * sight.rows.len()));
    for (&context, &count) in sight.contexts.iter().zip(&sight.rows) {
        parts.push(fused.narrow(0, at, context)?);
        parts.push(rows.narrow(0, row, count)?);
        (row, at) = (row + count, at + context);
    }
    Ok(Tensor::cat(&parts, 0)?)
}
