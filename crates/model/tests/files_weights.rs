//! Tensors of GGUF and safetensors files under one set of names, and what is refused.

mod files_support;

use std::collections::HashMap;
use std::path::Path;

use files_support::{fixtures, model, says};
use kernels::Format;
use model::weights::{Origin, Weights};
use safetensors::tensor::{Dtype, TensorView, serialize};

fn save(path: &Path, tensors: &[(&str, Dtype, &[usize], &[u8])]) {
    let views = tensors.iter().map(|(n, d, s, b)| (n.to_string(), TensorView::new(*d, s.to_vec(), b).unwrap()));
    let bytes = serialize(views.collect::<HashMap<_, _>>(), None).unwrap();
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn gguf_answers_to_hugging_face_names() {
    let dir = tempfile::tempdir().unwrap();
    let path = model("llama").f32_tensor("blk.0.attn_q.bias", &[16]).write(dir.path(), "m.gguf");
    let weights = Weights::open_gguf(&path).unwrap();
    assert_eq!(weights.origin(), Origin::Gguf);
    assert_eq!(weights.bytes_on_disk(), std::fs::metadata(&path).unwrap().len());
    let layer = |name: &str| format!("model.layers.0.{name}");
    for (name, shape) in [
        ("self_attn.q_proj.weight", vec![16, 16]),
        ("self_attn.q_proj.bias", vec![16]),
        ("self_attn.k_proj.weight", vec![8, 16]),
        ("self_attn.v_proj.weight", vec![8, 16]),
        ("self_attn.o_proj.weight", vec![16, 16]),
        ("mlp.gate_proj.weight", vec![32, 16]),
        ("mlp.up_proj.weight", vec![32, 16]),
        ("mlp.down_proj.weight", vec![16, 32]),
        ("input_layernorm.weight", vec![16]),
        ("post_attention_layernorm.weight", vec![16]),
    ] {
        let tensor = weights.tensor(&layer(name), &shape).unwrap();
        assert_eq!((tensor.format, &tensor.shape), (Format::F32, &shape));
        let values = tensor.to_f32().unwrap();
        assert_eq!(values.len(), shape.iter().product::<usize>());
        assert_eq!(values[3], 1.5);
        weights.release(&layer(name), 0..tensor.data.len());
        assert_eq!(tensor.to_f32().unwrap(), values);
    }
    assert!(weights.has("model.embed_tokens.weight") && weights.has("model.norm.weight"));
    assert!(!weights.has("lm_head.weight") && !weights.has("anything"));
    says(weights.tensor("lm_head.weight", &[4, 16]), &["m.gguf", "tensor output.weight", "missing"]);
    let q = layer("self_attn.q_proj.weight");
    says(weights.tensor(&q, &[16, 8]), &["m.gguf", "blk.0.attn_q.weight", "[16, 16]", "[16, 8]"]);
}

#[test]
fn quantised_tensors_decode() {
    let dir = tempfile::tempdir().unwrap();
    // A Q8_0 block: scale 2 in half precision, and the numbers 1 to 32.
    let block: Vec<u8> = [0x00, 0x40].into_iter().chain(1..=32).collect();
    let path = model("llama").tensor("output.weight", &[1, 32], 8, block).write(dir.path(), "m.gguf");
    let weights = Weights::open_gguf(&path).unwrap();
    let values = weights.tensor("lm_head.weight", &[1, 32]).unwrap().to_f32().unwrap();
    assert_eq!(values, (1..=32).map(|i| 2.0 * i as f32).collect::<Vec<_>>());
}

#[test]
fn safetensors_of_a_fixture() {
    let dir = fixtures().join("targets/llama");
    let weights = Weights::open_dir(&dir).unwrap();
    assert_eq!(weights.origin(), Origin::Safetensors);
    assert!(weights.gguf().is_none());
    assert_eq!(weights.bytes_on_disk(), std::fs::metadata(dir.join("model.safetensors")).unwrap().len());
    let tensor = weights.tensor("model.embed_tokens.weight", &[256, 64]).unwrap();
    assert_eq!(tensor.to_f32().unwrap().len(), 256 * 64);
    let name = "model.layers.1.mlp.down_proj.weight";
    says(weights.tensor(name, &[160, 64]), &["model.safetensors", name, "[64, 160]", "[160, 64]"]);
    says(weights.tensor("model.layers.9.x", &[1]), &["model.safetensors", "model.layers.9.x", "missing"]);
}

#[test]
fn float_formats_decode_and_others_are_refused_when_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let f16: Vec<u8> = [0x3c00u16, 0xc000].iter().flat_map(|v| v.to_le_bytes()).collect();
    let bf16: Vec<u8> = [0x3f80u16, 0xc000].iter().flat_map(|v| v.to_le_bytes()).collect();
    let file = dir.path().join("model.safetensors");
    save(
        &file,
        &[
            ("f16", Dtype::F16, &[2], &f16),
            ("bf16", Dtype::BF16, &[2], &bf16),
            ("ids", Dtype::I64, &[1], &[0; 8]),
            ("f8", Dtype::F8_E4M3, &[2], &[0; 2]),
        ],
    );
    let weights = Weights::open_dir(dir.path()).unwrap();
    for name in ["f16", "bf16"] {
        assert_eq!(weights.tensor(name, &[2]).unwrap().to_f32().unwrap(), [1.0, -2.0]);
    }
    says(weights.tensor("ids", &[1]), &["model.safetensors", "tensor ids", "I64", "BF16"]);
    says(weights.tensor("f8", &[2]), &["tensor f8", "F8_E4M3"]);
}

