//! The choices of one request on their way: submitted, received, and cancelled when nobody waits for them any more.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use engine::batch::{Event, Handle, RequestId, Submission, SubmitError};
use engine::{Delta, FinishReason, Request, SamplingParams};
use serde_json::{Value, json};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::sleep;

use crate::app::App;
use crate::error::ApiError;
use crate::metrics::Watch;
use crate::params::Asked;
use crate::record::{Ended, Record};
use crate::serve::{Phase, reached};

/// Events that may wait for a client, whatever the setting says: what a channel can have.
const MOST_EVENTS: usize = usize::MAX >> 4;

/// What comes next.
pub(crate) enum Piece {
    /// A token of a choice, numbered over all prompts.
    Delta { choice: u32, delta: Delta },
    /// A choice has ended.
    Finished { choice: u32, reason: &'static str },
    /// A choice, and with it the request, has failed.
    Failed { error: ApiError },
}

/// Tokens of a request so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tokens {
    /// Of all prompts, each counted once.
    pub(crate) prompt: usize,
    /// Of these, found in the cache; known when a prompt's first choice has ended.
    pub(crate) cached: usize,
    /// Of all choices.
    pub(crate) output: usize,
    /// Drafts that were checked, in the choices that have ended.
    pub(crate) drafted: usize,
    /// Of these, committed.
    pub(crate) accepted: usize,
}

impl Tokens {
    /// OpenAI's `usage`.
    pub(crate) fn to_json(self) -> Value {
        let Self { prompt, cached, output, drafted, accepted } = self;
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": { "cached_tokens": cached },
            "completion_tokens_details": {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": drafted.saturating_sub(accepted),
            },
        })
    }
}

/// A request on its way. Dropping it (the client has gone) cancels what is still running.
pub(crate) struct Generation {
    events: Receiver<Event>,
    handle: Handle,
    ids: Vec<RequestId>,
    /// Choices that have not ended.
    open: usize,
    /// Choices of each prompt.
    n: u32,
    tokens: Tokens,
    record: Arc<Record>,
    start: Instant,
    first_token: Option<Duration>,
    finish: Option<&'static str>,
    failed: bool,
    unread: Arc<Unread>,
    /// Completes when the request is to be given up, and says why.
    given_up: Pin<Box<dyn Future<Output = ApiError> + Send>>,
}

