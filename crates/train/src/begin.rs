//! What drafters begin as.
//!
//! Short training goes as far as its beginning lets it. So the layers are some of the target's, and the feature that they
//! look at is at first the target's last tap: near what these layers were made for. Their norms before the projections are
//! folded into these, so that what looks at features and what looks at rows begins right with one norm for all layers.

use candle_core::{Device, Tensor};
use model::config::{Architecture, Config, RopeConfig, RopeLayout};
use rand::Rng;

use crate::TrainError;
use crate::chance::{Purpose, chance};
use crate::parameters::Parameters;
use crate::target::TargetWeights;

/// Size of the numbers that are drawn, against those of a projection that keeps the size of what it is given.
const SMALL: f32 = 0.02;

/// Size of what projects embeddings of length 1, so that the numbers that come of it are of about half this size.
const SHADOW: f32 = 1.0;

/// The shape of a draft's layers, so many of them.
pub(crate) fn config(layers: usize, target: &Config) -> Config {
    // Sliding windows have no place in a draft.
    let architecture = match target.architecture {
        Architecture::Mistral => Architecture::Llama,
        other => other,
    };
    let rope = RopeConfig { layout: RopeLayout::Halves, ..target.rope.clone() };
    Config {
        architecture,
        layers,
        windows: vec![None; layers],
        rope,
        qkv_bias: architecture == Architecture::Qwen2,
        output_bias: false,
        mlp_bias: false,
        tie_word_embeddings: false,
        ..target.clone()
    }
}

/// Embeddings of `rank` numbers, in which tokens that the target holds for alike are alike: a random projection of its own.
pub(crate) fn shadows(embedding: &Tensor, rank: usize, seed: u64) -> Result<Tensor, TrainError> {
    let hidden = embedding.dim(1)?;
    let centred = embedding.broadcast_sub(&embedding.mean_keepdim(0)?)?;
    let lengths = (centred.sqr()?.sum_keepdim(1)? + f64::from(f32::EPSILON))?.sqrt()?;
    let directions = drawn(&[hidden, rank], SHADOW, (seed, 1))?;
    Ok(centred.broadcast_div(&lengths)?.matmul(&directions)?)
}

/// The last tap, and a little of the others: `[taps * hidden, hidden]`.
pub(crate) fn fusion(hidden: usize, taps: usize, seed: u64) -> Result<Tensor, TrainError> {
    let others = drawn(&[(taps - 1) * hidden, hidden], SMALL / (hidden as f32).sqrt(), (seed, 0))?;
    let identity = Tensor::eye(hidden, candle_core::DType::F32, &Device::Cpu)?;
    Ok(if taps == 1 { identity } else { Tensor::cat(&[others, identity], 0)? })
}

/// A layer of the target, number `source`. Where its projections take `inputs` numbers, more than the target's, they take
/// nothing of the first ones yet.
pub(crate) fn layer(
    parameters: &mut Parameters,
    name: &str,
    config: &Config,
    target: &TargetWeights<'_>,
    (source, inputs): (usize, usize),
) -> Result<(), TrainError> {
    let Config { hidden, intermediate, head_dim, .. } = *config;
    let (q, kv) = (config.q_width(), config.kv_width());
    let load = |part: &str, shape: &[usize]| target.in_layer(source, &format!("{part}.weight"), shape);
    let norm = load("input_layernorm", &[hidden])?;
    for (part, width) in [("q", q), ("k", kv), ("v", kv)] {
        let projection = load(&format!("self_attn.{part}_proj"), &[width, hidden])?.broadcast_mul(&norm)?;
        let projection = Tensor::cat(&[zeros(&[inputs - hidden, width])?, projection.t()?.contiguous()?], 0)?;
        parameters.add(format!("{name}.{part}"), &projection)?;
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

pub(crate) fn zeros(shape: &[usize]) -> Result<Tensor, TrainError> {
    Ok(Tensor::zeros(shape, candle_core::DType::F32, &Device::Cpu)?)
}

pub(crate) fn ones(len: usize) -> Result<Tensor, TrainError> {
    Ok(Tensor::ones(len, candle_core::DType::F32, &Device::Cpu)?)
}

/// Numbers between -size and size, by the seed and which tensor it is.
fn drawn(shape: &[usize], size: f32, (seed, which): (u64, u64)) -> Result<Tensor, TrainError> {
    let mut chance = chance(seed, Purpose::Weights, which);
    let numbers =
        (0..shape.iter().product()).map(|_| size * (2.0 * chance.random::<f32>() - 1.0)).collect::<Vec<f32>>();
    Ok(Tensor::from_vec(numbers, shape, &Device::Cpu)?)
}
