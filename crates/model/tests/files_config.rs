//! Configs from `config.json` and GGUF metadata: what they say, and what is refused, by name of file and field.

mod files_support;

use std::path::Path;

use files_support::{Writer, fixtures, model, says};
use model::config::{Architecture, Config, ConfigError, RopeLayout, RopeScaling};
use model::gguf::Gguf;
use serde_json::{Value, json};

fn fixture(name: &str) -> Config {
    Config::from_dir(&fixtures().join(name)).unwrap()
}

/// A small sound config with changes; `null` in the changes stays a `null` in the file.
fn read(changes: Value) -> Result<Config, ConfigError> {
    read_with(changes, &[], None)
}

fn read_with(changes: Value, without: &[&str], generation: Option<&str>) -> Result<Config, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    let mut config = json!({
        "model_type": "llama", "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 160,
        "max_position_embeddings": 512, "num_attention_heads": 4, "num_hidden_layers": 4, "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": 256, "eos_token_id": 254
    });
    let map = config.as_object_mut().unwrap();
    map.extend(changes.as_object().unwrap().clone());
    without.iter().for_each(|key| drop(map.remove(*key)));
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    if let Some(generation) = generation {
        std::fs::write(dir.path().join("generation_config.json"), generation).unwrap();
    }
    Config::from_dir(dir.path())
}

#[track_caller]
fn close(found: &[f32], wanted: &[f64]) {
    assert_eq!(found.len(), wanted.len());
    for (f, w) in found.iter().zip(wanted) {
        assert!((f64::from(*f) / w - 1.0).abs() < 1e-6, "{found:?} is not {wanted:?}");
    }
}

#[test]
fn fixtures_are_read() {
    let llama = fixture("targets/llama");
    assert_eq!(llama.architecture, Architecture::Llama);
    assert_eq!((llama.layers, llama.hidden, llama.intermediate, llama.vocab), (4, 64, 160, 256));
    assert_eq!((llama.heads, llama.kv_heads, llama.head_dim, llama.context), (4, 2, 16, 512));
    assert_eq!((llama.q_width(), llama.kv_width()), (64, 32));
    assert!(llama.tie_word_embeddings && !llama.qkv_bias && !llama.qk_norm());
    assert_eq!((llama.norm_eps, llama.bos, llama.eos.as_slice()), (1e-6, None, [254].as_slice()));
    assert_eq!(llama.rope.layout, RopeLayout::Halves);
    assert_eq!(llama.windows, [None; 4]);
    let bias = fixture("targets/llama-mha-bias");
    assert!(bias.qkv_bias && bias.output_bias && bias.mlp_bias && !bias.tie_word_embeddings);
    assert_eq!(fixture("targets/llama-mqa").kv_heads, 1);
    let qwen2 = fixture("targets/qwen2");
    assert!(qwen2.qkv_bias && !qwen2.output_bias);
    assert_eq!((qwen2.rope.theta, qwen2.head_dim), (1_000_000.0, 16));
    let qwen3 = fixture("targets/qwen3");
    assert!(qwen3.qk_norm() && !qwen3.qkv_bias);
    assert_eq!((qwen3.head_dim, qwen3.q_width()), (32, 128));
    let mistral = fixture("targets/mistral-window");
    assert_eq!((mistral.architecture, mistral.windows.as_slice()), (Architecture::Mistral, [Some(12); 4].as_slice()));
    assert_eq!(fixture("drafts/qwen3-target").layers, 8);
}

