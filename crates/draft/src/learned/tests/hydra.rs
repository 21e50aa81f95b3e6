//! What must hold of Hydra's heads, whatever their weights.

use super::arithmetic::{hydra, hydra_logits};
use super::plain::{Known, Numbers, argmax};
use super::*;

#[test]
fn candidates_depend_on_their_path_alone() {
    for prefix in [false, true] {
        let (mut draft, config) = hydra(prefix, 5);
        draft.scale("hydra_lm_head", 4.0);
        let dir = tempfile::tempdir().unwrap();
        draft.write(dir.path(), &config);
        let (mut rounds, mut drafter) = Rounds::with(dir.path(), 3);
        let proposal = rounds.propose_for(drafter.as_mut(), (64, &Greedy), 0.0).unwrap();
        let (known, tree) = (Known::of(&rounds), proposal.tree());
        assert!(tree.drafts() > 10 && tree.depths().contains(&3), "{tree:?}");
        let mut branches = 0;
        for node in 1..tree.len() {
            let mut words = Vec::new();
            let mut above = tree.parent(node);
            while let Some(node) = above {
                words.insert(0, tree.tokens()[node]);
                above = tree.parent(node);
            }
            let logits = hydra_logits(&draft, prefix, &known, &words);
            let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
            let p = logits[tree.tokens()[node] as usize].exp() / sum;
            assert!((tree.confidences()[node] / p).ln().abs() <= 5e-4, "{words:?}");
            branches += usize::from(words.len() > 1 && words[1] != tree.tokens()[1]);
        }
        assert!(branches > 0, "more than one way is gone on from");
        // The likeliest of the tree is the chain.
        let chain = rounds.propose_for(drafter.as_mut(), (2, &Greedy), 1.0).unwrap();
        assert_eq!(chain.tree().tokens()[1], argmax(&hydra_logits(&draft, prefix, &known, &tree.tokens()[..1])));
    }
}

/// The likeliest path of what a drafter proposes, with confidences.
fn first_path(dir: &Path) -> Vec<(u32, f64)> {
    let (mut rounds, mut drafter) = Rounds::with(dir, 0);
    let (tokens, confidences) = likeliest_path(&rounds.propose_for(drafter.as_mut(), (3, &Greedy), 0.0).unwrap());
    tokens.into_iter().zip(confidences).collect()
}

#[test]
fn heads_that_look_at_no_word_are_medusas() {
    let (mut draft, config) = hydra(false, 7);
    draft.scale("hydra_lm_head", 4.0);
    let mut medusa = draft.renamed(|name| {
        let [_, head, rest] = name.splitn(3, '.').collect::<Vec<_>>()[..] else { panic!("{name}") };
        match (name.starts_with("hydra_lm_head"), rest) {
            (true, kind) => Some(format!("{head}.2.{kind}")),
            (false, rest) if rest.contains("res_connection") => None,
            (false, rest) => Some(format!("{head}.{rest}")),
        }
    });
    for head in 0..3 {
        let first = format!("hydra_mlp.{head}.0");
        let linear = draft.get(&format!("{first}.linear.weight"));
        let inputs = 64 * (head + 2);
        // Nothing comes of the words, and the hidden state goes on as it is.
        let kept = |row: usize, col: usize| if col < 64 { linear[row * inputs + col] as f32 } else { 0.0 };
        draft.set(&format!("{first}.linear.weight"), kept);
        draft.set(&format!("{first}.res_connection.weight"), |row, col| f32::from(u8::from(row == col)));
        draft.set(&format!("{first}.res_connection.bias"), |_, _| 0.0);
        medusa.replace(&format!("{head}.0.linear.weight"), &[64, 64], |row, col| linear[row * inputs + col] as f32);
    }
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    draft.write(dirs[0].path(), &config);
    medusa.write(dirs[1].path(), &serde_json::json!({"medusa_num_heads": 3, "medusa_num_layers": 2}));
    let [hydra, medusa] = dirs.map(|dir| first_path(dir.path()));
    assert_eq!((hydra.len(), medusa.len()), (4, 4));
    for (at, (hydra, medusa)) in hydra.iter().zip(&medusa).enumerate() {
        assert_eq!(hydra.0, medusa.0, "draft {at}");
        assert!((hydra.1 - medusa.1).abs() < 1e-5, "draft {at}: {} and {}", hydra.1, medusa.1);
    }
}

#[test]
fn heads_that_are_given_no_word_are_medusas() {
    let all: Vec<(String, [usize; 2])> = (0..3)
        .flat_map(|head| {
            [
                (format!("hydra_mlp.{head}.0.linear.weight"), [64, 64]),
                (format!("hydra_lm_head.{head}.weight"), [256, 64]),
            ]
        })
        .collect();
    let all: Vec<(&str, &[usize])> = all.iter().map(|(name, shape)| (name.as_str(), &shape[..])).collect();
    let mut draft = Numbers::random(&all, 37);
    draft.scale("hydra_lm_head", 4.0);
    let medusa = draft.renamed(|name| {
        let parts: Vec<&str> = name.split('.').collect();
        Some(if parts[0] == "hydra_lm_head" {
            format!("{}.1.weight", parts[1])
        } else {
            format!("{}.0.linear.weight", parts[1])
        })
    });
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    draft.write(dirs[0].path(), &serde_json::json!({"hydra_num_heads": 3, "grounded_heads": false}));
    medusa.write(dirs[1].path(), &serde_json::json!({"medusa_num_heads": 3}));
    let [hydra, medusa] = dirs.map(|dir| first_path(dir.path()));
    assert_eq!(hydra.len(), 4);
    assert_eq!(hydra, medusa, "to the bit");
}

#[test]
fn what_such_a_file_may_not_say() {
    let (draft, config) = hydra(false, 9);
    let rounds = Rounds::new(&[]);
    for (field, value, wanted) in [
        ("hydra_num_heads", serde_json::json!(17), "known are 1 to 16"),
        (
            "hydra_head_arch",
            serde_json::json!("eagle-attn"),
            "hydra_head_arch is \"eagle-attn\"; known are mlp and prefix-mlp",
        ),
        (
            "hydra_head_arch",
            serde_json::json!("prefix-mlp"),
            "prefix_embeding_layer.layers.0.input_layernorm.weight is missing",
        ),
        ("grounded_heads", serde_json::json!(1), "grounded_heads is 1, neither true nor false"),
        ("grounded_heads", serde_json::json!(false), "hydra_mlp.0.0.linear.weight has the shape [64, 128]"),
        ("hidden_state_offset", serde_json::json!(9), "at least as many layers as 9, and this one has 8"),
        ("hydra_num_layers", serde_json::json!(3), "hydra_mlp.0.2.linear.weight is missing"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config.clone();
        config[field] = value;
        draft.write(dir.path(), &config);
        let target = Target { model: &rounds.target, vocab: 256, kv_format: KvFormat::F32 };
        let message = load(dir.path(), target, &rounds.pool, testkit::options()).err().unwrap().to_string();
        assert!(message.contains(wanted), "{field}: {message}");
    }
}

#[test]
fn a_hidden_state_before_the_last_can_be_read() {
    let (draft, mut config) = hydra(true, 11);
    for (offset, tap) in [(1, Tap::Layer(6)), (7, Tap::Layer(0)), (8, Tap::Embedding)] {
        config["hidden_state_offset"] = offset.into();
        let dir = tempfile::tempdir().unwrap();
        draft.write(dir.path(), &config);
        let (_, drafter) = Rounds::with(dir.path(), 2);
        assert_eq!(drafter.taps(), [tap]);
    }
}
