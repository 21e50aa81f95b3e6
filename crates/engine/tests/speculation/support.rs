//! Drafters that do as they are told, and requests run through a service.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};

use draft::{Ask, DraftError, Drafter, Key, Round, Silence};
use engine::batch::{Event, Handle, Service, ServiceOptions, Speculation, Stats, Submission};
use engine::{Drafting, FinishReason, SamplingParams, Usage};
use spec::{CostCurve, Proposal};

use testkit::{byte_tokenizer, tiny_llama};

/// What a drafter saw.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// For each request that was asked about: its key, its tokens, and the drafts that it could have had.
    pub(crate) asks: Vec<(Key, Vec<u32>, usize)>,
    /// Who has ended, with all tokens.
    pub(crate) finished: Vec<(Key, Vec<u32>)>,
}

/// Proposes what a function of the request says.
pub(crate) struct Scripted<F> {
    script: F,
    log: Arc<Mutex<Log>>,
}

impl<F: FnMut(&Ask<'_>) -> Result<Proposal, Silence> + Send + 'static> Drafter for Scripted<F> {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn propose(&mut self, _: &mut Round<'_>, asks: &[Ask<'_>]) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
        let mut log = self.log.lock().unwrap();
        log.asks.extend(asks.iter().map(|ask| (ask.key, ask.tokens.to_vec(), ask.max_drafts)));
        Ok(asks.iter().map(|ask| (self.script)(ask)).collect())
    }

    fn finished(&mut self, key: Key, tokens: &[u32], _: usize) {
        self.log.lock().unwrap().finished.push((key, tokens.to_vec()));
    }
}

/// A drafter that follows a script, and what it will have seen.
pub(crate) fn scripted(
    script: impl FnMut(&Ask<'_>) -> Result<Proposal, Silence> + Send + 'static,
) -> (Box<dyn Drafter>, Arc<Mutex<Log>>) {
    let log = Arc::new(Mutex::new(Log::default()));
    (Box::new(Scripted { script, log: Arc::clone(&log) }), log)
}

/// A drafter that knows what each text goes on with, and proposes so many tokens of it.
pub(crate) fn knowing(texts: Vec<Vec<u32>>, depth: usize) -> (Box<dyn Drafter>, Arc<Mutex<Log>>) {
    scripted(move |ask| {
        let known = texts.iter().find(|text| text.len() > ask.tokens.len() && text.starts_with(ask.tokens));
        let next = known.map(|text| &text[ask.tokens.len()..]).ok_or(Silence::NoMatch)?;
        Ok(chain(ask, &next[..depth.min(ask.max_drafts).min(next.len())]))
    })
}

/// A drafter that always proposes the same tokens.
pub(crate) fn stubborn(tokens: &'static [u32]) -> Box<dyn Drafter> {
    scripted(|ask| Ok(chain(ask, tokens))).0
}

pub(crate) fn chain(ask: &Ask<'_>, tokens: &[u32]) -> Proposal {
    let mut proposal = Proposal::new(ask.anchor());
    let mut parent = 0;
    for &token in tokens {
        parent = proposal.add_point(parent, token, 0.99).unwrap();
    }
    proposal
}

/// All that a client sees of an answer, log-probabilities by their bits.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) tokens: Vec<u32>,
    pub(crate) logprobs: Vec<Option<u32>>,
    pub(crate) text: String,
    pub(crate) finish: Option<FinishReason>,
}

/// A prompt of some length that repeats nothing for long.
pub(crate) fn prompt(length: usize) -> Vec<u32> {
    (0..length).map(|p| (p * 31 + p * p / 7) as u32 % 250).collect()
}

pub(crate) fn request(prompt: Vec<u32>, params: SamplingParams) -> Submission {
    let params = SamplingParams { logprobs: Some(0), ..params };
    Submission { prompt, params, n: 1, cache_salt: None, priority: 0, drafting: Drafting::default() }
}

/// Goes on for so many tokens, whatever they are.
pub(crate) fn tokens(temperature: f32, count: usize) -> SamplingParams {
    SamplingParams { temperature, seed: 7, max_tokens: Some(count), ignore_eos: true, ..SamplingParams::default() }
}

pub(crate) fn options() -> ServiceOptions {
    ServiceOptions { kv_bytes: 4 << 20, ..ServiceOptions::default() }
}

/// Every draft is checked: rows cost nothing.
pub(crate) fn service(options: ServiceOptions, drafter: Option<Box<dyn Drafter>>) -> Service {
    let (model, pool) = tiny_llama(1);
    let curve = || CostCurve::new(&[1, 2], &[0], &[1.0, 1.000_001]).unwrap();
    let speculation = drafter.map(|drafter| Speculation::new(drafter, 8, curve()));
    Service::start(model, byte_tokenizer(), pool, options, speculation)
}

/// Hands in all requests at once, and waits for the last event of each. By request and choice.
pub(crate) fn ask(handle: &Handle, requests: &[Submission]) -> Vec<(Answer, Usage)> {
    let (events, inbox) = mpsc::channel();
    let mut first = 0;
    for request in requests {
        let (events, own) = (events.clone(), first);
        handle.submit(request.clone(), Box::new(move |event| events.send((own, event)).unwrap())).unwrap();
        first += request.n as usize;
    }
    drop(events);
    let mut answers = vec![(Answer::default(), Usage::default()); first];
    for (first, event) in inbox {
        match event {
            Event::Delta { choice, delta } => {
                let answer = &mut answers[first + choice as usize].0;
                assert_eq!(answer.finish, None, "a token after the end");
                answer.tokens.push(delta.token);
                answer.logprobs.push(delta.logprob.map(f32::to_bits));
                answer.text.push_str(&delta.text);
            }
            Event::Finished { choice, reason, usage } => {
                let answer = &mut answers[first + choice as usize];
                assert_eq!(answer.0.finish.replace(reason), None, "a second end");
                answer.1 = usage;
            }
            Event::Failed { message, .. } => panic!("{message}"),
        }
    }
    answers
}

/// The answers of a service of their own, and its figures when it has nothing left to do.
pub(crate) fn answers(
    options: ServiceOptions,
    drafter: Option<Box<dyn Drafter>>,
    requests: &[Submission],
) -> (Vec<(Answer, Usage)>, Stats) {
    let service = service(options, drafter);
    let answers = ask(&service.handle(), requests);
    let stats = service.handle().stats();
    assert_eq!((stats.kv_pages_used, stats.running, stats.waiting), (0, 0, 0));
    (answers, stats)
}

pub(crate) fn plainly(requests: &[Submission]) -> Vec<Answer> {
    answers(options(), None, requests).0.into_iter().map(|(answer, _)| answer).collect()
}

/// Prompts with their answers.
pub(crate) fn texts(requests: &[Submission], answers: &[Answer]) -> Vec<Vec<u32>> {
    requests.iter().zip(answers).map(|(request, answer)| [&request.prompt[..], &answer.tokens].concat()).collect()
}

/// The answers with a drafter, which have to be the plain ones. Many drafts have to be checked for that to mean anything.
pub(crate) fn unchanged(requests: &[Submission], drafter: Box<dyn Drafter>) -> (Vec<Usage>, Stats) {
    let want = plainly(requests);
    let (got, stats) = answers(options(), Some(drafter), requests);
    for (number, (want, (got, _))) in want.iter().zip(&got).enumerate() {
        assert_eq!(got, want, "request {number}");
    }
    assert!(stats.drafts.checked > 0, "nothing was drafted");
    (got.into_iter().map(|(_, usage)| usage).collect(), stats)
}
