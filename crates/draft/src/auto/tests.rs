//! What `auto` does with drafters that know the text, take their time or fail, on a clock that only they move.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kernels::Pool;

use super::rated::kind;
use super::*;
use crate::{Choose, Chosen, Greedy, Unread};

/// Seconds of a plain step, and of a row.
const STEP: f64 = 0.010;
const ROW: f64 = 0.0005;

/// A clock in microseconds.
#[derive(Clone, Default)]
struct Clock(Arc<AtomicU64>);

impl Clock {
    fn pass(&self, seconds: f64) {
        self.0.fetch_add((seconds * 1e6).round() as u64, Ordering::Relaxed);
    }

    fn seconds(&self) -> f64 {
        self.0.load(Ordering::Relaxed) as f64 / 1e6
    }
}

/// Says the same token again and again, and that it is sure. Takes seconds for each request, and for each new token.
struct Parrot {
    token: u32,
    drafts: usize,
    clock: Clock,
    seconds: [f64; 2],
    /// Tokens that it reads in one call at most.
    reads: usize,
    calls: Arc<AtomicU64>,
    seen: HashMap<Key, usize>,
    fails: bool,
    outlook: Option<Outlook>,
}

impl Parrot {
    fn new(token: u32, clock: &Clock, seconds: f64) -> Parrot {
        let (clock, calls, seen) = (clock.clone(), Arc::default(), HashMap::new());
        Parrot {
            token,
            drafts: 4,
            clock,
            seconds: [seconds, 0.0],
            reads: usize::MAX,
            calls,
            seen,
            fails: false,
            outlook: None,
        }
    }
}

impl Drafter for Parrot {
    fn name(&self) -> &'static str {
        "parrot"
    }

    fn propose(&mut self, _: &mut Round<'_>, asks: &[Ask<'_>]) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
        let mut answers = Vec::new();
        for ask in asks {
            let seen = self.seen.entry(ask.key).or_insert(0);
            let read = (ask.tokens.len() - *seen).min(self.reads);
            *seen += read;
            self.clock.pass(self.seconds[0] + self.seconds[1] * read as f64);
            self.calls.fetch_add(1, Ordering::Relaxed);
            let drafts = (0..self.drafts).map(|_| (self.token, 0.9));
            let behind = *seen < ask.tokens.len();
            answers.push(if behind { Err(Silence::Behind) } else { crate::chain(ask.anchor(), drafts) });
        }
        if self.fails {
            return Err(DraftError { drafter: "parrot", message: "it is ill".into() });
        }
        Ok(answers)
    }

    fn outlook(&self, _: &Round<'_>, _: usize, _: &Ask<'_>) -> Outlook {
        self.outlook.unwrap_or(Outlook::OPEN)
    }

    fn finished(&mut self, _: Key, _: &[u32], _: usize) {}
}

fn auto(clock: &Clock, drafters: Vec<Box<dyn Drafter>>) -> Auto {
    let clock = clock.clone();
    Auto::with_clock(drafters, Box::new(move || clock.seconds()))
}

fn key(request: u64) -> Key {
    Key { request, choice: 0 }
}