#[test]
fn shards() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let one = 1f32.to_le_bytes();
    save(&d.join("model-1.safetensors"), &[("a", Dtype::F32, &[1], &one)]);
    save(&d.join("model-2.safetensors"), &[("b", Dtype::F32, &[1], &one)]);
    let index = |map: &str| std::fs::write(d.join("model.safetensors.index.json"), map).unwrap();
    index(r#"{"metadata": {}, "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#);
    let weights = Weights::open_dir(d).unwrap();
    assert_eq!(weights.tensor("b", &[1]).unwrap().to_f32().unwrap(), [1.0]);
    let sizes = ["model-1.safetensors", "model-2.safetensors"].map(|f| std::fs::metadata(d.join(f)).unwrap().len());
    assert_eq!(weights.bytes_on_disk(), sizes[0] + sizes[1]);
    says(weights.tensor("c", &[1]), &["index.json", "tensor c", "missing"]);

    for name in ["../model-1.safetensors", "/etc/passwd", "sub/x.safetensors", "..", "", "./model-1.safetensors"] {
        index(&format!(r#"{{"weight_map": {{"a": {name:?}}}}}"#));
        says(Weights::open_dir(d), &["index.json", "weight_map", name, "plain file name"]);
    }
    index(r#"{"weight_map": {"a": "model-3.safetensors"}}"#);
    says(Weights::open_dir(d), &["model-3.safetensors", "cannot read"]);
    index(r#"{"weight_map": {"a": "model-2.safetensors"}}"#);
    says(Weights::open_dir(d), &["index.json", "tensor a", "model-2.safetensors"]);
    index("[]");
    says(Weights::open_dir(d), &["index.json", "not an index"]);
}

#[test]
fn broken_safetensors() {
    let dir = tempfile::tempdir().unwrap();
    says(Weights::open_dir(dir.path()), &["neither model.safetensors nor", "download"]);
    assert!(!Weights::are_in(dir.path()));
    let file = dir.path().join("model.safetensors");
    let check = |bytes: &[u8], parts: &[&str]| {
        std::fs::write(&file, bytes).unwrap();
        says(Weights::open_dir(dir.path()), &[&["model.safetensors"], parts].concat());
    };
    check(b"", &["not a sound safetensors file"]);
    check(b"version https://git-lfs.github.com/spec/v1\n", &["Git LFS"]);
    check(&u64::MAX.to_le_bytes(), &["not a sound"]);
    let with_header = |header: &str, data: usize| {
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data]].concat()
    };
    check(&with_header(r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#, 4), &["not a sound"]);
    check(&with_header(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#, 3), &["not a sound"]);
    check(&with_header(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#, 4), &["not a sound"]);
    check(
        &with_header(
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
            4,
        ),
        &["not a sound"],
    );
    check(
        &with_header(r#"{"a":{"dtype":"F32","shape":[18446744073709551615,2],"data_offsets":[0,4]}}"#, 4),
        &["not a sound"],
    );
    check(&with_header("{", 0), &["not a sound"]);
    let sound = std::fs::read(fixtures().join("targets/llama/model.safetensors")).unwrap();
    check(&sound[..sound.len() - 1], &["not a sound"]);
}

/// A file that PyTorch would have written (`tests/torch/make.py`).
fn torch(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torch").join(name)
}

#[test]
fn files_of_pytorch() {
    for name in ["pytorch_model.bin", "medusa_lm_head.pt", "hydra_lm_head.pt"] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::copy(torch("state.bin"), dir.path().join(name)).unwrap();
        assert!(Weights::are_in(dir.path()));
        let weights = Weights::open_dir(dir.path()).unwrap();
        assert_eq!((weights.origin(), weights.names().len()), (Origin::Torch, 11));
        assert_eq!(weights.bytes_on_disk(), std::fs::metadata(torch("state.bin")).unwrap().len());
        let tensor = weights.tensor("a.weight", &[2, 3]).unwrap();
        assert_eq!(tensor.to_f32().unwrap(), [1.0, -2.0, 3.0, 4.5, 5.0, -6.0]);
        weights.release("a.weight", 0..tensor.data.len());
        assert_eq!(weights.tensor("bf16", &[2, 1]).unwrap().to_f32().unwrap(), [1.0, -2.0]);
        assert_eq!(weights.integers("d2t", 3).unwrap(), [0, -5, 1 << 40]);
        assert_eq!(weights.integers("small", 2).unwrap(), [7, -7]);
        says(weights.tensor("double", &[1]), &[name, "tensor double", "F64", "BF16"]);
        says(weights.tensor("a.weight", &[3, 2]), &[name, "a.weight", "[2, 3]", "[3, 2]"]);
        says(weights.tensor("b", &[1]), &[name, "tensor b", "missing"]);
        std::fs::copy(torch("call.bin"), dir.path().join(name)).unwrap();
        says(Weights::open_dir(dir.path()), &[name, "posix.system", "refused"]);
    }
}

#[test]
fn several_files_of_pytorch_and_safetensors_beside_them() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    for shard in ["1", "2"] {
        let (from, to) = (format!("shard{shard}.bin"), format!("pytorch_model-{shard}.bin"));
        std::fs::copy(torch(&from), d.join(to)).unwrap();
    }
    let index = |map: &str| std::fs::write(d.join("pytorch_model.bin.index.json"), map).unwrap();
    index(r#"{"weight_map": {"a": "pytorch_model-1.bin", "b": "pytorch_model-2.bin"}}"#);
    let weights = Weights::open_dir(d).unwrap();
    assert_eq!(weights.tensor("b", &[2]).unwrap().to_f32().unwrap(), [1.0, -2.0]);
    index(r#"{"weight_map": {"a": "pytorch_model-2.bin"}}"#);
    says(Weights::open_dir(d), &["index.json", "tensor a", "pytorch_model-2.bin"]);
    save(&d.join("model.safetensors"), &[("a", Dtype::F32, &[1], &3f32.to_le_bytes())]);
    let weights = Weights::open_dir(d).unwrap();
    assert_eq!((weights.origin(), weights.names()), (Origin::Safetensors, vec!["a"]));
}
