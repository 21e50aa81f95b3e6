//! Learned drafters of random weights against plain arithmetic, to 1e-4 of a logit.

use super::plain::{Known, Numbers, Pairs, add, argmax, assert_logits, layer_shapes, llama_config, silu};
use super::*;

/// Rounds before a proposal is looked at: keys, values and states of prompt, accepted and rejected drafts.
const ROUNDS: usize = 6;

fn shapes<'a>(
    own: &[(&'a str, &'static [usize])],
    layer: &'a [(String, &'static [usize])],
) -> Vec<(&'a str, &'static [usize])> {
    own.iter().copied().chain(layer.iter().map(|(name, shape)| (name.as_str(), *shape))).collect()
}

/// EAGLE-1's layer.
pub(super) fn first_generation(seed: u64) -> (Numbers, Value) {
    let layer = layer_shapes("layers.0.", false);
    let shapes = shapes(&[("fc.weight", &[64, 128]), ("fc.bias", &[64])], &layer);
    let config = serde_json::json!({"num_hidden_layers": 1, "architectures": ["LlamaForCausalLM"]});
    (Numbers::random(&shapes, seed), llama_config(config))
}

#[test]
fn a_layer_of_the_first_generation() {
    let dir = tempfile::tempdir().unwrap();
    let (draft, config) = first_generation(1);
    draft.write(dir.path(), &config);
    let (mut rounds, mut drafter) = Rounds::with(dir.path(), ROUNDS);
    let got = rounds.recorded(drafter.as_mut(), 4);
    let known = Known::of(&rounds);
    let want = Pairs {
        known: &known,
        modules: 1,
        join: &|_, _, token, feature| draft.linear("fc", &[known.embedding(token), feature.to_vec()].concat()),
        layer: &|_, rows| draft.layer("layers.0.", rows, false),
        logits: &|_, output| known.logits(output),
        feature: &|output| output.to_vec(),
    };
    for (step, (got, want)) in got.iter().zip(want.chain(4)).enumerate() {
        assert_logits(got, &want, &format!("draft {step}"));
    }
}

/// So many modules for multi-token prediction as DeepSeek-V3 has them, each with a head of its own.
pub(super) fn modules(count: usize, seed: u64) -> (Numbers, Value) {
    let mut all = Vec::new();
    for module in 0..count {
        let at = |part: &str| format!("model.layers.{}.{part}", 8 + module);
        all.extend(layer_shapes(&at(""), true));
        all.push((at("eh_proj.weight"), &[64, 128]));
        all.push((at("shared_head.head.weight"), &[256, 64]));
        all.extend(["enorm", "hnorm", "shared_head.norm"].map(|norm| (at(&format!("{norm}.weight")), &[64][..])));
    }
    let config = llama_config(serde_json::json!({"num_nextn_predict_layers": count}));
    (Numbers::random(&shapes(&[], &all), seed), config)
}

#[test]
fn modules_for_multi_token_prediction_take_turns() {
    for count in [1, 2, 3] {
        let (draft, config) = modules(count, 13);
        let dir = tempfile::tempdir().unwrap();
        draft.write(dir.path(), &config);
        let (mut rounds, mut drafter) = Rounds::with(dir.path(), ROUNDS);
        assert_eq!(drafter.name(), "mtp");
        let got = rounds.recorded(drafter.as_mut(), 5);
        let known = Known::of(&rounds);
        let at = |module: usize, part: &str| format!("model.layers.{}.{part}", 8 + module);
        let want = Pairs {
            known: &known,
            modules: count,
            join: &|module, position, token, feature| {
                // The embedding of the first pair is nothing.
                let embedding = if position == 1 { vec![0.0; 64] } else { known.embedding(token) };
                let embedding = draft.norm(&at(module, "enorm.weight"), &embedding);
                let feature = draft.norm(&at(module, "hnorm.weight"), feature);
                draft.linear(&at(module, "eh_proj"), &[embedding, feature].concat())
            },
            layer: &|module, rows| draft.layer(&at(module, ""), rows, true),
            logits: &|module, output| {
                let normed = draft.norm(&at(module, "shared_head.norm.weight"), output);
                draft.linear(&at(module, "shared_head.head"), &normed)
            },
            feature: &|output| output.to_vec(),
        };
        for (step, (got, want)) in got.iter().zip(want.chain(5)).enumerate() {
            assert_logits(got, &want, &format!("{count} modules, draft {step}"));
        }
    }
}

