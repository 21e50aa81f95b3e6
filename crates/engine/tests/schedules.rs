//! The promise: what a request answers does not depend on the schedule. The same requests alone, together, in any order
//! of arrival, with too few pages, in any chunks, with and without the prefix cache, on one thread and on two.

mod common;

use std::collections::BTreeMap;
use std::sync::mpsc;

use common::{byte_tokenizer, tiny_llama};
use engine::batch::{Event, Service, ServiceOptions, Stats, Submission};
use engine::{FinishReason, GrammarCompiler, GrammarSource, SamplingParams};
use kernels::{KvFormat, PAGE};
use proptest::prelude::*;

const CONTEXT: usize = 320;

/// A token and its log-probabilities, by their bits.
#[derive(Debug, Clone, PartialEq)]
struct Token {
    token: u32,
    logprob: Option<u32>,
    top: Vec<(u32, u32)>,
}

/// All that a client sees of one choice.
#[derive(Debug, Default, Clone, PartialEq)]
struct Answer {
    tokens: Vec<Token>,
    text: String,
    end: Option<(FinishReason, usize, usize)>,
}

/// Answers by request and choice.
type Answers = BTreeMap<(usize, u32), Answer>;

#[derive(Debug, Clone)]
struct Schedule {
    pages: usize,
    row_budget: usize,
    max_running: usize,
    prefix_cache: bool,
    threads: usize,
    /// Which request arrives when.
    order: Vec<usize>,
    /// Another one arrives after so many events; 0: all at once.
    pace: usize,
}

const REQUESTS: usize = 40;

/// Requests that differ in everything; some begin alike, and many prompts are whole pages or one token off.
fn requests() -> Vec<Submission> {
    let lengths: [usize; REQUESTS] = [
        1, 2, 15, 16, 17, 31, 32, 33, 48, 64, 65, 90, 100, 127, 128, 129, 160, 200, 250, 300, 3, 5, 8, 13, 21, 34, 55,
        89, 144, 233, 47, 49, 63, 79, 81, 95, 97, 111, 113, 145,
    ];
    let compiler = GrammarCompiler::new(&byte_tokenizer()).unwrap();
    let lark = "start: (WORD | number)+\nWORD: /[a-zé]{2,9} /\nnumber: %json { \"type\": [\"number\", \"array\"] }";
    let grammar = compiler.compile(&GrammarSource::Lark(lark.into())).unwrap();
    let request = |(i, &length): (usize, &usize)| {
        let family = [3, 7, 3, 11][i % 4];
        let own = |p: usize| if p < length * 2 / 3 { 0 } else { i };
        let prompt = (0..length).map(|p| ((p * family + p * p / 5 + own(p) * 13) % 250) as u32).collect();
        let params = SamplingParams {
            temperature: [0.0, 0.7, 1.0, 1.5][i % 4],
            top_k: [0, 40, 0][i % 3],
            top_p: [1.0, 0.9, 1.0, 1.0, 0.95][i % 5],
            min_p: [0.0, 0.0, 0.02][i % 3],
            repetition_penalty: [1.0, 1.0, 1.2][i % 3],
            frequency_penalty: [0.0, 0.4][i % 2],
            seed: 1000 + i as u64 / 2,
            stop: if i % 3 == 1 { vec!["A".into(), "q".into(), "e".into(), "5".into()] } else { vec![] },
            stop_tokens: if i % 5 == 2 { vec![7, 8, 9] } else { vec![] },
            max_tokens: [Some(40), Some(1), Some(75), None][i % 4],
            min_tokens: if i % 4 == 0 { 5 } else { 0 },
            ignore_eos: i % 2 == 0,
            logprobs: [None, Some(0), Some(3)][i % 3],
            grammar: (i % 7 < 2).then(|| grammar.clone()),
            ..Default::default()
        };
        let cache_salt = (i % 6 == 5).then(|| "tenant".to_owned());
        Submission { prompt, params, n: [1, 1, 3, 1, 2][i % 5], cache_salt, priority: [0, 0, 1, -1][i % 4] }
    };
    lengths.iter().enumerate().map(request).collect()
}

fn run(requests: &[Submission], schedule: &Schedule) -> (Answers, Stats) {
    let (model, pool) = tiny_llama(schedule.threads);
    let kv_bytes = schedule.pages * model.kv_layout(KvFormat::F16).bytes_per_page();
    let Schedule { row_budget, max_running, prefix_cache, .. } = *schedule;
    let context = Some(CONTEXT);
    let options = ServiceOptions { kv_bytes, context, row_budget, max_running, prefix_cache, ..Default::default() };
    let service = Service::start(model, byte_tokenizer(), pool, options);
    let handle = service.handle();
    let (events, inbox) = mpsc::channel();
    let mut arrivals = schedule.order.iter();
    let mut arrive = || {
        let &index = arrivals.next()?;
        let events = events.clone();
        handle.submit(requests[index].clone(), Box::new(move |event| events.send((index, event)).unwrap())).unwrap();
        Some(requests[index].n as usize)
    };
    let mut answers = Answers::new();
    // Choices that have not ended, and events so far.
    let (mut open, mut seen) = (0, 0);
    loop {
        if open == 0 || schedule.pace == 0 || seen % schedule.pace == 0 {
            let arrived = arrive();
            open += arrived.unwrap_or(0);
            if arrived.is_some() && schedule.pace == 0 {
                continue;
            }
        }
        if open == 0 {
            return (answers, handle.stats());
        }
        let (index, event) = inbox.recv().unwrap();
        open -= usize::from(note(&mut answers, index, event));
        seen += 1;
    }
}

