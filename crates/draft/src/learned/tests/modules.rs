//! Modules for multi-token prediction: what they keep, what is refused, and drafts that nobody trained.

use super::arithmetic::{first_generation, modules, next_modules};
use super::plain::{Numbers, llama_config};
use super::*;

#[test]
fn what_modules_keep_after_rounds_is_what_reading_the_text_keeps() {
    let (mut draft, config) = modules(3, 19);
    // All the same, and sure of what the target likes: some drafts stand.
    draft.scale("model.layers", 1.5);
    let dir = tempfile::tempdir().unwrap();
    draft.write(dir.path(), &config);
    let load = |rounds: &Rounds| {
        let target = Target { model: &rounds.target, vocab: 256, kv_format: KvFormat::F32 };
        let (weights, config) = (Weights::open_dir(dir.path()).unwrap(), Config::from_dir(dir.path()).unwrap());
        let Some(Format::Feature(format)) = Format::read(dir.path()).unwrap() else { panic!() };
        FeatureDraft::load(&weights, config, format, target, &rounds.pool, testkit::options()).unwrap()
    };
    // A text shorter than there are modules begins with fewer drafts.
    for prompt in [&[53, 51, 13, 41, 41, 35, 15, 20][..], &[53, 51], &[53]] {
        let mut rounds = Rounds::new(prompt);
        let mut drafter = load(&rounds);
        rounds.begin(&mut drafter);
        for _ in 0..8 {
            let most = (rounds.tokens.len() - 1).min(3);
            let drafts = rounds.propose(&mut drafter, 64).tree().drafts();
            assert_eq!(drafts, if most < 3 { most } else { 5 }, "{} tokens", rounds.tokens.len());
            rounds.round(&mut drafter, 0.0);
        }
        let mut fresh = Rounds::new(&rounds.tokens[..rounds.tokens.len() - 1]);
        let mut reader = load(&fresh);
        fresh.begin(&mut reader);
        for module in 0..3 {
            // Each has its first pair a position later than the one before it.
            for (part, from) in [(0, module + 1), (1, module)] {
                let kept = rounds.kept(&drafter.attached[module][part], from);
                assert!(kept == fresh.kept(&reader.attached[module][part], from), "module {module}, part {part}");
            }
        }
    }
}

#[test]
fn layers_of_other_kinds_are_refused_by_what_they_are() {
    let rounds = Rounds::new(&[]);
    let refused = |draft: &Numbers, config: &Value, wanted: &str| {
        let dir = tempfile::tempdir().unwrap();
        draft.write(dir.path(), config);
        let target = Target { model: &rounds.target, vocab: 256, kv_format: KvFormat::F32 };
        let message = load(dir.path(), target, &rounds.pool, testkit::options()).err().unwrap().to_string();
        assert!(message.contains(wanted), "{message}");
    };
    let deepseek = serde_json::json!({"model_type": "deepseek_v3", "num_nextn_predict_layers": 1});
    for (tensor, what) in [
        ("mlp.experts.0.gate_proj.weight", "its layer has a mixture of experts"),
        ("mlp.gate.weight", "its layer has a mixture of experts"),
        ("self_attn.kv_a_proj_with_mqa.weight", "its layer has latent attention (MLA)"),
    ] {
        let (mut draft, _) = modules(1, 1);
        draft.replace(&format!("model.layers.8.{tensor}"), &[2, 2], |_, _| 0.0);
        refused(&draft, &llama_config(deepseek.clone()), what);
        // The target's own layers may be what they like.
        let (mut draft, config) = modules(1, 1);
        draft.replace(&format!("model.layers.7.{tensor}"), &[2, 2], |_, _| 0.0);
        let dir = tempfile::tempdir().unwrap();
        draft.write(dir.path(), &config);
        Rounds::with(dir.path(), 1);
    }
    let ([mut next, _], config) = next_modules(1, 1);
    next.replace("mtp.layers.0.self_attn.q_proj.weight", &[128, 64], |_, _| 0.0);
    refused(&next, &config, "its layer has gated attention (mtp.layers.0.self_attn.q_proj.weight)");
    let (draft, mut config) = modules(1, 1);
    config["num_nextn_predict_layers"] = 17.into();
    refused(&draft, &config, "num_nextn_predict_layers is 17: known are 1 to 16 modules");
    config["num_nextn_predict_layers"] = 2.into();
    refused(&draft, &config, "model.layers.9.enorm.weight is missing");
}

#[test]
fn features_of_another_width_are_refused() {
    let rounds = Rounds::new(&[]);
    let (eagle, modules) = (first_generation(1), modules(1, 1));
    for (draft, mut config) in [eagle, modules] {
        config["hidden_size"] = 32.into();
        let dir = tempfile::tempdir().unwrap();
        draft.write(dir.path(), &config);
        let target = Target { model: &rounds.target, vocab: 256, kv_format: KvFormat::F32 };
        let message = load(dir.path(), target, &rounds.pool, testkit::options()).err().unwrap().to_string();
        assert!(message.contains("the hidden size 32, and this one has 64"), "{message}");
    }
}

#[test]
fn a_draft_whose_norms_nobody_trained_is_known() {
    let untrained = |draft: &Numbers, config: &Value| {
        let dir = tempfile::tempdir().unwrap();
        draft.write(dir.path(), config);
        is_untrained(dir.path()).unwrap()
    };
    let (mut draft, config) = modules(2, 1);
    assert!(!untrained(&draft, &config));
    draft.fill("norm", 1.0);
    assert!(untrained(&draft, &config));
    // Norms of the target beside it do not count, and one that moved is enough.
    draft.replace("model.layers.7.input_layernorm.weight", &[1, 64], |_, _| 2.0);
    assert!(untrained(&draft, &config));
    draft.fill("layers.9.hnorm", 1.25);
    assert!(!untrained(&draft, &config));
    let ([mut next, _], config) = next_modules(1, 1);
    assert!(!untrained(&next, &config));
    next.fill("norm", 1.0);
    assert!(!untrained(&next, &config), "stored less 1");
    next.fill("norm", 0.0);
    assert!(untrained(&next, &config));
    for name in ["dspark-markov", "dflash-zlab", "eagle3-deepspec"] {
        assert!(!is_untrained(&fixture(name)).unwrap(), "{name}");
    }
    assert!(!is_untrained(&fixture("qwen3-target")).unwrap(), "no drafter at all");
}
