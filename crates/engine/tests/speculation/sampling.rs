//! How tokens are chosen, within a block of drafts: every row as if the drafts before it were committed.

use std::collections::BTreeMap;

use draft::{Ngram, NgramOptions, Occurrence};
use engine::{FinishReason, GrammarCompiler, GrammarSource, SamplingParams};

use crate::support::*;
use testkit::byte_tokenizer;

#[test]
fn a_word_said_48_times_goes_on_as_without_drafts() {
    let word = [104, 101, 121, 32];
    let requests: Vec<_> = (0..4).map(|more| request(word.repeat(48 - more), tokens(0.0, 32))).collect();
    for occurrence in [Occurrence::First, Occurrence::Last] {
        let ngram = Ngram(NgramOptions { min: 1, max: 4, drafts: 4, occurrence });
        for _ in 0..5 {
            unchanged(&requests, Box::new(ngram));
        }
    }
}

/// Requests that differ in `change`, with answers that the drafter knows: its drafts are accepted, and what then follows
/// is judged by drafts before it.
fn unchanged_with(changes: &[&dyn Fn(SamplingParams) -> SamplingParams]) {
    let mut requests = Vec::new();
    for change in changes {
        for temperature in [0.0, 1.0] {
            for length in [20, 33] {
                requests.push(request(prompt(length), change(tokens(temperature, 48))));
            }
        }
    }
    let want = plainly(&requests);
    let (_, stats) = unchanged(&requests, knowing(texts(&requests, &want), 8).0);
    assert!(stats.drafts.accepted > 20 * requests.len() as u64, "{stats:?}");
    // Drafts that repeat what was just said: what penalties are about.
    unchanged(&requests, scripted(|ask| Ok(chain(ask, &[ask.anchor(); 4]))).0);
}

#[test]
fn penalties_count_the_drafts_before_a_row() {
    unchanged_with(&[
        &|params| SamplingParams { repetition_penalty: 0.5, ..params },
        &|params| SamplingParams { repetition_penalty: 1.2, ..params },
        &|params| SamplingParams { repetition_penalty: 1.5, ..params },
        &|params| SamplingParams { presence_penalty: 1.5, ..params },
        &|params| SamplingParams { frequency_penalty: -1.0, ..params },
        &|params| SamplingParams { frequency_penalty: 0.7, presence_penalty: 0.3, repetition_penalty: 1.1, ..params },
    ]);
}

#[test]
fn filters_and_biases_hold_for_drafted_rows_and_the_one_after() {
    unchanged_with(&[
        &|params| SamplingParams { top_k: 3, ..params },
        &|params| SamplingParams { top_p: 0.5, ..params },
        &|params| SamplingParams { min_p: 0.2, ..params },
        &|params| SamplingParams { typical_p: 0.4, ..params },
        &|params| SamplingParams { logit_bias: BTreeMap::from([(65, 5.0), (66, -100.0)]), ..params },
        &|params| SamplingParams { min_tokens: 40, stop_tokens: (0..100).collect(), ..params },
    ]);
}

#[test]
fn a_banned_token_never_comes_however_often_it_is_drafted() {
    for temperature in [0.0, 1.5] {
        let favourite = plainly(&[request(prompt(20), tokens(temperature, 30))])[0].tokens[1];
        let logit_bias = BTreeMap::from([(favourite, -100.0)]);
        let requests = [request(prompt(20), SamplingParams { logit_bias, ..tokens(temperature, 30) })];
        let (usages, stats) = unchanged(&requests, scripted(move |ask| Ok(chain(ask, &[favourite; 3]))).0);
        assert_eq!((usages[0].accepted_tokens, stats.drafts.accepted), (0, 0));
    }
}

#[test]
fn choices_of_one_request_draw_each_their_own_and_come_again() {
    let mut request = request(prompt(40), tokens(1.0, 30));
    request.n = 4;
    let requests = [request];
    let (first, stats) = answers(options(), Some(Box::new(Ngram::default())), &requests);
    let plain = plainly(&requests);
    assert!(first.iter().map(|(answer, _)| answer).eq(&plain), "with drafts as without");
    assert!((1..4).all(|choice| first[choice].0 != first[0].0), "each its own");
    assert_eq!(stats.prompt_tokens, 40, "the prompt is computed once");
}

fn grammar(lark: &str) -> engine::Grammar {
    GrammarCompiler::new(&byte_tokenizer()).unwrap().compile(&GrammarSource::Lark(lark.into())).unwrap()
}

#[test]
fn drafts_that_the_grammar_forbids_are_dropped_without_a_word() {
    let grammar = grammar("start: (\"ab\" | \"ba\" | \"c\")+");
    for temperature in [0.0, 1.0] {
        let params = SamplingParams { grammar: Some(grammar.clone()), ..tokens(temperature, 40) };
        let requests = [request(prompt(12), params.clone()), request(prompt(25), params)];
        // Never allowed, allowed now and then, and good for two tokens and no third.
        for script in [&[88, 89][..], &[97], &[97, 98, 88, 99]] {
            let script = script.to_vec();
            unchanged(&requests, scripted(move |ask| Ok(chain(ask, &script))).0);
        }
    }
}

#[test]
fn the_end_of_the_grammar_within_a_block_is_the_end_of_the_answer() {
    let params = SamplingParams { grammar: Some(grammar("start: \"abcdef\"")), ..tokens(0.0, 40) };
    let requests = [request(prompt(12), params)];
    let (drafter, log) = scripted(|ask| {
        let said = ask.tokens.len() - ask.prompt;
        Ok(chain(ask, &[98, 99, 100, 101, 102, 97, 98, 99][said - 1..]))
    });
    let (usages, _) = unchanged(&requests, drafter);
    assert_eq!((usages[0].output_tokens, usages[0].accepted_tokens), (6, 5));
    assert_eq!(plainly(&requests)[0].finish, Some(FinishReason::Stop));
    assert_eq!(log.lock().unwrap().asks.len(), 1, "one round, and none after the end");
}
