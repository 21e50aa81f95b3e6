//! One connection, and the limits of its client's patience and ours.

use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use axum::http::header::{CONNECTION, HeaderValue};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Sleep, sleep};

use crate::error::ApiError;
use crate::serve::{Phase, reached};

/// Bytes that a connection reads ahead, and that it holds of an answer which its client does not take in. A request's
/// head must fit.
const BUFFER: usize = 64 << 10;

/// How long a client has to hear that there are too many.
const REFUSAL: Duration = Duration::from_secs(5);

/// For whom a connection waits, and until when.
#[derive(Debug, Clone)]
pub(crate) struct Patience {
    /// For a request's head, and for any part of an answer to be taken in.
    pub(crate) client: Duration,
    /// When the server drains, the connection ends with the answer that it is giving.
    pub(crate) phases: watch::Receiver<Phase>,
}

/// Answers the requests of a connection by `router`.
pub(crate) async fn talk(stream: TcpStream, router: Router, patience: Patience) {
    run(stream, TowerToHyperService::new(router), patience).await;
}

/// Answers the one request of a connection that there are too many connections.
pub(crate) async fn refuse(stream: TcpStream, patience: Patience) {
    let busy = service_fn(|_: Request<Incoming>| async {
        let mut response = ApiError::too_many_connections().into_response();
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        Ok::<_, Infallible>(response)
    });
    let patience = Patience { client: patience.client.min(REFUSAL), ..patience };
    run(stream, busy, patience).await;
}

async fn run<S>(stream: TcpStream, service: S, Patience { client, phases }: Patience)
where
    S: Service<Request<Incoming>, Response = Response, Error = Infallible>,
{
    let io = TokioIo::new(Timed { stream, limit: client, waiting: None });
    let mut builder = http1::Builder::new();
    // The time for a head runs from the moment that one could come: it limits idle connections too.
    builder.timer(TokioTimer::new()).header_read_timeout(client).max_buf_size(BUFFER);
    let mut connection = pin!(builder.serve_connection(io, service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = reached(phases, Phase::Draining) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection broke off");
    }
}

/// A stream that breaks off when the other side takes nothing in for `limit`.
struct Timed {
    stream: TcpStream,
    limit: Duration,
    /// Runs while a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Timed {
    /// Passes on what a write came to, and ends one that waits for too long.
    fn limited<T>(&mut self, written: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let limit = self.limit;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(limit)));
        waiting.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Timed {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, to)
    }
}

impl AsyncWrite for Timed {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let timed = self.get_mut();
        let written = Pin::new(&mut timed.stream).poll_write(context, from);
        timed.limited(written, context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let timed = self.get_mut();
        let written = Pin::new(&mut timed.stream).poll_write_vectored(context, from);
        timed.limited(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let timed = self.get_mut();
        let flushed = Pin::new(&mut timed.stream).poll_flush(context);
        timed.limited(flushed, context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let timed = self.get_mut();
        let closed = Pin::new(&mut timed.stream).poll_shutdown(context);
        timed.limited(closed, context)
    }
}