fn propose(auto: &mut Auto, asks: &[Ask<'_>]) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
    let pool = Pool::new(NonZeroUsize::MIN);
    let mut cache = crate::alone::cache();
    auto.propose(
        &mut Round {
            pool: &pool,
            cache: &mut cache,
            step_seconds: STEP,
            row_seconds: ROW,
            checks_all: false,
            unread: &mut Unread::default(),
        },
        asks,
    )
}

fn ask<'a>(request: u64, tokens: &'a [u32], choose: &'a dyn Choose) -> Ask<'a> {
    Ask {
        key: key(request),
        tokens,
        prompt: 1,
        predicted: &[],
        max_drafts: 8,
        remaining: 64,
        choose,
        sequence: &crate::alone::NOWHERE,
    }
}

/// Lets a request that has `tokens` say `text`, one token a step as if no draft was ever checked: what is proposed in each
/// step.
fn write(auto: &mut Auto, request: u64, tokens: &mut Vec<u32>, text: &[u32]) -> Vec<Result<u32, Silence>> {
    let mut proposed = Vec::new();
    for &token in text {
        let answer = propose(auto, &[ask(request, tokens, &Greedy)]).unwrap().remove(0);
        proposed.push(answer.map(|proposal| proposal.tree().tokens()[1]));
        tokens.push(token);
    }
    proposed
}

#[test]
fn it_follows_the_text_and_each_request_for_itself() {
    let clock = Clock::default();
    let mut auto = auto(&clock, vec![Box::new(Parrot::new(1, &clock, 0.0)), Box::new(Parrot::new(2, &clock, 0.0))]);
    let mut tokens = vec![9];
    assert_eq!(write(&mut auto, 0, &mut tokens, &[1; 30]), [Ok(1); 30]);
    let changed = write(&mut auto, 0, &mut tokens, &[2; 60]);
    assert_eq!(changed[0], Ok(1), "nobody knows the future");
    assert!(changed[20..].iter().all(|&said| said == Ok(2)), "{changed:?}");
    assert_eq!(write(&mut auto, 1, &mut vec![9], &[1; 30])[20..], [Ok(1); 10], "another request, another text");
    for request in [0, 1] {
        auto.finished(key(request), &tokens, 1);
    }
    assert!(auto.taken.is_empty() && auto.drafters.iter().all(Rated::is_empty));
}

#[test]
fn a_drafter_that_takes_more_than_it_brings_is_tried_now_and_then_and_comes_back_with_the_text() {
    let clock = Clock::default();
    let parrot = Parrot::new(1, &clock, STEP / 2.0);
    let calls = parrot.calls.clone();
    let mut auto = auto(&clock, vec![Box::new(parrot)]);
    let mut tokens = vec![9];
    // Two of four drafts stand at every other step: one is brought, half of one is taken.
    let said = write(&mut auto, 0, &mut tokens, &[1; 50]);
    assert_eq!(said, [Ok(1); 50]);
    let prose = write(&mut auto, 0, &mut tokens, &[7; 1000]);
    let silent = prose.iter().filter(|said| **said == Err(Silence::DoesNotPay)).count();
    let spent = (1000 - silent) as f64 * STEP / 2.0;
    assert!(prose[..5].iter().all(Result::is_ok), "nobody knows the future");
    assert!(spent <= 1000.0 * STEP * TRYING + 20.0 * STEP, "{silent} of 1000 steps were silent");
    assert!(silent < 995, "it is tried");
    let before = calls.load(Ordering::Relaxed);
    let quoted = write(&mut auto, 0, &mut tokens, &[1; 300]);
    let first = quoted.iter().position(Result::is_ok).unwrap();
    assert!(first <= 100, "a trial comes once 0.5 % of the time have added up to it: {first}");
    assert!(quoted[first + 8..].iter().all(|said| *said == Ok(1)), "and it is back");
    assert!(calls.load(Ordering::Relaxed) - before >= 190);
}

#[test]
fn a_useless_and_slow_drafter_costs_one_request_after_another_next_to_nothing() {
    let clock = Clock::default();
    let mut parrot = Parrot::new(1, &clock, STEP);
    // A prompt of 200 tokens takes it 20 steps.
    parrot.seconds[1] = STEP / 10.0;
    let mut auto = auto(&clock, vec![Box::new(parrot)]);
    let serve = |auto: &mut Auto, request| {
        let mut tokens = vec![9; 200];
        write(auto, request, &mut tokens, &[7; 100]);
        auto.finished(key(request), &tokens, 200);
    };
    serve(&mut auto, 0);
    let learnt = clock.seconds();
    (1..=50).for_each(|request| serve(&mut auto, request));
    let spent = clock.seconds() - learnt;
    assert!(spent <= 5000.0 * STEP * TRYING + 1e-9, "{} of 5000 steps went to trying", spent / STEP);
    assert!(spent > 0.0, "it is still tried");
}

#[test]
fn catching_up_with_a_prompt_is_no_ordinary_call() {
    let clock = Clock::default();
    let mut parrot = Parrot::new(1, &clock, STEP / 10.0);
    parrot.seconds[1] = STEP / 10.0;
    let mut auto = auto(&clock, vec![Box::new(parrot)]);
    let mut tokens = vec![9; 500];
    let said = write(&mut auto, 0, &mut tokens, &[1; 40]);
    assert_eq!(said, [Ok(1); 40], "50 steps for the prompt do not make the next calls dear");
    assert!((auto.drafters[0].seconds() - STEP / 5.0).abs() < 1e-9);
    // A usual answer of 100 tokens cannot earn a prompt of 10,000 tokens back.
    auto.finished(key(0), &vec![1; 600], 500);
    let long = write(&mut auto, 1, &mut vec![9; 10_000], &[1]);
    assert_eq!(long, [Err(Silence::DoesNotPay)]);
}

#[test]
fn a_drafter_that_reads_step_by_step_is_judged_by_what_it_says_then() {
    let clock = Clock::default();
    let slow = || {
        let mut parrot = Parrot::new(1, &clock, STEP / 2.0);
        (parrot.seconds[1], parrot.reads) = (STEP / 10.0, 100);
        parrot
    };
    let mut pays = auto(&clock, vec![Box::new(slow())]);
    let said = write(&mut pays, 0, &mut vec![9; 1000], &[1; 50]);
    let expected: Vec<_> = (0..50).map(|step| if step < 10 { Err(Silence::Behind) } else { Ok(1) }).collect();
    assert_eq!(
        said, expected,
        "what it takes to read is not what it takes to draft, and to be behind brings nobody low"
    );
    assert!((pays.drafters[0].seconds() - 0.6 * STEP).abs() < 1e-9);
    // Where it does not pay, a trial is let finish reading: no step of it is wasted.
    let mut prose = auto(&clock, vec![Box::new(slow())]);
    write(&mut prose, 0, &mut vec![9; 10], &[7; 100]);
    prose.finished(key(0), &[7; 110], 10);
    let said = write(&mut prose, 1, &mut vec![9; 350], &[7; 40_000]);
    let reads = said.windows(2).filter(|two| two[0] == Err(Silence::Behind));
    let after: Vec<_> = reads.map(|two| two[1]).filter(|next| *next != Err(Silence::Behind)).collect();
    assert_eq!(after, [Ok(1)], "it reads once, and then says something");
}

#[test]
fn who_is_slow_is_not_asked_while_who_is_fast_knows_what_follows() {
    let clock = Clock::default();
    let slow = Parrot::new(1, &clock, STEP / 2.0);
    let calls = slow.calls.clone();
    let mut auto = auto(&clock, vec![Box::new(slow), Box::new(Parrot::new(1, &clock, 0.0))]);
    write(&mut auto, 0, &mut vec![9], &[1; 100]);
    assert!(calls.load(Ordering::Relaxed) <= 25, "asked until the fast one is known to be sure: {calls:?}");
}

#[test]
fn a_drafter_that_fails_is_passed_over_and_only_all_of_them_are_an_error() {
    let clock = Clock::default();
    let ill = || Parrot { fails: true, ..Parrot::new(1, &clock, 0.0) };
    let mut some = auto(&clock, vec![Box::new(ill()), Box::new(Parrot::new(2, &clock, 0.0))]);
    assert_eq!(write(&mut some, 0, &mut vec![9], &[2; 3]), [Ok(2); 3]);
    let mut all = auto(&clock, vec![Box::new(ill()), Box::new(ill())]);
    let error = propose(&mut all, &[ask(0, &[9], &Greedy)]).unwrap_err();
    assert_eq!(error.to_string(), "the drafter parrot failed: it is ill");
}

#[test]
fn a_row_must_earn_its_time() {
    let rated = Rated::new(Box::new(Parrot::new(1, &Clock::default(), 0.0)));
    let proposal = crate::chain(9, [(1, 0.5), (2, 0.5), (3, 0.5)]).unwrap();
    let gain = |row| rated.gain(&proposal, Worth { draft: 1.0, row }, false);
    assert!((gain(0.0) - 0.875).abs() < 1e-12);
    assert!((gain(0.25) - 0.25).abs() < 1e-12, "0.5 - 0.25, and no gain below that");
    assert_eq!(gain(0.5), 0.0);
}

/// Draws by chance of its own.
struct Draws;

impl Choose for Draws {
    fn choose(&self, _: &[u32], _: &[f32]) -> Option<Chosen> {
        None
    }

    fn draws(&self) -> bool {
        true
    }
}

/// Says what it is told to, with these confidences.
struct Script(Vec<(u32, f64)>);

impl Drafter for Script {
    fn name(&self) -> &'static str {
        "script"
    }

    fn propose(&mut self, _: &mut Round<'_>, asks: &[Ask<'_>]) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
        Ok(asks.iter().map(|ask| crate::chain(ask.anchor(), self.0.iter().copied())).collect())
    }

    fn finished(&mut self, _: Key, _: &[u32], _: usize) {}
}

