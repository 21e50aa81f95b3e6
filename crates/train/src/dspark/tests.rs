//! What is written is what was trained: the files, loaded by crate `model`, compute the trainer's forward.

use std::num::NonZeroUsize;
use std::sync::Arc;

use candle_core::DType;
use kernels::{KvFormat, Pool};
use kv::{KvCache, Salt};
use model::config::Config;
use model::weights::Weights;
use model::{Backbone, BlockShape, Logits, Segment, Tap, Visibility, Workspace};

use super::*;
use crate::batch::anchors;
use crate::features::FeatureStore;
use crate::ops::values;
use crate::texts::{Origin, Text};

const BLOCK: usize = 5;

/// A drafter for the target of this name that is not as it began, and a text.
fn trained(name: &str, known: Option<usize>) -> (Dspark, Text) {
    let dir = testkit::target_dir(name);
    let (weights, config) = (Weights::open_dir(&dir).unwrap(), Config::from_dir(&dir).unwrap());
    let text =
        Text { origin: Origin::Own, number: 0, prompt: 7, tokens: (0..40u32).map(|at| at * at * 7 % 60).collect() };
    let vocabulary = match known {
        Some(size) => DraftVocabulary::most_frequent(size, config.vocab, std::slice::from_ref(&text)),
        None => DraftVocabulary::whole(config.vocab),
    };
    let shape = DsparkShape { layers: vec![1, 3], block: BLOCK, rank: 8, mask: 255, taps: vec![0, 2] };
    let target = TargetWeights { weights: &weights, config: &config };
    let isa = testkit::options().isa;
    let drafter = Dspark::begin(shape, vocabulary, &target, isa, 3).unwrap();
    for (at, (_, parameter)) in drafter.parameters.all.iter().enumerate() {
        // Something everywhere, that f16 can say.
        let noise = |number: usize| ((number * 31 + at * 17) % 23) as f32 / 230.0 - 0.05;
        let numbers: Vec<f32> =
            values(&parameter.var).unwrap().iter().enumerate().map(|(at, x)| x + noise(at)).collect();
        let tensor = Tensor::from_vec(numbers, parameter.var.shape(), &Device::Cpu).unwrap();
        parameter.var.set(&tensor.to_dtype(DType::F16).unwrap().to_dtype(DType::F32).unwrap()).unwrap();
    }
    (drafter, text)
}

/// The largest difference, by the largest number.
fn apart(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let largest = b.iter().fold(0f32, |a, b| a.max(b.abs()));
    a.iter().zip(b).fold(0f32, |most, (a, b)| most.max((a - b).abs())) / largest
}

fn same_forward(name: &str, known: Option<usize>) {
    let (drafter, text) = trained(name, known);
    let out = tempfile::tempdir().unwrap();
    drafter.export(out.path(), &About { target: "x/y".into(), card: "card".into() }).unwrap();
    let pool = Pool::new(NonZeroUsize::MIN);
    let target = Arc::new(testkit::target(name, &pool));
    // The files are those of a drafter, and suit the target.
    let of = draft::Target { model: &target, vocab: 256, kv_format: KvFormat::F32 };
    assert_eq!(draft::load_learned(out.path(), of, &pool, testkit::options()).unwrap().name(), "dspark");
    // The trainer's side.
    let taps: Vec<Tap> = drafter.shape.taps.iter().map(|&tap| Tap::Layer(tap)).collect();
    let features = tempfile::tempdir().unwrap();
    let isa = testkit::options().isa;
    let mut store =
        FeatureStore::new((Arc::clone(&target), Pool::new(NonZeroUsize::MIN), isa), taps.clone(), features.path(), 0)
            .unwrap();
    let said = store.of(&text).unwrap();
    let mut batch = Batch::default();
    let anchors = anchors(&text, 3, None);
    batch.add(drafter.block_shape(), &text, &said, &drafter.vocabulary, anchors.clone()).unwrap();
    let hidden = drafter.forward(&batch).unwrap().hidden;
    let logits = values(&hidden.matmul(&drafter.head.weights.t().unwrap()).unwrap()).unwrap();
    let (hidden, known) = (values(&hidden).unwrap(), drafter.vocabulary.len());
    // The loader's side, of each block by itself.
    let weights = Weights::open_dir(out.path()).unwrap();
    let part = known < 256;
    let config =
        if part { Config::from_part(out.path(), "transformer_layer_config") } else { Config::from_dir(out.path()) };
    let config = config.unwrap();
    let shape = BlockShape {
        taps: taps.len(),
        head: part.then_some(known),
        sight: vec![model::Sight::Around; config.layers],
        convolution: None,
        embedding_scale: 1.0,
    };
    let backbone = Backbone::load(&weights, config, shape, &target, &pool, testkit::options()).unwrap();
    let mut cache = KvCache::new(backbone.kv_layout(KvFormat::F32), 8);
    let mut workspace = Workspace::new();
    for (at, &anchor) in anchors.iter().enumerate() {
        let mut sequence = cache.match_prefix(&[], &Salt::default());
        cache.reserve(&mut sequence, anchor + BLOCK).unwrap();
        let segment = Segment {
            sequence: &sequence,
            start: 0,
            tokens: &text.tokens[..anchor],
            visibility: Visibility::Causal,
            logits: Logits::None,
        };
        let width = target.config().hidden;
        let tap = |tap: usize| -> Vec<f32> {
            said.hidden
                .chunks_exact(said.width)
                .take(anchor)
                .flat_map(|row| &row[tap * width..][..width])
                .map(|x| x.to_f32())
                .collect()
        };
        let taps = [tap(0), tap(1)];
        backbone.read(&mut workspace, &pool, cache.layers(), &[segment], &[&taps[0], &taps[1]]).unwrap();
        let rows: Vec<usize> = (0..BLOCK).collect();
        let tokens = &batch.tokens[at * BLOCK..][..BLOCK];
        let block = Segment {
            sequence: &sequence,
            start: anchor,
            tokens,
            visibility: Visibility::Block,
            logits: Logits::Rows(&rows),
        };
        let output = backbone.forward(&mut workspace, &pool, cache.layers(), &[block]).unwrap();
        let far = [
            apart(&output.taps[0], &hidden[at * BLOCK * width..][..BLOCK * width]),
            apart(output.logits, &logits[at * BLOCK * known..][..BLOCK * known]),
        ];
        assert!(far[0] < 1e-4 && far[1] < 1e-3, "{name}, block {at}: {far:?}");
        cache.free(sequence);
    }
}

#[test]
fn what_is_written_computes_what_was_trained() {
    same_forward("llama", Some(40));
    same_forward("qwen2", Some(40));
    same_forward("../drafts/qwen3-target", None);
}

#[test]
fn a_mistral_trains_a_draft_without_windows() {
    same_forward("mistral-window", Some(30));
}
