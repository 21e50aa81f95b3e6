//! Learned drafters against what their reference implementations answered, round by round.

mod arithmetic;
mod files;
mod hydra;
mod modules;
mod newer;
mod plain;
mod torch;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use kernels::{KvFormat, Pool};
use kv::{Attached, KvCache, Layers, Sequence};
use model::{Logits, Model, Segment, Tap, Visibility, Workspace};
use serde_json::Value;
use spec::Proposal;

use super::*;
use crate::{Ask, Choose, Computed, Greedy, Key, Round, Unread};

const KEY: Key = Key { request: 0, choice: 0 };

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/drafts").join(name)
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap() as u32).collect()
}

/// A tensor of the file of what is expected, as f32.
fn expected(name: &str, tensor: &str) -> Vec<f32> {
    floats(&fixture(name).join("expected.safetensors"), tensor)
}

fn floats(file: &Path, tensor: &str) -> Vec<f32> {
    let bytes = std::fs::read(file).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tensor = file.tensor(tensor).unwrap();
    let words = tensor.data().as_chunks().0.iter();
    match tensor.dtype() {
        safetensors::Dtype::I32 => words.map(|&word| i32::from_le_bytes(word) as f32).collect(),
        _ => words.map(|&word| f32::from_le_bytes(word)).collect(),
    }
}

/// At most 2e-4 of the largest magnitude in the tensor.
fn assert_close(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let size = want.iter().fold(0.0f32, |size, v| size.max(v.abs()));
    let error = got.iter().zip(want).fold(0.0f32, |error, (a, b)| error.max((a - b).abs()));
    assert!(error <= 2e-4 * size, "{what}: error {error} at magnitude {size}");
}

/// The path of the likeliest children in what was proposed: the whole of a chain.
fn likeliest_path(proposal: &Proposal) -> (Vec<u32>, Vec<f64>) {
    let tree = proposal.tree();
    let mut path = vec![0];
    loop {
        let children = (1..tree.len()).filter(|&node| tree.parent(node) == path.last().copied());
        let by = |a: &usize, b: &usize| tree.confidences()[*a].total_cmp(&tree.confidences()[*b]).then(b.cmp(a));
        match children.max_by(by) {
            Some(child) => path.push(child),
            None => return path.iter().map(|&node| (tree.tokens()[node], tree.confidences()[node])).unzip(),
        }
    }
}

/// A target that answers greedily, one request, and who drafts for it.
struct Rounds {
    target: Arc<Model>,
    pool: Pool,
    cache: KvCache,
    sequence: Sequence,
    workspace: Workspace,
    tokens: Vec<u32>,
    prompt: usize,
}

impl Rounds {
    fn new(prompt: &[u32]) -> Rounds {
        let pool = Pool::new(NonZeroUsize::new(2).unwrap());
        let (weights, config) =
            (Weights::open_dir(&fixture("qwen3-target")).unwrap(), Config::from_dir(&fixture("qwen3-target")).unwrap());
        let target = Arc::new(Model::load(&weights, config, &pool, testkit::options()).unwrap());
        let cache = KvCache::new(target.kv_layout(KvFormat::F32), 16);
        let (sequence, workspace) = (Sequence::new(), Workspace::new());
        Rounds { target, pool, cache, sequence, workspace, tokens: prompt.to_vec(), prompt: prompt.len() }
    }

    fn block_draft(&self, name: &str) -> BlockDraft {
        self.block_draft_of(&fixture(name))
    }

    fn block_draft_of(&self, dir: &Path) -> BlockDraft {
        let target = Target { model: &self.target, vocab: 256, kv_format: KvFormat::F32 };
        let Some(Format::Block(format)) = Format::read(dir).unwrap() else {
            panic!("{} drafts no blocks", dir.display())
        };
        let (weights, config) = (Weights::open_dir(dir).unwrap(), Config::from_dir(dir).unwrap());
        let mut draft =
            BlockDraft::load(&weights, config, (format, None), target, &self.pool, testkit::options()).unwrap();
        // The references draft chains.
        draft.most_ways = 1;
        draft
    }