#[test]
fn where_drafts_are_drawn_the_choice_looks_at_nothing_beyond_the_first() {
    let taken = |deep: f64, choose: &dyn Choose| {
        let scripts = [vec![(1, 0.6), (2, deep), (3, deep)], vec![(4, 0.5), (5, 0.5), (6, 0.5)]];
        let mut auto =
            auto(&Clock::default(), scripts.map(|script| Box::new(Script(script)) as Box<dyn Drafter>).into());
        propose(&mut auto, &[ask(0, &[9], choose)]).unwrap().remove(0).unwrap().tree().tokens()[1]
    };
    assert_eq!([taken(0.01, &Greedy), taken(0.9, &Greedy)], [4, 1], "what is deep tells");
    assert_eq!([taken(0.01, &Draws), taken(0.9, &Draws)], [1, 1], "what was drawn is there depends on what was drawn");
}

#[test]
fn how_sure_a_drafter_is_tells_more_than_it_says() {
    // What it calls 0.8 stands in 9 of 10, and what it calls 0.6 in 1 of 10.
    let mut rated = Rated::new(Box::new(Parrot::new(1, &Clock::default(), 0.0)));
    let worth = Worth { draft: 1.0, row: 0.1 };
    let mut lent = crate::alone::Lent::new();
    let mut round = lent.round(1.0, 0.1);
    let draft = |said| crate::chain(9, [(1, said)]).unwrap();
    for i in 0..2000 {
        rated.propose(&mut round, &[ask(i, &[9], &Greedy)], i, &mut || 0.0).unwrap();
        let (said, stands) = if i % 2 == 0 { (0.8, i % 20 != 0) } else { (0.6, i % 20 == 1) };
        let said = draft(said);
        rated.said(&ask(i, &[9], &Greedy), Some((said.tree(), &said)), worth);
        rated.finished(key(i), &[9, if stands { 1 } else { 2 }], 1);
    }
    let corrected = |said| rated.correct(key(9999), &draft(said)).tree().confidences()[1];
    let [sure, unsure] = [0.8, 0.6].map(corrected);
    assert!((sure - 0.9).abs() < 0.05 && (unsure - 0.1).abs() < 0.05, "{sure} and {unsure}");
}

