//! The law: whether drafts change how often an answer is given.
//!
//! Under the rule `ratio` answers are other than without drafts, and only their law is the same, which no single answer
//! shows. So the engine answers one prompt with many seeds, by a model so small that the probability of every answer can
//! be added up, and chi-square tests compare. That they would notice is shown too: by drafters that lie about how they
//! drew, through the same engine, and by acceptance that is wrong by a hand's breadth.

mod chi_square;
mod exact;
mod guess;
mod wrong;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use draft::Drafter;
use engine::batch::{DraftCounts, Service, ServiceOptions, Speculation, Submission};
use engine::{Drafting, Engine, EngineOptions};
use kernels::Pool;
use spec::{CostCurve, Rule};

use super::drive;
use super::letters;
use crate::bench::random::Random;
use crate::draft::{Allowance, Kind};
use chi_square::{Outcome, Verdict};
use cli::load::Loaded;
use exact::{Exact, LENGTH, Sampling};
use guess::{Guess, Manner};
use wrong::Play;

/// How often a right engine may be found guilty, over all tests of a run.
const SIGNIFICANCE: f64 = 1e-6;

/// Requests in flight.
const AT_ONCE: usize = 16;

/// A text that repeats itself, so that drafters that copy have something to copy.
const PROMPT: [u32; 11] = [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0];

/// What drafters may not do, and what has to be caught.
const LIES: [Manner; 3] = [Manner::LikeliestAsDrawn, Manner::TruncatedAsWhole, Manner::TellingConfidence];

/// What to test.
pub(super) struct Plan<'a> {
    /// Answers of each case.
    pub(super) requests: usize,
    pub(super) rules: &'a [Rule],
    pub(super) temperatures: &'a [f32],
    /// Drafters that a user can name, besides the audit's own.
    pub(super) drafters: &'a [Kind],
}

/// What drafts or decides in a case.
#[derive(Clone, PartialEq)]
enum Source {
    /// Plain decoding.
    Nothing,
    Guess(Manner),
    Named(Kind),
    /// Not the engine.
    Played(Play),
}

impl Source {
    /// Whether the law must hold.
    fn is_honest(&self) -> bool {
        let wrong = [Play::TooKind, Play::NoResidual].map(Source::Played);
        !LIES.map(Source::Guess).contains(self) && !wrong.contains(self)
    }

    fn name(&self) -> String {
        let name = match self {
            Source::Nothing => "none",
            Source::Named(kind) => return kind.to_string(),
            Source::Guess(Manner::Drawn) => "drawn",
            Source::Guess(Manner::Likeliest) => "likeliest",
            Source::Guess(Manner::Tree) => "tree",
            Source::Guess(Manner::LikeliestAsDrawn) => "lie: likeliest as drawn",
            Source::Guess(Manner::TruncatedAsWhole) => "lie: truncated as whole",
            Source::Guess(Manner::TellingConfidence) => "lie: telling confidence",
            Source::Played(Play::Right) => "by hand",
            Source::Played(Play::TooKind) => "wrong: min(1, p/q) + 0.05",
            Source::Played(Play::NoResidual) => "wrong: no residual",
        };
        name.to_owned()
    }
}

/// One case: many answers, drawn and drafted in one way.
struct Case {
    rule: Rule,
    source: Source,
    sampling: Sampling,
    /// Rows cost so much that admission leaves drafts out.
    dear: bool,
}

/// What a case came to.
pub(super) struct Row {
    pub(super) rule: &'static str,
    pub(super) drafter: String,
    pub(super) sampling: String,
    pub(super) requests: usize,
    pub(super) checked: u64,
    pub(super) accepted: u64,
    /// Tests that were made.
    pub(super) tests: usize,
    /// The least p of them.
    pub(super) p: f64,
    /// Whether each answer is the plain one with the same seed; not asked where it need not be.
    pub(super) identical: Option<bool>,
    /// Whether the law is the model's, as far as the tests tell.
    pub(super) holds: bool,
    /// Whether it has to be; the others have to be caught.
    pub(super) must_hold: bool,
    /// What was furthest off.
    pub(super) worst: String,
}

impl Row {
    /// Whether it came out as it must.
    pub(super) fn passes(&self) -> bool {
        self.holds == self.must_hold && self.identical != Some(false)
    }
}