    /// Has the target compute `rows`, from `start` on: what it says after each of them.
    fn compute(&mut self, drafter: &mut dyn Drafter, start: usize, rows: &[u32]) -> Vec<u32> {
        let Rounds { target, pool, cache, sequence, workspace, .. } = self;
        cache.reserve(sequence, start + rows.len()).unwrap();
        let segment = Segment { sequence, start, tokens: rows, visibility: Visibility::Causal, logits: Logits::All };
        let wanted = drafter.taps();
        let output = target.forward(workspace, pool, cache, &[segment], &wanted).unwrap();
        let taps: Vec<(Tap, &[f32])> = wanted.iter().copied().zip(output.taps.iter().map(Vec::as_slice)).collect();
        drafter.computed(&mut Computed { pool, cache, taps: &taps, batch: &[segment] }).unwrap();
        output.logits.chunks_exact(256).map(|logits| Greedy.choose(&[], logits).unwrap().token).collect()
    }

    fn propose(&mut self, drafter: &mut dyn Drafter, max_drafts: usize) -> Proposal {
        let Rounds { pool, cache, sequence, tokens, prompt, .. } = self;
        cache.reserve(sequence, tokens.len() - 1 + drafter.slots_ahead()).unwrap();
        let mut round = Round {
            pool,
            cache,
            step_seconds: 1.0,
            row_seconds: 0.0,
            checks_all: false,
            unread: &mut Unread::default(),
        };
        let ask = Ask {
            key: KEY,
            tokens,
            prompt: *prompt,
            predicted: &[],
            max_drafts,
            remaining: 1000,
            choose: &Greedy,
            sequence,
        };
        drafter.propose(&mut round, &[ask]).unwrap().remove(0).unwrap()
    }

    /// Reads the prompt, and says the first token.
    fn begin(&mut self, drafter: &mut dyn Drafter) {
        drafter.attach(&mut self.cache);
        let prompt = self.tokens.clone();
        let said = self.compute(drafter, 0, &prompt);
        self.tokens.push(said[said.len() - 1]);
    }

    /// What leads to a proposal: hidden states, logits, and logits corrected by the draft before.
    fn block(&mut self, drafter: &mut BlockDraft, proposal: &Proposal) -> [Vec<f32>; 3] {
        let Rounds { pool, cache, sequence, tokens, workspace, .. } = self;
        let mut block = vec![drafter.format.mask; drafter.format.block];
        block[0] = tokens[tokens.len() - 1];
        let (start, visibility, logits) = (tokens.len() - 1, Visibility::Block, Logits::All);
        let segment = Segment { sequence, start, tokens: &block, visibility, logits };
        let kv = cache.attached(&drafter.attached.unwrap());
        let output = drafter.backbone.forward(workspace, pool, kv, &[segment]).unwrap();
        let mut corrected = output.logits.to_vec();
        let mut step = follow::Step::default();
        step.states.resize(drafter.follow.state_len(), 0.0);
        for (at, (row, &before)) in corrected.chunks_exact_mut(256).zip(proposal.tree().tokens()).enumerate() {
            let (place, hidden) = ([follow::Place { block: 0, before }], &output.taps[0][at * 64..(at + 1) * 64]);
            drafter.follow.advance(&mut step, pool, &drafter.backbone, &place, at, |_| hidden);
            let logits = row.to_vec();
            let (said, _) =
                drafter.follow.corrected(&step, 0, before, &logits, follow::Bound { scale: 1.0, cap: None });
            // A choice among a few has no logits of all.
            if said.len() == row.len() {
                row.copy_from_slice(&said);
            }
        }
        [output.taps[0].clone(), output.logits.to_vec(), corrected]
    }

    /// One round, in which drafts are checked as far as they are surer than `threshold`: tokens committed, drafts checked.
    fn round(&mut self, drafter: &mut dyn Drafter, threshold: f64) -> (usize, usize) {
        let (tokens, confidences) = likeliest_path(&self.propose(drafter, 64));
        // The reference checks all where nothing says how sure they are.
        let sure = confidences[1..].iter().take_while(|&&confidence| confidence >= threshold).count();
        let sure = if drafter.name() == "dspark" { sure } else { tokens.len() - 1 };
        let start = self.tokens.len() - 1;
        let said = self.compute(drafter, start, &tokens[..=sure]);
        let stand = (0..sure).take_while(|&at| said[at] == tokens[at + 1]).count();
        self.tokens.extend_from_slice(&said[..=stand]);
        self.cache.truncate(&mut self.sequence, self.tokens.len() - 1);
        (stand + 1, sure)
    }
}

const BLOCKS: [&str; 4] = ["dspark-markov", "dspark-gated", "dspark-rnn", "dflash-deepspec"];

