//! Pages of keys and values, and the cache of prefixes: with drafts as without.

use draft::Ngram;
use engine::batch::ServiceOptions;
use kernels::{KvFormat, PAGE};

use crate::support::*;

#[test]
fn the_next_turn_finds_the_whole_answer_in_the_cache() {
    let first = [request(prompt(40), tokens(1.0, 50))];
    let answer = plainly(&first).remove(0);
    let turn = [&first[0].prompt[..], &answer.tokens, &prompt(9)].concat();
    let second = [request(turn, tokens(1.0, 10))];
    let mut cached = Vec::new();
    for drafter in [None, Some(knowing(texts(&first, std::slice::from_ref(&answer)), 8).0)] {
        let service = service(options(), drafter);
        let (got, _) = ask(&service.handle(), &first).remove(0);
        assert_eq!(got, answer);
        cached.push(ask(&service.handle(), &second)[0].1.cached_tokens);
    }
    // The last token of an answer is never computed: nothing came after it.
    assert_eq!(cached, [(40 + 49) / PAGE * PAGE; 2]);
}

#[test]
fn a_drafter_changes_no_hit_of_the_prefix_cache() {
    // Beginnings of one text, each asked after the others were answered.
    let requests: Vec<_> = [64, 33, 96, 64, 80, 17].map(|length| request(prompt(length), tokens(1.0, 20))).into();
    let hits = |drafter| {
        let service = service(options(), drafter);
        let usages = requests.iter().map(|request| ask(&service.handle(), std::slice::from_ref(request))[0].1);
        usages.map(|usage| usage.cached_tokens).collect::<Vec<_>>()
    };
    let plain = hits(None);
    assert!(plain.iter().sum::<usize>() > 150, "{plain:?}");
    assert_eq!(hits(Some(stubborn(&[1, 2, 3, 4, 5]))), plain);
    assert_eq!(hits(Some(Box::new(Ngram::default()))), plain);
}

#[test]
fn acceptance_after_a_hit_is_that_without_one() {
    let first = [request(prompt(80), tokens(1.0, 40))];
    let known = texts(&first, &plainly(&first));
    let service = service(options(), Some(knowing(known, 4).0));
    let (cold, cold_usage) = ask(&service.handle(), &first).remove(0);
    let (hit, hit_usage) = ask(&service.handle(), &first).remove(0);
    assert!(hit_usage.cached_tokens > 0 && cold_usage.cached_tokens == 0);
    assert_eq!(hit, cold);
    assert!(hit_usage.accepted_tokens > 20);
    assert_eq!(hit_usage.accepted_tokens, cold_usage.accepted_tokens);
}

#[test]
fn rejected_drafts_are_written_into_no_page_that_others_read() {
    let shared = prompt(4 * PAGE);
    let mut requests = Vec::new();
    for more in [0, 1, PAGE - 1] {
        let mut own = shared.clone();
        own.extend((0..more).map(|i| (i * 3) as u32));
        requests.extend([request(own.clone(), tokens(0.0, 30)), request(own, tokens(1.2, 30))]);
    }
    let want = plainly(&requests);
    let service = service(options(), Some(stubborn(&[9, 9, 9, 9, 9, 9, 9, 9])));
    // Together on the same pages, and again on what the first time left there.
    for _ in 0..3 {
        let got = ask(&service.handle(), &requests);
        assert!(got.iter().map(|(answer, _)| answer).eq(&want));
    }
    let stats = service.handle().stats();
    assert!(stats.cached_prompt_tokens > 500 && stats.drafts.checked > 1000, "{stats:?}");
}

#[test]
fn drafts_change_nothing_in_any_number_format_of_keys_and_values() {
    let requests = [request(prompt(30), tokens(0.0, 40)), request(prompt(50), tokens(1.0, 40))];
    for kv_format in [KvFormat::F16, KvFormat::F32] {
        let options = ServiceOptions { kv_format, ..options() };
        let (want, _) = answers(options, None, &requests);
        let want: Vec<Answer> = want.into_iter().map(|(answer, _)| answer).collect();
        let (got, stats) = answers(options, Some(knowing(texts(&requests, &want), 6).0), &requests);
        assert!(got.iter().map(|(answer, _)| answer).eq(&want), "{kv_format:?}");
        assert!(stats.drafts.accepted > 20);
    }
}