/// Adds an event to the answers, and says whether it was a choice's last.
fn note(answers: &mut Answers, index: usize, event: Event) -> bool {
    match event {
        Event::Delta { choice, delta } => {
            let answer = answers.entry((index, choice)).or_default();
            let top = delta.top.iter().map(|&(token, logprob)| (token, logprob.to_bits())).collect();
            answer.tokens.push(Token { token: delta.token, logprob: delta.logprob.map(f32::to_bits), top });
            answer.text.push_str(&delta.text);
            assert_eq!(answer.end, None, "a token after the end");
            false
        }
        Event::Finished { choice, reason, usage } => {
            let answer = answers.entry((index, choice)).or_default();
            assert_eq!(answer.end, None, "a second end");
            answer.end = Some((reason, usage.prompt_tokens, usage.output_tokens));
            true
        }
        Event::Failed { message, .. } => panic!("request {index}: {message}"),
    }
}

fn all_at_once(requests: &[Submission]) -> Schedule {
    let order = (0..requests.len()).collect();
    Schedule { pages: 900, row_budget: 512, max_running: 64, prefix_cache: false, threads: 1, order, pace: 0 }
}

/// Each request in a service of its own.
fn alone(requests: &[Submission]) -> Answers {
    let schedule = |index| Schedule { order: vec![index], ..all_at_once(requests) };
    (0..requests.len()).flat_map(|index| run(requests, &schedule(index)).0).collect()
}

fn check(requests: &[Submission], want: &Answers, schedule: &Schedule) -> Stats {
    let (answers, stats) = run(requests, schedule);
    for (key, answer) in want {
        assert_eq!(answers.get(key), Some(answer), "request and choice {key:?} with {schedule:?}");
    }
    assert_eq!((stats.kv_pages_used, stats.running, stats.waiting), (0, 0, 0), "with {schedule:?}");
    stats
}

#[test]
fn the_requests_are_worth_testing_with() {
    let answers = alone(&requests());
    for wanted in [FinishReason::Stop, FinishReason::StopString, FinishReason::Length] {
        assert!(answers.values().any(|answer| answer.end.is_some_and(|end| end.0 == wanted)), "no {wanted:?}");
    }
    let long = answers.values().filter(|answer| answer.tokens.len() > 30).count();
    assert!(long >= 8, "{long} long answers");
    let choices = [&answers[&(2, 0)].tokens, &answers[&(2, 1)].tokens, &answers[&(2, 2)].tokens];
    assert!(choices[0] != choices[1] && choices[1] != choices[2], "choices have noise of their own");
}

#[test]
fn no_schedule_changes_an_answer() {
    let requests = requests();
    let want = alone(&requests);
    let base = all_at_once(&requests);
    let backwards = Schedule { order: base.order.iter().rev().copied().collect(), ..base.clone() };
    for row_budget in [1, 2, 7, 16, 61, 256, 512] {
        for prefix_cache in [false, true] {
            check(
                &requests,
                &want,
                &Schedule { row_budget, prefix_cache, threads: 1 + row_budget % 2, ..base.clone() },
            );
        }
    }
    check(&requests, &want, &backwards);
    let stats = check(&requests, &want, &Schedule { prefix_cache: true, max_running: 3, ..backwards.clone() });
    assert!(stats.cached_prompt_tokens > 100, "prefixes were shared: {stats:?}");
    for prefix_cache in [false, true] {
        let pages = CONTEXT / PAGE + 4;
        let stats =
            check(&requests, &want, &Schedule { pages, prefix_cache, max_running: 12, pace: 3, ..base.clone() });
        assert!(stats.preemptions > 0, "too many pages to test preemption: {stats:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    #[test]
    fn no_random_schedule_changes_an_answer(
        pages in CONTEXT / PAGE..80,
        row_budget in 1usize..=512,
        max_running in 3usize..24,
        prefix_cache: bool,
        threads in 1usize..=2,
        order in Just((0..REQUESTS).collect::<Vec<usize>>()).prop_shuffle(),
        pace in 0usize..40,
    ) {
        static WANT: std::sync::OnceLock<Answers> = std::sync::OnceLock::new();
        let requests = requests();
        let want = WANT.get_or_init(|| alone(&requests));
        check(&requests, want, &Schedule { pages, row_budget, max_running, prefix_cache, threads, order, pace });
    }
}
