//! What several tests need.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::num::NonZeroUsize;
use std::path::PathBuf;

use kernels::{Compute, Isa, Pool};
use model::config::Config;
use model::tokenizer::{TokenKind, Tokenizer, Vocabulary};
use model::weights::Weights;
use model::{LoadOptions, Model};

/// The tiny Llama of the fixtures, and a pool of so many threads.
pub(crate) fn tiny_llama(threads: usize) -> (Model, Pool) {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/targets/llama");
    let pool = Pool::new(NonZeroUsize::new(threads).unwrap());
    let options = LoadOptions { isa: Isa::detect(), compute: Compute::F32 };
    let config = Config::from_dir(&dir).unwrap();
    let model = Model::load(&Weights::open_dir(&dir).unwrap(), config, &pool, options).unwrap();
    (model, pool)
}

/// End of sequence of [`byte_tokenizer`].
pub(crate) const EOS: u32 = 254;

/// A tokenizer of 256 ids: id n is byte n, but for the control tokens [`EOS`] and 255 (bytes that UTF-8 never uses).
pub(crate) fn byte_tokenizer() -> Tokenizer {
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
    Tokenizer::from_vocabulary(vocabulary).unwrap()
}
