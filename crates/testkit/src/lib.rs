//! The tiny models of the fixtures, for the tests of several crates.
//!
//! A room for what tests of more than one crate begin with. It is a dependency of tests alone, and panics where a fixture is
//! not what it should be.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use kernels::{Compute, Isa, Pool};
use model::config::Config;
use model::tokenizer::{TokenKind, Tokenizer, Vocabulary};
use model::weights::Weights;
use model::{LoadOptions, Model};

/// Where the fixture of a target of this name lies.
pub fn target_dir(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/targets").join(name)
}

/// How the tiny models are computed: in f32, as well as this machine can.
pub fn options() -> LoadOptions {
    LoadOptions { isa: Isa::detect(), compute: Compute::F32, quantise: false }
}

/// The target of this name.
///
/// # Panics
/// When there is none.
pub fn target(name: &str, pool: &Pool) -> Model {
    target_with(name, pool, |_| ())
}

/// The target of this name, with some of its configuration changed.
///
/// # Panics
/// When there is none, or it cannot be had so.
pub fn target_with(name: &str, pool: &Pool, change: impl FnOnce(&mut Config)) -> Model {
    let dir = target_dir(name);
    let mut config = Config::from_dir(&dir).expect("the fixture has a configuration");
    change(&mut config);
    let weights = Weights::open_dir(&dir).expect("the fixture has weights");
    Model::load(&weights, config, pool, options()).expect("the fixture is a model")
}

/// The tiny Llama of the fixtures, and a pool of so many threads, at least one.
///
/// # Panics
/// When the fixture is not there.
pub fn tiny_llama(threads: usize) -> (Model, Pool) {
    let pool = Pool::new(NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN));
    (target("llama", &pool), pool)
}

/// End of sequence of [`byte_tokenizer`].
pub const EOS: u32 = 254;

/// A tokenizer of 256 ids: id n is byte n, but for the control tokens [`EOS`] and 255 (bytes that UTF-8 never uses).
///
/// # Panics
/// Never.
pub fn byte_tokenizer() -> Tokenizer {
    let mut tokens: Vec<String> = (0..254).map(|byte| format!("<0x{byte:02X}>")).collect();
    tokens.extend(["</s>".to_owned(), "<s>".to_owned()]);
    let mut kinds = vec![TokenKind::Byte; 254];
    kinds.extend([TokenKind::Control; 2]);
    let vocabulary = Vocabulary {
        file: "bytes".into(),
        model: "llama".into(),
        tokens,
        kinds,
        scores: vec![0.0; 256],
        eos: vec![EOS],
        add_bos: Some(false),
        add_space_prefix: Some(false),
        ..Vocabulary::default()
    };
    Tokenizer::from_vocabulary(vocabulary).expect("every byte has a token")
}