#[test]
fn a_first_round_is_that_of_the_reference() {
    for name in BLOCKS {
        let trace = json(&fixture(name).join("trace.json"));
        let mut rounds = Rounds::new(&numbers(&trace["prompt"]));
        let mut drafter = rounds.block_draft(name);
        rounds.begin(&mut drafter);
        assert_eq!(rounds.tokens[24] as f32, expected(name, "anchor")[0], "{name}");
        let proposal = rounds.propose(&mut drafter, 64);
        let drafts: Vec<f32> = proposal.tree().tokens()[1..].iter().map(|&token| token as f32).collect();
        assert_eq!(drafts, expected(name, "draft_tokens"), "{name}");
        if drafter.confidence.is_some() {
            let logit = |confidence: &f64| (confidence / (1.0 - confidence)).ln() as f32;
            let logits: Vec<f32> = proposal.tree().confidences()[1..].iter().map(logit).collect();
            assert_close(&logits, &expected(name, "confidence_logits"), &format!("{name}: confidences"));
        }
        let [hidden, base, corrected] = rounds.block(&mut drafter, &proposal);
        assert_close(&hidden, &expected(name, "block_hidden"), &format!("{name}: hidden states"));
        assert_close(&base, &expected(name, "base_logits"), &format!("{name}: logits"));
        assert_close(&corrected, &expected(name, "draft_logits"), &format!("{name}: corrected logits"));
    }
}

#[test]
fn rounds_commit_what_the_reference_commits() {
    for name in BLOCKS {
        let trace = json(&fixture(name).join("trace.json"));
        let greedy = json(&fixture("qwen3-target").join("greedy.json"));
        for (threshold, expected) in trace["thresholds"].as_object().unwrap() {
            let mut rounds = Rounds::new(&numbers(&trace["prompt"]));
            let mut drafter = rounds.block_draft(name);
            rounds.begin(&mut drafter);
            let threshold: f64 = threshold.parse().unwrap();
            let (committed, checked) =
                (numbers(&expected["acceptance_lengths"]), numbers(&expected["proposal_lengths"]));
            for (at, (&committed, &checked)) in committed.iter().zip(&checked).enumerate() {
                let found = rounds.round(&mut drafter, threshold);
                assert_eq!(found, (committed as usize, checked as usize), "{name}, threshold {threshold}, round {at}");
            }
            assert_eq!(rounds.tokens[..120], numbers(&greedy["greedy"]), "{name}");
        }
    }
}

#[test]
fn blocks_whose_anchor_says_nothing_are_those_of_the_reference() {
    let name = "dflash-zlab";
    let trace = json(&fixture(name).join("trace.json"));
    let mut rounds = Rounds::new(&numbers(&trace["prompt"]));
    let mut drafter = rounds.block_draft(name);
    rounds.begin(&mut drafter);
    let proposal = rounds.propose(&mut drafter, 64);
    let drafts: Vec<f32> = proposal.tree().tokens()[1..].iter().map(|&token| token as f32).collect();
    assert_eq!(drafts, expected(name, "draft_tokens"));
    let [hidden, base, _] = rounds.block(&mut drafter, &proposal);
    assert_close(&hidden, &expected(name, "block_hidden"), "hidden states");
    assert_close(&base, &expected(name, "logits"), "logits");
    for (at, committed) in numbers(&trace["acceptance_lengths"]).into_iter().enumerate() {
        assert_eq!(rounds.round(&mut drafter, 0.0), (committed as usize, 7), "round {at}");
    }
}

#[test]
fn feature_drafts_are_those_of_the_reference() {
    let name = "eagle3-deepspec";
    let trace = json(&fixture(name).join("trace.json"));
    let mut rounds = Rounds::new(&numbers(&trace["prompt"]));
    let mut drafter = rounds.feature_draft(name);
    drafter.tree.top_k = 1;
    let drafter: &mut dyn Drafter = &mut drafter;
    rounds.begin(drafter);
    let checked = numbers(&trace["proposal_lengths"]);
    for (at, committed) in numbers(&trace["acceptance_lengths"]).into_iter().enumerate() {
        let found = rounds.round(drafter, 0.0);
        assert_eq!(found, (committed as usize, checked[at] as usize), "round {at}");
    }
}

