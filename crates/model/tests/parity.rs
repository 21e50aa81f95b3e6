//! The forward against what the reference implementation computes in f32, on small models of every family.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use kernels::{Compute, Isa, KvFormat, Pool};
use kv::{KvCache, Sequence};
use model::config::Config;
use model::weights::Weights;
use model::{LoadOptions, Logits, Model, Segment, Tap, Visibility, Workspace};

const TARGETS: [&str; 10] = [
    "targets/llama",
    "targets/llama-mha-bias",
    "targets/llama-mqa",
    "targets/llama-rope-linear",
    "targets/llama-rope-llama3",
    "targets/llama-rope-yarn",
    "targets/mistral-window",
    "targets/qwen2",
    "targets/qwen3",
    "drafts/qwen3-target",
];

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

struct Loaded {
    model: Model,
    pool: Pool,
    cache: KvCache,
    sequence: Sequence,
    workspace: Workspace,
}

impl Loaded {
    fn new(name: &str, isa: Isa, threads: usize) -> Loaded {
        let dir = fixture(name);
        let config = Config::from_dir(&dir).expect("config");
        let weights = Weights::open_dir(&dir).expect("weights");
        let pool = Pool::new(NonZeroUsize::new(threads).expect("not zero"));
        let options = LoadOptions { isa, compute: Compute::F32, quantise: false };
        let model = Model::load(&weights, config, &pool, options).expect("loads");
        let mut cache = KvCache::new(model.kv_layout(KvFormat::F32), 8);
        let mut sequence = Sequence::new();
        cache.reserve(&mut sequence, 64).expect("room");
        Loaded { model, pool, cache, sequence, workspace: Workspace::new() }
    }

    /// One forward of rows from `start` on.
    fn run(
        &mut self,
        start: usize,
        tokens: &[u32],
        visibility: Visibility<'_>,
        taps: &[Tap],
    ) -> (Vec<f32>, Vec<Vec<f32>>) {
        let Loaded { model, pool, cache, sequence, workspace } = self;
        let segment = Segment { sequence, start, tokens, visibility, logits: Logits::All };
        let output = model.forward(workspace, pool, cache, &[segment], taps).expect("runs");
        (output.logits.to_vec(), output.taps.to_vec())
    }
}

/// What the reference wrote: input ids, logits `[rows, vocab]`, hidden states `[rows, hidden]` from the embedding on.
struct Expected {
    ids: Vec<u32>,
    logits: Vec<f32>,
    hidden: Vec<Vec<f32>>,
}

fn expected(name: &str, layers: usize) -> Expected {
    let bytes = std::fs::read(fixture(name).join("expected.safetensors")).expect("fixture");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let floats = |key: &str| -> Option<Vec<f32>> {
        let data = file.tensor(key).ok()?.data().as_chunks().0.iter();
        Some(data.map(|&b| f32::from_le_bytes(b)).collect())
    };
    let ids = file.tensor("input_ids").expect("ids");
    let width = ids.data().len() / ids.shape().iter().product::<usize>();
    let id = |b: &[u8]| u32::from(b[0]) | (u32::from(b[1]) << 8);
    let hidden = |i: usize| floats(&format!("hidden_states.{i}")).or_else(|| floats(&format!("hidden.{i}")));
    Expected {
        ids: ids.data().chunks_exact(width).map(id).collect(),
        logits: floats("logits").expect("logits"),
        hidden: (0..=layers).map(|i| hidden(i).expect("hidden state")).collect(),
    }
}

/// At most 2e-4 of the largest magnitude in the tensor.
fn assert_close(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let size = want.iter().fold(0.0f32, |size, v| size.max(v.abs()));
    let error = got.iter().zip(want).fold(0.0f32, |error, (a, b)| error.max((a - b).abs()));
    assert!(error <= 2e-4 * size, "{what}: error {error} at magnitude {size}");
}

