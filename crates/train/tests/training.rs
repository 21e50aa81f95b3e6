//! A training from beginning to end, for a tiny target: it learns, it goes on after a kill, and what it writes drafts.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use engine::batch::{DraftCounts, Service, ServiceOptions, Speculation};
use kernels::{KvFormat, Pool};
use model::Model;
use model::config::Config;
use model::weights::Weights;
use spec::CostCurve;
use train::texts::{Asked, Origin, Text, TextFile, TextSettings, TextWriter};
use train::{About, DrafterShape, Keeping, Length, Method, RunningTarget, TargetWeights, TrainOptions, Trainer};

/// A target that was trained for a moment on a language of its own.
const TARGET: &str = "../drafts/qwen3-target";

fn pool() -> Pool {
    Pool::new(NonZeroUsize::MIN)
}

fn target() -> Arc<Model> {
    Arc::new(testkit::target(TARGET, &pool()))
}

fn service(speculation: Option<Speculation>) -> Service {
    let options = ServiceOptions { max_running: 8, context: Some(256), ..ServiceOptions::default() };
    Service::start(target(), testkit::byte_tokenizer(), pool(), options, speculation)
}

/// Prompts of the target's language.
fn asked(numbers: std::ops::Range<u32>) -> Vec<Asked> {
    let prompt = |number: u32| (0..8).map(|at| (number * 13 + at * at * 5) % 60).collect();
    numbers.map(|number| Asked::Prompt { number, tokens: prompt(number) }).collect()
}

/// The answers to these prompts.
fn texts(dir: &Path, asked: Vec<Asked>) -> Vec<Text> {
    drafted_texts(dir, asked, None).0
}

/// The same with a drafter, and what became of its drafts.
fn drafted_texts(dir: &Path, asked: Vec<Asked>, speculation: Option<Speculation>) -> (Vec<Text>, DraftCounts) {
    let settings = TextSettings { target: "tiny".into(), seed: 5, answer_tokens: 40 };
    let path = dir.join("texts.jsonl");
    let (mut file, found) = TextFile::open(&path, &settings).unwrap();
    let done: HashSet<(Origin, u32)> = found.iter().map(Text::key).collect();
    let service = service(speculation);
    let (handle, tokenizer) = (&service.handle(), &testkit::byte_tokenizer());
    let writer = TextWriter { handle, tokenizer, template: None, settings: &settings, at_once: 4 };
    writer.write(asked, &done, &mut file, |_| ()).unwrap();
    (TextFile::open(&path, &settings).unwrap().1, handle.stats().drafts)
}

/// A training that goes on from the file `checkpoint`, if it is there.
fn trainer(dir: &Path, texts: &[Text], method: Method, steps: u64, checkpoint: &str) -> Trainer {
    let fixture = testkit::target_dir(TARGET);
    let (weights, config) = (Weights::open_dir(&fixture).unwrap(), Config::from_dir(&fixture).unwrap());
    let layers = [3, 6][..2.min(*method.layers().end())].to_vec();
    let taps = if method.reads_taps() { vec![1, 3, 5] } else { Vec::new() };
    let shape = DrafterShape { method, layers, drafts: 4, rank: 8, mask: 255, taps };
    let options = TrainOptions {
        length: Length::Steps(steps),
        batch: 4,
        anchors: 8,
        accumulate: 2,
        rate: 3e-3,
        warm_up: 0.1,
        decay: 0.01,
        clip: 1.0,
        seed: 7,
    };
    let running = RunningTarget { model: target(), pool: pool(), isa: testkit::options().isa };
    let weights = TargetWeights { weights: &weights, config: &config };
    let keeping =
        Keeping { features: &dir.join("features"), bytes: 1 << 20, held_out: 8, checkpoint: &dir.join(checkpoint) };
    train::begin(running, &weights, texts.to_vec(), (shape, Some(64)), options, keeping).unwrap()
}

fn files(dir: &Path) -> Vec<Vec<u8>> {
    ["model.safetensors", "config.json", "README.md"].map(|name| std::fs::read(dir.join(name)).unwrap()).to_vec()
}

