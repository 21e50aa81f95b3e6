//! Identity: whether drafts, company, memory and threads leave every token as it was.
//!
//! Each prompt is answered once plainly, alone, at every temperature. Then all of these requests run together in one
//! service after another, and every answer must have the same tokens, log-probabilities to the last bit, text and end.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Result, ensure};
use draft::Drafter;
use engine::batch::{DraftCounts, Service, ServiceOptions, Speculation, Submission};
use engine::{Drafting, SamplingParams};
use kernels::{PAGE, Pool};
use spec::Rule;

use super::drive::{self, Answer};
use super::foresight::Foresight;
use crate::bench::spec::questions::Question;
use crate::draft::{Allowance, Kind};
use cli::load::Loaded;

/// Drafts on a path at most.
const MAX_DRAFTS: usize = 8;

/// What drafts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    /// The audit's own drafter, which knows the plain answers.
    Foresight,
    /// One of the product's, or nothing.
    Named(Kind),
}

impl FromStr for Source {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "foresight" => Ok(Source::Foresight),
            name => Ok(Source::Named(name.parse()?)),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Foresight => f.write_str("foresight"),
            Source::Named(kind) => kind.fmt(f),
        }
    }
}

/// The model, and what is asked.
pub(super) struct Subject {
    loaded: Loaded,
    pub(super) requests: Vec<Asked>,
}

/// A request.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    /// What its prompt is called.
    id: String,
    prompt: Vec<u32>,
    params: SamplingParams,
}

impl Asked {
    /// A prompt at a `temperature`. Prompts differ in what else their sampling has: nothing, truncation, penalties, a
    /// stop string, a bias.
    fn new(question: &Question, temperature: f32, max_tokens: usize) -> Asked {
        let plain = SamplingParams {
            temperature,
            seed: question.number,
            logprobs: Some(0),
            max_tokens: Some(max_tokens),
            ..SamplingParams::default()
        };
        let params = match question.number % 5 {
            0 => plain,
            1 => SamplingParams { top_p: 0.9, frequency_penalty: 0.3, ..plain },
            2 => SamplingParams { repetition_penalty: 1.15, top_k: 40, ..plain },
            3 => SamplingParams { min_p: 0.05, presence_penalty: 0.5, stop: vec!["\n\n".into(), "17".into()], ..plain },
            _ => SamplingParams { typical_p: 0.95, logit_bias: [(5, 1.0)].into(), min_tokens: 5, ..plain },
        };
        Asked { id: question.id.clone(), prompt: question.tokens.clone(), params }
    }

    fn submission(&self, rule: Rule) -> Submission {
        Submission {
            prompt: self.prompt.clone(),
            params: self.params.clone(),
            n: 1,
            cache_salt: None,
            priority: 0,
            drafting: Drafting { rule, ..Drafting::default() },
        }
    }
}

/// In what company requests run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Requests at the same time.
    pub(super) at_once: usize,
    pub(super) threads: NonZeroUsize,
    /// Too few pages for all: requests lose theirs and begin again.
    pub(super) tight: bool,
}

/// A run of all requests.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) drafter: Source,
    pub(super) rule: Rule,
    pub(super) shape: Shape,
}

/// What a temperature's requests had drafted.
#[derive(Debug, Clone, Copy)]
pub(super) struct ByTemperature {
    pub(super) temperature: f32,
    pub(super) checked: usize,
    pub(super) accepted: usize,
}

/// What a run came to.
pub(super) struct Row {
    pub(super) run: Run,
    pub(super) requests: usize,
    /// Tokens compared.
    pub(super) tokens: usize,
    pub(super) drafts: DraftCounts,
    pub(super) by_temperature: Vec<ByTemperature>,
    pub(super) preemptions: u64,
    pub(super) first: Option<Difference>,
}

/// The first token, or the end, in which two answers differ.
#[derive(Debug, Clone)]
pub(super) struct Difference {
    pub(super) prompt: String,
    pub(super) temperature: f32,
    /// Place in the answer, from 0.
    pub(super) position: usize,
    pub(super) expected: String,
    pub(super) found: String,
    /// The plain answer's text before it.
    pub(super) before: String,
}

impl Subject {
    /// Every prompt at every temperature.
    pub(super) fn new(loaded: Loaded, prompts: &[Question], temperatures: &[f32], max_tokens: usize) -> Subject {
        let at = |&temperature: &f32| prompts.iter().map(move |prompt| Asked::new(prompt, temperature, max_tokens));
        Subject { loaded, requests: temperatures.iter().flat_map(at).collect() }
    }

    /// The plain answers, each request alone: what every run is compared with.
    ///
    /// # Errors
    /// When a request is refused or fails.
    pub(super) fn plain(&self, threads: NonZeroUsize) -> Result<Vec<Answer>> {
        let shape = Shape { at_once: 1, threads, tight: false };
        let options = ServiceOptions { prefix_cache: false, ..self.options(shape) };
        let (answers, _) = self.answers(&self.requests, Rule::Keyed, options, threads, None)?;
        Ok(answers)
    }

