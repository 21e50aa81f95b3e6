//! What shape a model has: one normalised, validated description, whatever file it came from.
//!
//! `config.json` of a Hugging Face directory and the metadata of a GGUF file both end up here as a [`Config`], and
//! everything after it may rely on the numbers making sense together. Defaults of absent fields are those of the
//! transformers library. Weights and tokenizers may not enter.

mod from_gguf;
mod from_json;
mod rope;

use std::path::Path;

pub use kernels::RopeLayout;
pub use rope::{RopeConfig, RopeScaling};

use crate::gguf::GgufError;

/// What is wrong with a model's description, and where.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file cannot be read.
    #[error("{file}: cannot read the file: {source}")]
    Io {
        /// The file.
        file: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A file is not JSON, or not an object.
    #[error("{file}: not a JSON object: {problem}")]
    Json {
        /// The file.
        file: String,
        /// What the parser says.
        problem: String,
    },
    /// A field is missing, has the wrong type, or says something that cannot be or is not supported.
    #[error("{file}: {field} {problem}")]
    Field {
        /// The file.
        file: String,
        /// The field.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A metadata value of a GGUF file is wrong.
    #[error(transparent)]
    Gguf(#[from] GgufError),
}

/// A family of models that there is a forward for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Architecture {
    Llama,
    Qwen2,
    Qwen3,
    Mistral,
}

/// The shape of one model.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The family.
    pub architecture: Architecture,
    /// Transformer layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Inner width of the gated feed-forward.
    pub intermediate: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Tokens in the vocabulary: rows of the embedding.
    pub vocab: usize,
    /// Positions that the model was made for.
    pub context: usize,
    /// Epsilon of every RMSNorm.
    pub norm_eps: f32,
    /// Rotary position embedding.
    pub rope: RopeConfig,
    /// For each layer its sliding window: a row at position p sees the positions p − window + 1 to p.
    pub windows: Vec<Option<usize>>,
    /// Whether the projections to queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Whether the attention's output projection has a bias.
    pub output_bias: bool,
    /// Whether the three feed-forward matrices have biases.
    pub mlp_bias: bool,
    /// Whether the head is the embedding matrix.
    pub tie_word_embeddings: bool,
    /// Token that starts a text, where the model has one.
    pub bos: Option<u32>,
    /// Tokens that end a generation.
    pub eos: Vec<u32>,
}

impl Config {
    /// Reads `config.json` of a directory, and the end tokens of `generation_config.json` where there is one.
    ///
    /// # Errors
    /// [`ConfigError`] naming file and field, for anything missing, senseless or not supported.
    pub fn from_dir(dir: &Path) -> Result<Config, ConfigError> {
        from_json::read(dir)
    }

    /// Reads an object inside `config.json` of a directory, where a file about something else describes a model in it.
    ///
    /// # Errors
    /// As [`Config::from_dir`], and when the object is missing.
    pub fn from_part(dir: &Path, part: &str) -> Result<Config, ConfigError> {
        from_json::read_part(dir, part)
    }

    /// Reads the metadata of a GGUF file; which biases there are and whether the head is tied follow from its tensors.
    ///
    /// # Errors
    /// [`ConfigError`] naming file and key, for anything missing, senseless or not supported.
    pub fn from_gguf(gguf: &crate::gguf::Gguf) -> Result<Config, ConfigError> {
        from_gguf::read(gguf)
    }

    /// Angle per position of each rotated pair of a head, `[head_dim / 2]`, and the factor that cosine and sine are
    /// multiplied with (1 but for yarn).
    pub fn inv_freq(&self) -> (Vec<f32>, f32) {
        self.rope.inv_freq(self.head_dim)
    }

    /// Whether queries and keys are normalised head by head before the rotation.
    pub fn qk_norm(&self) -> bool {
        self.architecture == Architecture::Qwen3
    }

    /// Width of all query heads together.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all key heads together.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Checks what must hold between the numbers. `names` are what the file calls its fields.
    fn validate(&self, file: &str, names: &Names) -> Result<(), ConfigError> {
        // No model comes near these; they keep every product of two of them, and every allocation, in bounds.
        let bounded = [
            (names.layers, self.layers, 4096),
            (names.hidden, self.hidden, 1 << 20),
            (names.intermediate, self.intermediate, 1 << 22),
            (names.heads, self.heads, 1 << 14),
            (names.kv_heads, self.kv_heads, 1 << 14),
            (names.head_dim, self.head_dim, 1 << 14),
            (names.vocab, self.vocab, 1 << 24),
            (names.context, self.context, 1 << 31),
        ];
        let fail = |field: &str, problem: String| {
            Err(ConfigError::Field { file: file.into(), field: names.prefix(field), problem })
        };
        for (field, value, most) in bounded {
            if value == 0 || value > most {
                return fail(field, format!("is {value}, which is not between 1 and {most}"));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return fail(
                names.kv_heads,
                format!("is {}, which does not divide the {} heads", self.kv_heads, self.heads),
            );
        }
        if !self.head_dim.is_multiple_of(2) {
            return fail(names.head_dim, format!("is {}, and rotation needs an even number", self.head_dim));
        }
        if !(self.norm_eps.is_finite() && self.norm_eps > 0.0 && self.norm_eps < 1.0) {
            return fail(names.norm_eps, format!("is {}, which is not a small positive number", self.norm_eps));
        }
        if self.windows.contains(&Some(0)) {
            return fail(names.window, "is 0: a row would not even see itself".into());
        }
        for id in self.eos.iter().chain(&self.bos) {
            if *id as usize >= self.vocab {
                return fail(names.eos, format!("has the token {id}, outside the vocabulary of {}", self.vocab));
            }
        }
        self.rope.check(self.head_dim).or_else(|(field, problem)| fail(names.rope(field), problem))
    }
}

/// What a kind of file calls the fields, for errors.
struct Names {
    /// Put before each name (`llama.` in GGUF).
    prefix: String,
    layers: &'static str,
    hidden: &'static str,
    intermediate: &'static str,
    heads: &'static str,
    kv_heads: &'static str,
    head_dim: &'static str,
    vocab: &'static str,
    context: &'static str,
    norm_eps: &'static str,
    window: &'static str,
    eos: &'static str,
    /// Our names of rotary fields and theirs, where they differ.
    rope: &'static [(&'static str, &'static str)],
}

impl Names {
    /// Full names in GGUF, those of the tokenizer and of tensors, are left alone.
    fn prefix(&self, field: &str) -> String {
        if field.starts_with("tokenizer.") || field.starts_with("tensor ") {
            field.into()
        } else {
            format!("{}{field}", self.prefix)
        }
    }

    fn rope(&self, field: &'static str) -> &'static str {
        self.rope.iter().find(|(ours, _)| *ours == field).map_or(field, |(_, theirs)| theirs)
    }
}
