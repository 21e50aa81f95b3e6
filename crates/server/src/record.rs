//! What the log says of a request: one line when nothing of it is left. Nothing of a prompt or an answer is in it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::http::Method;

use crate::generation::Tokens;

/// Bytes of an address that the log shows.
const MAX_PATH: usize = 128;

/// What is asked for again and again, by probes, by Prometheus and by the page: answers of 200 are no news.
const POLLED: [&str; 3] = ["/health", "/metrics", "/ready"];

/// A request from its arrival to its end, be it an answer that was sent or a client that went.
#[derive(Debug)]
pub(crate) struct Record {
    /// In the answer's header, in errors and in the log: the client's own id, or a random one.
    pub(crate) id: String,
    method: Method,
    path: String,
    start: Instant,
    result: Mutex<Result>,
}

/// What came of it.
#[derive(Debug, Default)]
struct Result {
    /// 0: the client went before there was one.
    status: u16,
    code: Option<&'static str>,
    generation: Option<Ended>,
}

/// How a generation ended.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    /// `finished`, `failed` or `cancelled`.
    pub(crate) outcome: &'static str,
    /// Of the first choice that ended.
    pub(crate) finish: Option<&'static str>,
    pub(crate) tokens: Tokens,
    /// From the submission to the first token.
    pub(crate) first_token: Option<f64>,
}

impl Record {
    pub(crate) fn new(id: String, method: Method, path: &str) -> Self {
        // A path is ASCII: any place is a character's end.
        let path = path.get(..MAX_PATH).unwrap_or(path).to_owned();
        Self { id, method, path, start: Instant::now(), result: Mutex::default() }
    }

    fn result(&self) -> MutexGuard<'_, Result> {
        // Nothing that panics runs under the lock.
        self.result.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer's head is on its way; `code` is that of the error that it is, if it is one.
    pub(crate) fn answered(&self, status: u16, code: Option<&'static str>) {
        let mut result = self.result();
        (result.status, result.code) = (status, code);
    }

    pub(crate) fn generated(&self, ended: Ended) {
        self.result().generation = Some(ended);
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let Self { id, method, path, start, .. } = &*self;
        let seconds = start.elapsed().as_secs_f64();
        let Result { status, code, generation } = &*self.result();
        let Some(Ended { outcome, finish, tokens, first_token }) = generation else {
            if *status == 200 && POLLED.contains(&path.as_str()) {
                tracing::debug!(request_id = %id, %method, %path, status, seconds, "request");
            } else {
                tracing::info!(request_id = %id, %method, %path, status, code, seconds, "request");
            }
            return;
        };
        let Tokens { prompt, cached, output, .. } = tokens;
        tracing::info!(
            request_id = %id,
            %method,
            %path,
            status,
            code,
            seconds,
            first_token_seconds = first_token,
            prompt_tokens = prompt,
            cached_tokens = cached,
            output_tokens = output,
            outcome,
            finish_reason = finish,
            "request"
        );
    }
}
