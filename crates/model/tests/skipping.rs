//! Models without some of their layers.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use kernels::{Compute, Isa, KvFormat, Pool};
use kv::{KvCache, Sequence};
use model::config::Config;
use model::weights::Weights;
use model::{LoadOptions, Logits, Model, Segment, SkipError, Tap, Visibility, Workspace};

const TOKENS: [u32; 24] = [5, 77, 3, 200, 14, 9, 31, 128, 64, 2, 250, 17, 90, 44, 8, 61, 1, 0, 255, 33, 12, 7, 99, 180];

fn load(name: &str, pool: &Pool) -> Model {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/targets").join(name);
    let options = LoadOptions { isa: Isa::detect(), compute: Compute::F32, quantise: false };
    Model::load(&Weights::open_dir(&dir).unwrap(), Config::from_dir(&dir).unwrap(), pool, options).unwrap()
}

/// Logits of the last token, and the residual stream of all after each of `taps`.
fn forward(model: &Model, pool: &Pool, taps: &[Tap]) -> (Vec<f32>, Vec<Vec<f32>>) {
    let mut cache = KvCache::new(model.kv_layout(KvFormat::F32), 2);
    let mut sequence = Sequence::new();
    cache.reserve(&mut sequence, TOKENS.len()).unwrap();
    let visibility = Visibility::Causal;
    let segment = Segment { sequence: &sequence, start: 0, tokens: &TOKENS, visibility, logits: Logits::Last };
    let mut workspace = Workspace::new();
    let output = model.forward(&mut workspace, pool, &mut cache, &[segment], taps).unwrap();
    (output.logits.to_vec(), output.taps.to_vec())
}

#[test]
fn nothing_skipped_is_the_model() {
    let pool = Pool::new(NonZeroUsize::MIN);
    for name in ["llama", "llama-mha-bias", "qwen3", "mistral-window"] {
        let model = load(name, &pool);
        let same = model.without_layers(&[]).unwrap();
        assert_eq!(same.config(), model.config());
        assert_eq!(forward(&same, &pool, &[Tap::Final]), forward(&model, &pool, &[Tap::Final]), "{name}");
    }
}

#[test]
fn the_first_layers_alone_go_as_far_as_in_the_model() {
    let pool = Pool::new(NonZeroUsize::MIN);
    let model = load("qwen3", &pool);
    let (_, whole) = forward(&model, &pool, &[Tap::Layer(0), Tap::Layer(1)]);
    let first = model.without_layers(&[3, 2, 3]).unwrap();
    assert_eq!(first.config().layers, 2);
    assert_eq!(first.kv_layout(KvFormat::F32).layers, 2);
    let (_, alone) = forward(&first, &pool, &[Tap::Layer(0), Tap::Layer(1)]);
    assert_eq!(alone, whole);
}

#[test]
fn each_layer_keeps_its_own_window() {
    let pool = Pool::new(NonZeroUsize::MIN);
    let model = load("mistral-window", &pool);
    let first = model.without_layers(&[1, 2, 3]).unwrap();
    assert_eq!(first.config().windows, model.config().windows[..1]);
    let (_, whole) = forward(&model, &pool, &[Tap::Layer(0)]);
    assert_eq!(forward(&first, &pool, &[Tap::Layer(0)]).1, whole);
}

#[test]
fn a_model_without_layers_reads_less() {
    let pool = Pool::new(NonZeroUsize::MIN);
    let model = load("llama", &pool);
    let half = model.without_layers(&[1, 2]).unwrap();
    let head = model.config().vocab * model.config().hidden;
    assert_eq!(half.multiply_adds_per_row() - head, (model.multiply_adds_per_row() - head) / 2);
    assert!(half.bytes_per_row() < model.bytes_per_row());
}

#[test]
fn a_layer_must_exist_and_one_must_be_left() {
    let pool = Pool::new(NonZeroUsize::MIN);
    let model = load("llama", &pool);
    let error = model.without_layers(&[1, 4]).err().unwrap();
    assert_eq!(error, SkipError::NoSuchLayer { layer: 4, layers: 4 });
    assert_eq!(error.to_string(), "layer 4 cannot be skipped: the model has the layers 0 to 3");
    assert_eq!(model.without_layers(&[0, 1, 2, 3]).err(), Some(SkipError::NothingLeft { layers: 4 }));
}
