//! Sends requests to a service and collects what it answers.

use std::collections::BTreeMap;
use std::sync::mpsc;

use anyhow::{Context, Result, bail};
use engine::batch::{Event, Handle, Submission};
use engine::{FinishReason, Usage};

/// All that a client sees of an answer.
#[derive(Debug, Clone, Default)]
pub(super) struct Answer {
    /// Each token, and its log-probability by its bits.
    pub(super) steps: Vec<(u32, Option<u32>)>,
    pub(super) text: String,
    pub(super) finish: Option<FinishReason>,
    pub(super) usage: Usage,
}

impl Answer {
    pub(super) fn tokens(&self) -> Vec<u32> {
        self.steps.iter().map(|&(token, _)| token).collect()
    }
}

/// Hands in `submissions`, of one choice each and at most `in_flight` at a time, and passes on each answer with its
/// number when it is complete.
///
/// # Errors
/// When a request is refused or fails.
pub(super) fn answers(
    handle: &Handle,
    submissions: impl IntoIterator<Item = Submission>,
    in_flight: usize,
    mut done: impl FnMut(usize, Answer),
) -> Result<()> {
    let (events, inbox) = mpsc::channel();
    let mut submissions = submissions.into_iter().enumerate();
    let mut open: BTreeMap<usize, Answer> = BTreeMap::new();
    loop {
        while open.len() < in_flight {
            let Some((number, submission)) = submissions.next() else { break };
            let events = events.clone();
            // Nobody hears the events of an audit that was given up.
            let sink = Box::new(move |event| drop(events.send((number, event))));
            handle.submit(submission, sink).with_context(|| format!("request {number}"))?;
            open.insert(number, Answer::default());
        }
        if open.is_empty() {
            return Ok(());
        }
        let (number, event) = inbox.recv().context("the engine has stopped")?;
        if note(open.entry(number).or_default(), number, event)? {
            done(number, open.remove(&number).unwrap_or_default());
        }
    }
}

/// Adds an event to its answer, and says whether it was the last.
fn note(answer: &mut Answer, number: usize, event: Event) -> Result<bool> {
    match event {
        Event::Delta { delta, .. } => {
            answer.steps.push((delta.token, delta.logprob.map(f32::to_bits)));
            answer.text.push_str(&delta.text);
            Ok(false)
        }
        Event::Finished { reason, usage, .. } => {
            (answer.finish, answer.usage) = (Some(reason), usage);
            Ok(true)
        }
        Event::Failed { message, .. } => bail!("request {number} failed: {message}"),
    }
}
