//! The settings of a server.

use std::time::Duration;

/// How a server listens, whom it answers, and how long it waits for whom.
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
    /// Connections at the same time at most; one more is answered 503 and closed.
    pub max_connections: usize,
    /// How long a client may take to send a request's head (from the connection's start or the last answer's end), to
    /// send a body, and to take in any part of an answer.
    pub client_timeout: Duration,
    /// How long a request may be on its way, waiting included; `None`: as long as it takes.
    pub request_timeout: Option<Duration>,
    /// How long answers that have begun may take to finish when the server ends.
    pub drain_timeout: Duration,
    /// Tokens of a choice that wait for a client that does not read; one more cancels its request.
    pub backlog: usize,
    /// After this time without an event a stream gets a comment, so that nobody between takes it for dead.
    pub keep_alive: Duration,
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
            max_connections: 512,
            client_timeout: Duration::from_secs(60),
            request_timeout: None,
            drain_timeout: Duration::from_secs(30),
            backlog: 2048,
            keep_alive: Duration::from_secs(10),
        }
    }
}