#[test]
fn what_is_checked_in_vain_is_a_cost() {
    // Each draft stands in 4 of 10, which is worth its row: it brings 0.4 less 0.2, and takes more or less than that.
    for (seconds, pays) in [(0.25, false), (0.15, true)] {
        let mut rated = Rated::new(Box::new(Parrot::new(1, &Clock::default(), 0.0)));
        let worth = Worth { draft: 1.0, row: 0.2 };
        let mut lent = crate::alone::Lent::new();
        let mut round = lent.round(1.0, 0.2);
        let (said, mut now) = (crate::chain(9, [(1, 0.4)]).unwrap(), 0.0);
        for i in 0..300 {
            let mut clock = || {
                now += seconds;
                now
            };
            rated.propose(&mut round, &[ask(i, &[9], &Greedy)], i, &mut clock).unwrap();
            rated.said(&ask(i, &[9], &Greedy), Some((said.tree(), &said)), worth);
            rated.finished(key(i), &[9, if i % 5 < 2 { 1 } else { 2 }], 1);
        }
        assert_eq!(rated.pays(&ask(999, &[9], &Greedy), Outlook::OPEN, worth, 0.0, 64.0), pays, "{seconds}");
    }
}

#[test]
fn kinds_of_drafts_are_apart() {
    let kinds: Vec<usize> =
        [0, 1, 3, 7, 15, 1000].iter().flat_map(|&at| [0.0, 0.5, 0.99].map(|said| kind(at, said))).collect();
    assert_eq!(kinds, [0, 2, 8, 9, 11, 17, 18, 20, 26, 27, 29, 35, 36, 38, 44, 36, 38, 44]);
}

