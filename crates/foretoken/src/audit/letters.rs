//! A model of a few letters, made from a seed: small enough that the law of its answers can be added up exactly.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use kernels::{Compute, Isa, KvFormat, Pool};
use model::config::Config;
use model::tokenizer::{TokenKind, Tokenizer, Vocabulary};
use model::weights::Weights;
use model::{LoadOptions, Model};
use serde_json::{Map, Value, json};

use crate::bench::random::Random;
use cli::load::Loaded;

/// Letters of its alphabet: all of its vocabulary.
pub(super) const LETTERS: usize = 16;

const HIDDEN: usize = 32;
const INTERMEDIATE: usize = 64;
const LAYERS: usize = 2;

/// The spread of the embedding, and with it of the logits: some letters likely, and none impossible.
const EMBEDDING: f64 = 0.3;
/// The spread of the other matrices.
const WEIGHTS: f64 = 0.25;

/// The model, with one thread. Every call gives the same one.
///
/// # Errors
/// When its files cannot be written where the system keeps temporary ones.
pub(super) fn load() -> Result<Loaded> {
    let (isa, compute) = (Isa::detect(), Compute::F32);
    Ok(Loaded {
        name: format!("a model of {LETTERS} letters"),
        bytes_on_disk: 0,
        model: Arc::new(model(LoadOptions { isa, compute, quantise: false })?),
        tokenizer: tokenizer()?,
        template: None,
        pool: Pool::new(NonZeroUsize::MIN),
        isa,
        compute,
        kv_format: KvFormat::F16,
    })
}

fn model(options: LoadOptions) -> Result<Model> {
    let dir = Scratch::new().context("cannot write the files of a small model")?;
    fs::write(dir.0.join("config.json"), config().to_string())?;
    fs::write(dir.0.join("model.safetensors"), weights()?)?;
    let config = Config::from_dir(&dir.0)?;
    Ok(Model::load(&Weights::open_dir(&dir.0)?, config, &Pool::new(NonZeroUsize::MIN), options)?)
}

/// Token n is the letter n.
fn tokenizer() -> Result<Tokenizer> {
    let letters = ('a'..).take(LETTERS).map(String::from);
    let vocabulary = Vocabulary {
        file: "letters".into(),
        model: "llama".into(),
        tokens: letters.collect(),
        kinds: vec![TokenKind::Normal; LETTERS],
        scores: vec![0.0; LETTERS],
        add_bos: Some(false),
        add_space_prefix: Some(false),
        ..Vocabulary::default()
    };
    Ok(Tokenizer::from_vocabulary(vocabulary)?)
}

/// What tokens look like in a report.
pub(super) fn letters(tokens: &[u32]) -> String {
    tokens.iter().map(|&token| char::from(b'a' + token as u8)).collect()
}

fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": LETTERS,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": true,
    })
}

/// Names, shapes and spreads of the tensors. A spread of 0 is a norm's weight, which is 1.
fn tensors() -> Vec<(String, Vec<usize>, f64)> {
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![LETTERS, HIDDEN], EMBEDDING),
        ("model.norm.weight".to_owned(), vec![HIDDEN], 0.0),
    ];
    for layer in 0..LAYERS {
        for (name, shape, spread) in [
            ("input_layernorm", vec![HIDDEN], 0.0),
            ("post_attention_layernorm", vec![HIDDEN], 0.0),
            ("self_attn.q_proj", vec![HIDDEN, HIDDEN], WEIGHTS),
            ("self_attn.k_proj", vec![HIDDEN / 2, HIDDEN], WEIGHTS),
            ("self_attn.v_proj", vec![HIDDEN / 2, HIDDEN], WEIGHTS),
            ("self_attn.o_proj", vec![HIDDEN, HIDDEN], WEIGHTS),
            ("mlp.gate_proj", vec![INTERMEDIATE, HIDDEN], WEIGHTS),
            ("mlp.up_proj", vec![INTERMEDIATE, HIDDEN], WEIGHTS),
            ("mlp.down_proj", vec![HIDDEN, INTERMEDIATE], WEIGHTS),
        ] {
            tensors.push((format!("model.layers.{layer}.{name}.weight"), shape, spread));
        }
    }
    tensors
}

/// The weights in the safetensors format: the length of the header, the header, the numbers.
fn weights() -> Result<Vec<u8>> {
    let mut random = Random::new(1);
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, shape, spread) in tensors() {
        let start = data.len();
        for _ in 0..shape.iter().product() {
            let weight = if spread == 0.0 { 1.0 } else { spread * normal(&mut random) };
            data.extend((weight as f32).to_le_bytes());
        }
        header.insert(name, json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, data.len()] }));
    }
    let mut header = serde_json::to_vec(&header)?;
    // The numbers begin at a multiple of eight.
    header.resize(header.len().next_multiple_of(8), b' ');
    Ok([&(header.len() as u64).to_le_bytes()[..], &header, &data].concat())
}

/// A normal number of mean 0 and variance 1 (Box and Muller).
pub(super) fn normal(random: &mut Random) -> f64 {
    (-2.0 * random.unit().ln()).sqrt() * (2.0 * std::f64::consts::PI * random.unit()).cos()
}

/// A directory that goes when it is done with.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> std::io::Result<Scratch> {
        // Made by nobody else: create_dir refuses what is there already.
        let name = format!("foretoken-audit-{}-{:016x}", std::process::id(), engine::fresh_seed());
        let dir: &Path = &std::env::temp_dir().join(name);
        fs::create_dir(dir)?;
        Ok(Scratch(dir.to_owned()))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is some 80 KB that the system will clean up.
        let _ = fs::remove_dir_all(&self.0);
    }
}
