//! `foretoken plan` as a user meets it: the known sizes of known models, and what drafting earns.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

const GIB: u64 = 1 << 30;

/// A directory with a `config.json` alone.
struct Config {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl Config {
    fn new(config: &Value) -> Config {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        std::fs::write(&path, config.to_string()).unwrap();
        Config { _dir: dir, path }
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_foretoken"));
        command.args(["plan", "--model"]).arg(&self.path).args(args).stdin(Stdio::null());
        command.output().expect("the binary runs")
    }

    fn table(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.table(&[args, &["--json"]].concat())).expect("JSON")
    }

    /// Must fail with exit code 1 and one line on stderr, which is returned.
    fn refusal(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let error = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(error.starts_with("error: ") && error.lines().count() == 1 && output.stdout.is_empty(), "{error}");
        error
    }
}

fn llama_2_7b() -> Value {
    json!({"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096,
        "intermediate_size": 11008, "vocab_size": 32000, "max_position_embeddings": 4096, "torch_dtype": "float16"})
}

fn llama_3_70b() -> Value {
    json!({"model_type": "llama", "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
        "hidden_size": 8192, "intermediate_size": 28672, "vocab_size": 128_256, "torch_dtype": "bfloat16",
        "max_position_embeddings": 8192})
}

fn deepseek_v2() -> Value {
    json!({"model_type": "deepseek_v2", "num_hidden_layers": 60, "num_attention_heads": 128, "hidden_size": 5120,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128})
}

fn gemma_like() -> Value {
    json!({"text_config": {"model_type": "gemma3_text", "num_hidden_layers": 12, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 1024, "max_position_embeddings": 131_072}})
}

#[test]
fn requests_of_4096_tokens_have_the_known_sizes() {
    for (config, kv, kind, bytes) in [
        (llama_2_7b(), "f16", "MHA", 2 * GIB),
        (llama_3_70b(), "f16", "GQA", 5 * GIB / 4),
        (llama_3_70b(), "fp8", "GQA", 5 * GIB / 8),
        (llama_3_70b(), "int4", "GQA", 5 * GIB / 16),
        // Some 0.27 GB.
        (deepseek_v2(), "f16", "MLA", 60 * 4096 * (512 + 64) * 2),
    ] {
        let plan = Config::new(&config).json(&["--context", "4096", "--kv", kv]);
        assert_eq!(plan["kv_bytes_per_request"], bytes, "{kind} {kv}");
        assert_eq!(plan["kv_bytes_per_token"], bytes / 4096, "{kind} {kv}");
        assert!(plan["attention"].as_str().unwrap().starts_with(kind), "{plan}");
    }
}

#[test]
fn windows_bound_what_their_layers_keep() {
    let plan = Config::new(&gemma_like()).json(&["--context", "8192", "--memory", "8GiB", "--weights", "1GiB"]);
    // 2 of 12 layers see everything; 4 KiB a layer and token.
    let (windowed, whole) = ((2 * 8192 + 10 * 1024) * 4096, 12 * 8192 * 4096);
    assert_eq!(plan["kv_bytes_per_request"], windowed);
    assert_eq!(plan["kv_bytes_per_request_all_tokens_kept"], whole);
    assert_eq!(plan["batch"]["largest_batch"], 7 * GIB / windowed);
    assert_eq!(plan["batch"]["largest_batch_all_tokens_kept"], 7 * GIB / whole);
}

#[test]
fn the_largest_batch_is_what_the_weights_leave() {
    let llama = Config::new(&llama_2_7b());
    let plan = llama.json(&["--memory", "24GiB"]);
    assert_eq!((&plan["context"], &plan["batch"]["weights_bytes"]), (&json!(4096), &json!(2 * 6_738_415_616u64)));
    assert!(plan["batch"]["weights_from"].as_str().unwrap().contains("6,738,415,616 parameters"), "{plan}");
    assert_eq!(plan["batch"]["largest_batch"], (24 * GIB - 2 * 6_738_415_616) / (2 * GIB));
    let given = llama.json(&["--memory", "24GiB", "--weights", "4GiB"]);
    assert_eq!((&given["batch"]["largest_batch"], &given["batch"]["weights_from"]), (&json!(10), &json!("--weights")));
    let small = llama.table(&["--memory", "8GiB"]);
    assert!(small.contains("the weights alone leave none of 8.00 GiB"), "{small}");
}