#[test]
fn a_probe_earns_its_worth_and_teaches_nothing() {
    let mut rated = Rated::new(Box::new(Parrot::new(1, &Clock::default(), 0.0)));
    let mut proposal = crate::chain(9, [(1, 0.5)]).unwrap();
    let probe = proposal.add_probe(0, 2, 0.25, true).unwrap();
    let worth = Worth { draft: 1.0, row: 0.125 };
    let mut lent = crate::alone::Lent::new();
    let mut round = lent.round(1.0, 0.125);
    rated.propose(&mut round, &[ask(0, &[9], &Greedy)], 1, &mut || 0.0).unwrap();
    for _ in 0..100 {
        assert!((rated.gain(&rated.correct(key(0), &proposal), worth, false) - 0.5).abs() < 1e-12);
        // Only the probe's token is ever compared: the draft is of another proposal.
        let mut mere = Proposal::new(9);
        mere.add_probe(0, 2, 0.25, true).unwrap();
        rated.said(&ask(0, &[9], &Greedy), Some((mere.tree(), &mere)), worth);
        rated.compare(key(0), &[9, 2]);
    }
    assert!(!rated.correct(key(0), &proposal).is_draft(probe), "it is not held to be a draft for that");
}

#[test]
fn a_request_learns_why_it_gets_nothing() {
    struct Silent(Silence);
    impl Drafter for Silent {
        fn name(&self) -> &'static str {
            "silent"
        }
        fn propose(
            &mut self,
            _: &mut Round<'_>,
            asks: &[Ask<'_>],
        ) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
            Ok(asks.iter().map(|_| Err(self.0)).collect())
        }
        fn finished(&mut self, _: Key, _: &[u32], _: usize) {}
    }
    let reason = |reasons: &[Silence]| {
        let drafters = reasons.iter().map(|&reason| Box::new(Silent(reason)) as Box<dyn Drafter>).collect();
        write(&mut auto(&Clock::default(), drafters), 0, &mut vec![9], &[1])[0]
    };
    assert_eq!(reason(&[Silence::Context, Silence::Context]), Err(Silence::Context));
    assert_eq!(reason(&[Silence::Context, Silence::NoMatch]), Err(Silence::NoMatch));
    assert_eq!(reason(&[Silence::DoesNotPay, Silence::NoMatch]), Err(Silence::DoesNotPay));
}

#[test]
fn who_is_not_expected_to_pay_is_only_tried_until_it_has_shown_that_it_does() {
    let clock = Clock::default();
    let mut parrot = Parrot::new(1, &clock, STEP / 2.0);
    parrot.outlook = Some(Outlook { seconds: STEP, reading: 0.0, gain: STEP / 2.0 });
    let calls = parrot.calls.clone();
    let mut auto = auto(&clock, vec![Box::new(parrot)]);
    let mut tokens = vec![9];
    assert_eq!(
        write(&mut auto, 0, &mut tokens, &[1; 12]),
        [Err(Silence::DoesNotPay); 12],
        "a short answer costs nothing"
    );
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    let tried = write(&mut auto, 0, &mut tokens, &[1; 3000]);
    assert!(tried[..150].iter().all(Result::is_err), "it is tried once it could have paid for it");
    assert_eq!(tried[2900..], [Ok(1); 100], "it has brought more than it takes");
}

#[test]
fn a_text_is_read_where_enough_is_left_to_say() {
    let clock = Clock::default();
    let mut parrot = Parrot::new(1, &clock, 0.0);
    parrot.outlook = Some(Outlook { seconds: STEP / 2.0, reading: 10.0 * STEP, gain: STEP });
    let mut auto = auto(&clock, vec![Box::new(parrot)]);
    let text = vec![9; 500];
    let short = Ask { remaining: 12, ..ask(0, &text, &Greedy) };
    assert_eq!(propose(&mut auto, &[short]).unwrap()[0], Err(Silence::DoesNotPay));
    assert!(propose(&mut auto, &[ask(0, &text, &Greedy)]).unwrap()[0].is_ok());
}
