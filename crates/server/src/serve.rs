//! The listening socket: which connections are taken, and how a server ends.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::app::{App, Served, routes};
use crate::config::ServerConfig;
use crate::connection::{Patience, refuse, talk};

/// Connections that are told at the same time that there are too many; any more are closed without a word.
const MAX_REFUSALS: usize = 64;

/// How long clients may take to receive what is said to them when the server gives their requests up.
const FAREWELL: Duration = Duration::from_secs(2);

/// How long to wait when the system has no connection to give (no file descriptor is left, say).
const RECOVERY: Duration = Duration::from_millis(100);

/// How far a server's end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Running,
    /// No connection is taken any more; what was asked is answered.
    Draining,
    /// What is still running is given up.
    Cancelling,
}

/// Completes when `phase` is reached: never, if the server has no end.
pub(crate) async fn reached(mut phases: watch::Receiver<Phase>, phase: Phase) {
    if phases.wait_for(|now| *now >= phase).await.is_err() {
        std::future::pending().await
    }
}

/// A server that cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be had.
    #[error("cannot listen at {host}:{port}: {source}; choose another --host or --port")]
    Bind {
        /// As asked for.
        host: String,
        /// As asked for.
        port: u16,
        /// The system's answer.
        source: io::Error,
    },
}

/// Takes the address of `config`.
///
/// # Errors
/// [`ServerError::Bind`].
pub async fn bind(config: &ServerConfig) -> Result<TcpListener, ServerError> {
    let ServerConfig { host, port, .. } = config;
    TcpListener::bind((host.as_str(), *port)).await.map_err(|source| ServerError::Bind {
        host: host.clone(),
        port: *port,
        source,
    })
}

/// Answers on `listener` until `drain` completes; then takes no more connections and finishes the answers that are on
/// their way. When [`ServerConfig::drain_timeout`] is over, or `cancel` completes, the rest is cancelled: its clients
/// are told so. Returns when no connection is left.
pub async fn serve(
    listener: TcpListener,
    config: ServerConfig,
    served: Served,
    drain: impl Future<Output = ()>,
    cancel: impl Future<Output = ()>,
) {
    let (phase, phases) = watch::channel(Phase::Running);
    let drain_timeout = config.drain_timeout;
    let app = Arc::new(App::new(config, served, phases));
    let mut connections = JoinSet::new();
    tokio::select! {
        () = drain => {}
        () = accept(&listener, &app, &mut connections) => {}
    }
    drop(listener);
    phase.send_replace(Phase::Draining);
    tokio::select! {
        () = all(&mut connections) => return,
        () = cancel => {}
        () = sleep(drain_timeout) => {}
    }
    phase.send_replace(Phase::Cancelling);
    if timeout(FAREWELL, all(&mut connections)).await.is_err() {
        connections.shutdown().await;
    }
}

async fn all(connections: &mut JoinSet<()>) {
    while connections.join_next().await.is_some() {}
}

/// Takes connections for ever.
async fn accept(listener: &TcpListener, app: &Arc<App>, connections: &mut JoinSet<()>) {
    let router = routes(Arc::clone(app));
    let patience = Patience { client: app.config.client_timeout, phases: app.phases.clone() };
    let places = Arc::new(Semaphore::new(app.config.max_connections));
    let refusals = Arc::new(Semaphore::new(MAX_REFUSALS));
    loop {
        let Some(stream) = next(listener).await else { continue };
        while connections.try_join_next().is_some() {}
        if let Some(place) = take(&places) {
            let (app, router, patience) = (Arc::clone(app), router.clone(), patience.clone());
            connections.spawn(async move {
                let _open = app.metrics.connection();
                talk(stream, router, patience).await;
                drop(place);
            });
        } else {
            app.metrics.rejected("too_many_connections");
            let Some(place) = take(&refusals) else { continue };
            let patience = patience.clone();
            connections.spawn(async move {
                refuse(stream, patience).await;
                drop(place);
            });
        }
    }
}

fn take(places: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    Arc::clone(places).try_acquire_owned().ok()
}

/// The next connection; `None` if there was one and it is gone already.
async fn next(listener: &TcpListener) -> Option<TcpStream> {
    match listener.accept().await {
        Ok((stream, _)) => {
            // A token is a few bytes and must leave at once: without this the system waits for more to send.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "TCP_NODELAY refused");
            }
            Some(stream)
        }
        Err(error) if is_the_clients(&error) => None,
        Err(error) => {
            tracing::warn!(%error, "cannot take a connection");
            sleep(RECOVERY).await;
            None
        }
    }
}

/// Whether the connection failed, not the socket that listens.
fn is_the_clients(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