#[test]
fn weights_at_hand_are_measured() {
    let fixture = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/targets/llama"));
    let bytes = std::fs::metadata(fixture.join("model.safetensors")).unwrap().len();
    let output = Command::new(env!("CARGO_BIN_EXE_foretoken"))
        .args(["plan", "--memory", "1GiB", "--json", "--model"])
        .arg(&fixture)
        .output()
        .unwrap();
    let plan: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(plan["batch"]["weights_bytes"], bytes);
    assert_eq!(plan["batch"]["weights_from"], "size of the weight files");
}

#[test]
fn expected_tokens_are_the_tables() {
    let llama = Config::new(&llama_2_7b());
    for (acceptance, at_4) in [("0.6", 2.3056), ("0.7", 2.7731)] {
        let plan = llama.json(&["--acceptance", acceptance, "--draft-cost", "0.1"]);
        let speculation = &plan["speculation"];
        let rows = speculation["by_drafts"].as_array().unwrap();
        assert_eq!((rows.len(), &rows[3]["drafts"]), (16, &json!(4)));
        let number = |value: &Value| value.as_f64().unwrap();
        let tokens = number(&rows[3]["expected_tokens"]);
        assert!((tokens - at_4).abs() < 1e-9, "{tokens}");
        assert!((number(&rows[3]["speedup"]) - tokens / 1.4).abs() < 1e-12);
        let best = rows.iter().max_by(|a, b| number(&a["speedup"]).total_cmp(&number(&b["speedup"]))).unwrap();
        assert_eq!((&speculation["best_drafts"], &speculation["best_speedup"]), (&best["drafts"], &best["speedup"]));
    }
    let dear = llama.json(&["--acceptance", "0.8", "--draft-cost", "0.1", "--verify-cost", "2:2,17:20"]);
    assert_eq!(dear["speculation"]["best_drafts"], 0);
}

#[test]
fn the_table_fits_80_columns_and_has_the_formulas() {
    let args = ["--context", "4096", "--memory", "160GiB", "--acceptance", "0.8", "--draft-cost", "0.1"];
    let table = Config::new(&llama_3_70b()).table(&args);
    for part in [
        "1.25 GiB",
        "= 2 · 80 · 8 · 128 · 16 / 8 = 327,680 B",
        "(memory − weights) / KV per request, rounded down",
        "70,553,706,496 parameters",
        "E[τ] = (1 − α^(K+1)) / (1 − α)",
        "speed-up = E[τ] / (V + K · c)",
        "best γ",
    ] {
        assert!(table.contains(part), "{part}: {table}");
    }
    let windows = Config::new(&gemma_like()).table(&["--memory", "999GiB", "--weights", "100GiB"]);
    // The first line has the path.
    for line in table.lines().skip(1).chain(windows.lines().skip(1)) {
        assert!(line.chars().count() <= 80 && line.trim_end() == line, "{line:?}");
    }
}

#[test]
fn errors_name_the_field_and_say_what_to_give() {
    let llama = Config::new(&llama_2_7b());
    let drafting = |acceptance| llama.refusal(&["--acceptance", acceptance, "--draft-cost", "0.1"]);
    assert!(drafting("1.5").contains("acceptance 1.5"));
    assert!(llama.refusal(&["--acceptance", "0.5", "--draft-cost", "inf"]).contains("the cost inf of drafting"));
    let deepseek = Config::new(&deepseek_v2());
    let error = deepseek.refusal(&[]);
    assert!(error.contains("config.json: max_position_embeddings is missing: give --context"), "{error}");
    let error = deepseek.refusal(&["--context", "4096", "--memory", "24GiB"]);
    assert!(error.contains("vocab_size") && error.contains("--weights"), "{error}");
    let mut broken = llama_2_7b();
    broken["num_hidden_layers"] = json!("many");
    let error = Config::new(&broken).refusal(&[]);
    assert!(error.contains("config.json: num_hidden_layers is \"many\""), "{error}");
    for args in [&["--memory", "24apples"][..], &["--kv", "int3"], &["--context", "0"], &["--acceptance", "0.8"]] {
        assert_eq!(llama.run(args).status.code(), Some(2), "{args:?}");
    }
}
