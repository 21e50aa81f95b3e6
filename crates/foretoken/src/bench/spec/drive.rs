//! Answers of the engine that is measured: one after another, or many at once, each with its tokens and times.

use std::sync::mpsc::{self, Sender};
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use engine::SamplingParams;
use engine::batch::{Event, Handle, Sink, Submission};
use engine::{Drafting, Usage};
use indicatif::ProgressBar;

use super::questions::Question;
use crate::tally::{Tally, Work};

/// A finished answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    pub(crate) tokens: Vec<u32>,
    pub(crate) tally: Tally,
}

/// How answers are asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asking {
    pub(crate) temperature: f32,
    pub(crate) max_tokens: usize,
    pub(crate) ignore_eos: bool,
    pub(crate) seed: u64,
}

impl Asking {
    fn submission(&self, question: &Question) -> Submission {
        let params = SamplingParams {
            temperature: self.temperature,
            max_tokens: Some(self.max_tokens),
            ignore_eos: self.ignore_eos,
            seed: self.seed.wrapping_add(question.number),
            ..SamplingParams::default()
        };
        let prompt = question.tokens.clone();
        Submission { prompt, params, n: 1, cache_salt: None, priority: 0, drafting: Drafting::default() }
    }
}

/// Has all `questions` answered, `clients` at a time, in their order. What the engine did is told apart by request only
/// where requests come one at a time.
///
/// # Errors
/// When the engine refuses or fails a request; the others end with the service.
pub(crate) fn answer(
    handle: &Handle,
    questions: &[&Question],
    asking: &Asking,
    clients: usize,
    bar: &ProgressBar,
) -> Result<Vec<Answer>> {
    let (finished, inbox) = mpsc::channel();
    let submit = |at: usize| {
        let recorder = Recorder::new(at, handle.clone(), finished.clone());
        let submitted = handle.submit(asking.submission(questions[at]), recorder.sink());
        submitted.map_err(|error| anyhow!("prompt {} is refused: {error}", questions[at].id))
    };
    let first = clients.min(questions.len());
    for at in 0..first {
        submit(at)?;
    }
    let mut answers: Vec<Option<Answer>> = vec![None; questions.len()];
    for next in first..first + questions.len() {
        // This function holds a sender: it always comes to an answer or a failure.
        let Ok((at, answer)) = inbox.recv() else { bail!("the engine has stopped") };
        answers[at] = Some(answer.map_err(|message| anyhow!("prompt {} failed: {message}", questions[at].id))?);
        bar.inc(1);
        if next < questions.len() {
            submit(next)?;
        }
    }
    Ok(answers.into_iter().flatten().collect())
}

/// Notes what comes of one request.
struct Recorder {
    at: usize,
    handle: Handle,
    finished: Sender<(usize, Result<Answer, String>)>,
    start: Instant,
    /// When the first token came, and what the engine had done by then.
    first: Option<(Instant, Work)>,
    last: Instant,
    tokens: Vec<u32>,
    /// Tokens after the first that no draft had foreseen: each ended a step.
    sampled: u64,
    last_was_draft: bool,
}

impl Recorder {
    fn new(at: usize, handle: Handle, finished: Sender<(usize, Result<Answer, String>)>) -> Self {
        let start = Instant::now();
        let (tokens, sampled, last_was_draft) = (Vec::new(), 0, false);
        Self { at, handle, finished, start, first: None, last: start, tokens, sampled, last_was_draft }
    }

    fn sink(mut self) -> Sink {
        Box::new(move |event| self.note(event))
    }

    fn note(&mut self, event: Event) {
        let answer = match event {
            Event::Delta { delta, .. } => return self.token(delta.token, delta.drafted),
            Event::Finished { usage, .. } => Ok(self.answer(usage)),
            Event::Failed { message, .. } => Err(message),
        };
        // An error says that nobody waits for it any more.
        let _ = self.finished.send((self.at, answer));
    }

    fn token(&mut self, token: u32, drafted: bool) {
        self.last = Instant::now();
        match self.first {
            None => self.first = Some((self.last, self.handle.stats().into())),
            Some(_) => self.sampled += u64::from(!drafted),
        }
        self.last_was_draft = drafted;
        self.tokens.push(token);
    }

    fn answer(&mut self, usage: Usage) -> Answer {
        let now = Work::from(self.handle.stats());
        let (first, before) = self.first.unwrap_or((self.last, now));
        let tally = Tally {
            answers: 1,
            prompt_tokens: usage.prompt_tokens as u64,
            output_tokens: usage.output_tokens as u64,
            decode_tokens: (usage.output_tokens as u64).saturating_sub(1),
            // A step that ends with the request's last token, foreseen by a draft, samples none.
            request_steps: self.sampled + u64::from(self.last_was_draft),
            drafted: usage.drafted_tokens as u64,
            accepted: usage.accepted_tokens as u64,
            seconds: (self.last - self.start).as_secs_f64(),
            decode_seconds: (self.last - first).as_secs_f64(),
            work: now - before,
        };
        Answer { tokens: std::mem::take(&mut self.tokens), tally }
    }
}