    /// Runs all requests and compares their answers with the plain ones. Under `ratio` only greedy requests are run:
    /// the others are answered otherwise, if as often.
    ///
    /// # Errors
    /// When a request is refused or fails.
    pub(super) fn run(&self, run: &Run, plain: &[Answer]) -> Result<Row> {
        let drafter = self.drafter(&run.drafter, plain)?;
        let comparable = |question: &Asked| run.rule == Rule::Keyed || question.params.temperature == 0.0;
        let (questions, plain): (Vec<Asked>, Vec<&Answer>) =
            self.requests.iter().cloned().zip(plain).filter(|(question, _)| comparable(question)).unzip();
        let speculation = match drafter {
            None => None,
            Some(drafter) => Some(Speculation::new(drafter, MAX_DRAFTS, super::free_rows()?)),
        };
        let options = self.options(run.shape);
        let (answers, stats) = self.answers(&questions, run.rule, options, run.shape.threads, speculation)?;
        let pairs = questions.iter().zip(plain).zip(&answers);
        let first = pairs.filter_map(|((question, plain), found)| self.compare(question, plain, found)).next();
        Ok(Row {
            run: run.clone(),
            requests: answers.len(),
            tokens: answers.iter().map(|answer| answer.steps.len()).sum(),
            drafts: stats.drafts,
            by_temperature: by_temperature(&questions, &answers),
            preemptions: stats.preemptions,
            first,
        })
    }

    fn drafter(&self, source: &Source, plain: &[Answer]) -> Result<Option<Box<dyn Drafter>>> {
        if let Source::Named(kind) = source {
            return kind.drafter(&self.loaded, Allowance::default());
        }
        let texts = self.requests.iter().zip(plain);
        let texts = texts.map(|(question, answer)| [&question.prompt[..], &answer.tokens()].concat()).collect();
        Ok(Some(Box::new(Foresight::new(texts, self.loaded.tokenizer.vocab_size()))))
    }

    fn options(&self, shape: Shape) -> ServiceOptions {
        let most = |question: &Asked| question.prompt.len() + question.params.max_tokens.unwrap_or(0);
        let pages = self.requests.iter().map(most).max().unwrap_or(1).div_ceil(PAGE) + 1;
        // As many as let all begin, of which none has room to go on for long.
        let begin = |asked: &Asked| asked.prompt.len().div_ceil(PAGE) + 1;
        let scarce: usize = self.requests.iter().take(shape.at_once).map(begin).sum();
        let pages = if shape.tight { scarce.max(pages) } else { pages * (shape.at_once + 1) };
        ServiceOptions {
            kv_bytes: pages * self.loaded.model.kv_layout(self.loaded.kv_format).bytes_per_page(),
            kv_format: self.loaded.kv_format,
            // Prompts that are computed at once leave their requests to grow together.
            row_budget: if shape.tight { 512 } else { 64 },
            // A prefix that is shared would leave room.
            prefix_cache: !shape.tight,
            max_running: shape.at_once,
            max_waiting: self.requests.len().max(1),
            ..ServiceOptions::default()
        }
    }

    fn answers(
        &self,
        questions: &[Asked],
        rule: Rule,
        options: ServiceOptions,
        threads: NonZeroUsize,
        speculation: Option<Speculation>,
    ) -> Result<(Vec<Answer>, engine::batch::Stats)> {
        let (model, pool) = (Arc::clone(&self.loaded.model), Pool::new(threads));
        let service = Service::start(model, self.loaded.tokenizer.clone(), pool, options, speculation);
        let mut answers = vec![Answer::default(); questions.len()];
        let submissions = questions.iter().map(|question| question.submission(rule));
        let handle = service.handle();
        drive::answers(&handle, submissions, questions.len(), |number, answer| answers[number] = answer)?;
        let stats = handle.stats();
        ensure!(stats.kv_pages_used == 0, "{} pages of keys and values are held by nobody", stats.kv_pages_used);
        Ok((answers, stats))
    }

    /// The first difference between a plain answer and another, if they have one.
    fn compare(&self, question: &Asked, plain: &Answer, found: &Answer) -> Option<Difference> {
        let length = plain.steps.len().max(found.steps.len());
        let position = (0..length).find(|&at| plain.steps.get(at) != found.steps.get(at));
        let same_end = plain.text == found.text && plain.finish == found.finish;
        let position = position.or(if same_end { None } else { Some(length) })?;
        Some(Difference {
            prompt: question.id.clone(),
            temperature: question.params.temperature,
            position,
            expected: self.describe(plain, position),
            found: self.describe(found, position),
            before: self.text(&plain.tokens()[position.saturating_sub(12)..position]),
        })
    }

    fn describe(&self, answer: &Answer, position: usize) -> String {
        let Some(&(token, logprob)) = answer.steps.get(position) else {
            let finish = answer.finish.map_or("nothing".to_owned(), |finish| format!("{finish:?}").to_lowercase());
            return format!("the end ({finish}) of {:?}", answer.text);
        };
        let logprob = logprob.map(|bits| format!(", log-probability {}", f32::from_bits(bits))).unwrap_or_default();
        let end = answer.steps.len().min(position + 6);
        let after: Vec<u32> = answer.steps[position..end].iter().map(|&(token, _)| token).collect();
        format!("token {token} {:?}{logprob}, going on {:?}", self.text(&[token]), self.text(&after))
    }

    fn text(&self, tokens: &[u32]) -> String {
        self.loaded.tokenizer.decode(tokens, false).unwrap_or_else(|error| format!("<{error}>"))
    }
}

fn by_temperature(questions: &[Asked], answers: &[Answer]) -> Vec<ByTemperature> {
    let mut rows: Vec<ByTemperature> = Vec::new();
    for (question, answer) in questions.iter().zip(answers) {
        let temperature = question.params.temperature;
        let index = rows.iter().position(|row| row.temperature == temperature).unwrap_or_else(|| {
            rows.push(ByTemperature { temperature, checked: 0, accepted: 0 });
            rows.len() - 1
        });
        rows[index].checked += answer.usage.drafted_tokens;
        rows[index].accepted += answer.usage.accepted_tokens;
    }
    rows
}
