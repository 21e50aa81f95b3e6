//! From a running generation to the HTTP response: one JSON object, or server-sent events.

use std::convert::Infallible;
use std::fmt::Write;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::HeaderName;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use serde_json::Value;
use tokio::time::{Instant, Sleep, sleep};

use crate::app::App;
use crate::drafting;
use crate::error::ApiError;
use crate::generation::{Generation, Piece};
use crate::guard::RequestId;
use crate::params::Asked;
use crate::shape::{Kind, Shape, ShapeOptions};

/// What nginx takes as word not to collect events before it hands them on.
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Runs what was asked for and answers in the form that was asked for.
///
/// # Errors
/// 400, 429 or 503 when the engine does not take the request, 500 when it fails.
pub(crate) async fn answer(
    app: &App,
    kind: Kind,
    (model, RequestId(record)): (String, RequestId),
    prompts: Vec<Vec<u32>>,
    asked: &Asked,
) -> Result<Response, ApiError> {
    let choices = prompts.len() * asked.n as usize;
    let lossy = drafting::lossy(&asked.drafting, asked.params.temperature).filter(|_| app.served.handle.drafts());
    let options = ShapeOptions { include_usage: asked.include_usage, calls: asked.calls, lossy };
    let mut shape = Shape::new(kind, &record.id, model, app.served.tokenizer.clone(), choices, options);
    shape.lead(&asked.leads);
    let generation = Generation::start(app, prompts, asked, record)?;
    if asked.stream { Ok(stream(generation, shape, app.config.keep_alive)) } else { whole(generation, shape).await }
}

/// The answer when it is complete.
///
/// # Errors
/// 500 when a choice fails, 503 and 504 when the request is given up.
async fn whole(mut generation: Generation, mut shape: Shape) -> Result<Response, ApiError> {
    while let Some(piece) = generation.next().await {
        match piece {
            Piece::Delta { choice, delta } => shape.add(choice, &delta),
            Piece::Finished { choice, reason } => shape.end(choice, reason),
            Piece::Failed { error } => return Err(error),
        }
    }
    Ok(Json(shape.whole(generation.tokens())).into_response())
}

/// The answer as it comes, one event a token.
fn stream(generation: Generation, shape: Shape, keep_alive: Duration) -> Response {
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache"), (ACCEL_BUFFERING, "no")];
    let events = Events { generation, shape, ended: false, keep_alive, silence: Box::pin(sleep(keep_alive)) };
    (headers, Body::from_stream(events)).into_response()
}

/// The body of a stream. The client's going drops it, and the generation with it.
struct Events {
    generation: Generation,
    shape: Shape,
    ended: bool,
    keep_alive: Duration,
    /// Ends when nothing has been said for so long.
    silence: Pin<Box<Sleep>>,
}

impl Stream for Events {
    type Item = Result<Bytes, Infallible>;

    /// All events that are there go out in one piece: a client that reads slowly is written to less often.
    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let events = self.get_mut();
        let mut frames = String::new();
        while !events.ended {
            match events.generation.poll_next(context) {
                Poll::Pending if frames.is_empty() => {
                    ready!(events.silence.as_mut().poll(context));
                    frames.push_str(": keep-alive\n\n");
                    break;
                }
                Poll::Pending => break,
                Poll::Ready(piece) => events.write(piece, &mut frames),
            }
        }
        events.silence.as_mut().reset(Instant::now() + events.keep_alive);
        Poll::Ready((!frames.is_empty()).then(|| Ok(frames.into())))
    }
}

impl Events {
    fn write(&mut self, piece: Option<Piece>, frames: &mut String) {
        match piece {
            Some(Piece::Delta { choice, delta }) => {
                if let Some(chunk) = self.shape.chunk(choice, &delta) {
                    frame(frames, &chunk);
                }
            }
            Some(Piece::Finished { choice, reason }) => frame(frames, &self.shape.last_chunk(choice, reason)),
            // The status has been sent: an event is the only way left to say it.
            Some(Piece::Failed { error }) => {
                frame(frames, &error.to_json(Some(self.generation.request_id())));
                self.ended = true;
            }
            None => {
                if let Some(chunk) = self.shape.usage_chunk(self.generation.tokens()) {
                    frame(frames, &chunk);
                }
                frames.push_str("data: [DONE]\n\n");
                self.ended = true;
            }
        }
    }
}

fn frame(frames: &mut String, chunk: &Value) {
    // Writing to a String does not fail.
    let _ = write!(frames, "data: {chunk}\n\n");
}
