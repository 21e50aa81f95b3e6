//! What a drafter begins as.
//!
//! Short training goes as far as its beginning lets it. So the layers are some of the target's, and the feature that they
//! look at is at first the target's last tap: near what these layers were made for. Their norms before the projections are
//! folded into these, so that what looks at features and what looks at rows begins right with one norm for all layers.

use candle_core::{Device, Tensor};
use model::config::Config;
use rand::Rng;

use super::{DsparkShape, architecture};
use crate::TrainError;
use crate::chance::{Purpose, chance};
use crate::parameters::Parameters;
use crate::target::TargetWeights;

/// Size of the numbers that are drawn, against those of a projection that keeps the size of what it is given.
const SMALL: f32 = 0.02;

/// Size of what projects embeddings of length 1, so that the numbers that come of it are of about half this size.
const SHADOW: f32 = 1.0;

/// The shape of a draft's layers.
pub(super) fn config(shape: &DsparkShape, target: &Config) -> Result<Config, TrainError> {
    let below = |layer: &&usize| **layer >= target.layers;
    for (option, layers) in [("--init-layers", &shape.layers), ("--taps", &shape.taps)] {
        if let Some(layer) = layers.iter().find(below) {
            return Err(TrainError::option(option, format!("names layer {layer} of a target with {}", target.layers)));
        }
        if layers.is_empty() {
            return Err(TrainError::option(option, "names no layer"));
        }
    }
    let architecture = architecture(target.architecture);
    let rope = model::config::RopeConfig { layout: model::config::RopeLayout::Halves, ..target.rope.clone() };
    Ok(Config {
        architecture,
        layers: shape.layers.len(),
        windows: vec![None; shape.layers.len()],
        rope,
        qkv_bias: architecture == model::config::Architecture::Qwen2,
        output_bias: false,
        mlp_bias: false,
        tie_word_embeddings: false,
        ..target.clone()
    })
}

/// All parameters of a drafter that knows so many tokens.
pub(super) fn parameters(
    shape: &DsparkShape,
    config: &Config,
    known: usize,
    target: &TargetWeights<'_>,
    seed: u64,
) -> Result<Parameters, TrainError> {
    let mut parameters = Parameters::default();
    let hidden = config.hidden;
    parameters.add("fc", &fusion(hidden, shape.taps.len(), seed)?)?;
    parameters.add("hidden_norm", &ones(hidden)?)?;
    for (number, &source) in shape.layers.iter().enumerate() {
        layer(&mut parameters, &format!("layers.{number}"), config, target, source)?;
    }
    parameters.add("norm", &target.norm()?)?;
    parameters.add("markov_w1", &shadows(&target.embedding()?, shape.rank, seed)?)?;
    let zeros = |shape: &[usize]| Tensor::zeros(shape, candle_core::DType::F32, &Device::Cpu);
    parameters.add("markov_w2", &zeros(&[shape.rank, known])?)?;
    parameters.add("confidence.hidden", &zeros(&[hidden, 1])?)?;
    parameters.add("confidence.before", &zeros(&[shape.rank, 1])?)?;
    parameters.add("confidence.bias", &zeros(&[1])?)?;
    Ok(parameters)
}

/// Embeddings of `rank` numbers, in which tokens that the target holds for alike are alike: a random projection of its own.
fn shadows(embedding: &Tensor, rank: usize, seed: u64) -> Result<Tensor, TrainError> {
    let hidden = embedding.dim(1)?;
    let centred = embedding.broadcast_sub(&embedding.mean_keepdim(0)?)?;
    let lengths = (centred.sqr()?.sum_keepdim(1)? + f64::from(f32::EPSILON))?.sqrt()?;
    let directions = drawn(&[hidden, rank], SHADOW, (seed, 1))?;
    Ok(centred.broadcast_div(&lengths)?.matmul(&directions)?)
}

/// The last tap, and a little of the others: `[taps * hidden, hidden]`.
fn fusion(hidden: usize, taps: usize, seed: u64) -> Result<Tensor, TrainError> {
    let others = drawn(&[(taps - 1) * hidden, hidden], SMALL / (hidden as f32).sqrt(), (seed, 0))?;
    let identity = Tensor::eye(hidden, candle_core::DType::F32, &Device::Cpu)?;
    Ok(if taps == 1 { identity } else { Tensor::cat(&[others, identity], 0)? })
}

/// A layer of the target.
fn layer(
    parameters: &mut Parameters,
    name: &str,
    config: &Config,
    target: &TargetWeights<'_>,
    source: usize,
) -> Result<(), TrainError> {
    let Config { hidden, intermediate, head_dim, .. } = *config;
    let (q, kv) = (config.q_width(), config.kv_width());
    let load = |part: &str, shape: &[usize]| target.in_layer(source, &format!("{part}.weight"), shape);
    let norm = load("input_layernorm", &[hidden])?;
    for (part, width) in [("q", q), ("k", kv), ("v", kv)] {
        let projection = load(&format!("self_attn.{part}_proj"), &[width, hidden])?.broadcast_mul(&norm)?;
        parameters.add(format!("{name}.{part}"), &projection.t()?)?;
        if config.qkv_bias {
            let bias = target.in_layer(source, &format!("self_attn.{part}_proj.bias"), &[width])?;
            parameters.add(format!("{name}.{part}_bias"), &bias)?;
        }
        if config.qk_norm() && part != "v" {
            let norm = load(&format!("self_attn.{part}_norm"), &[head_dim])?;
            parameters.add(format!("{name}.{part}_norm"), &norm)?;
        }
    }
    parameters.add(format!("{name}.input_norm"), &ones(hidden)?)?;
    parameters.add(format!("{name}.o"), &load("self_attn.o_proj", &[hidden, q])?.t()?)?;
    parameters.add(format!("{name}.post_norm"), &load("post_attention_layernorm", &[hidden])?)?;
    for (part, shape) in
        [("gate", [intermediate, hidden]), ("up", [intermediate, hidden]), ("down", [hidden, intermediate])]
    {
        parameters.add(format!("{name}.{part}"), &load(&format!("mlp.{part}_proj"), &shape)?.t()?)?;
    }
    Ok(())
}

fn ones(len: usize) -> Result<Tensor, TrainError> {
    Ok(Tensor::ones(len, candle_core::DType::F32, &Device::Cpu)?)
}

/// Numbers between -size and size, by the seed and which tensor it is.
fn drawn(shape: &[usize], size: f32, (seed, which): (u64, u64)) -> Result<Tensor, TrainError> {
    let mut chance = chance(seed, Purpose::Weights, which);
    let numbers =
        (0..shape.iter().product()).map(|_| size * (2.0 * chance.random::<f32>() - 1.0)).collect::<Vec<f32>>();
    Ok(Tensor::from_vec(numbers, shape, &Device::Cpu)?)
}
