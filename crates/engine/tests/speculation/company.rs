//! Who else runs: requests that differ in everything, come, go, lose their pages, and want no drafts.

use std::sync::mpsc;

use draft::{Ngram, Silence, Suffix, SuffixOptions};
use engine::batch::{Event, RequestId, ServiceOptions, Sink};
use engine::{Drafting, GrammarCompiler, GrammarSource, SamplingParams};

use crate::support::*;
use testkit::byte_tokenizer;

/// Eight requests of different lengths, seeds and temperatures.
fn mixed() -> Vec<engine::batch::Submission> {
    let length = |i: usize| [3, 17, 90, 33, 64, 5, 48, 120][i];
    let request = |i: usize| {
        let params = SamplingParams { seed: i as u64, ..tokens([0.0, 1.0, 0.7, 1.3][i % 4], 20 + 3 * i) };
        request(prompt(length(i)), params)
    };
    (0..8).map(request).collect()
}

#[test]
fn requests_with_no_one_three_and_eight_drafts_share_a_step_with_chunks_of_prompts() {
    let requests = mixed();
    let want = plainly(&requests);
    let known = texts(&requests, &want);
    let script = move |ask: &draft::Ask<'_>| {
        let text = known.iter().find(|text| text.len() > ask.tokens.len() && text.starts_with(ask.tokens)).unwrap();
        let next = &text[ask.tokens.len()..];
        let depth = [0, 1, 3, 8][ask.key.request as usize % 4].min(ask.max_drafts).min(next.len());
        if depth == 0 { Err(Silence::NoMatch) } else { Ok(chain(ask, &next[..depth])) }
    };
    let chunked = ServiceOptions { row_budget: 16, ..options() };
    let (got, stats) = answers(chunked, Some(scripted(script).0), &requests);
    assert!(got.iter().map(|(answer, _)| answer).eq(&want));
    for (number, (_, usage)) in got.iter().enumerate() {
        assert_eq!(usage.accepted_tokens > 0, number % 4 > 0, "request {number}: {usage:?}");
    }
    assert!(stats.drafts.checked_at[7] > 0 && stats.drafts.checked_at[8] == 0);
}

#[test]
fn drafts_outlive_no_preemption() {
    let grammar = GrammarCompiler::new(&byte_tokenizer()).unwrap();
    let grammar = grammar.compile(&GrammarSource::Lark("start: /[a-h ]+/".into())).unwrap();
    // Short prompts, which are let in together, and long answers, for which there is then no room.
    let long = |i: usize| request(prompt(10 + 5 * i), SamplingParams { seed: i as u64, ..tokens(1.0, 80) });
    let mut requests: Vec<_> = (0..6).map(long).collect();
    for request in requests.iter_mut().step_by(2) {
        request.params.grammar = Some(grammar.clone());
    }
    let want = plainly(&requests);
    for prefix_cache in [false, true] {
        let scarce = ServiceOptions { kv_bytes: 12 * page_bytes(), max_running: 8, prefix_cache, ..options() };
        let (got, stats) = answers(scarce, Some(knowing(texts(&requests, &want), 5).0), &requests);
        assert!(got.iter().map(|(answer, _)| answer).eq(&want));
        assert!(stats.preemptions > 0 && stats.drafts.accepted > 0, "{stats:?}");
    }
}

fn page_bytes() -> usize {
    testkit::tiny_llama(1).0.kv_layout(options().kv_format).bytes_per_page()
}

#[test]
fn who_wants_no_drafts_gets_none_and_the_others_do() {
    let mut requests = mixed();
    requests.iter_mut().step_by(2).for_each(|request| request.drafting.enabled = false);
    requests[1].drafting = Drafting { max_drafts: Some(2), ..Drafting::default() };
    requests[3].drafting = Drafting { max_drafts: Some(0), ..Drafting::default() };
    let (drafter, log) = knowing(texts(&requests, &plainly(&requests)), 8);
    let (usages, _) = unchanged(&requests, drafter);
    for (number, usage) in usages.iter().enumerate() {
        assert_eq!(usage.drafted_tokens > 0, [1, 5, 7].contains(&number), "request {number}");
    }
    let log = log.lock().unwrap();
    assert!(log.asks.iter().all(|(key, _, _)| [1, 5, 7].contains(&key.request)), "nobody else is asked for");
    let most = |number| log.asks.iter().filter(|ask| ask.0.request == number).map(|ask| ask.2).max();
    assert_eq!((most(1), most(5)), (Some(2), Some(8)));
}

