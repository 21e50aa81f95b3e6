//! The choices of one request on their way: submitted, received, and cancelled when nobody waits for them any more.

use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use engine::batch::{Event, Handle, RequestId, Submission};
use engine::{Delta, FinishReason};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::app::App;
use crate::error::ApiError;
use crate::metrics::Watch;
use crate::params::Asked;

/// What comes next.
pub(crate) enum Piece {
    /// A token of a choice, numbered over all prompts.
    Delta { choice: u32, delta: Delta },
    /// A choice has ended.
    Finished { choice: u32, reason: &'static str },
    /// A choice, and with it the request, has failed.
    Failed { message: String },
}

/// Tokens of a request so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tokens {
    /// Of all prompts, each counted once.
    prompt: usize,
    /// Of these, found in the cache.
    cached: usize,
    /// Of the choices that have ended.
    output: usize,
}

impl Tokens {
    /// OpenAI's `usage`.
    pub(crate) fn to_json(self) -> Value {
        let Self { prompt, cached, output } = self;
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": { "cached_tokens": cached },
        })
    }
}

/// A request on its way. Dropping it (the client has gone) cancels what is still running.
pub(crate) struct Generation {
    events: UnboundedReceiver<Event>,
    handle: Handle,
    ids: Vec<RequestId>,
    /// Choices that have not ended.
    open: usize,
    /// Choices of each prompt.
    n: u32,
    tokens: Tokens,
    request_id: String,
    start: Instant,
    failed: bool,
}

impl Generation {
    /// Submits `n` choices for each prompt.
    ///
    /// # Errors
    /// 400, 429 or 503 when one of them is not taken; those that were taken are cancelled.
    pub(crate) fn start(
        app: &App,
        prompts: Vec<Vec<u32>>,
        asked: &Asked,
        request_id: String,
    ) -> Result<Self, ApiError> {
        // Unbounded, yet an answer is: the engine's thread must never wait for a client.
        let (sender, events) = unbounded_channel();
        let mut generation = Self {
            events,
            handle: app.served.handle.clone(),
            ids: Vec::with_capacity(prompts.len()),
            open: 0,
            n: asked.n,
            tokens: Tokens::default(),
            request_id,
            start: Instant::now(),
            failed: false,
        };
        for prompt in prompts {
            generation.tokens.prompt += prompt.len();
            let submission = Submission {
                prompt,
                params: asked.params.clone(),
                n: asked.n,
                cache_salt: asked.cache_salt.clone(),
                priority: asked.priority,
            };
            let watch = Watch::start(Arc::clone(&app.metrics), asked.n);
            let sink = sink(sender.clone(), generation.open as u32, watch);
            match generation.handle.submit(submission, sink) {
                Ok(id) => generation.ids.push(id),
                Err(error) => {
                    generation.failed = true;
                    return Err(error.into());
                }
            }
            generation.open += asked.n as usize;
        }
        Ok(generation)
    }

    /// The next event, or `None` when all choices have ended or one has failed.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Piece>> {
        if self.open == 0 || self.failed {
            return Poll::Ready(None);
        }
        let piece = match ready!(self.events.poll_recv(context)) {
            Some(Event::Delta { choice, delta }) => Piece::Delta { choice, delta },
            Some(Event::Finished { choice, reason, usage }) => {
                self.open -= 1;
                self.tokens.output += usage.output_tokens;
                // The choices of a prompt share what was found of it: it is counted with the first.
                if choice % self.n == 0 {
                    self.tokens.cached += usage.cached_tokens;
                }
                match reason_name(reason) {
                    Some(reason) => Piece::Finished { choice, reason },
                    None => self.fail("the server gave the request up".to_owned()),
                }
            }
            Some(Event::Failed { message, .. }) => self.fail(message),
            None => self.fail("the engine has stopped".to_owned()),
        };
        Poll::Ready(Some(piece))
    }

    fn fail(&mut self, message: String) -> Piece {
        self.failed = true;
        Piece::Failed { message }
    }

    pub(crate) async fn next(&mut self) -> Option<Piece> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    pub(crate) fn tokens(&self) -> Tokens {
        self.tokens
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        let outcome = match (self.failed, self.open) {
            (true, _) => "failed",
            (false, 0) => "finished",
            (false, _) => "cancelled",
        };
        if outcome != "finished" {
            self.ids.drain(..).for_each(|id| self.handle.cancel(id));
        }
        let Tokens { prompt, cached, output } = self.tokens;
        let seconds = self.start.elapsed().as_secs_f64();
        tracing::info!(
            request_id = %self.request_id,
            outcome,
            prompt_tokens = prompt,
            cached_tokens = cached,
            output_tokens = output,
            seconds,
            "generation ended"
        );
    }
}

/// Hands on what the engine says, with choices counted from `first`.
fn sink(sender: UnboundedSender<Event>, first: u32, mut watch: Watch) -> Box<dyn FnMut(Event) + Send> {
    Box::new(move |mut event| {
        watch.see(&event);
        match &mut event {
            Event::Delta { choice, .. } | Event::Finished { choice, .. } | Event::Failed { choice, .. } => {
                *choice += first;
            }
        }
        // Nobody listens any more: the cancellation is on its way.
        let _ = sender.send(event);
    })
}

/// OpenAI's word for why a choice ended; `None` where it did not come to an end.
fn reason_name(reason: FinishReason) -> Option<&'static str> {
    match reason {
        FinishReason::Stop | FinishReason::StopString => Some("stop"),
        FinishReason::Length => Some("length"),
        FinishReason::Cancelled | FinishReason::Error => None,
    }
}