/// Values of the published formulas, in double precision.
#[test]
fn frequencies() {
    let (plain, scale) = fixture("targets/llama").inv_freq();
    assert_eq!(scale, 1.0);
    close(&plain, &[1.0, 0.31622777, 0.1, 0.031622777, 0.01, 0.0031622777, 0.001, 0.00031622777]);
    let linear = fixture("targets/llama-rope-linear").inv_freq().0;
    assert_eq!(linear, plain.iter().map(|f| f / 2.0).collect::<Vec<_>>());
    let llama3 = fixture("targets/llama-rope-llama3").inv_freq().0;
    close(&llama3, &[1.0, 0.2443846, 0.013042256, 0.0039528471, 0.00125, 0.00039528471, 0.000125, 3.9528471e-05]);
    let (yarn, scale) = fixture("targets/llama-rope-yarn").inv_freq();
    close(&yarn, &[1.0, 0.23717082, 0.05, 0.0079056942, 0.0025, 0.00079056942, 0.00025, 7.9056942e-05]);
    close(&[scale], &[1.138629436111989]);
}

#[test]
fn frequencies_of_large_models() {
    let pick = |c: &Config, at: &[usize]| at.iter().map(|&i| c.inv_freq().0[i]).collect::<Vec<_>>();
    // Llama 3.1 as it was published: `rope_scaling` beside `rope_theta`.
    let llama = read(json!({"head_dim": 128, "rope_theta": 500000.0, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}}));
    close(
        &pick(&llama.unwrap(), &[0, 28, 30, 32, 34, 36, 40, 63]),
        &[1.0, 0.003211446, 0.0013718936, 0.00052484616, 0.00017850781, 7.7846553e-05, 3.4281022e-05, 3.068926e-07],
    );
    let qwen = |truncate: bool| {
        read(json!({"model_type": "qwen2", "head_dim": 128, "max_position_embeddings": 32768, "rope_theta": 1e6,
            "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768,
            "truncate": truncate}}))
        .unwrap()
    };
    let at = [0, 20, 24, 30, 36, 40, 50, 63];
    close(
        &pick(&qwen(true), &at),
        &[1.0, 0.013335214, 0.0053753215, 0.001064361, 0.00017984116, 4.4456985e-05, 5.1338126e-06, 3.1023444e-07],
    );
    close(
        &pick(&qwen(false), &at),
        &[1.0, 0.013335214, 0.0055172705, 0.0010792377, 0.00017734425, 4.4456985e-05, 5.1338126e-06, 3.1023444e-07],
    );
    // The file switches YaRN on without raising its own limit.
    assert_eq!(qwen(true).context, 131_072);
    let mscale = |more: Value| {
        let mut p = json!({"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 64});
        p.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        read(json!({"rope_parameters": p})).unwrap().inv_freq().1
    };
    close(&[mscale(json!({"mscale": 1.0, "mscale_all_dim": 0.8}))], &[1.0569662567531275]);
    assert_eq!(mscale(json!({"attention_factor": 1.25, "mscale": 1.0})), 1.25);
    close(&[mscale(json!({"mscale": 0.7}))], &[0.1 * 40f64.ln() + 1.0]);
}

#[test]
fn defaults_are_those_of_transformers() {
    let bare =
        read_with(json!({}), &["num_key_value_heads", "hidden_act", "rms_norm_eps", "rope_theta"], None).unwrap();
    assert_eq!((bare.kv_heads, bare.norm_eps, bare.rope.theta, bare.head_dim), (4, 1e-6, 10_000.0, 16));
    assert_eq!(read(json!({"num_key_value_heads": null})).unwrap().kv_heads, 4);
    assert_eq!(read(json!({"model_type": "qwen3"})).unwrap().head_dim, 128);
    assert_eq!(read(json!({"model_type": "mistral"})).unwrap().windows, [Some(4096); 4]);
    assert_eq!(read(json!({"model_type": "mistral", "sliding_window": null})).unwrap().windows, [None; 4]);
    assert_eq!(read(json!({"rope_scaling": null})).unwrap().rope.scaling, RopeScaling::None);
}

#[test]
fn windows_of_layers() {
    let qwen = |more: Value| {
        let mut all = json!({"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": true});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        read(all)
    };
    assert_eq!(qwen(json!({"use_sliding_window": false})).unwrap().windows, [None; 4]);
    assert_eq!(qwen(json!({"max_window_layers": 3})).unwrap().windows, [None, None, None, Some(8)]);
    let types = json!(["sliding_attention", "full_attention", "full_attention", "sliding_attention"]);
    assert_eq!(qwen(json!({"layer_types": types})).unwrap().windows, [Some(8), None, None, Some(8)]);
    says(qwen(json!({"layer_types": ["full_attention"]})), &["config.json", "layer_types", "4"]);
    says(qwen(json!({"layer_types": ["full_attention", "x", "x", "x"]})), &["layer_types", "\"x\""]);
    says(qwen(json!({"sliding_window": null})), &["sliding_window", "missing"]);
    says(qwen(json!({"sliding_window": 0, "max_window_layers": 0})), &["sliding_window", "0"]);
}

#[test]
fn end_tokens_of_both_files() {
    let with = |generation: &str| read_with(json!({"eos_token_id": [3, 254]}), &[], Some(generation));
    assert_eq!(with(r#"{"eos_token_id": [7, 3]}"#).unwrap().eos, [3, 7, 254]);
    assert_eq!(with(r#"{"eos_token_id": 9}"#).unwrap().eos, [3, 9, 254]);
    assert_eq!(with("{}").unwrap().eos, [3, 254]);
    says(with("{"), &["generation_config.json", "not a JSON object"]);
    says(with(r#"{"eos_token_id": "x"}"#), &["generation_config.json", "eos_token_id", "token id"]);
    says(with(r#"{"eos_token_id": 256}"#), &["eos_token_id", "256", "outside the vocabulary"]);
    assert_eq!(read(json!({"bos_token_id": 1, "eos_token_id": null})).unwrap().bos, Some(1));
}

#[test]
fn nonsense_is_refused() {
    let fails = |changes: Value, parts: &[&str]| says(read(changes), &[&["config.json"], parts].concat());
    fails(json!({"model_type": "gpt_neox"}), &["model_type", "gpt_neox", "llama", "qwen3"]);
    fails(json!({"model_type": 3}), &["model_type", "3", "a string"]);
    fails(json!({"hidden_act": "gelu"}), &["hidden_act", "gelu", "silu"]);
    fails(json!({"quantization_config": {"quant_method": "gptq"}}), &["quantization_config", "gptq"]);
    fails(json!({"num_attention_heads": 0}), &["head_dim"]);
    fails(json!({"num_attention_heads": 0, "head_dim": 16}), &["num_attention_heads", "0"]);
    fails(json!({"num_key_value_heads": 3}), &["num_key_value_heads", "3", "4 heads"]);
    fails(json!({"num_key_value_heads": 0}), &["num_key_value_heads", "0"]);
    fails(json!({"head_dim": 15}), &["head_dim", "15", "even"]);
    fails(json!({"hidden_size": 66}), &["head_dim", "66"]);
    fails(json!({"hidden_size": -1}), &["hidden_size", "-1", "whole number"]);
    fails(json!({"hidden_size": "64"}), &["hidden_size", "whole number"]);
    fails(json!({"num_hidden_layers": 1e15 as u64}), &["num_hidden_layers"]);
    fails(json!({"vocab_size": 0}), &["vocab_size"]);
    fails(json!({"max_position_embeddings": 0}), &["max_position_embeddings"]);
    fails(json!({"rms_norm_eps": 0.0}), &["rms_norm_eps"]);
    fails(json!({"rope_theta": -1.0}), &["rope_theta", "-1"]);
    fails(json!({"rope_theta": "a"}), &["rope_theta", "a number"]);
    fails(json!({"attention_bias": "yes"}), &["attention_bias", "true or false"]);
    fails(json!({"partial_rotary_factor": 0.5}), &["partial_rotary_factor"]);
    fails(json!({"eos_token_id": 256}), &["eos_token_id", "256"]);
    for key in ["model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"] {
        says(read_with(json!({}), &[key], None), &["config.json", key, "missing"]);
    }
}

#[test]
fn nonsense_of_rotation_is_refused() {
    let fails = |p: Value, parts: &[&str]| {
        says(read(json!({"rope_parameters": p})), &[&["config.json"], parts].concat());
    };
    fails(json!({"rope_type": "longrope"}), &["rope_parameters.rope_type", "longrope", "yarn"]);
    fails(json!({"type": "dynamic", "factor": 2.0}), &["rope_type", "dynamic"]);
    fails(json!({"rope_type": "linear"}), &["rope_parameters.factor", "missing"]);
    fails(json!({"rope_type": "linear", "factor": 0.0}), &["factor", "0"]);
    fails(json!({"rope_type": "llama3", "factor": 2.0}), &["low_freq_factor", "missing"]);
    let llama3 = |low: f64, high: f64| json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": low, "high_freq_factor": high});
    fails(llama3(4.0, 4.0), &["high_freq_factor"]);
    fails(llama3(0.0, 4.0), &["low_freq_factor"]);
    fails(json!({"rope_type": "yarn", "factor": 2.0, "beta_fast": 1.0, "beta_slow": 2.0}), &["beta_fast"]);
    fails(
        json!({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 0}),
        &["original_max_position"],
    );
    says(read(json!({"rope_parameters": 3})), &["rope_parameters", "an object"]);
}

#[test]
fn files_that_are_no_config() {
    let dir = tempfile::tempdir().unwrap();
    says(Config::from_dir(dir.path()), &["config.json", "cannot read"]);
    for text in ["", "[]", "{\"a\":", "null"] {
        std::fs::write(dir.path().join("config.json"), text).unwrap();
        says(Config::from_dir(dir.path()), &["config.json", "not a JSON object"]);
    }
}

fn gguf(w: &Writer) -> Result<Config, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    Config::from_gguf(&Gguf::open(&w.write(dir.path(), "m.gguf")).unwrap())
}

#[test]
fn gguf_metadata() {
    let c = gguf(&model("llama")).unwrap();
    assert_eq!((c.architecture, c.rope.layout), (Architecture::Llama, RopeLayout::Pairs));
    assert_eq!((c.layers, c.hidden, c.intermediate, c.vocab, c.context), (1, 16, 32, 4, 128));
    assert_eq!((c.heads, c.kv_heads, c.head_dim, c.norm_eps), (2, 1, 8, 1e-5));
    assert_eq!((c.rope.theta, &c.rope.scaling), (10_000.0, &RopeScaling::None));
    assert!(c.tie_word_embeddings && !c.qkv_bias);
    // The declared end token, and the control token that ends turns.
    assert_eq!(c.eos, [2, 3]);
    let more = model("llama")
        .f32("llama.rope.freq_base", 5e5)
        .u32("llama.attention.sliding_window", 7)
        .u32("tokenizer.ggml.bos_token_id", 1)
        .f32_tensor("output.weight", &[4, 16])
        .f32_tensor("blk.0.attn_q.bias", &[16]);
    let c = gguf(&more).unwrap();
    assert_eq!((c.architecture, c.windows.as_slice()), (Architecture::Mistral, [Some(7)].as_slice()));
    assert!(!c.tie_word_embeddings && c.qkv_bias);
    assert_eq!((c.rope.theta, c.bos), (5e5, Some(1)));
    for (name, architecture) in [("qwen2", Architecture::Qwen2), ("qwen3", Architecture::Qwen3)] {
        let c = gguf(&model(name)).unwrap();
        assert_eq!((c.architecture, c.rope.layout), (architecture, RopeLayout::Halves));
    }
}

#[test]
fn gguf_rotation() {
    let freqs = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
    let w = model("llama").tensor("rope_freqs.weight", &[4], 0, freqs(&[1.0, 1.0, 2.0, 8.0]));
    close(&gguf(&w).unwrap().inv_freq().0, &[1.0, 0.1, 0.005, 0.000125]);
    let yarn = model("llama")
        .str("llama.rope.scaling.type", "yarn")
        .f32("llama.rope.scaling.factor", 4.0)
        .u32("llama.rope.scaling.original_context_length", 32);
    let (_, scale) = gguf(&yarn).unwrap().inv_freq();
    close(&[scale], &[1.138629436111989]);
    let (_, scale) = gguf(&yarn.clone().f32("llama.rope.scaling.attn_factor", 0.5)).unwrap().inv_freq();
    close(&[scale], &[1.138629436111989 / 2.0]);
    let linear = model("llama").str("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 2.0);
    assert_eq!(gguf(&linear).unwrap().rope.scaling, RopeScaling::Linear { factor: 2.0 });

    says(
        gguf(&linear.clone().without("llama.rope.scaling.factor")),
        &["m.gguf", "llama.rope.scaling.factor", "missing"],
    );
    says(gguf(&linear.clone().f32("llama.rope.scaling.factor", -1.0)), &["llama.rope.scaling.factor", "-1"]);
    says(gguf(&linear.tensor("rope_freqs.weight", &[4], 0, freqs(&[1.0; 4]))), &["rope_freqs.weight"]);
    says(gguf(&model("llama").str("llama.rope.scaling.type", "longrope")), &["llama.rope.scaling.type", "longrope"]);
    says(
        gguf(&model("llama").tensor("rope_freqs.weight", &[3], 0, freqs(&[1.0; 3]))),
        &["rope_freqs.weight", "3", "4"],
    );
    says(gguf(&model("llama").tensor("rope_freqs.weight", &[4], 0, freqs(&[0.0; 4]))), &["rope_freqs.weight"]);
    says(gguf(&model("llama").f32("llama.rope.freq_base", f32::NAN)), &["llama.rope.freq_base"]);
}

#[test]
fn gguf_nonsense_is_refused() {
    let fails = |w: Writer, parts: &[&str]| says(gguf(&w), &[&["m.gguf"], parts].concat());
    fails(model("gemma3"), &["general.architecture", "gemma3", "llama"]);
    fails(model("llama").without("general.architecture"), &["general.architecture", "missing"]);
    for key in ["block_count", "embedding_length", "feed_forward_length", "attention.head_count", "context_length"] {
        fails(model("llama").without(&format!("llama.{key}")), &[&format!("llama.{key}"), "missing"]);
        fails(model("llama").str(&format!("llama.{key}"), "x"), &[&format!("llama.{key}"), "a string"]);
    }
    fails(model("llama").u32("llama.block_count", u32::MAX), &["llama.block_count", "4294967295"]);
    fails(model("llama").u32("llama.block_count", 0), &["llama.block_count"]);
    fails(model("llama").u32("llama.attention.head_count", 3), &["llama.attention.key_length", "16"]);
    fails(model("llama").u32("llama.attention.head_count", 0), &["llama.attention"]);
    fails(model("llama").u32("llama.attention.head_count_kv", 0), &["llama.attention.head_count_kv"]);
    fails(model("llama").u32("llama.attention.key_length", 7), &["llama.attention.key_length", "even"]);
    fails(model("llama").u32("llama.attention.value_length", 4), &["llama.attention.value_length", "4", "8"]);
    fails(model("llama").u32("llama.rope.dimension_count", 4), &["llama.rope.dimension_count"]);
    fails(model("llama").u32("llama.expert_count", 8), &["llama.expert_count"]);
    fails(model("llama").u32("llama.vocab_size", 5), &["llama.vocab_size", "5", "4 rows"]);
    fails(model("llama").strings("tokenizer.ggml.tokens", &["a"]), &["tokenizer.ggml.tokens", "1 tokens", "4 rows"]);
    fails(model("llama").without("token_embd.weight"), &["token_embd.weight", "missing"]);
    fails(model("llama").u32("tokenizer.ggml.eos_token_id", 4), &["eos_token_id", "4", "outside the vocabulary"]);
    fails(model("llama").without("llama.attention.layer_norm_rms_epsilon"), &["layer_norm_rms_epsilon", "missing"]);
}

#[test]
fn a_missing_directory() {
    says(Config::from_dir(Path::new("no/such/directory")), &["no/such/directory", "cannot read"]);
}