#[test]
fn a_cancelled_request_gives_its_pages_back_and_the_drafter_forgets_it() {
    let long = request(prompt(60), SamplingParams { max_tokens: None, ..tokens(1.0, 1) });
    let (drafter, log) = scripted(|ask| Ok(chain(ask, &[1, 2, 3, 4])));
    let service = service(options(), Some(drafter));
    let handle = service.handle();
    let (events, inbox) = mpsc::channel();
    let (name, own_name) = mpsc::channel::<RequestId>();
    let (canceller, mut left) = (handle.clone(), 6);
    // Cancels itself from within the engine's thread: drafts are then being checked in every step.
    let sink: Sink = Box::new(move |event| {
        left -= i32::from(matches!(event, Event::Delta { .. }));
        if left == 0 {
            left = -1;
            canceller.cancel(own_name.recv().unwrap());
        }
        events.send(event).unwrap();
    });
    name.send(handle.submit(long, sink).unwrap()).unwrap();
    let last = inbox.into_iter().last();
    assert!(matches!(last, Some(Event::Finished { reason: engine::FinishReason::Cancelled, .. })), "{last:?}");
    let stats = handle.stats();
    assert_eq!((stats.kv_pages_used, stats.running), (0, 0));
    assert_eq!(stats.drafts.checked, stats.generated_tokens.saturating_sub(1) * 4);
    let log = log.lock().unwrap();
    assert_eq!(log.finished.len(), 1);
    assert_eq!(log.finished[0].1.len(), 60 + stats.generated_tokens as usize);
}

#[test]
fn a_reader_that_panics_takes_its_drafts_with_it_and_nobody_elses() {
    let requests = mixed();
    let want = plainly(&requests);
    let (drafter, log) = knowing(texts(&requests, &want), 4);
    let service = service(options(), Some(drafter));
    let mut seen = 0;
    let rude: Sink = Box::new(move |_| {
        seen += 1;
        assert!(seen < 3, "as this test wants it");
    });
    service.handle().submit(request(prompt(60), tokens(1.0, 200)), rude).unwrap();
    let got = ask(&service.handle(), &requests);
    assert!(got.iter().map(|(answer, _)| answer).eq(&want));
    assert_eq!(service.handle().stats().kv_pages_used, 0);
    assert_eq!(log.lock().unwrap().finished.len(), 9);
}

#[test]
fn three_hundred_turns_leave_nothing_behind() {
    let (suffix, ngram) = (Suffix::new(SuffixOptions::default()), Ngram::default());
    let drafter = draft::Auto::new(vec![Box::new(ngram), Box::new(suffix)]);
    let service = service(ServiceOptions { kv_bytes: 60 * page_bytes(), ..options() }, Some(Box::new(drafter)));
    let mut conversations: Vec<Vec<u32>> = (1..=10).map(|i| prompt(5 * i)).collect();
    let mut accepted = Vec::new();
    for _ in 0..30 {
        let turn = |(seed, text): (u64, &Vec<u32>)| {
            let text = text[text.len().saturating_sub(100)..].to_vec();
            request(text, SamplingParams { seed, ..tokens(0.5, 12) })
        };
        let requests: Vec<_> = (0..).zip(&conversations).map(turn).collect();
        for (text, (answer, _)) in conversations.iter_mut().zip(ask(&service.handle(), &requests)) {
            text.extend(answer.tokens);
        }
        let stats = service.handle().stats();
        assert_eq!((stats.kv_pages_used, stats.running, stats.waiting), (0, 0, 0));
        assert!(stats.cached_pages <= stats.kv_pages_total);
        accepted.push(stats.drafts.accepted);
    }
    assert!(accepted[29] > accepted[15] && accepted[15] > accepted[0], "drafts go on being accepted: {accepted:?}");
}

#[test]
fn what_a_step_checks_is_bounded() {
    let requests: Vec<_> = (0..40).map(|i| request(prompt(5), SamplingParams { seed: i, ..tokens(1.0, 30) })).collect();
    let crowded = ServiceOptions { max_running: 40, ..options() };
    let (_, stats) = answers(crowded, Some(stubborn(&[1, 2, 3, 4, 5, 6, 7, 8])), &requests);
    // Each of 40 could have 9 rows. How many pay follows the clock; that is never more than the bound.
    let rows = stats.rows / stats.steps;
    assert!(rows <= 128 && stats.drafts.checked > 0, "{rows} rows a step, {:?}", stats.drafts);
}