/// Runs every case of the plan, and shows each row when it is there.
///
/// # Errors
/// When the small model cannot be made or the engine fails.
pub(super) fn run(plan: &Plan<'_>, mut show: impl FnMut(&Row)) -> Result<Vec<Row>> {
    let bench = Bench::new()?;
    let mut cases = cases(plan);
    for kind in plan.drafters {
        // A draft model or a datastore of another tokenizer, say. Its identity is shown with its own model.
        if let Err(error) = kind.drafter(&bench.loaded, Allowance::default()) {
            eprintln!("{kind} is left out of the law: {}", crate::one_line(&error));
            cases.retain(|case| case.source != Source::Named(kind.clone()));
        }
    }
    let threshold = SIGNIFICANCE / (cases.len() * PROJECTIONS.len()) as f64;
    let (mut rows, mut plain) = (Vec::new(), Vec::new());
    for case in &cases {
        let (answers, drafts) = bench.answers(case, plan)?;
        let mut row = row(case, &answers, drafts, threshold, &bench.exact);
        if case.source == Source::Nothing {
            plain.push((case.sampling, answers));
        } else if case.rule == Rule::Keyed {
            row.identical = Some(plain.iter().any(|(sampling, plain)| *sampling == case.sampling && *plain == answers));
        }
        show(&row);
        rows.push(row);
    }
    Ok(rows)
}

/// Honest drafters under every rule, each with two ways to draw letters; then what has to be caught.
fn cases(plan: &Plan<'_>) -> Vec<Case> {
    let drawing = plan.temperatures.iter().copied().filter(|&temperature| temperature > 0.0);
    let (hot, cold) = (drawing.clone().fold(f32::NAN, f32::max), drawing.fold(f32::NAN, f32::min));
    if hot.is_nan() {
        return Vec::new();
    }
    let whole = Sampling { temperature: hot, top_k: 0, presence_penalty: 0.0 };
    let cut = Sampling { temperature: cold, top_k: 6, presence_penalty: 0.8 };
    let case = |rule, source, sampling| Case { rule, source, sampling, dear: false };
    let mut cases = vec![case(Rule::Keyed, Source::Nothing, whole), case(Rule::Keyed, Source::Nothing, cut)];
    for &rule in plan.rules {
        let own = [Manner::Drawn, Manner::Likeliest, Manner::Tree].map(Source::Guess);
        let named = plan.drafters.iter().cloned().map(Source::Named);
        for source in own.into_iter().chain(named) {
            cases.extend([whole, cut].map(|sampling| case(rule, source.clone(), sampling)));
        }
        cases.push(Case { dear: true, ..case(rule, Source::Guess(Manner::Drawn), whole) });
    }
    let ratio = |source| case(Rule::Ratio, source, whole);
    cases.extend([Play::Right, Play::TooKind, Play::NoResidual].map(|play| ratio(Source::Played(play))));
    if plan.rules.contains(&Rule::Ratio) {
        cases.extend(LIES.map(|lie| Case { dear: lie == Manner::TellingConfidence, ..ratio(Source::Guess(lie)) }));
    }
    cases
}

/// The small model and its exact law.
struct Bench {
    loaded: Loaded,
    exact: Arc<Exact>,
}

impl Bench {
    fn new() -> Result<Bench> {
        let loaded = letters::load()?;
        let (model, tokenizer) = (Arc::clone(&loaded.model), loaded.tokenizer.clone());
        let mut engine = Engine::new(model, tokenizer, Pool::new(NonZeroUsize::MIN), EngineOptions::default(), None);
        let exact = Arc::new(Exact::new(&mut engine, &PROMPT)?);
        Ok(Bench { loaded, exact })
    }

    /// The answers of a case by seed, and what became of its drafts.
    fn answers(&self, case: &Case, plan: &Plan<'_>) -> Result<(Vec<Outcome>, DraftCounts)> {
        if let Source::Played(play) = case.source {
            let mut random = Random::new(4);
            let answer = |_| wrong::answer(play, &self.exact, &case.sampling, &mut random);
            return Ok(((0..plan.requests).map(answer).collect(), DraftCounts::default()));
        }
        let (mut answers, mut counts) = (Vec::with_capacity(plan.requests), DraftCounts::default());
        let at_once = if case.dear { DEAR_FOR } else { plan.requests };
        while answers.len() < plan.requests {
            let seeds = answers.len()..plan.requests.min(answers.len() + at_once);
            let drafts = self.serve(case, seeds, &mut answers)?;
            counts.checked += drafts.checked;
            counts.accepted += drafts.accepted;
        }
        Ok((answers, counts))
    }

