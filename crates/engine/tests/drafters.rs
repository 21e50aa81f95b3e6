//! Drafters without a model change no answer, alone, merged or chosen among, and with windows that are computed along.

use std::ops::ControlFlow;

use draft::{
    Auto, Datastore, DatastoreBuilder, DatastoreOptions, Drafter, Lookahead, LookaheadOptions, Merged, Ngram,
    Predicted, Store, Suffix, SuffixOptions,
};
use engine::batch::{Check, Speculation, Stats};
use engine::{Drafting, Engine, EngineOptions, SamplingParams};
use spec::CostCurve;
use testkit::{byte_tokenizer, tiny_llama};

/// The answer to a prompt, and what was done for it. Rows cost next to nothing, so that whatever is proposed is checked.
fn answer(params: &SamplingParams, drafter: Option<Box<dyn Drafter>>) -> (Vec<u32>, Stats) {
    let curve = CostCurve::new(&[1, 2], &[0], &[1e3, 1e3 * 1.000_001]).unwrap();
    speculated(params, drafter.map(|drafter| Speculation::new(drafter, 8, curve)))
}

fn speculated(params: &SamplingParams, speculation: Option<Speculation>) -> (Vec<u32>, Stats) {
    let (model, pool) = tiny_llama(1);
    let mut engine = Engine::new(model, byte_tokenizer(), pool, EngineOptions::default(), speculation);
    let prompt: Vec<u32> = (0..40).map(|place| (place * place * 7 + place / 3) % 50).collect();
    let mut tokens = Vec::new();
    let drafting = Drafting { predicted: (0..30).collect(), ..Drafting::default() };
    let taken = engine.generate(&prompt, params.clone(), &drafting, |delta| {
        tokens.push(delta.token);
        ControlFlow::Continue(())
    });
    taken.unwrap();
    (tokens, engine.stats())
}

fn params(temperature: f32) -> SamplingParams {
    SamplingParams { temperature, seed: 11, max_tokens: Some(80), ignore_eos: true, ..SamplingParams::default() }
}

fn lookahead() -> Box<dyn Drafter> {
    Box::new(Lookahead::new(LookaheadOptions::default()))
}

/// Retrieves from texts of which one is the answer itself.
fn datastore(answer: &[u32]) -> Box<dyn Drafter> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("texts");
    let mut builder = DatastoreBuilder::new(256, byte_tokenizer().fingerprint(), 1000);
    builder.add(&[1, 2, 3]).unwrap();
    builder.add(answer).unwrap();
    builder.write(&path, 1, &|_| ()).unwrap();
    let store = Store::open(&path).unwrap();
    store.check_tokenizer(&path, &byte_tokenizer()).unwrap();
    Box::new(Datastore::new(store, DatastoreOptions::default()))
}

#[test]
fn no_drafter_changes_an_answer() {
    for temperature in [0.0, 1.0] {
        let (plain, _) = answer(&params(temperature), None);
        let ngram = || Box::new(Ngram::default()) as Box<dyn Drafter>;
        let suffix = || Box::new(Suffix::new(SuffixOptions::default())) as Box<dyn Drafter>;
        let drafters: [Box<dyn Drafter>; 7] = [
            ngram(),
            suffix(),
            lookahead(),
            datastore(&plain),
            Box::new(Auto::new(vec![lookahead()])),
            Box::new(Auto::new(vec![Box::new(Predicted), ngram(), suffix(), datastore(&plain)])),
            Box::new(Auto::new(vec![Box::new(Merged::new(vec![ngram(), lookahead(), datastore(&plain)]))])),
        ];
        for drafter in drafters {
            let name = drafter.name();
            let (drafted, stats) = answer(&params(temperature), Some(drafter));
            assert_eq!(drafted, plain, "{name} at {temperature}");
            assert!(stats.drafts.checked > 0, "{name} drafted");
        }
        let (_, stats) = answer(&params(temperature), Some(datastore(&plain)));
        // Two tokens must have been said before the answer is recognised; 9 tokens a step from then on.
        assert!(stats.drafts.accepted >= 60 && stats.steps <= 20, "{:?}", stats.drafts);
    }
}

#[test]
fn drafts_of_a_fixed_length_are_checked_whatever_they_cost() {
    let (plain, _) = answer(&params(0.0), None);
    // A second row costs as much as ten steps.
    let dear = || CostCurve::new(&[1, 2, 3], &[0], &[1e3, 11e3, 21e3]).unwrap();
    let speculation = |check| Speculation { check, ..Speculation::new(Box::new(Ngram::default()), 8, dear()) };
    for (check, some) in [(Check::Paying, false), (Check::All, true)] {
        let (tokens, stats) = speculated(&params(0.0), Some(speculation(check)));
        assert_eq!((tokens, stats.drafts.checked > 0), (plain.clone(), some), "{check:?}");
    }
}

#[test]
fn windows_are_computed_and_what_is_said_there_is_drafted() {
    let windows = |window| {
        let options = LookaheadOptions { window, prompt: 0, ..LookaheadOptions::default() };
        let (_, stats) = answer(&params(0.0), Some(Box::new(Lookahead::new(options))));
        (stats.drafts.checked, stats.drafts.accepted)
    };
    let ((few, without), (many, with)) = (windows(0), windows(4));
    assert!(many >= few + 16 * 6, "a window's rows at each of its first steps: {many} and {few}");
    assert!(with >= without, "{with} drafts stood, and {without} without windows");
}
