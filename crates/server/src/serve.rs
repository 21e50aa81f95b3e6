//! The listening socket, and how a server ends.

use std::io;

use axum::serve::ListenerExt;
use tokio::net::TcpListener;

use crate::app::{Served, router};

/// How a server listens and whom it answers.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Name or address to listen at.
    pub host: String,
    /// Port to listen at; 0 lets the system choose.
    pub port: u16,
    /// What clients must send as `Authorization: Bearer KEY`; `None` lets everybody in. `/health` and `/ready` need no
    /// key.
    pub api_key: Option<String>,
    /// The origin whose pages may use this server from a browser, `*` for all; `None`: none.
    pub cors: Option<String>,
    /// Names of the model, the main one first. At least one.
    pub served_model_names: Vec<String>,
    /// Bytes of a request's body at most.
    pub body_limit: usize,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".into(),
            port: 8080,
            api_key: None,
            cors: None,
            served_model_names: vec!["model".into()],
            body_limit: 8 << 20,
        }
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
    /// The socket failed while it was in use.
    #[error("the server's socket failed: {0}")]
    Socket(#[from] io::Error),
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

/// Answers on `listener` until `shutdown` completes, then finishes the answers that are on their way and returns.
///
/// # Errors
/// [`ServerError::Socket`].
pub async fn serve(
    listener: TcpListener,
    config: ServerConfig,
    served: Served,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServerError> {
    // A token is a few bytes and must leave at once: without this the system waits for more to send.
    let listener = listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY refused");
        }
    });
    Ok(axum::serve(listener, router(config, served)).with_graceful_shutdown(shutdown).await?)
}
