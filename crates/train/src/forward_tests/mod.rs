//! What is written is what was trained: the files, loaded by crate `model`, compute the trainer's forward.

mod block;
mod chain;

use std::num::NonZeroUsize;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use kernels::{KvFormat, Pool};
use model::Model;
use model::config::Config;
use model::weights::Weights;

use crate::batch::{Batch, anchors};
use crate::drafter::{Drafter, DrafterShape, Method};
use crate::export::About;
use crate::features::{FeatureStore, TextFeatures};
use crate::ops::values;
use crate::target::TargetWeights;
use crate::texts::{Origin, Text};
use crate::vocabulary::DraftVocabulary;

const DRAFTS: usize = 5;

/// A drafter that is not as it began, its files, and what it makes of a text.
struct Trained {
    out: tempfile::TempDir,
    pool: Pool,
    target: Arc<Model>,
    text: Text,
    features: TextFeatures,
    drafter: Drafter,
    anchors: Vec<usize>,
    batch: Batch,
    /// What the head takes, and its logits, of all rows.
    hidden: Vec<f32>,
    logits: Vec<f32>,
}

/// A drafter for the target of this name. `known`: tokens that it knows, if not all.
fn trained(name: &str, method: Method, known: Option<usize>) -> Trained {
    let dir = testkit::target_dir(name);
    let (weights, config) = (Weights::open_dir(&dir).unwrap(), Config::from_dir(&dir).unwrap());
    let text =
        Text { origin: Origin::Own, number: 0, prompt: 7, tokens: (0..40u32).map(|at| at * at * 7 % 60).collect() };
    let vocabulary = match known {
        Some(size) => DraftVocabulary::most_frequent(size, config.vocab, std::slice::from_ref(&text)),
        None => DraftVocabulary::whole(config.vocab),
    };
    let layers = [1, 3][..2.min(*method.layers().end())].to_vec();
    let taps = if method.reads_taps() { vec![0, 2] } else { Vec::new() };
    let shape = DrafterShape { method, layers, drafts: DRAFTS, rank: 8, mask: 255, taps };
    let isa = testkit::options().isa;
    let target = TargetWeights { weights: &weights, config: &config };
    let drafter = Drafter::begin(shape.clone(), vocabulary, &target, isa, 3).unwrap();
    move_a_little(&drafter);
    let out = tempfile::tempdir().unwrap();
    drafter.export(out.path(), &About { target: "x/y".into(), card: "card".into() }).unwrap();
    let pool = Pool::new(NonZeroUsize::MIN);
    let target = Arc::new(testkit::target(name, &pool));
    // The files are those of a drafter, and suit the target.
    let of = draft::Target { model: &target, vocab: 256, kv_format: KvFormat::F32 };
    let loaded = draft::load_learned(out.path(), of, &pool, testkit::options()).unwrap();
    // A block without what makes it a DSpark is DFlash's; the loader calls both by what they are.
    assert_eq!(loaded.name(), method.name());
    let folder = tempfile::tempdir().unwrap();
    let of = (Arc::clone(&target), Pool::new(NonZeroUsize::MIN), isa);
    let features = FeatureStore::new(of, shape.features(), folder.path(), 0).unwrap().of(&text).unwrap();
    let (mut batch, anchors) = (Batch::new(drafter.layout()), anchors(&text, 3, None));
    batch.add(&text, &features, &drafter.base.vocabulary, anchors.clone()).unwrap();
    let hidden = drafter.forward(&batch).unwrap().hidden;
    let logits = values(&hidden.matmul(&drafter.base.head.weights.t().unwrap()).unwrap()).unwrap();
    let hidden = values(&hidden).unwrap();
    Trained { out, pool, target, text, features, drafter, anchors, batch, hidden, logits }
}

/// Something everywhere, that f16 can say.
fn move_a_little(drafter: &Drafter) {
    for (at, (_, parameter)) in drafter.base.parameters.all.iter().enumerate() {
        let noise = |number: usize| ((number * 31 + at * 17) % 23) as f32 / 230.0 - 0.05;
        let numbers: Vec<f32> =
            values(&parameter.var).unwrap().iter().enumerate().map(|(at, x)| x + noise(at)).collect();
        let tensor = Tensor::from_vec(numbers, parameter.var.shape(), &Device::Cpu).unwrap();
        parameter.var.set(&tensor.to_dtype(DType::F16).unwrap().to_dtype(DType::F32).unwrap()).unwrap();
    }
}

impl Trained {
    /// A hidden state of the target at the first `positions`, by its number among those that are read.
    fn state(&self, tap: usize, positions: usize) -> Vec<f32> {
        let width = self.target.config().hidden;
        let rows = self.features.hidden.chunks_exact(self.features.width).take(positions);
        rows.flat_map(|row| &row[tap * width..][..width]).map(|x| x.to_f32()).collect()
    }
}

/// The largest difference, by the largest number.
fn apart(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let largest = b.iter().fold(0f32, |a, b| a.max(b.abs()));
    a.iter().zip(b).fold(0f32, |most, (a, b)| most.max((a - b).abs())) / largest
}

#[test]
fn a_medusa_loads() {
    trained("llama", Method::Medusa, Some(40));
}
