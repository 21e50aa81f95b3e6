//! What a checkpoint's files say, whoever wrote them: other libraries' fields, calibration, 8-bit weights, older generations,
//! and what is refused.

use super::*;

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let pool = Pool::new(NonZeroUsize::MIN);
    let rounds = Rounds::new(&[]);
    let small = Arc::new(testkit::target("llama", &pool));
    let refused = |dir: &Path, model: &Arc<Model>| {
        let target = Target { model, vocab: 256, kv_format: KvFormat::F32 };
        load(dir, target, &pool, testkit::options()).err().map(|error| error.to_string()).unwrap_or_default()
    };
    let message = refused(&fixture("dspark-markov"), &small);
    assert!(message.contains("at least as many layers as 6, and this one has 4"), "{message}");
    let message = refused(&fixture("qwen3-target"), &rounds.target);
    assert!(message.contains("architectures names no learned drafter"), "{message}");
    // Every field of the config that is not a number where one must be, and every tensor that is missing or too many.
    let changed = |old: &str, new: &str, weights: &str| {
        let dir = tempfile::tempdir().unwrap();
        let config = std::fs::read_to_string(fixture("dspark-gated").join("config.json")).unwrap();
        assert!(config.contains(old), "{old}");
        std::fs::write(dir.path().join("config.json"), config.replace(old, new)).unwrap();
        std::fs::copy(fixture(weights).join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
        refused(dir.path(), &rounds.target)
    };
    for (old, new, weights, wanted) in [
        ("\"block_size\": 7", "\"block_size\": 1", "dspark-gated", "block_size is 1, which is not between 2 and 64"),
        ("\"mask_token_id\": 255", "\"mask_token_id\": 256", "dspark-gated", "the mask token 256"),
        ("\"mask_token_id\": 255", "\"no\": 0", "dspark-gated", "mask_token_id is missing"),
        ("\"gated\"", "\"newer\"", "dspark-gated", "markov_head_type is \"newer\""),
        ("\"vocab_size\": 256", "\"vocab_size\": 300", "dspark-gated", "the vocabulary 300, and this one has 256"),
        ("\"gated\"", "\"gated\"", "dspark-markov", "markov_head.gate_proj.weight is missing"),
        ("\"gated\"", "\"gated\"", "eagle3-sglab", "nothing is known of the tensor midlayer.hidden_norm.weight"),
        ("\"markov_rank\": 16", "\"markov_rank\": 8", "dspark-gated", "markov_head.markov_w2.weight has the shape"),
    ] {
        let message = changed(old, new, weights);
        assert!(message.contains(wanted), "{new}: {message}");
    }
}