/// Whether a client has left too much of its answer unread.
#[derive(Debug)]
struct Unread {
    /// Tokens of a choice that it may.
    limit: usize,
    exceeded: AtomicBool,
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
        record: Arc<Record>,
    ) -> Result<Self, ApiError> {
        let choices = prompts.len() * asked.n as usize;
        let unread = Arc::new(Unread { limit: app.config.backlog, exceeded: AtomicBool::new(false) });
        // One more for the end of each choice.
        let (sender, events) = channel(unread.limit.saturating_add(1).saturating_mul(choices).min(MOST_EVENTS));
        let mut generation = Self {
            events,
            handle: app.served.handle.clone(),
            ids: Vec::with_capacity(prompts.len()),
            open: 0,
            n: asked.n,
            tokens: Tokens::default(),
            record,
            start: Instant::now(),
            first_token: None,
            finish: None,
            failed: false,
            unread,
            given_up: Box::pin(given_up(app)),
        };
        for prompt in prompts {
            generation.submit(app, prompt, asked, sender.clone())?;
        }
        Ok(generation)
    }

    fn submit(&mut self, app: &App, prompt: Vec<u32>, asked: &Asked, sender: Sender<Event>) -> Result<(), ApiError> {
        self.tokens.prompt += prompt.len();
        if asked.params.max_tokens == Some(0) {
            return self.end_at_once(app, &prompt, asked, &sender);
        }
        let submission = Submission {
            prompt,
            params: asked.params.clone(),
            n: asked.n,
            cache_salt: asked.cache_salt.clone(),
            priority: asked.priority,
            drafting: asked.drafting.clone(),
        };
        let id = Arc::new(OnceLock::new());
        let line =
            Line { sender, first: self.open as u32, unread: Arc::clone(&self.unread), handle: self.handle.clone(), id };
        let (id, watch) = (Arc::clone(&line.id), Watch::start(Arc::clone(&app.metrics), asked.n));
        let submitted = self.handle.submit(submission, line.sink(watch)).map_err(|error| match error {
            SubmitError::ShuttingDown if !app.is_stopping() => ApiError::engine_stopped(),
            error => error.into(),
        });
        match submitted {
            Ok(submitted) => {
                self.ids.push(submitted);
                self.open += asked.n as usize;
                // Set once, here.
                let _ = id.set(submitted);
                Ok(())
            }
            Err(error) => {
                self.failed = true;
                Err(error)
            }
        }
    }

    /// Ends the choices of a prompt that nothing is to be added to, if it could be continued.
    fn end_at_once(
        &mut self,
        app: &App,
        prompt: &[u32],
        asked: &Asked,
        sender: &Sender<Event>,
    ) -> Result<(), ApiError> {
        let params = SamplingParams { max_tokens: Some(1), ..asked.params.clone() };
        let request = Request::new(prompt, params, 0, self.handle.limits(), &app.served.tokenizer);
        let usage = request.inspect_err(|_| self.failed = true)?.usage();
        let mut watch = Watch::start(Arc::clone(&app.metrics), asked.n);
        for choice in 0..asked.n {
            let event = |choice| Event::Finished { choice, reason: FinishReason::Length, usage };
            watch.see(&event(choice));
            // There is room for the end of every choice, and the receiver is ours.
            let _ = sender.try_send(event(self.open as u32 + choice));
        }
        self.open += asked.n as usize;
        Ok(())
    }

    /// The next event, or `None` when all choices have ended or one has failed.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Piece>> {
        if self.open == 0 || self.failed {
            return Poll::Ready(None);
        }
        if self.unread.exceeded.load(Ordering::Relaxed) {
            return Poll::Ready(Some(self.fail(ApiError::not_read(self.unread.limit))));
        }
        if let Poll::Ready(error) = self.given_up.as_mut().poll(context) {
            return Poll::Ready(Some(self.fail(error)));
        }
        let piece = match ready!(self.events.poll_recv(context)) {
            Some(Event::Delta { choice, delta }) => {
                self.tokens.output += 1;
                self.first_token.get_or_insert_with(|| self.start.elapsed());
                Piece::Delta { choice, delta }
            }
            Some(Event::Finished { choice, reason, usage }) => {
                self.open -= 1;
                self.tokens.drafted += usage.drafted_tokens;
                self.tokens.accepted += usage.accepted_tokens;
                // The choices of a prompt share what was found of it: it is counted with the first.
                if choice % self.n == 0 {
                    self.tokens.cached += usage.cached_tokens;
                }
                match reason_name(reason) {
                    Some(reason) => {
                        self.finish.get_or_insert(reason);
                        Piece::Finished { choice, reason }
                    }
                    None => self.fail(ApiError::failed("the server gave the request up")),
                }
            }
            Some(Event::Failed { message, .. }) => self.fail(ApiError::failed(message)),
            None => self.fail(ApiError::engine_stopped()),
        };
        Poll::Ready(Some(piece))
    }

    fn fail(&mut self, error: ApiError) -> Piece {
        self.failed = true;
        self.cancel();
        Piece::Failed { error }
    }

    fn cancel(&mut self) {
        self.ids.drain(..).for_each(|id| self.handle.cancel(id));
    }

    /// The id of the request, for errors.
    pub(crate) fn request_id(&self) -> &str {
        &self.record.id
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
            self.cancel();
        }
        let first_token = self.first_token.map(|time| time.as_secs_f64());
        self.record.generated(Ended { outcome, finish: self.finish, tokens: self.tokens, first_token });
    }
}

/// When a request has to end, and with which error.
fn given_up(app: &App) -> impl Future<Output = ApiError> + Send + use<> {
    let (limit, phases) = (app.config.request_timeout, app.phases.clone());
    let late = async move {
        match limit {
            Some(limit) => sleep(limit).await,
            None => std::future::pending().await,
        }
        ApiError::timed_out(limit.unwrap_or_default())
    };
    async move {
        tokio::select! {
            error = late => error,
            () = reached(phases, Phase::Cancelling) => ApiError::shutting_down(),
        }
    }
}

/// The way of a submission's events to its client, which the engine's thread must never wait for.
struct Line {
    sender: Sender<Event>,
    /// Number of the submission's first choice among those of all prompts.
    first: u32,
    unread: Arc<Unread>,
    handle: Handle,
    id: Arc<OnceLock<RequestId>>,
}

impl Line {
    /// Hands on what the engine says.
    fn sink(self, mut watch: Watch) -> Box<dyn FnMut(Event) + Send> {
        Box::new(move |mut event| {
            watch.see(&event);
            match &mut event {
                Event::Delta { choice, .. } | Event::Finished { choice, .. } | Event::Failed { choice, .. } => {
                    *choice += self.first;
                }
            }
            // Where nobody listens any more, the cancellation is on its way.
            if let Err(TrySendError::Full(_)) = self.sender.try_send(event) {
                self.unread.exceeded.store(true, Ordering::Relaxed);
                // Unknown only for the moment in which it was submitted: the next token comes here again.
                if let Some(&id) = self.id.get() {
                    self.handle.cancel(id);
                }
            }
        })
    }
}

/// OpenAI's word for why a choice ended; `None` where it did not come to an end.
fn reason_name(reason: FinishReason) -> Option<&'static str> {
    match reason {
        FinishReason::Stop | FinishReason::StopString => Some("stop"),
        FinishReason::Length => Some("length"),
        FinishReason::Cancelled | FinishReason::Error => None,
    }
}