/// Modules of Qwen3-Next, of which all norms are stored less 1; and the same with norms as they are meant.
pub(super) fn next_modules(count: usize, seed: u64) -> ([Numbers; 2], Value) {
    let mut all: Vec<_> = (0..count).flat_map(|module| layer_shapes(&format!("mtp.layers.{module}."), true)).collect();
    all.push(("mtp.fc.weight".into(), &[64, 128]));
    all.extend(
        ["pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"].map(|norm| (format!("mtp.{norm}.weight"), &[64][..])),
    );
    let meant = Numbers::random(&shapes(&[], &all), seed);
    let mut stored = meant.renamed(|name| Some(name.to_owned()));
    stored.shift("norm", -1.0);
    ([stored, meant], llama_config(serde_json::json!({"mtp_num_hidden_layers": count})))
}

#[test]
fn norms_of_qwen3_next_are_shifted_once() {
    for count in [1, 2] {
        let ([stored, draft], config) = next_modules(count, 17);
        let dir = tempfile::tempdir().unwrap();
        stored.write(dir.path(), &config);
        let (mut rounds, mut drafter) = Rounds::with(dir.path(), ROUNDS);
        let got = rounds.recorded(drafter.as_mut(), 4);
        let known = Known::of(&rounds);
        let normed = |output: &[f64]| draft.norm("mtp.norm.weight", output);
        let want = Pairs {
            known: &known,
            modules: count,
            join: &|_, _, token, feature| {
                let embedding = draft.norm("mtp.pre_fc_norm_embedding.weight", &known.embedding(token));
                let feature = draft.norm("mtp.pre_fc_norm_hidden.weight", feature);
                draft.linear("mtp.fc", &[embedding, feature].concat())
            },
            layer: &|module, rows| draft.layer(&format!("mtp.layers.{module}."), rows, true),
            logits: &|_, output| known.logits(&normed(output)),
            feature: &normed,
        };
        for (step, (got, want)) in got.iter().zip(want.chain(4)).enumerate() {
            assert_logits(got, &want, &format!("{count} modules, draft {step}"));
        }
    }
}

/// What Medusa's and Hydra's heads say of a row.
fn head(draft: &Numbers, blocks: &[&str], words: &str, row: &[f64], shortcut: bool) -> Vec<f64> {
    let block = |x: Vec<f64>, (at, name): (usize, &&str)| {
        let linear = if name.starts_with("hydra") { format!("{name}.linear") } else { (*name).to_owned() };
        let moved: Vec<f64> = draft.linear(&linear, &x).into_iter().map(silu).collect();
        let kept = if at == 0 && shortcut { draft.linear(&format!("{name}.res_connection"), &x) } else { x };
        add(&kept, &moved)
    };
    draft.linear(words, &blocks.iter().enumerate().fold(row.to_vec(), block))
}

#[test]
fn heads_of_medusa() {
    // Medusa's own files, whole models, and those for vLLM.
    for (prefix, linear, words) in [
        ("", "I.0.linear", "I.1"),
        ("", "medusa_head.I.0.linear", "medusa_head.I.1"),
        ("", "blocks.I.layers.0", "lm_heads.I"),
    ] {
        let name = |part: &str, head: usize| format!("{prefix}{part}").replace('I', &head.to_string());
        let all: Vec<(String, &[usize])> = (0..3)
            .flat_map(|head| {
                let [linear, words] = [name(linear, head), name(words, head)];
                let parts: [(String, &[usize]); 3] = [
                    (format!("{linear}.weight"), &[64, 64]),
                    (format!("{linear}.bias"), &[64]),
                    (format!("{words}.weight"), &[256, 64]),
                ];
                parts
            })
            .collect();
        let draft = Numbers::random(&shapes(&[], &all), 2);
        let dir = tempfile::tempdir().unwrap();
        draft.write(dir.path(), &serde_json::json!({"medusa_num_heads": 3, "medusa_num_layers": 1}));
        let (mut rounds, mut drafter) = Rounds::with(dir.path(), ROUNDS);
        let proposal = rounds.propose_for(drafter.as_mut(), (3, &Greedy), 0.0).unwrap();
        let (known, tree) = (Known::of(&rounds), proposal.tree());
        assert!(tree.drafts() > 3);
        for node in 1..tree.len() {
            let at = tree.depths()[node] as usize - 1;
            let logits = head(&draft, &[&name(linear, at)], &name(words, at), known.states.last().unwrap(), false);
            let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
            let p = logits[tree.tokens()[node] as usize].exp() / sum;
            assert!((tree.confidences()[node] / p).ln().abs() <= 1e-4, "head {at}");
        }
    }
}

