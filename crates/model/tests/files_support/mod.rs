//! A writer of small GGUF files for tests: sound ones, and such as nobody should write.

#![allow(dead_code)]

use std::path::{Path, PathBuf};

/// A file being written. Everything is public so that tests can lie.
#[derive(Clone)]
pub(crate) struct Writer {
    pub(crate) version: u32,
    /// Key, value type, value bytes.
    pub(crate) entries: Vec<(String, u32, Vec<u8>)>,
    pub(crate) tensors: Vec<TensorEntry>,
    pub(crate) alignment: usize,
}

/// Name, dimensions fastest first, type number, offset, bytes.
type TensorEntry = (String, Vec<u64>, u32, u64, Vec<u8>);

pub(crate) fn string(s: &str) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes()[..], s.as_bytes()].concat()
}

impl Writer {
    pub(crate) fn new() -> Writer {
        Writer { version: 3, entries: Vec::new(), tensors: Vec::new(), alignment: 32 }
    }

    pub(crate) fn raw(mut self, key: &str, kind: u32, value: Vec<u8>) -> Writer {
        self.entries.retain(|(k, ..)| k != key);
        self.entries.push((key.into(), kind, value));
        self
    }

    pub(crate) fn without(mut self, key: &str) -> Writer {
        self.entries.retain(|(k, ..)| k != key);
        self.tensors.retain(|(k, ..)| k != key);
        self
    }

    pub(crate) fn u32(self, key: &str, v: u32) -> Writer {
        self.raw(key, 4, v.to_le_bytes().to_vec())
    }

    pub(crate) fn f32(self, key: &str, v: f32) -> Writer {
        self.raw(key, 6, v.to_le_bytes().to_vec())
    }

    pub(crate) fn str(self, key: &str, v: &str) -> Writer {
        self.raw(key, 8, string(v))
    }

    pub(crate) fn array(self, key: &str, kind: u32, count: u64, bytes: &[u8]) -> Writer {
        let value = [&kind.to_le_bytes()[..], &count.to_le_bytes(), bytes].concat();
        self.raw(key, 9, value)
    }

    pub(crate) fn strings(self, key: &str, values: &[&str]) -> Writer {
        let bytes: Vec<u8> = values.iter().flat_map(|v| string(v)).collect();
        self.array(key, 8, values.len() as u64, &bytes)
    }

    /// A tensor of row-major `shape`, placed behind the others.
    pub(crate) fn tensor(mut self, name: &str, shape: &[usize], kind: u32, bytes: Vec<u8>) -> Writer {
        let align = self.alignment as u64;
        let end = self.tensors.iter().map(|t| t.3 + t.4.len() as u64).max().unwrap_or(0);
        let dims = shape.iter().rev().map(|&d| d as u64).collect();
        self.tensors.push((name.into(), dims, kind, end.next_multiple_of(align), bytes));
        self
    }

    /// An f32 tensor with recognisable values.
    pub(crate) fn f32_tensor(self, name: &str, shape: &[usize]) -> Writer {
        let n: usize = shape.iter().product();
        let bytes = (0..n).flat_map(|i| (i as f32 * 0.5).to_le_bytes()).collect();
        self.tensor(name, shape, 0, bytes)
    }

    pub(crate) fn header(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.entries.len() as u64).to_le_bytes());
        for (key, kind, value) in &self.entries {
            out.extend(string(key));
            out.extend(kind.to_le_bytes());
            out.extend(value);
        }
        for (name, dims, kind, offset, _) in &self.tensors {
            out.extend(string(name));
            out.extend((dims.len() as u32).to_le_bytes());
            dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend(offset.to_le_bytes());
        }
        out
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = self.header();
        let start = out.len().next_multiple_of(self.alignment);
        for (.., offset, data) in &self.tensors {
            let at = start + *offset as usize;
            out.resize(out.len().max(at + data.len()), 0);
            out[at..at + data.len()].copy_from_slice(data);
        }
        out
    }

    pub(crate) fn write(&self, dir: &Path, name: &str) -> PathBuf {
        let path = dir.join(name);
        std::fs::write(&path, self.bytes()).unwrap();
        path
    }
}

/// A complete, tiny model of one layer, two query heads of width 8 and one key head, without vocabulary.
pub(crate) fn model(architecture: &str) -> Writer {
    let a = architecture;
    let mut w = Writer::new()
        .str("general.architecture", a)
        .u32(&format!("{a}.block_count"), 1)
        .u32(&format!("{a}.context_length"), 128)
        .u32(&format!("{a}.embedding_length"), 16)
        .u32(&format!("{a}.feed_forward_length"), 32)
        .u32(&format!("{a}.attention.head_count"), 2)
        .u32(&format!("{a}.attention.head_count_kv"), 1)
        .f32(&format!("{a}.attention.layer_norm_rms_epsilon"), 1e-5)
        .f32_tensor("token_embd.weight", &[4, 16])
        .f32_tensor("output_norm.weight", &[16]);
    let layer: [(&str, &[usize]); 9] = [
        ("attn_norm", &[16]),
        ("attn_q", &[16, 16]),
        ("attn_k", &[8, 16]),
        ("attn_v", &[8, 16]),
        ("attn_output", &[16, 16]),
        ("ffn_norm", &[16]),
        ("ffn_gate", &[32, 16]),
        ("ffn_up", &[32, 16]),
        ("ffn_down", &[16, 32]),
    ];
    for (name, shape) in layer {
        w = w.f32_tensor(&format!("blk.0.{name}.weight"), shape);
    }
    w.strings("tokenizer.ggml.tokens", &["a", "b", "<|im_end|>", "d"])
        .array("tokenizer.ggml.token_type", 5, 4, &[1i32, 1, 3, 1].map(i32::to_le_bytes).concat())
        .u32("tokenizer.ggml.eos_token_id", 3)
}

/// The error's text has all of these.
#[track_caller]
pub(crate) fn says<T, E: std::fmt::Display>(result: Result<T, E>, parts: &[&str]) {
    let Err(error) = result else { panic!("no error, where one with {parts:?} was due") };
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{text:?} does not say {part:?}");
    }
}

pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}
