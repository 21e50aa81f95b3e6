//! The metadata of a GGUF file as a [`Config`].

use kernels::Format;

use super::{Architecture, Config, ConfigError, Names, RopeConfig, RopeLayout, RopeScaling};
use crate::gguf::{Gguf, Metadata};

/// Control tokens that end a generation in the model families supported, whatever a file declares its end token to be.
const ENDS: [&str; 5] = ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"];
/// `tokenizer.ggml.token_type` of a control token.
const CONTROL: i32 = 3;

pub(super) fn read(gguf: &Gguf) -> Result<Config, ConfigError> {
    let name = gguf.metadata().str("general.architecture")?;
    let keys = Keys { metadata: gguf.metadata(), architecture: name };
    let llama = match name {
        "llama" => true,
        "qwen2" | "qwen3" => false,
        _ => {
            let problem = format!(
                "is the unsupported architecture {name:?}; supported are llama, qwen2 and qwen3 (mistral is llama)"
            );
            return Err(keys.full("general.architecture", problem));
        }
    };
    if keys.usize("expert_count")?.unwrap_or(0) > 0 {
        return Err(keys.error("expert_count", "is not 0; mixtures of experts are not supported"));
    }
    let heads = keys.need("attention.head_count")?;
    let hidden = keys.need("embedding_length")?;
    let layers = keys.need("block_count")?;
    let window = keys.usize("attention.sliding_window")?.filter(|&w| w > 0);
    let has = |tensor: &str| gguf.tensor(tensor).is_some();
    let layout = if llama { RopeLayout::Pairs } else { RopeLayout::Halves };
    let head_dim = head_dim(&keys, hidden, heads)?;
    let config = Config {
        architecture: match name {
            "qwen2" => Architecture::Qwen2,
            "qwen3" => Architecture::Qwen3,
            // Mistral is stored as llama; a window is all that tells them apart.
            _ if window.is_some() => Architecture::Mistral,
            _ => Architecture::Llama,
        },
        layers,
        hidden,
        intermediate: keys.need("feed_forward_length")?,
        heads,
        kv_heads: keys.usize("attention.head_count_kv")?.unwrap_or(heads),
        head_dim,
        vocab: vocab(gguf, &keys)?,
        context: keys.need("context_length")?,
        norm_eps: keys.metadata.f32(&keys.name("attention.layer_norm_rms_epsilon"))?,
        rope: rope(gguf, &keys, layout)?,
        windows: vec![window; layers.min(1 << 16)],
        qkv_bias: has("blk.0.attn_q.bias"),
        output_bias: has("blk.0.attn_output.bias"),
        mlp_bias: has("blk.0.ffn_gate.bias"),
        tie_word_embeddings: !has("output.weight"),
        bos: keys.metadata.opt_u32("tokenizer.ggml.bos_token_id")?,
        eos: eos(keys.metadata)?,
    };
    config.validate(keys.metadata.file(), &names(name))?;
    Ok(config)
}

fn names(architecture: &str) -> Names {
    Names {
        prefix: format!("metadata key {architecture}."),
        layers: "block_count",
        hidden: "embedding_length",
        intermediate: "feed_forward_length",
        heads: "attention.head_count",
        kv_heads: "attention.head_count_kv",
        head_dim: "attention.key_length",
        vocab: "vocab_size",
        context: "context_length",
        norm_eps: "attention.layer_norm_rms_epsilon",
        window: "attention.sliding_window",
        eos: "tokenizer.ggml.bos_token_id or eos_token_id",
        rope: &[
            ("theta", "rope.freq_base"),
            ("factor", "rope.scaling.factor"),
            ("original_context", "rope.scaling.original_context_length"),
            ("beta_fast", "rope.scaling.yarn_beta_fast"),
            ("beta_slow", "rope.scaling.yarn_beta_slow"),
            ("attention_factor", "rope.scaling.attn_factor"),
            ("factors", "tensor rope_freqs.weight"),
        ],
    }
}

fn head_dim(keys: &Keys, hidden: usize, heads: usize) -> Result<usize, ConfigError> {
    let dim = match keys.usize("attention.key_length")? {
        Some(dim) => dim,
        None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let problem = format!("is missing, and embedding_length {hidden} is no multiple of {heads} heads");
            return Err(keys.error("attention.key_length", problem));
        }
    };
    for key in ["attention.value_length", "rope.dimension_count"] {
        if let Some(other) = keys.usize(key)?.filter(|&other| other != dim) {
            return Err(
                keys.error(key, format!("is {other}, which is not the head width {dim}; that is not supported"))
            );
        }
    }
    Ok(dim)
}

