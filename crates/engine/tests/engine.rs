//! Whole generations on the tiny Llama of the fixtures.

use std::ops::ControlFlow;

use engine::{Delta, Drafting, Engine, EngineOptions, FinishReason, GenerateError, RequestError, SamplingParams};
use kernels::KvFormat;
use testkit::{byte_tokenizer, tiny_llama};

const PROMPT: [u32; 40] = {
    let mut prompt = [0; 40];
    let mut i = 0;
    while i < 40 {
        prompt[i] = (i as u32 * 37 + 11) % 250;
        i += 1;
    }
    prompt
};

fn engine(options: EngineOptions, threads: usize) -> Engine {
    let (model, pool) = tiny_llama(threads);
    Engine::new(model, byte_tokenizer(), pool, options, None)
}

fn sampled(max_tokens: usize) -> SamplingParams {
    SamplingParams { temperature: 1.0, seed: 7, max_tokens: Some(max_tokens), ignore_eos: true, ..Default::default() }
}

fn tokens_of(engine: &mut Engine, prompt: &[u32], params: SamplingParams) -> Vec<u32> {
    let mut tokens = vec![];
    let take = |delta: &Delta| {
        tokens.push(delta.token);
        ControlFlow::Continue(())
    };
    let generation = engine.generate(prompt, params, &Drafting::default(), take).unwrap();
    assert_eq!(generation.usage.output_tokens, tokens.len());
    assert_eq!(generation.usage.prompt_tokens, prompt.len());
    tokens
}

#[test]
fn the_output_depends_on_neither_chunks_nor_threads_nor_what_ran_before() {
    for params in [sampled(60), SamplingParams { temperature: 0.0, ..sampled(60) }] {
        let mut reference = engine(EngineOptions::default(), 1);
        let want = tokens_of(&mut reference, &PROMPT, params.clone());
        assert_eq!(want.len(), 60);
        for (prefill_chunk, threads) in [(1, 2), (7, 1), (16, 2), (39, 1), (40, 3)] {
            let mut other = engine(EngineOptions { prefill_chunk, ..Default::default() }, threads);
            assert_eq!(tokens_of(&mut other, &PROMPT, params.clone()), want, "chunks of {prefill_chunk}");
            // Pages that held another request.
            tokens_of(&mut other, &PROMPT[5..], sampled(30));
            assert_eq!(tokens_of(&mut other, &PROMPT, params.clone()), want, "after another request");
        }
    }
}

#[test]
fn going_on_from_a_prefix_gives_the_same_tokens() {
    let mut engine = engine(EngineOptions::default(), 1);
    let whole = tokens_of(&mut engine, &PROMPT, sampled(50));
    // Noise is keyed by absolute position: the first 20 tokens as part of the prompt change nothing.
    let prefix = [&PROMPT[..], &whole[..20]].concat();
    assert_eq!(tokens_of(&mut engine, &prefix, sampled(30)), &whole[20..]);
}

#[test]
fn seeds_differ_and_repeat() {
    let mut engine = engine(EngineOptions { kv_format: KvFormat::F32, ..Default::default() }, 1);
    let first = tokens_of(&mut engine, &PROMPT, sampled(40));
    assert_eq!(tokens_of(&mut engine, &PROMPT, sampled(40)), first);
    assert_ne!(tokens_of(&mut engine, &PROMPT, SamplingParams { seed: 8, ..sampled(40) }), first);
}

#[test]
fn a_prompt_longer_than_the_context_is_refused_before_anything_runs() {
    let mut engine = engine(EngineOptions { context: Some(32), ..Default::default() }, 1);
    let error = engine.generate(&PROMPT, sampled(1), &Drafting::default(), |_| panic!("a token came")).unwrap_err();
    let too_long = RequestError::PromptTooLong { prompt: 40, context: 32 };
    assert!(matches!(error, GenerateError::Request(found) if found == too_long));
}

#[test]
fn the_context_ends_a_generation() {
    let mut engine = engine(EngineOptions { context: Some(45), ..Default::default() }, 1);
    assert_eq!(tokens_of(&mut engine, &PROMPT, SamplingParams { max_tokens: None, ..sampled(1) }).len(), 5);
    // Its pages are free again.
    assert_eq!(tokens_of(&mut engine, &PROMPT, SamplingParams { max_tokens: None, ..sampled(1) }).len(), 5);
}

#[test]
fn the_receiver_can_end_a_generation() {
    let mut engine = engine(EngineOptions::default(), 1);
    let mut left = 3;
    let take = |_: &Delta| {
        left -= 1;
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let generation = engine.generate(&PROMPT, sampled(50), &Drafting::default(), take).unwrap();
    assert_eq!((generation.finish, generation.usage.output_tokens), (FinishReason::Cancelled, 3));
    assert_eq!(generation.timings.decode_tokens, 2);
}
