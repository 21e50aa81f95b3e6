//! Where answers end: in the midst of a block of drafts.

use std::collections::BTreeMap;

use engine::{FinishReason, SamplingParams};
use kernels::PAGE;
use testkit::EOS;

use crate::support::*;

/// An answer of 40 tokens, with a text that has drafts for it.
fn long() -> (Vec<u32>, Answer) {
    let prompt = prompt(30);
    let answer = plainly(&[request(prompt.clone(), tokens(1.3, 40))]).remove(0);
    (prompt, answer)
}

/// The first place from `from` at which a token stands that did not stand before.
fn new_token(answer: &Answer, from: usize) -> usize {
    (from..answer.tokens.len()).find(|&at| !answer.tokens[..at].contains(&answer.tokens[at])).unwrap()
}

#[test]
fn an_end_token_amid_accepted_drafts_ends_the_answer_there() {
    let (prompt, long) = long();
    let end = new_token(&long, 3);
    let params = SamplingParams { stop_tokens: vec![long.tokens[end]], ..tokens(1.3, 40) };
    let requests = [request(prompt.clone(), params)];
    // The drafts go on beyond the end, as the answer would have.
    let (drafter, log) = knowing(vec![[prompt.clone(), long.tokens.clone()].concat()], 8);
    let (usages, stats) = unchanged(&requests, drafter);
    assert_eq!(usages[0].output_tokens, end + 1);
    assert_eq!(stats.generated_tokens, end as u64 + 1, "nothing was committed beyond the end");
    assert!(usages[0].accepted_tokens <= usages[0].drafted_tokens && usages[0].drafted_tokens <= end);
    let log = log.lock().unwrap();
    assert_eq!(log.finished[0].1, [&prompt, &long.tokens[..=end]].concat(), "the drafter hears of no later token");
    assert!(log.asks.iter().all(|(_, tokens, _)| tokens.len() <= prompt.len() + end), "it is not asked after the end");
}

#[test]
fn drafts_of_the_end_token_change_nothing() {
    for temperature in [0.0, 1.0, 1.5] {
        let requests = [5, 16, 40].map(|length| {
            let params = SamplingParams { ignore_eos: false, ..tokens(temperature, 40) };
            request(prompt(length), params)
        });
        unchanged(&requests, stubborn(&[EOS, EOS]));
    }
}

#[test]
fn a_stop_string_within_a_block_cuts_text_tokens_log_probabilities_and_usage_at_one_token() {
    // Letters only, so that any part of the answer can be a stop string.
    let others = (0..256).filter(|token| !(97..123).contains(token));
    let logit_bias: BTreeMap<u32, f32> = others.map(|token| (token, -100.0)).collect();
    let params = SamplingParams { logit_bias, ..tokens(1.3, 40) };
    let long = plainly(&[request(prompt(30), params.clone())]).remove(0);
    // Of one token, and of five that two or more rounds share.
    for (length, depth) in [(1, 8), (5, 8), (5, 1), (5, 2), (5, 3)] {
        let at = new_token(&long, 5);
        let stop = vec![long.text[at..at + length].to_owned()];
        let requests = [request(prompt(30), SamplingParams { stop, ..params.clone() })];
        let (drafter, _) = knowing(vec![[prompt(30), long.tokens.clone()].concat()], depth);
        let (usages, _) = unchanged(&requests, drafter);
        let answer = plainly(&requests).remove(0);
        assert_eq!(answer.finish, Some(FinishReason::StopString));
        assert_eq!((usages[0].output_tokens, answer.tokens.len()), (at + length, at + length));
        assert_eq!(answer.text, long.text[..at]);
    }
}

#[test]
fn max_tokens_is_reached_exactly_and_never_drafted_beyond() {
    let (prompt, long) = long();
    for max in [1, 2, 3, 7, 8, 9, 10, 17] {
        let requests = [request(prompt.clone(), tokens(1.3, max))];
        let (drafter, log) = knowing(vec![[prompt.clone(), long.tokens.clone()].concat()], 8);
        let (got, stats) = answers(options(), Some(drafter), &requests);
        assert_eq!(got[0].0.tokens, long.tokens[..max]);
        assert_eq!((got[0].1.output_tokens, got[0].0.finish), (max, Some(FinishReason::Length)));
        assert_eq!(stats.drafts.checked > 0, max > 2, "the last token needs no draft");
        for (_, tokens, max_drafts) in &log.lock().unwrap().asks {
            assert!(max_drafts + 1 + tokens.len() <= prompt.len() + max, "{max_drafts} at {}", tokens.len());
        }
    }
}

#[test]
fn the_context_is_filled_exactly_and_never_drafted_beyond() {
    for context in [3 * PAGE, 3 * PAGE + 5] {
        let requests = [request(prompt(30), SamplingParams { max_tokens: None, ..tokens(1.3, 1) })];
        let limited = engine::batch::ServiceOptions { context: Some(context), ..options() };
        let (want, _) = answers(limited, None, &requests);
        let (drafter, log) = knowing(texts(&requests, &[want[0].0.clone()]), 8);
        let (got, stats) = answers(limited, Some(drafter), &requests);
        assert_eq!(got[0].0, want[0].0);
        assert_eq!((got[0].1.output_tokens, got[0].0.finish), (context - 30, Some(FinishReason::Length)));
        assert!(stats.drafts.accepted > 0);
        let log = log.lock().unwrap();
        assert!(log.asks.iter().all(|(_, tokens, max_drafts)| tokens.len() + max_drafts < context));
    }
}

#[test]
fn nothing_ends_an_answer_within_min_tokens() {
    let (prompt, long) = long();
    let at = new_token(&long, 3);
    let params = SamplingParams { stop_tokens: vec![long.tokens[at]], min_tokens: at + 5, ..tokens(1.3, 40) };
    let requests = [request(prompt.clone(), params)];
    // The end token is drafted where it may not come, and not at all.
    unchanged(&requests, knowing(vec![[prompt.clone(), long.tokens.clone()].concat()], 8).0);
    unchanged(&requests, scripted(move |ask| Ok(chain(ask, &[long.tokens[at]]))).0);
}

#[test]
fn a_character_that_two_rounds_share_comes_whole() {
    // Copies of a text of characters of two to four bytes, byte by byte.
    let text = "Größe → 漢字 🦀 Größe → 漢字 🦀 ";
    let bytes: Vec<u32> = text.bytes().map(u32::from).collect();
    for depth in 1..=4 {
        // Drives the model along the text: it is greedy, and nothing else is allowed.
        let want: Vec<u32> = bytes.clone();
        let grammar = engine::GrammarCompiler::new(&testkit::byte_tokenizer())
            .unwrap()
            .compile(&engine::GrammarSource::Lark(format!("start: {text:?}")))
            .unwrap();
        let params = SamplingParams { grammar: Some(grammar), max_tokens: Some(200), ..SamplingParams::default() };
        let requests = [request(prompt(9), params)];
        let (drafter, _) = knowing(vec![[prompt(9), want.clone()].concat()], depth);
        let (_, stats) = unchanged(&requests, drafter);
        assert!(stats.drafts.accepted > 10);
        assert_eq!(plainly(&requests)[0].text, text);
    }
}