#[test]
fn confidences_are_calibrated_by_the_file_beside_a_draft() {
    let dir = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture("dspark-markov").join(file), dir.path().join(file)).unwrap();
    }
    let trace = json(&fixture("dspark-markov").join("trace.json"));
    let confidences = || {
        let mut rounds = Rounds::new(&numbers(&trace["prompt"]));
        let target = Target { model: &rounds.target, vocab: 256, kv_format: KvFormat::F32 };
        let mut drafter = load(dir.path(), target, &rounds.pool, testkit::options())?;
        rounds.begin(drafter.as_mut());
        Ok::<_, LearnedError>(likeliest_path(&rounds.propose(drafter.as_mut(), 64)).1[1..].to_vec())
    };
    let said = confidences().unwrap();
    let write = |text: &str| std::fs::write(dir.path().join("calibration.json"), text).unwrap();
    write(r#"{"temperatures": [1, 2, 1, 1, 0.5, 1, 1]}"#);
    let logit = |confidence: f64| (confidence / (1.0 - confidence)).ln();
    for (at, (said, calibrated)) in said.iter().zip(confidences().unwrap()).enumerate() {
        let temperature = [1.0, 2.0, 1.0, 1.0, 0.5, 1.0, 1.0][at];
        assert!((logit(*said) / temperature - logit(calibrated)).abs() < 1e-6, "draft {at}");
    }
    write(r#"{"temperatures": [1, 2, 1, 1, 1, 1, 1], "shifts": [0, 0.5, 0, 0, 0, 0, -1]}"#);
    let shifted = confidences().unwrap()[1];
    assert!((logit(said[1]) / 2.0 + 0.5 - logit(shifted)).abs() < 1e-6);
    for (text, wanted) in [
        ("{", "not a JSON object"),
        ("{}", "temperatures is missing"),
        (r#"{"temperatures": [1, 2]}"#, "has 2 numbers, where a block has 7 drafts"),
        (r#"{"temperatures": [1, 2, 1, 1, 1, 1, 1], "shifts": [1]}"#, "shifts has 1 numbers, where a block has 7"),
        (r#"{"temperatures": [1, 2, 1, 1, 0, 1, 1]}"#, "temperature 0 is not a finite number above 0"),
    ] {
        write(text);
        let message = confidences().unwrap_err().to_string();
        assert!(message.contains(wanted), "{message}");
    }
}

/// Rounds in which drafters are compared.
const ROUNDS: usize = 30;

/// A copy of a fixture whose config says what `change` makes of it.
fn rewritten(name: &str, change: impl FnOnce(&Value) -> Value) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let config = change(&json(&fixture(name).join("config.json")));
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    std::fs::copy(fixture(name).join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    dir
}

/// Tokens that the first rounds commit.
fn committed(dir: &Path, trace: &Value) -> Result<usize, LearnedError> {
    let mut rounds = Rounds::new(&numbers(&trace["prompt"]));
    let target = Target { model: &rounds.target, vocab: 256, kv_format: KvFormat::F32 };
    let mut drafter = load(dir, target, &rounds.pool, testkit::options())?;
    rounds.begin(drafter.as_mut());
    Ok((0..ROUNDS).map(|_| rounds.round(drafter.as_mut(), 0.0).0).sum())
}

#[test]
fn the_same_draft_is_read_from_other_libraries_files() {
    let ids = |offset: u64| serde_json::json!([1 + offset, 2 + offset, 3 + offset, 4 + offset, 5 + offset]);
    let speculators = |config: &Value, own: Value| {
        let mut root = own;
        root["transformer_layer_config"] = config.clone();
        root
    };
    let block = |config: &Value, more: Value| {
        let mut own = serde_json::json!({
            "architectures": ["DSparkSpeculator"], "speculators_model_type": "dspark", "block_size": 7,
            "mask_token_id": 255, "aux_hidden_state_layer_ids": ids(1), "markov_rank": 16, "markov_head_type": "gated",
            "enable_confidence_head": true, "confidence_head_with_markov": true,
        });
        own.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        speculators(config, own)
    };
    let trace = json(&fixture("dspark-gated").join("trace.json"));
    let right = committed(&fixture("dspark-gated"), &trace).unwrap();
    for more in [
        serde_json::json!({"sample_from_anchor": true}),
        serde_json::json!({"speculators_config": {"proposal_methods": [{"speculative_tokens": 7}]}}),
    ] {
        let dir = rewritten("dspark-gated", |config| block(config, more));
        assert_eq!(committed(dir.path(), &trace).unwrap(), right, "ids are of the layers whose inputs are read");
    }
    // What no field tells is tried out: alignment, and layers that are one off.
    for off in [0, 1, 2] {
        let open = serde_json::json!({"aux_hidden_state_layer_ids": ids(off)});
        let open = rewritten("dspark-gated", |config| block(config, open));
        assert_eq!(committed(open.path(), &trace).unwrap(), right, "ids are {off} more");
    }
    let forge = rewritten("dspark-gated", |config| {
        let mut root = config.clone();
        root["architectures"] = serde_json::json!(["DSparkDraftModel"]);
        let nested = ["target_layer_ids", "mask_token_id", "markov_rank", "markov_head_type", "enable_confidence_head"];
        let nested = nested.into_iter().chain(["confidence_head_with_markov"]);
        root["dflash_config"] = nested.map(|field| (field.to_owned(), root[field].clone())).collect();
        root
    });
    assert_eq!(committed(forge.path(), &trace).unwrap(), right);
    let trace = json(&fixture("eagle3-deepspec").join("trace.json"));
    let right = committed(&fixture("eagle3-deepspec"), &trace).unwrap();
    let eagle = rewritten("eagle3-deepspec", |config| {
        speculators(
            config,
            serde_json::json!({
                "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "draft_vocab_size": 256,
                "vocab_size": 256, "eagle_aux_hidden_state_layer_ids": ids(1), "norm_before_residual": false,
                "speculators_config": {"proposal_methods": [{"speculative_tokens": 5}]},
            }),
        )
    });
    assert_eq!(committed(eagle.path(), &trace).unwrap(), right);
}

#[test]
fn a_draft_that_is_read_a_layer_or_a_row_off_is_worse() {
    let name = "dspark-markov";
    let trace = json(&fixture(name).join("trace.json"));
    let right = committed(&fixture(name), &trace).unwrap();
    for ids in [[0, 1, 2, 3, 4], [2, 3, 4, 5, 6]] {
        let off = rewritten(name, |config| {
            let mut root = config.clone();
            root["target_layer_ids"] = serde_json::json!(ids);
            root
        });
        let wrong = committed(off.path(), &trace).unwrap();
        assert!(wrong < right, "{ids:?}: {wrong} tokens, and {right} where it is right");
    }
}

#[test]
fn weights_of_8_bits_draft_nearly_the_same() {
    let name = "dspark-rnn";
    let trace = json(&fixture(name).join("trace.json"));
    let mut rounds = Rounds::new(&numbers(&trace["prompt"]));
    let target = Target { model: &rounds.target, vocab: 256, kv_format: KvFormat::F32 };
    let options = LoadOptions { compute: kernels::Compute::Stored, quantise: true, ..testkit::options() };
    let mut drafter = load(&fixture(name), target, &rounds.pool, options).unwrap();
    rounds.begin(drafter.as_mut());
    let text = numbers(&json(&fixture("qwen3-target").join("greedy.json"))["greedy"]);
    while rounds.tokens.len() < text.len() {
        rounds.round(drafter.as_mut(), 0.0);
    }
    assert_eq!(rounds.tokens[..text.len()], text, "no draft changes the text");
    let committed = committed(&fixture(name), &trace).unwrap();
    let mut again = Rounds::new(&numbers(&trace["prompt"]));
    let target = Target { model: &again.target, vocab: 256, kv_format: KvFormat::F32 };
    let mut drafter = load(&fixture(name), target, &again.pool, options).unwrap();
    again.begin(drafter.as_mut());
    let quantised: usize = (0..ROUNDS).map(|_| again.round(drafter.as_mut(), 0.0).0).sum();
    assert!(quantised * 10 >= committed * 8, "{quantised} tokens in {ROUNDS} rounds, {committed} without");
}

/// A draft whose layer adds nothing, so that out comes what went in: the feature, which is the target's last hidden state.
fn echo(dir: &Path, prefix: &str, fuse: &str, more: &[(&str, Vec<usize>)], config: &Value) {
    let square = |rows: usize, cols: usize| vec![rows, cols];
    let mut shapes: Vec<(String, Vec<usize>)> = [
        ("self_attn.q_proj", square(64, 64)),
        ("self_attn.k_proj", square(32, 64)),
        ("self_attn.v_proj", square(32, 64)),
        ("self_attn.o_proj", square(64, 64)),
        ("mlp.gate_proj", square(160, 64)),
        ("mlp.up_proj", square(160, 64)),
        ("mlp.down_proj", square(64, 160)),
    ]
    .map(|(name, shape)| (format!("{prefix}{name}.weight"), shape))
    .into();
    shapes.extend(more.iter().map(|(name, shape)| (format!("{prefix}{name}"), shape.clone())));
    shapes.push((fuse.to_owned(), square(64, 128)));
    let bytes = |(name, shape): &(String, Vec<usize>)| -> Vec<u8> {
        let value = |at: usize| match (&shape[..], name == fuse) {
            // What comes of the embedding is nothing, and of the feature itself.
            (_, true) => f32::from(u8::from(at % 128 == 64 + at / 128)),
            ([_], _) => 1.0,
            _ => 0.0,
        };
        (0..shape.iter().product()).flat_map(|at| value(at).to_le_bytes()).collect()
    };
    let data: Vec<Vec<u8>> = shapes.iter().map(bytes).collect();
    let views = shapes.iter().zip(&data).map(|((name, shape), data)| {
        (name, safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), data).unwrap())
    });
    safetensors::serialize_to_file(views, None, &dir.join("model.safetensors")).unwrap();
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
}

#[test]
fn first_generations_and_modules_begin_with_the_last_hidden_state() {
    let config = |more: Value| {
        let mut config = json(&fixture("qwen3-target").join("config.json"));
        config["model_type"] = "llama".into();
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config.as_object_mut().unwrap().remove("layer_types");
        config
    };
    let (first, module) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let norm = |name| (name, vec![64]);
    let one = config(serde_json::json!({"num_hidden_layers": 1, "architectures": ["LlamaForCausalLM"]}));
    echo(first.path(), "layers.0.", "fc.weight", &[norm("post_attention_layernorm.weight")], &one);
    let norms = [
        "post_attention_layernorm.weight",
        "input_layernorm.weight",
        "enorm.weight",
        "hnorm.weight",
        "shared_head.norm.weight",
    ];
    let modules = config(serde_json::json!({"num_nextn_predict_layers": 1}));
    echo(module.path(), "model.layers.8.", "model.layers.8.eh_proj.weight", &norms.map(norm), &modules);
    let trace = json(&fixture("dspark-markov").join("trace.json"));
    for (dir, name) in [(&first, "eagle"), (&module, "mtp")] {
        let mut rounds = Rounds::new(&numbers(&trace["prompt"]));
        let target = Target { model: &rounds.target, vocab: 256, kv_format: KvFormat::F32 };
        let mut drafter = load(dir.path(), target, &rounds.pool, testkit::options()).unwrap();
        assert_eq!(drafter.name(), name);
        rounds.begin(drafter.as_mut());
        for _ in 0..5 {
            // The head makes of the hidden state before the anchor what it made of it: the anchor.
            let proposal = rounds.propose(drafter.as_mut(), 3);
            let anchor = rounds.tokens[rounds.tokens.len() - 1];
            assert_eq!(likeliest_path(&proposal).0, [anchor; 4], "{name}");
            rounds.round(drafter.as_mut(), 0.0);
        }
    }
}