/// The pairs of a text, without a target: features as the reference was given them.
#[test]
fn a_feature_layer_is_that_of_the_reference() {
    for (name, tokens, features, hidden, logits, width) in [
        ("eagle3-sglab", None, "features", "hidden", "draft_logits", 192),
        ("eagle3-deepspec", Some("trace.json"), "context_features", "prefill_hidden", "prefill_logits", 320),
    ] {
        let pool = Pool::new(NonZeroUsize::MIN);
        let mut tokens: Vec<u32> = match tokens {
            None => expected(name, "input_ids").iter().map(|&token| token as u32).collect(),
            Some(trace) => numbers(&json(&fixture(name).join(trace))["prompt"]),
        };
        if name == "eagle3-deepspec" {
            tokens.push(expected(name, "anchor")[0] as u32);
        }
        let target = match name {
            "eagle3-sglab" => Arc::new(testkit::target("llama", &pool)),
            _ => Rounds::new(&[]).target,
        };
        let (weights, config) = (Weights::open_dir(&fixture(name)).unwrap(), Config::from_dir(&fixture(name)).unwrap());
        let Some(Format::Feature(format)) = Format::read(&fixture(name)).unwrap() else { panic!("{name}") };
        let target = Target { model: &target, vocab: 256, kv_format: KvFormat::F32 };
        let mut drafter = FeatureDraft::load(&weights, config, format, target, &pool, testkit::options()).unwrap();
        let mut cache = KvCache::new(target.model.kv_layout(KvFormat::F32), 4);
        drafter.attach(&mut cache);
        let (mut sequence, mut workspace) = (Sequence::new(), Workspace::new());
        cache.reserve(&mut sequence, tokens.len()).unwrap();
        let given = expected(name, features);
        // Hidden states of taps side by side, as the target would give them one by one; those of the last token are unknown.
        let taps: Vec<Vec<f32>> = (0..width / 64)
            .map(|tap| {
                let rows = given.chunks_exact(width).map(|row| &row[tap * 64..(tap + 1) * 64]);
                rows.flatten().copied().chain([0.0; 64]).collect()
            })
            .collect();
        let taps: Vec<&[f32]> = taps.iter().map(Vec::as_slice).collect();
        let segment = |tokens| Segment {
            sequence: &sequence,
            start: 0,
            tokens,
            visibility: Visibility::Causal,
            logits: Logits::All,
        };
        let attached = drafter.attached[0];
        let kv = cache.attached_two(&attached);
        drafter.modules[0].read(&mut workspace, &pool, kv, &[segment(&tokens)], &taps).unwrap();
        let mut known = vec![0.0; (tokens.len() - 1) * 64];
        for (at, row) in known.chunks_exact_mut(64).enumerate() {
            drafter.modules[0].feature(&cache.attached(&attached[1]), sequence.slot(at), row);
        }
        let pairs = Segment { start: 1, ..segment(&tokens[1..]) };
        let own = cache.attached(&attached[0]);
        let output = drafter.modules[0].forward(&mut workspace, &pool, own, &[pairs], &known).unwrap();
        assert_close(&output.taps[0], &expected(name, hidden), &format!("{name}: hidden states"));
        assert_close(output.logits, &expected(name, logits), &format!("{name}: logits"));
    }
}

/// Hidden states of three taps, one after the other, from rows that have them side by side.
fn apart(rows: &[f32]) -> [Vec<f32>; 3] {
    [0, 1, 2].map(|tap| rows.chunks_exact(192).flat_map(|row| &row[tap * 64..(tap + 1) * 64]).copied().collect())
}

