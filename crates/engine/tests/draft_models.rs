//! Models that draft for a model: what they say changes no answer, and a model that drafts for itself is always right.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};

use draft::{DraftModel, DraftModelOptions};
use engine::batch::{Event, Service, ServiceOptions, Speculation, Stats, Submission};
use engine::{Drafting, Engine, EngineOptions, SamplingParams};
use kernels::{Compute, Isa, KvFormat, Pool};
use model::config::Config;
use model::weights::Weights;
use model::{LoadOptions, Model};
use spec::{CostCurve, Rule};
use testkit::{byte_tokenizer, tiny_llama};

const OPTIONS: DraftModelOptions = DraftModelOptions {
    name: "model",
    vocab: 256,
    kv_format: KvFormat::F16,
    pages: 400,
    read_ahead: 256,
    min_survival: 0.0,
};

/// Rows cost next to nothing: every draft pays, and is checked.
fn free_rows(seconds: f64) -> CostCurve {
    CostCurve::new(&[1, 2], &[0], &[seconds, seconds * 1.000_001]).unwrap()
}

fn drafting_with(model: Model, options: DraftModelOptions) -> Speculation {
    let drafter = Box::new(DraftModel::new(Arc::new(model), free_rows(1e-12), options));
    Speculation::new(drafter, 4, free_rows(1e3))
}

fn fixture(name: &str, pool: &Pool) -> Model {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name);
    let options = LoadOptions { isa: Isa::detect(), compute: Compute::F32, quantise: false };
    Model::load(&Weights::open_dir(&dir).unwrap(), Config::from_dir(&dir).unwrap(), pool, options).unwrap()
}

fn prompt(seed: usize, len: usize) -> Vec<u32> {
    (0..len).map(|p| ((p * (3 + 2 * seed) + p * p / 5 + seed * 13) % 250) as u32).collect()
}

/// The answer to a prompt, and what was done for it.
fn answer(params: &SamplingParams, rule: Rule, speculation: Option<Speculation>) -> (Vec<u32>, Stats) {
    let (model, pool) = tiny_llama(1);
    let mut engine = Engine::new(model, byte_tokenizer(), pool, EngineOptions::default(), speculation);
    let mut tokens = Vec::new();
    let drafting = Drafting { rule, ..Drafting::default() };
    let taken = engine.generate(&prompt(1, 40), params.clone(), &drafting, |delta| {
        tokens.push(delta.token);
        ControlFlow::Continue(())
    });
    taken.unwrap();
    (tokens, engine.stats())
}

fn sampled(temperature: f32) -> SamplingParams {
    SamplingParams { temperature, seed: 7, max_tokens: Some(61), ignore_eos: true, ..SamplingParams::default() }
}

#[test]
fn a_model_that_drafts_for_itself_is_always_right_under_keyed() {
    let penalised =
        SamplingParams { repetition_penalty: 1.3, frequency_penalty: 0.4, top_k: 40, top_p: 0.9, ..sampled(1.0) };
    for params in [sampled(0.0), sampled(0.7), sampled(1.0), penalised] {
        let (plain, _) = answer(&params, Rule::Keyed, None);
        let own = drafting_with(tiny_llama(1).0.without_layers(&[]).unwrap(), OPTIONS);
        let (drafted, stats) = answer(&params, Rule::Keyed, Some(own));
        assert_eq!(drafted, plain);
        assert_eq!(stats.drafts.accepted, stats.drafts.checked);
        // The first token comes of the prompt; then 4 drafts and one token more in each step.
        assert_eq!((plain.len(), stats.steps, stats.drafts.checked), (61, 13, 48));
    }
}

#[test]
fn a_model_that_drafts_for_itself_is_always_right_under_ratio() {
    for temperature in [0.0, 0.7, 1.0] {
        let own = drafting_with(tiny_llama(1).0.without_layers(&[]).unwrap(), OPTIONS);
        let (tokens, stats) = answer(&sampled(temperature), Rule::Ratio, Some(own));
        assert_eq!(tokens.len(), 61);
        assert_eq!(stats.drafts.accepted, stats.drafts.checked, "p and q are one law");
        assert_eq!(stats.steps, 13);
    }
}

/// Requests of all kinds, at all temperatures.
fn requests() -> Vec<Submission> {
    let request = |i: usize| Submission {
        prompt: prompt(i, [1, 15, 16, 17, 33, 90, 200, 3][i % 8]),
        params: SamplingParams {
            temperature: [0.0, 0.7, 1.0][i % 3],
            top_p: [1.0, 0.9][i % 2],
            repetition_penalty: [1.0, 1.0, 1.2][i % 3],
            seed: i as u64,
            max_tokens: Some([40, 1, 25][i % 3]),
            ..SamplingParams::default()
        },
        n: [1, 1, 3][i % 3],
        cache_salt: None,
        priority: 0,
        drafting: Drafting::default(),
    };
    (0..16).map(request).collect()
}

/// What all `requests` are answered when they come at once.
fn serve(
    requests: &[Submission],
    threads: usize,
    pages: usize,
    speculation: Option<Speculation>,
) -> (BTreeMap<(usize, u32), Vec<u32>>, Stats) {
    let (model, pool) = tiny_llama(threads);
    let kv_bytes = pages * model.kv_layout(KvFormat::F16).bytes_per_page();
    let options = ServiceOptions { kv_bytes, context: Some(320), max_running: 12, ..ServiceOptions::default() };
    let service = Service::start(model, byte_tokenizer(), pool, options, speculation);
    let handle = service.handle();
    let (events, inbox) = mpsc::channel();
    for (index, request) in requests.iter().enumerate() {
        let events = events.clone();
        handle.submit(request.clone(), Box::new(move |event| events.send((index, event)).unwrap())).unwrap();
    }
    let mut answers = BTreeMap::<(usize, u32), Vec<u32>>::new();
    let mut open: u32 = requests.iter().map(|request| request.n).sum();
    while open > 0 {
        match inbox.recv().unwrap() {
            (index, Event::Delta { choice, delta }) => answers.entry((index, choice)).or_default().push(delta.token),
            (_, Event::Finished { .. }) => open -= 1,
            (index, Event::Failed { message, .. }) => panic!("request {index}: {message}"),
        }
    }
    (answers, handle.stats())
}

#[test]
fn no_draft_model_changes_an_answer() {
    let requests = requests();
    let (plain, _) = serve(&requests, 1, 900, None);
    let models: [fn() -> Model; 4] = [
        || tiny_llama(1).0.without_layers(&[]).unwrap(),
        || tiny_llama(1).0.without_layers(&[1, 2]).unwrap(),
        || fixture("targets/mistral-window", &tiny_llama(1).1),
        || fixture("drafts/qwen3-target", &tiny_llama(1).1),
    ];
    for (number, model) in models.iter().enumerate() {
        for (threads, pages, draft_pages, read_ahead) in [(1, 900, 400, 256), (2, 24, 24, 7)] {
            let options = DraftModelOptions { pages: draft_pages, read_ahead, ..OPTIONS };
            let (answers, stats) = serve(&requests, threads, pages, Some(drafting_with(model(), options)));
            assert_eq!(answers, plain, "model {number}");
            assert!(stats.drafts.checked > 100, "model {number}: {:?}", stats.drafts);
            assert_eq!(stats.kv_pages_used, 0);
            if number == 0 {
                assert_eq!(stats.drafts.accepted, stats.drafts.checked);
            }
        }
    }
}
