//! What newer block drafters add, where no reference's answers are at hand: what adds nothing changes nothing, what adds
//! something is plain arithmetic, and windows end where they end.

use super::*;

const NAME: &str = "dflash-zlab";
const HIDDEN: usize = 64;
const VOCAB: usize = 256;
const LAYERS: usize = 2;

/// A tensor to be written.
type Tensor = (String, Vec<usize>, Vec<f32>);

/// The fixture with more tensors, and a config of which `change` makes another.
fn with(more: Vec<Tensor>, change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut config = json(&fixture(NAME).join("config.json"));
    change(&mut config);
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let file = std::fs::read(fixture(NAME).join("model.safetensors")).unwrap();
    let known = safetensors::SafeTensors::deserialize(&file).unwrap();
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let more: Vec<(String, Vec<usize>, Vec<u8>)> =
        more.into_iter().map(|(name, shape, values)| (name, shape, bytes(&values))).collect();
    let view = |shape: &[usize], data| {
        safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.to_vec(), data).unwrap()
    };
    let known = known.tensors().into_iter();
    let more = more.iter().map(|(name, shape, data)| (name.clone(), view(shape, data)));
    safetensors::serialize_to_file(known.chain(more), None, &dir.path().join("model.safetensors")).unwrap();
    dir
}

/// Numbers that look like weights.
fn numbers_like_weights(seed: u32, count: usize, scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 8) as f32 / (1 << 23) as f32 - 1.0) * scale
    };
    (0..count).map(|_| next()).collect()
}

/// A drafter that has read the fixture's prompt.
fn begun(dir: &Path) -> (Rounds, BlockDraft) {
    let trace = json(&fixture(NAME).join("trace.json"));
    let mut game = Rounds::new(&numbers(&trace["prompt"]));
    let mut drafter = game.block_draft_of(dir);
    game.begin(&mut drafter);
    (game, drafter)
}

/// The tokens of the first proposals of a drafter, one for each round.
fn proposals(dir: &Path, rounds: usize) -> (String, Vec<Vec<u32>>) {
    let (mut game, mut drafter) = begun(dir);
    let all = (0..rounds)
        .map(|_| {
            let said = game.propose(&mut drafter, 64).tree().tokens().to_vec();
            game.round(&mut drafter, 0.0);
            said
        })
        .collect();
    (drafter.name().to_owned(), all)
}

/// Convolutions in two taps and groups of 16: `base` of each tap, `dynamic` times numbers like weights.
fn convolutions(base: [f32; 2], dynamic: f32) -> Vec<Tensor> {
    let around = |layer: usize, part: &str| {
        let name = format!("layers.{layer}.{part}_conv");
        let base: Vec<f32> = (0..2).flat_map(|_| base).flat_map(|tap| [tap; HIDDEN]).collect();
        let rows = 2 * 2 * (HIDDEN / 16);
        let projection = numbers_like_weights(layer as u32 + 1, rows * HIDDEN, dynamic);
        [
            (format!("{name}.base_kernel"), vec![2, 2, HIDDEN], base),
            (format!("{name}.kernel_projection.weight"), vec![rows, HIDDEN], projection),
        ]
    };
    (0..LAYERS).flat_map(|layer| around(layer, "attention").into_iter().chain(around(layer, "mlp"))).collect()
}

const RANK: usize = 8;

fn selector(predecessors: f32, suffix: &str) -> Vec<Tensor> {
    let name = |part: &str| format!("candidate_selector.{part}");
    vec![
        (name("predecessor_codebook") + suffix, vec![VOCAB, RANK], numbers_like_weights(7, VOCAB * RANK, predecessors)),
        (name("successor_codebook") + suffix, vec![VOCAB, RANK], numbers_like_weights(8, VOCAB * RANK, 1.0)),
        (name("hidden_projection.weight"), vec![RANK, HIDDEN], numbers_like_weights(9, RANK * HIDDEN, 0.5)),
    ]
}