#[test]
fn trees_of_features_are_those_of_the_reference() {
    let name = "eagle3-sglab";
    let pool = Pool::new(NonZeroUsize::new(2).unwrap());
    let model = Arc::new(testkit::target("llama", &pool));
    let (weights, config) = (Weights::open_dir(&fixture(name)).unwrap(), Config::from_dir(&fixture(name)).unwrap());
    let Some(Format::Feature(format)) = Format::read(&fixture(name)).unwrap() else { panic!("{name}") };
    let target = Target { model: &model, vocab: 256, kv_format: KvFormat::F32 };
    let mut drafter = FeatureDraft::load(&weights, config, format, target, &pool, testkit::options()).unwrap();
    drafter.tree = grove::TreeShape { top_k: 4, rounds: 3, drafts: 15 };
    let mut cache = KvCache::new(model.kv_layout(KvFormat::F32), 8);
    drafter.attach(&mut cache);
    let (mut sequence, mut workspace) = (Sequence::new(), Workspace::new());
    let trace = json(&fixture(name).join("trace.json"));
    let mut known = 0;
    for (round, features) in [
        ("round1", expected(name, "features")),
        ("round2", floats(&fixture(name).join("round2_features.safetensors"), "features")),
    ] {
        let expected = &trace["rounds"][round];
        let tokens = numbers(&expected["input_ids"]);
        let anchor = tokens.len() - 1;
        cache.reserve(&mut sequence, anchor + drafter.slots_ahead()).unwrap();
        let (states, rows) = (apart(&features), &tokens[known..anchor]);
        let (visibility, logits) = (Visibility::Causal, Logits::None);
        let segment = Segment { sequence: &sequence, start: known, tokens: rows, visibility, logits };
        let kv = cache.attached_two(&drafter.attached[0]);
        drafter.modules[0].read(&mut workspace, &pool, kv, &[segment], &states.each_ref().map(Vec::as_slice)).unwrap();
        let ask = Ask {
            key: KEY,
            tokens: &tokens,
            prompt: 21,
            predicted: &[],
            max_drafts: 64,
            remaining: 1000,
            choose: &Greedy,
            sequence: &sequence,
        };
        let mut lent = Round {
            pool: &pool,
            cache: &mut cache,
            step_seconds: 1.0,
            row_seconds: 0.0,
            checks_all: false,
            unread: &mut Unread::default(),
        };
        let proposal = drafter.propose(&mut lent, &[ask]).unwrap().remove(0).unwrap();
        let tree = proposal.tree();
        assert_eq!(tree.tokens(), numbers(&expected["tree_tokens"]), "{round}");
        let parents: Vec<i64> =
            (0..tree.len()).map(|node| tree.parent(node).map_or(-1, |parent| parent as i64)).collect();
        let wanted: Vec<i64> =
            expected["tree_parents"].as_array().unwrap().iter().map(|parent| parent.as_i64().unwrap()).collect();
        assert_eq!(parents, wanted, "{round}");
        known = anchor;
    }
}

impl Rounds {
    /// All that is kept in attached layers, of the positions from `from` on that are computed.
    fn kept(&mut self, attached: &Attached, from: usize) -> Vec<f32> {
        let Layers { layout, layers } = self.cache.attached(attached);
        let width = layout.kv_heads * layout.head_dim;
        let (mut k, mut v, mut all) = (vec![0.0; width], vec![0.0; width], Vec::new());
        for (layer, position) in
            layers.iter().flat_map(|layer| (from..self.tokens.len() - 1).map(move |at| (layer, at)))
        {
            layer.read(self.sequence.slot(position), &mut k, &mut v);
            all.extend(k.iter().chain(&v));
        }
        all
    }

    fn feature_draft(&self, name: &str) -> FeatureDraft {
        let dir = fixture(name);
        let target = Target { model: &self.target, vocab: 256, kv_format: KvFormat::F32 };
        let Some(Format::Feature(format)) = Format::read(&dir).unwrap() else { panic!("{name} has no features") };
        let (weights, config) = (Weights::open_dir(&dir).unwrap(), Config::from_dir(&dir).unwrap());
        let mut draft = FeatureDraft::load(&weights, config, format, target, &self.pool, testkit::options()).unwrap();
        // Chains.
        draft.tree.top_k = 1;
        draft
    }
}

#[test]
fn what_is_kept_after_rounds_is_what_reading_the_text_keeps() {
    let trace = json(&fixture("dspark-markov").join("trace.json"));
    let prompt = numbers(&trace["prompt"]);
    for name in BLOCKS {
        let mut rounds = Rounds::new(&prompt);
        let mut drafter = rounds.block_draft(name);
        rounds.begin(&mut drafter);
        for _ in 0..12 {
            rounds.round(&mut drafter, 0.0);
        }
        let mut fresh = Rounds::new(&rounds.tokens[..rounds.tokens.len() - 1]);
        let mut reader = fresh.block_draft(name);
        fresh.begin(&mut reader);
        let [kept, read] = [(&mut rounds, &drafter), (&mut fresh, &reader)].map(|(rounds, drafter)| {
            let attached = drafter.attached.unwrap();
            rounds.kept(&attached, 0)
        });
        assert!(kept == read, "{name}");
    }
    let mut rounds = Rounds::new(&prompt);
    let mut drafter = rounds.feature_draft("eagle3-deepspec");
    rounds.begin(&mut drafter);
    for _ in 0..12 {
        rounds.round(&mut drafter, 0.0);
    }
    let mut fresh = Rounds::new(&rounds.tokens[..rounds.tokens.len() - 1]);
    let mut reader = fresh.feature_draft("eagle3-deepspec");
    fresh.begin(&mut reader);
    // The first position has no pair.
    for (part, from) in [(0, 1), (1, 0)] {
        let kept = rounds.kept(&drafter.attached[0][part], from);
        assert!(kept == fresh.kept(&reader.attached[0][part], from), "part {part}");
    }
}