/// Hydra's heads with random weights: two blocks each, a layer before them if `prefix`.
pub(super) fn hydra(prefix: bool, seed: u64) -> (Numbers, Value) {
    let number = |at: usize| if prefix { 2 * at + 1 } else { at };
    let words = if prefix { ".1" } else { "" };
    let mut all: Vec<(String, Vec<usize>)> = Vec::new();
    for head in 0..3 {
        let inputs = 64 * (head + 2);
        let [first, second] = [0, 1].map(|at| format!("hydra_mlp.{head}.{}", number(at)));
        for (name, shape) in [
            (format!("{first}.linear"), [64, inputs]),
            (format!("{first}.res_connection"), [64, inputs]),
            (format!("{second}.linear"), [64, 64]),
            (format!("hydra_lm_head.{head}{words}"), [256, 64]),
        ] {
            all.push((format!("{name}.bias"), vec![shape[0]]));
            all.push((format!("{name}.weight"), shape.to_vec()));
        }
    }
    if prefix {
        let layer = layer_shapes("prefix_embeding_layer.layers.0.", true);
        all.extend(layer.into_iter().map(|(name, shape)| (name, shape.to_vec())));
        all.push(("prefix_embeding_layer.norm.weight".into(), vec![64]));
        all.push(("prefix_embeding_layer.embed_tokens.weight".into(), vec![256, 64]));
    }
    let all: Vec<(&str, &[usize])> = all.iter().map(|(name, shape)| (name.as_str(), shape.as_slice())).collect();
    let arch = if prefix { "prefix-mlp" } else { "mlp" };
    let config = serde_json::json!({
        "hydra_num_heads": 3, "hydra_num_layers": 2, "hydra_head_arch": arch, "grounded_heads": true, "hidden_state_offset": 0,
    });
    (Numbers::random(&all, seed), config)
}

/// What head number `words.len()` - 1 says after the anchor and drafts.
pub(super) fn hydra_logits(draft: &Numbers, prefix: bool, known: &Known, words: &[u32]) -> Vec<f64> {
    let mut row = match prefix {
        false => known.states.last().unwrap().clone(),
        true => {
            let rows: Vec<(usize, Vec<f64>)> = known.states.iter().cloned().enumerate().collect();
            let outputs = draft.layer("prefix_embeding_layer.layers.0.", &rows, true);
            draft.norm("prefix_embeding_layer.norm.weight", outputs.last().unwrap())
        }
    };
    words.iter().for_each(|&word| row.extend(known.embedding(word)));
    let (at, number) = (words.len() - 1, |at: usize| if prefix { 2 * at + 1 } else { at });
    let [first, second] = [0, 1].map(|block| format!("hydra_mlp.{at}.{}", number(block)));
    let said = format!("hydra_lm_head.{at}{}", if prefix { ".1" } else { "" });
    head(draft, &[&first, &second], &said, &row, true)
}

#[test]
fn heads_of_hydra() {
    for prefix in [false, true] {
        let (draft, config) = hydra(prefix, 3);
        let dir = tempfile::tempdir().unwrap();
        draft.write(dir.path(), &config);
        let (mut rounds, mut drafter) = Rounds::with(dir.path(), ROUNDS);
        assert_eq!(drafter.name(), if prefix { "hydra++" } else { "hydra" });
        let got = rounds.recorded(drafter.as_mut(), 3);
        let known = Known::of(&rounds);
        let mut words = vec![*known.text.last().unwrap()];
        for (step, got) in got.iter().enumerate() {
            let want = hydra_logits(&draft, prefix, &known, &words);
            assert_logits(got, &want, &format!("prefix {prefix}, draft {step}"));
            words.push(argmax(&want));
        }
    }
}