fn is_dflash2(config: &mut Value) {
    config["architectures"] = serde_json::json!(["DFlash2DraftModel"]);
    let more = serde_json::json!({
        "conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": RANK, "selector_top_k": 16,
    });
    config["dflash_config"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
}

#[test]
fn convolutions_and_a_choice_that_add_nothing_change_nothing() {
    let (name, plain) = proposals(&fixture(NAME), 10);
    assert_eq!(name, "dflash");
    for suffix in ["", ".weight"] {
        let parts = convolutions([1.0, 0.0], 0.0).into_iter().chain(selector(0.0, suffix));
        let dir = with(parts.collect(), is_dflash2);
        assert_eq!(proposals(dir.path(), 10), ("dflash2".to_owned(), plain.clone()), "{suffix:?}");
    }
    // What an order of logits does not show: scales and bounds.
    let dir = with(Vec::new(), |config| {
        config["dflash_config"]["output_multiplier"] = 0.25.into();
        config["dflash_config"]["final_logit_softcapping"] = 20.0.into();
    });
    assert_eq!(proposals(dir.path(), 10).1, plain);
    // And what does change something does.
    for parts in [convolutions([1.0, 0.5], 0.0), convolutions([1.0, 0.0], 0.5)] {
        let dir = with(parts.into_iter().chain(selector(0.0, "")).collect(), is_dflash2);
        assert_ne!(proposals(dir.path(), 10).1, plain);
    }
}

#[test]
fn the_choice_is_a_walk_over_the_likeliest_by_the_word_before() {
    let parts = convolutions([1.0, 0.0], 0.0).into_iter().chain(selector(2.0, ""));
    let dir = with(parts.collect(), is_dflash2);
    let (mut game, mut drafter) = begun(dir.path());
    let said = game.propose(&mut drafter, 64);
    let [hidden, logits, _] = game.block(&mut drafter, &said);
    let tensors: Vec<Vec<f32>> = selector(2.0, "").into_iter().map(|(_, _, values)| values).collect();
    let [a, b, h] = &tensors[..] else { panic!() };
    let mut before = game.tokens[game.tokens.len() - 1] as usize;
    let mut walk = vec![before as u32];
    let mut differs = false;
    for row in 1..8 {
        let logits = &logits[row * VOCAB..(row + 1) * VOCAB];
        let mut candidates: Vec<usize> = (0..VOCAB).collect();
        candidates.sort_by(|x, y| logits[*y].total_cmp(&logits[*x]));
        let score = |&token: &usize| {
            let along = |at: usize| {
                let projected: f32 = (0..HIDDEN).map(|i| h[at * HIDDEN + i] * hidden[row * HIDDEN + i]).sum();
                a[before * RANK + at] * projected * b[token * RANK + at]
            };
            logits[token] + (0..RANK).map(along).sum::<f32>()
        };
        let best = candidates[..16].iter().max_by(|x, y| score(x).total_cmp(&score(y))).copied().unwrap();
        differs |= best != candidates[0];
        (before, walk) = (best, [walk, vec![best as u32]].concat());
    }
    assert_eq!(said.tree().tokens(), walk);
    assert!(differs, "the test does not tell a choice from none");
}

const STATES: usize = 12;

fn domino(bias: f32) -> Vec<Tensor> {
    vec![
        ("prefix_gru.weight_ih_l0".into(), vec![3 * STATES, HIDDEN], numbers_like_weights(1, 3 * STATES * HIDDEN, 1.0)),
        ("prefix_gru.weight_hh_l0".into(), vec![3 * STATES, STATES], numbers_like_weights(2, 3 * STATES * STATES, 0.7)),
        (
            "embed_proj.0.weight".into(),
            vec![RANK, HIDDEN + STATES],
            numbers_like_weights(3, RANK * (HIDDEN + STATES), 0.5),
        ),
        ("embed_proj.2.weight".into(), vec![VOCAB, RANK], numbers_like_weights(4, VOCAB * RANK, bias)),
    ]
}

fn is_domino(prefix: usize) -> impl Fn(&mut Value) {
    move |config| {
        config["architectures"] = serde_json::json!(["DominoDraftModel"]);
        let more = serde_json::json!({
            "projector_type": "domino", "gru_hidden_dim": STATES, "emb_dim": RANK, "pure_draft_prefix_len": prefix,
        });
        config["dflash_config"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    }
}

#[test]
fn a_correction_of_nothing_changes_nothing_and_the_first_drafts_have_none() {
    let plain = proposals(&fixture(NAME), 10).1;
    let dir = with(domino(0.0), is_domino(0));
    assert_eq!(proposals(dir.path(), 10), ("domino".to_owned(), plain.clone()));
    // Only from the third draft on.
    let dir = with(domino(3.0), is_domino(2));
    let corrected = proposals(dir.path(), 1).1;
    assert_eq!(corrected[0][..3], plain[0][..3]);
    assert_ne!(corrected[0], plain[0]);
}

#[test]
fn the_correction_is_that_of_a_gated_recurrent_unit() {
    let dir = with(domino(2.0), is_domino(1));
    let (mut game, mut drafter) = begun(dir.path());
    let said = game.propose(&mut drafter, 64);
    let [hidden, logits, _] = game.block(&mut drafter, &said);
    let tensors: Vec<Vec<f32>> = domino(2.0).into_iter().map(|(_, _, values)| values).collect();
    let [read, keep, narrow, bias] = &tensors[..] else { panic!() };
    let row = |of: &[f32], at: usize, x: &[f64]| -> f64 {
        of[at * x.len()..(at + 1) * x.len()].iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()
    };
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let (mut state, mut words) = (vec![0.0f64; STATES], vec![game.tokens[game.tokens.len() - 1]]);
    for draft in 0..7 {
        let mut embedding = vec![0.0f32; HIDDEN];
        drafter.backbone.embedding(words[draft], &mut embedding);
        let x: Vec<f64> = embedding.iter().map(|&value| f64::from(value)).collect();
        let before = state.clone();
        for (at, state) in state.iter_mut().enumerate() {
            let gate =
                |gate: usize| sigmoid(row(read, gate * STATES + at, &x) + row(keep, gate * STATES + at, &before));
            let (reset, update) = (gate(0), gate(1));
            let candidate = (row(read, 2 * STATES + at, &x) + reset * row(keep, 2 * STATES + at, &before)).tanh();
            *state = (1.0 - update) * candidate + update * before[at];
        }
        let of = (draft + 1) * HIDDEN..(draft + 2) * HIDDEN;
        let both: Vec<f64> = hidden[of].iter().map(|&value| f64::from(value)).chain(state.iter().copied()).collect();
        let inner: Vec<f64> = (0..RANK).map(|at| row(narrow, at, &both)).map(|value| value * sigmoid(value)).collect();
        let corrected = |token: usize| {
            let correction = if draft == 0 { 0.0 } else { row(bias, token, &inner) };
            f64::from(logits[(draft + 1) * VOCAB + token]) + correction
        };
        let best = (0..VOCAB).max_by(|a, b| corrected(*a).total_cmp(&corrected(*b))).unwrap();
        words.push(best as u32);
    }
    assert_eq!(said.tree().tokens(), words);
}

/// The hidden states of a block of a drafter that knows `features`, `[positions, 5 * hidden]`.
fn block_after(drafter: &mut BlockDraft, target: &Model, pool: &Pool, features: &[f32]) -> Vec<f32> {
    let positions = features.len() / (5 * HIDDEN);
    let mut cache = KvCache::new(target.kv_layout(KvFormat::F32), 8);
    drafter.attach(&mut cache);
    let mut sequence = Sequence::new();
    cache.reserve(&mut sequence, positions + 8).unwrap();
    let taps: Vec<Vec<f32>> = (0..5)
        .map(|tap| features.chunks(5 * HIDDEN).flat_map(|row| row[tap * HIDDEN..(tap + 1) * HIDDEN].to_vec()).collect())
        .collect();
    let taps: Vec<(Tap, &[f32])> = drafter.taps().into_iter().zip(taps.iter().map(Vec::as_slice)).collect();
    let tokens = vec![1; positions];
    let segment = Segment {
        sequence: &sequence,
        start: 0,
        tokens: &tokens,
        visibility: Visibility::Causal,
        logits: Logits::None,
    };
    drafter.computed(&mut Computed { pool, cache: &mut cache, taps: &taps, batch: &[segment] }).unwrap();
    let block = [1, 255, 255, 255, 255, 255, 255, 255];
    let segment = Segment { start: positions, tokens: &block, visibility: Visibility::Block, ..segment };
    let kv = cache.attached(&drafter.attached.unwrap());
    drafter.backbone.forward(&mut Workspace::new(), pool, kv, &[segment]).unwrap().taps[0].clone()
}

/// Which rows of a block change when the features of a position do.
fn rows_that_see(dir: &Path, position: usize) -> Vec<bool> {
    const POSITIONS: usize = 30;
    let game = Rounds::new(&[]);
    let mut drafter = game.block_draft_of(dir);
    let features = numbers_like_weights(5, POSITIONS * 5 * HIDDEN, 1.0);
    let mut other = features.clone();
    other[position * 5 * HIDDEN..(position + 1) * 5 * HIDDEN].iter_mut().for_each(|value| *value = 0.5 - *value);
    let [one, two] = [&features, &other].map(|features| block_after(&mut drafter, &game.target, &game.pool, features));
    one.chunks(HIDDEN).zip(two.chunks(HIDDEN)).map(|(one, two)| one != two).collect()
}

/// A fixture whose layers slide over 10 positions.
fn sliding(more: Value) -> tempfile::TempDir {
    with(Vec::new(), |config| {
        config["layer_types"] = serde_json::json!(["sliding_attention", "sliding_attention"]);
        config["sliding_window"] = 10.into();
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    })
}

#[test]
fn a_window_ends_where_it_ends_for_each_row() {
    // Row i is at position 30 + i and sees 10 positions, its own among them: back to 21 + i.
    let causal = sliding(serde_json::json!({}));
    assert_eq!(rows_that_see(causal.path(), 20), [false; 8]);
    assert_eq!(rows_that_see(causal.path(), 29), [true; 8]);
    // A later row sees an earlier one that still sees what is out of its own sight, through the second layer.
    assert_eq!(rows_that_see(causal.path(), 21), [true; 8]);
    let mut one = vec![false; 8];
    let around = sliding(serde_json::json!({"is_causal": false}));
    assert_eq!(rows_that_see(around.path(), 20), one);
    let first_layer = |dir: &Path| {
        // Nothing of the block reaches another row when the second layer is the first's copy: look at one layer alone.
        let mut config = json(&dir.join("config.json"));
        config["num_hidden_layers"] = 1.into();
        config["layer_types"] = serde_json::json!(["sliding_attention"]);
        std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    };
    for (dir, name) in [(&causal, "causal"), (&around, "around")] {
        first_layer(dir.path());
        for first in [21, 22, 25] {
            one.iter_mut().enumerate().for_each(|(row, sees)| *sees = 21 + row <= first);
            assert_eq!(rows_that_see(dir.path(), first), one, "{name}, position {first}");
        }
    }
}

#[test]
fn rows_see_back_only_where_the_file_says_so() {
    let game = Rounds::new(&[]);
    let features = numbers_like_weights(5, 20 * 5 * HIDDEN, 1.0);
    let rows = |dir: &Path| block_after(&mut game.block_draft_of(dir), &game.target, &game.pool, &features);
    let plain = rows(&fixture(NAME));
    // So wide a window that nothing is out of sight.
    let wide = |more: Value| {
        let dir = sliding(more);
        let mut config = json(&dir.path().join("config.json"));
        config["sliding_window"] = 1000.into();
        std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        dir
    };
    assert_close(&rows(wide(serde_json::json!({"is_causal": false})).path()), &plain, "a wide window");
    let back = rows(wide(serde_json::json!({})).path());
    assert_ne!(back[..HIDDEN], plain[..HIDDEN], "the first row does not see those after it");
    let causal = with(Vec::new(), |config| config["is_causal"] = true.into());
    assert_close(&rows(causal.path()), &back, "rows that see back, with and without a window");
    for (more, wanted) in [
        (serde_json::json!({"sliding_window": 0}), "sliding_window is missing, or no number above 0"),
        (serde_json::json!({"layer_types": ["sliding_attention"]}), "kinds of layers"),
        (serde_json::json!({"layer_types": ["other", "other"]}), "neither full_attention nor sliding_attention"),
    ] {
        let target = Target { model: &game.target, vocab: 256, kv_format: KvFormat::F32 };
        let refused = load(sliding(more).path(), target, &game.pool, testkit::options()).err().unwrap().to_string();
        assert!(refused.contains(wanted), "{refused}");
    }
}