#[test]
fn texts_are_the_same_whoever_writes_them_when() {
    let [whole, parts] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let at_once = texts(whole.path(), asked(0..12));
    texts(parts.path(), asked(0..5));
    assert_eq!(texts(parts.path(), asked(0..12)), at_once);
    assert!(at_once.iter().all(|text| text.prompt == 8 && text.tokens.len() > 8));
}

#[test]
fn a_training_that_was_killed_goes_on_with_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let texts = texts(dir.path(), asked(0..24));
    let about = About::default();
    let (whole, parts, checkpoint) =
        (dir.path().join("whole"), dir.path().join("parts"), dir.path().join("checkpoint"));
    let mut one = trainer(dir.path(), &texts, Method::Dspark, 6, "none");
    for _ in 0..6 {
        one.step().unwrap();
    }
    one.export(&whole, &about).unwrap();
    let mut first = trainer(dir.path(), &texts, Method::Dspark, 6, "none");
    for _ in 0..2 {
        first.step().unwrap();
    }
    first.save(&checkpoint).unwrap();
    // What was done since the checkpoint is lost, and done again.
    first.step().unwrap();
    drop(first);
    let mut second = trainer(dir.path(), &texts, Method::Dspark, 6, "checkpoint");
    assert_eq!(second.steps(), 2);
    while second.done() < 1.0 {
        second.step().unwrap();
    }
    second.export(&parts, &about).unwrap();
    assert_eq!(files(&whole), files(&parts));
}

/// Trains such a drafter for so many steps, and lets it draft: τ before, τ after, and what was promised and what came.
fn learns_and_drafts(method: Method, steps: u64) {
    let dir = tempfile::tempdir().unwrap();
    let all = texts(dir.path(), asked(0..96));
    let mut trainer = trainer(dir.path(), &all, method, steps, "none");
    let before = trainer.evaluate().unwrap().unwrap();
    let mut losses = Vec::new();
    while trainer.done() < 1.0 {
        losses.push(trainer.step().unwrap().loss);
    }
    let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
    let (first, last) = (mean(&losses[..10]), mean(&losses[losses.len() - 10..]));
    let name = method.name();
    assert!(last < 0.9 * first, "{name}: the loss was {first} and is {last}");
    let after = trainer.evaluate().unwrap().unwrap();
    let (was, is) = (before.greedy_tau(), after.greedy_tau());
    assert!(
        after.tau() > before.tau() + 0.2 && is > was + 0.2,
        "{name}: {} and {}, {was} and {is}",
        before.tau(),
        after.tau()
    );
    if method == Method::Dspark {
        assert!(after.confidence_error().is_some_and(|error| error < 0.25), "{:?}", after.confidence_error());
    }
    // It drafts for its target, changes nothing, and what it says stands about as often as it was promised.
    let out = dir.path().join("drafter");
    trainer.export(&out, &About::default()).unwrap();
    let model = target();
    let of = draft::Target { model: &model, vocab: 256, kv_format: KvFormat::F16 };
    let drafter = draft::load_learned(&out, of, &pool(), testkit::options()).unwrap();
    let curve = CostCurve::new(&[1, 2], &[0], &[1.0, 1.000_001]).unwrap();
    let speculation = Speculation::new(drafter, 4, curve);
    let drafted = dir.path().join("drafted");
    std::fs::create_dir(&drafted).unwrap();
    let (drafted, counts) = drafted_texts(&drafted, asked(0..96), Some(speculation));
    assert_eq!(drafted, all);
    let tau = 1.0 + counts.accepted as f64 / counts.proposals as f64;
    // Half of the answers are greedy; and where one ends, or goes on with what the drafter wrote, a block is cut short.
    let promised = (after.tau() + after.greedy_tau()) / 2.0;
    assert!(tau > 0.75 * promised, "{name}: {tau} tokens a round, where {promised} were promised");
}

#[test]
fn drafters_learn_and_draft() {
    learns_and_drafts(Method::Dspark, 120);
    for method in [Method::Dflash, Method::Eagle3, Method::Mtp, Method::Medusa] {
        learns_and_drafts(method, 60);
    }
}
