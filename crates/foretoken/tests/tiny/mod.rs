//! Models that tests run the program with.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::path::Path;

use serde_json::{Value, json};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures");

/// The tiny Llama with a tokenizer of 256 printable tokens, some of which are words: every token shows as text.
pub(crate) fn tiny_model() -> tempfile::TempDir {
    tiny("targets/llama")
}

/// The same of another fixture.
pub(crate) fn tiny(fixture: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(Path::new(FIXTURES).join(fixture).join(name), dir.path().join(name)).unwrap();
    }
    let letters: Vec<char> = ('a'..='z').collect();
    let mut tokens: Vec<String> = ('!'..='~').map(String::from).collect();
    tokens.push("Ġ".to_owned());
    tokens.extend(letters.iter().map(|letter| format!("Ġ{letter}")));
    let pairs = letters.iter().flat_map(|a| letters.iter().map(move |b| format!("{a}{b}")));
    tokens.extend(pairs.take(256 - tokens.len()));
    let vocab: serde_json::Map<String, Value> = tokens.into_iter().zip(0..).map(|(t, id)| (t, json!(id))).collect();
    let merges: Vec<String> = letters.iter().map(|letter| format!("Ġ {letter}")).collect();
    let byte_level = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [], "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": { "type": "BPE", "vocab": vocab, "merges": merges },
    });
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    dir
}