#[test]
fn logits_and_hidden_states_are_those_of_the_reference() {
    for name in TARGETS {
        for isa in Isa::available() {
            let mut loaded = Loaded::new(name, isa, 2);
            let layers = loaded.model.config().layers;
            let want = expected(name, layers);
            let taps: Vec<Tap> = std::iter::once(Tap::Embedding)
                .chain((0..layers - 1).map(Tap::Layer))
                .chain(std::iter::once(Tap::Final))
                .collect();
            let (logits, hidden) = loaded.run(0, &want.ids, Visibility::Causal, &taps);
            assert_close(&logits, &want.logits, &format!("{name} {isa} logits"));
            for (i, (got, want)) in hidden.iter().zip(&want.hidden).enumerate() {
                assert_close(got, want, &format!("{name} {isa} hidden {i}"));
            }
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn chunks_and_threads_change_no_bit() {
    for name in TARGETS {
        for isa in Isa::available() {
            let want = expected(name, 0);
            let taps = [Tap::Layer(0), Tap::Final];
            let whole = Loaded::new(name, isa, 1).run(0, &want.ids, Visibility::Causal, &taps);
            for (chunk, threads) in [(1, 2), (5, 1), (16, 2), (17, 3)] {
                let mut loaded = Loaded::new(name, isa, threads);
                let (mut logits, mut hidden) = (Vec::new(), vec![Vec::new(); taps.len()]);
                for start in (0..want.ids.len()).step_by(chunk) {
                    let tokens = &want.ids[start..(start + chunk).min(want.ids.len())];
                    let part = loaded.run(start, tokens, Visibility::Causal, &taps);
                    logits.extend(part.0);
                    hidden.iter_mut().zip(part.1).for_each(|(all, part)| all.extend(part));
                }
                assert_eq!(bits(&logits), bits(&whole.0), "{name} {isa} chunks of {chunk} on {threads} threads");
                assert_eq!(hidden, whole.1, "{name} {isa} chunks of {chunk} on {threads} threads");
            }
        }
    }
}

#[test]
fn a_row_of_a_tree_has_the_bits_of_its_own_chain() {
    for name in TARGETS {
        let isa = Isa::detect();
        let prompt: Vec<u32> = (1..=19).collect();
        // Two branches of the prompt, one of which forks again; rows of different branches alternate.
        let tokens = [30, 40, 31, 41, 32, 33, 42];
        let parents = [None, None, Some(0), Some(1), Some(2), Some(2), Some(3)];
        let mut tree = Loaded::new(name, isa, 2);
        tree.run(0, &prompt, Visibility::Causal, &[]);
        let (logits, _) = tree.run(prompt.len(), &tokens, Visibility::Tree { parents: &parents }, &[]);
        let vocab = tree.model.config().vocab;
        for (row, path) in [(4, vec![30, 31, 32]), (5, vec![30, 31, 33]), (6, vec![40, 41, 42]), (1, vec![40])] {
            let mut chain = Loaded::new(name, isa, 1);
            let whole: Vec<u32> = prompt.iter().copied().chain(path).collect();
            let (want, _) = chain.run(0, &whole, Visibility::Causal, &[]);
            let got = &logits[row * vocab..(row + 1) * vocab];
            assert_eq!(bits(got), bits(&want[want.len() - vocab..]), "{name} row {row}");
        }
    }
}

#[test]
fn sequences_share_a_batch_without_touching_each_other() {
    let mut loaded = Loaded::new("targets/qwen3", Isa::detect(), 2);
    let (first, second): (Vec<u32>, Vec<u32>) = ((5..25).collect(), (100..107).collect());
    let vocab = loaded.model.config().vocab;
    let alone: Vec<Vec<f32>> =
        [&first, &second].map(|tokens| loaded.run(0, tokens, Visibility::Causal, &[]).0).to_vec();
    let mut other = Sequence::new();
    loaded.cache.reserve(&mut other, 7).expect("room");
    let Loaded { model, pool, cache, sequence, workspace } = &mut loaded;
    let segment =
        |sequence, tokens, logits| Segment { sequence, start: 0, tokens, visibility: Visibility::Causal, logits };
    let batch = [segment(&*sequence, &first[..], Logits::Last), segment(&other, &second[..], Logits::Rows(&[6, 0]))];
    let together = model.forward(workspace, pool, cache, &batch, &[]).expect("runs").logits.to_vec();
    assert_eq!(bits(&together[..vocab]), bits(&alone[0][19 * vocab..]));
    assert_eq!(bits(&together[vocab..2 * vocab]), bits(&alone[1][6 * vocab..]));
    assert_eq!(bits(&together[2 * vocab..]), bits(&alone[1][..vocab]));
}

#[test]
fn what_cannot_be_run_is_refused_by_name() {
    let mut loaded = Loaded::new("targets/llama", Isa::Portable, 1);
    let Loaded { model, pool, cache, sequence, workspace } = &mut loaded;
    let mut refused = |start, tokens: &[u32], visibility, logits, taps: &[Tap]| {
        let segment = Segment { sequence: &*sequence, start, tokens, visibility, logits };
        model.forward(workspace, pool, cache, &[segment], taps).expect_err("refused").to_string()
    };
    let causal = Visibility::Causal;
    let parents = [Some(0)];
    assert_eq!(refused(0, &[256], causal, Logits::Last, &[]), "token 256 is outside the model's vocabulary of 256");
    assert!(refused(63, &[1, 2], causal, Logits::Last, &[]).contains("room for 64 tokens"));
    assert!(refused(0, &[1], Visibility::Tree { parents: &parents }, Logits::Last, &[]).contains("parent 0"));
    assert!(refused(0, &[1, 2], Visibility::Tree { parents: &parents }, Logits::Last, &[]).contains("1 parents"));
    assert!(refused(0, &[1], causal, Logits::Rows(&[1]), &[]).contains("row 1"));
    assert!(refused(0, &[1], causal, Logits::Last, &[Tap::Layer(4)]).contains("after layer 4"));
    let mut other = KvCache::new(kv::Layout { layers: 3, ..model.kv_layout(KvFormat::F16) }, 1);
    let wrong = model.forward(workspace, pool, &mut other, &[], &[]).expect_err("refused").to_string();
    assert!(wrong.contains("layers: 3") && wrong.contains("layers: 4"), "{wrong}");
}