/// The rows of the embedding; every list of tokens must have as many.
fn vocab(gguf: &Gguf, keys: &Keys) -> Result<usize, ConfigError> {
    const EMBEDDING: &str = "token_embd.weight";
    let rows = match gguf.tensor(EMBEDDING) {
        Some(embedding) if embedding.shape.len() == 2 => embedding.shape[0],
        Some(embedding) => {
            return Err(keys.full(&format!("tensor {EMBEDDING}"), format!("has the shape {:?}", embedding.shape)));
        }
        None => return Err(keys.full(&format!("tensor {EMBEDDING}"), "is missing".into())),
    };
    let tokens = keys.metadata.opt_strings("tokenizer.ggml.tokens")?.map(<[String]>::len);
    if let Some(tokens) = tokens.filter(|&tokens| tokens != rows) {
        let problem = format!("has {tokens} tokens, but the embedding has {rows} rows");
        return Err(keys.full("metadata key tokenizer.ggml.tokens", problem));
    }
    match keys.usize("vocab_size")? {
        Some(size) if size != rows => {
            Err(keys.error("vocab_size", format!("is {size}, but the embedding has {rows} rows")))
        }
        _ => Ok(rows),
    }
}

fn rope(gguf: &Gguf, keys: &Keys, layout: RopeLayout) -> Result<RopeConfig, ConfigError> {
    let theta = keys.f32("rope.freq_base")?.unwrap_or(10_000.0);
    let kind = keys.metadata.opt_str(&keys.name("rope.scaling.type"))?;
    let factor = || match keys.f32("rope.scaling.factor")? {
        Some(factor) => Ok(factor),
        None => Err(keys.error("rope.scaling.factor", "is missing")),
    };
    let mut scaling = match kind {
        // Before there was a type, there was a lone factor.
        None => match keys.f32("rope.scale_linear")? {
            Some(factor) if factor != 1.0 => RopeScaling::Linear { factor },
            _ => RopeScaling::None,
        },
        Some("none") => RopeScaling::None,
        Some("linear") => RopeScaling::Linear { factor: factor()? },
        Some("yarn") => yarn(keys, factor()?)?,
        Some(other) => {
            let problem = format!("is {other:?}, which is not supported; supported are none, linear and yarn");
            return Err(keys.error("rope.scaling.type", problem));
        }
    };
    if let Some(factors) = factors(gguf, keys)? {
        if scaling != RopeScaling::None {
            return Err(keys.error("rope.scaling.type", "is given together with tensor rope_freqs.weight"));
        }
        scaling = RopeScaling::Factors(factors);
    }
    Ok(RopeConfig { theta, scaling, layout })
}

fn yarn(keys: &Keys, factor: f32) -> Result<RopeScaling, ConfigError> {
    // This file format counts the attention factor on top of the one that YaRN infers.
    let inferred = if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 };
    let original = keys.usize("rope.scaling.original_context_length")?;
    Ok(RopeScaling::Yarn {
        factor,
        original_context: original.map_or_else(|| keys.need("context_length"), Ok)?,
        beta_fast: keys.f32("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
        beta_slow: keys.f32("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
        attention_factor: keys.f32("rope.scaling.attn_factor")?.map(|f| f * inferred),
        mscale: None,
        mscale_all_dim: None,
        truncate: true,
    })
}

/// Llama 3.1's rule comes as a tensor of divisors.
fn factors(gguf: &Gguf, keys: &Keys) -> Result<Option<Vec<f32>>, ConfigError> {
    let Some(tensor) = gguf.tensor("rope_freqs.weight") else { return Ok(None) };
    if tensor.format != Format::F32 {
        return Err(keys.full("tensor rope_freqs.weight", format!("is {:?}, where F32 is needed", tensor.format)));
    }
    Ok(Some(gguf.data(tensor).as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()))
}

fn eos(metadata: &Metadata) -> Result<Vec<u32>, ConfigError> {
    let mut ids = Vec::new();
    for key in ["eos", "eot", "eom"] {
        ids.extend(metadata.opt_u32(&format!("tokenizer.ggml.{key}_token_id"))?);
    }
    let tokens = metadata.opt_strings("tokenizer.ggml.tokens")?.unwrap_or_default();
    let types = metadata.opt_i32s("tokenizer.ggml.token_type")?.unwrap_or_default();
    let ends = tokens.iter().zip(types).enumerate();
    ids.extend(ends.filter(|(_, (t, kind))| *kind == CONTROL && ENDS.contains(&t.as_str())).map(|(i, _)| i as u32));
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// Metadata under the prefix of the architecture.
struct Keys<'a> {
    metadata: &'a Metadata,
    architecture: &'a str,
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn full(&self, field: &str, problem: String) -> ConfigError {
        ConfigError::Field { file: self.metadata.file().into(), field: field.into(), problem }
    }

    fn error(&self, key: &str, problem: impl Into<String>) -> ConfigError {
        self.full(&format!("metadata key {}", self.name(key)), problem.into())
    }

    fn usize(&self, key: &str) -> Result<Option<usize>, ConfigError> {
        Ok(self.metadata.opt_u32(&self.name(key))?.map(|v| v as usize))
    }

    fn need(&self, key: &str) -> Result<usize, ConfigError> {
        Ok(self.metadata.u32(&self.name(key))? as usize)
    }

    fn f32(&self, key: &str) -> Result<Option<f32>, ConfigError> {
        Ok(self.metadata.opt_f32(&self.name(key))?)
    }
}
