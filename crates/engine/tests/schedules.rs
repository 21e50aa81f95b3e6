//! The promise: what a request answers does not depend on the schedule. The same requests alone, together, in any order
//! of arrival, with too few pages, in any chunks, with and without the prefix cache, on one thread and on two, and with
//! drafts of any quality.

use std::collections::BTreeMap;
use std::sync::mpsc;

use draft::{Ask, DraftError, Drafter, Key, Round, Silence};
use engine::batch::{Event, Service, ServiceOptions, Speculation, Stats, Submission};
use engine::{Drafting, FinishReason, GrammarCompiler, GrammarSource, SamplingParams};
use kernels::{KvFormat, PAGE};
use proptest::prelude::*;
use spec::{CostCurve, Proposal};
use testkit::{byte_tokenizer, tiny_llama};

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
    /// Drafts are proposed, of this quality.
    drafts: Option<Quality>,
}

/// How good the drafts of [`Foresight`] are.
#[derive(Debug, Clone, Copy)]
struct Quality {
    /// One draft in so many is wrong.
    wrong: u64,
    /// Each draft gets so many siblings, which are wrong unless it is itself.
    siblings: u32,
    seed: u64,
}

/// A drafter that knows the answers, and spoils them.
struct Foresight {
    texts: Vec<Vec<u32>>,
    quality: Quality,
    calls: u64,
}

impl Foresight {
    fn new(requests: &[Submission], answers: &Answers, quality: Quality) -> Self {
        let text = |(&(request, _), answer): (&(usize, u32), &Answer)| {
            let outputs = answer.tokens.iter().map(|token| token.token);
            requests[request].prompt.iter().copied().chain(outputs).collect()
        };
        Self { texts: answers.iter().map(text).collect(), quality, calls: 0 }
    }

    /// A number that looks random.
    fn roll(&mut self) -> u64 {
        self.calls += 1;
        let mixed = (self.calls ^ self.quality.seed << 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 32
    }

    fn tree(&mut self, ask: &Ask<'_>) -> Proposal {
        let known = self.texts.iter().find(|text| text.len() > ask.tokens.len() && text.starts_with(ask.tokens));
        let next: Vec<u32> = known.map_or(vec![65; 6], |text| text[ask.tokens.len()..].to_vec());
        let mut proposal = Proposal::new(ask.anchor());
        let (mut parent, depth) = (0, self.roll() as usize % 9);
        for &token in next.iter().take(ask.max_drafts.min(depth)) {
            let wrong = self.roll().is_multiple_of(self.quality.wrong);
            let token = if wrong { (token + 1) % 250 } else { token };
            let before = self.roll().is_multiple_of(2);
            let mut nodes = Vec::new();
            let siblings = (0..self.quality.siblings).map(|i| (token + 7 * (i + 1)) % 250);
            for token in siblings.clone().filter(|_| before).chain([token]).chain(siblings.filter(|_| !before)) {
                nodes.push((proposal.add_point(parent, token, 0.999).unwrap(), token));
            }
            parent = nodes.iter().find(|node| node.1 == token).unwrap().0;
        }
        proposal
    }
}

impl Drafter for Foresight {
    fn name(&self) -> &'static str {
        "foresight"
    }

    fn propose(&mut self, _: &mut Round<'_>, asks: &[Ask<'_>]) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
        Ok(asks.iter().map(|ask| Ok(self.tree(ask))).collect())
    }

    fn finished(&mut self, _: Key, _: &[u32], _: usize) {}
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
        Submission {
            prompt,
            params,
            n: [1, 1, 3, 1, 2][i % 5],
            cache_salt,
            priority: [0, 0, 1, -1][i % 4],
            drafting: Drafting { enabled: i % 7 != 6, max_drafts: [None, Some(3), None][i % 3], ..Drafting::default() },
        }
    };
    lengths.iter().enumerate().map(request).collect()
}

fn run(requests: &[Submission], schedule: &Schedule, known: &Answers) -> (Answers, Stats) {
    let (model, pool) = tiny_llama(schedule.threads);
    let kv_bytes = schedule.pages * model.kv_layout(KvFormat::F16).bytes_per_page();
    let Schedule { row_budget, max_running, prefix_cache, .. } = *schedule;
    let context = Some(CONTEXT);
    let options = ServiceOptions { kv_bytes, context, row_budget, max_running, prefix_cache, ..Default::default() };
    let speculation = schedule
        .drafts
        .map(|quality| Speculation::new(Box::new(Foresight::new(requests, known, quality)), 8, free_rows()));
    let service = Service::start(model, byte_tokenizer(), pool, options, speculation);
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
    Schedule {
        pages: 900,
        row_budget: 512,
        max_running: 64,
        prefix_cache: false,
        threads: 1,
        order,
        pace: 0,
        drafts: None,
    }
}

/// Each request in a service of its own.
fn alone(requests: &[Submission]) -> Answers {
    let schedule = |index| Schedule { order: vec![index], ..all_at_once(requests) };
    (0..requests.len()).flat_map(|index| run(requests, &schedule(index), &Answers::new()).0).collect()
}

fn check(requests: &[Submission], want: &Answers, schedule: &Schedule) -> Stats {
    let (answers, stats) = run(requests, schedule, want);
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

/// Steps cost the same whatever their rows: every draft is checked.
fn free_rows() -> CostCurve {
    CostCurve::new(&[1, 2], &[0], &[1.0, 1.000_001]).unwrap()
}

#[test]
fn no_draft_changes_an_answer() {
    let requests = requests();
    let want = alone(&requests);
    let base = all_at_once(&requests);
    for (wrong, siblings) in [(1, 0), (1_000_000, 0), (4, 0), (3, 2), (1, 3)] {
        for (prefix_cache, threads, row_budget) in [(false, 1, 512), (true, 2, 16)] {
            let drafts = Some(Quality { wrong, siblings, seed: wrong + u64::from(siblings) });
            let schedule = Schedule { drafts, prefix_cache, threads, row_budget, ..base.clone() };
            let stats = check(&requests, &want, &schedule);
            assert!(stats.drafts.checked > 500, "drafts were checked: {stats:?}");
            assert_eq!(stats.drafts.accepted > 500, wrong > 1, "good drafts were accepted: {stats:?}");
        }
    }
    let drafts = Some(Quality { wrong: 5, siblings: 1, seed: 9 });
    let scarce = Schedule { pages: CONTEXT / PAGE + 4, max_running: 12, pace: 3, drafts, ..base };
    let stats = check(&requests, &want, &scarce);
    assert!(stats.preemptions > 0, "too many pages to test preemption: {stats:?}");
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
        drafts in prop::option::of((1u64..9, 0u32..3, any::<u32>())),
    ) {
        static WANT: std::sync::OnceLock<Answers> = std::sync::OnceLock::new();
        let requests = requests();
        let want = WANT.get_or_init(|| alone(&requests));
        let quality = |(wrong, siblings, seed)| Quality { wrong, siblings, seed: u64::from(seed) };
        let drafts = drafts.map(quality);
        check(&requests, want, &Schedule { pages, row_budget, max_running, prefix_cache, threads, order, pace, drafts });
    }
}