    /// Appends the answers to these seeds of one service, and says what became of its drafts.
    fn serve(&self, case: &Case, seeds: Range<usize>, answers: &mut Vec<Outcome>) -> Result<DraftCounts> {
        let drafter: Option<Box<dyn Drafter>> = match &case.source {
            Source::Nothing | Source::Played(_) => None,
            Source::Guess(manner) => Some(Box::new(Guess::new(Arc::clone(&self.exact), *manner))),
            Source::Named(kind) => kind.drafter(&self.loaded, Allowance::default())?,
        };
        let curve = if case.dear { dear()? } else { super::free_rows()? };
        let speculation = drafter.map(|drafter| Speculation::new(drafter, LENGTH, curve));
        let options = ServiceOptions { max_running: AT_ONCE, kv_bytes: 1 << 20, ..ServiceOptions::default() };
        let (model, tokenizer) = (Arc::clone(&self.loaded.model), self.loaded.tokenizer.clone());
        let service = Service::start(model, tokenizer, Pool::new(NonZeroUsize::MIN), options, speculation);
        let submission = |seed| Submission {
            prompt: PROMPT.to_vec(),
            params: case.sampling.params(seed),
            n: 1,
            cache_salt: None,
            priority: 0,
            drafting: Drafting { rule: case.rule, ..Drafting::default() },
        };
        let first = answers.len();
        answers.resize(first + seeds.len(), Outcome::new());
        let submissions = seeds.map(|seed| submission(seed as u64));
        let note = |number: usize, answer: drive::Answer| answers[first + number] = answer.tokens();
        drive::answers(&service.handle(), submissions, 2 * AT_ONCE, note)?;
        Ok(service.handle().stats().drafts)
    }
}

/// Answers for which a service believes that rows are dear: real steps teach it otherwise after some hundred.
const DEAR_FOR: usize = 200;

/// A curve on which, beside so many requests, only every other draft pays.
fn dear() -> Result<CostCurve> {
    Ok(CostCurve::new(&[1, 2, 64], &[0], &[17.0, 18.0, 80.0])?)
}

/// The positions that are looked at together: each alone, neighbours, and the whole answer.
const PROJECTIONS: [&[usize]; 8] = [&[0], &[1], &[2], &[3], &[0, 1], &[1, 2], &[2, 3], &[0, 1, 2, 3]];

fn row(case: &Case, answers: &[Outcome], drafts: DraftCounts, threshold: f64, exact: &Exact) -> Row {
    let law = exact.answers(&case.sampling);
    let mut counts = BTreeMap::new();
    answers.iter().for_each(|answer| *counts.entry(answer.clone()).or_insert(0) += 1);
    let tests = PROJECTIONS.map(|at| (at, chi_square::test(&project(&counts, at), &project(&law, at))));
    let least = tests.iter().min_by(|a, b| a.1.p.total_cmp(&b.1.p));
    let (p, worst) = least.map_or((1.0, String::new()), |(at, verdict)| (verdict.p, describe(at, verdict)));
    let dear = if case.dear { ", dear" } else { "" };
    Row {
        rule: case.rule.name(),
        drafter: format!("{}{dear}", case.source.name()),
        sampling: case.sampling.to_string(),
        requests: answers.len(),
        checked: drafts.checked,
        accepted: drafts.accepted,
        tests: PROJECTIONS.len(),
        p,
        identical: None,
        holds: p >= threshold,
        must_hold: case.source.is_honest(),
        worst,
    }
}

fn describe(at: &[usize], Verdict { worst, .. }: &Verdict) -> String {
    let positions: Vec<String> = at.iter().map(|position| (position + 1).to_string()).collect();
    let letters = match &worst.outcome[..] {
        [] => "the rare ones".to_owned(),
        outcome => format!("'{}'", letters::letters(outcome)),
    };
    format!(
        "at position {} of the answer {letters} came {} times, and {:.0} were expected",
        positions.join(", "),
        worst.observed,
        worst.expected
    )
}

/// Numbers of answers added up over all positions but these.
fn project<N: Copy + Default + std::ops::AddAssign>(
    answers: &BTreeMap<Outcome, N>,
    at: &[usize],
) -> BTreeMap<Outcome, N> {
    let mut projected = BTreeMap::new();
    for (answer, &number) in answers {
        let part = at.iter().filter_map(|&position| answer.get(position).copied()).collect();
        *projected.entry(part).or_insert_with(N::default) += number;
    }
    projected
}
