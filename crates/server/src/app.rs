//! What all requests share, and which address is answered by what.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware;
use axum::routing::{MethodRouter, get, post};
use engine::batch::Handle;
use model::chat::ChatTemplate;
use model::tokenizer::Tokenizer;
use tokio::sync::watch;

use crate::config::ServerConfig;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::grammars::Grammars;
use crate::metrics::Metrics;
use crate::serve::Phase;
use crate::{chat, completions, guard, openapi, status, text, ui};

/// What is served: a running engine and the two sides of its text.
#[derive(Clone)]
pub struct Served {
    /// Where requests go.
    pub handle: Handle,
    /// The model's tokenizer.
    pub tokenizer: Tokenizer,
    /// The model's chat template; without one chats are refused.
    pub template: Option<ChatTemplate>,
}

/// The state of the server.
pub(crate) struct App {
    pub(crate) config: ServerConfig,
    pub(crate) served: Served,
    pub(crate) grammars: Grammars,
    pub(crate) metrics: Arc<Metrics>,
    /// When the server started, in seconds since 1970: the model's `created`.
    pub(crate) started: u64,
    /// How far the server's end has come.
    pub(crate) phases: watch::Receiver<Phase>,
}

impl App {
    pub(crate) fn new(config: ServerConfig, served: Served, phases: watch::Receiver<Phase>) -> Self {
        let metrics = Arc::new(Metrics::new(served.handle.clone()));
        let grammars = Grammars::new(served.tokenizer.clone());
        Self { config, served, grammars, metrics, started: unix_time(), phases }
    }

    /// Whether the server goes down.
    pub(crate) fn is_stopping(&self) -> bool {
        *self.phases.borrow() > Phase::Running
    }

    /// Takes the field `model`: one of the served names, or absent. The answer is the name to answer with.
    ///
    /// # Errors
    /// 404 for another model.
    pub(crate) fn model(&self, fields: &mut Fields) -> Result<String, ApiError> {
        let asked = fields.text("model")?.unwrap_or_else(|| self.name().to_owned());
        self.check_model(&asked).map(|()| asked)
    }

    /// # Errors
    /// 404 if `asked` is not a name of the served model.
    pub(crate) fn check_model(&self, asked: &str) -> Result<(), ApiError> {
        let known = self.config.served_model_names.iter().any(|name| name == asked);
        if known { Ok(()) } else { Err(ApiError::no_model(asked, self.name())) }
    }

    /// The model's first name.
    pub(crate) fn name(&self) -> &str {
        self.config.served_model_names.first().map_or("model", String::as_str)
    }
}

/// Seconds since 1970.
pub(crate) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The routes of a server, for [`crate::serve`] or another host of axum routers.
pub fn router(config: ServerConfig, served: Served) -> Router {
    // Whoever hosts the routes ends them, not we.
    let phases = watch::channel(Phase::Running).1;
    routes(Arc::new(App::new(config, served, phases)))
}

/// Every address with what answers it.
pub(crate) fn addresses() -> [(&'static str, MethodRouter<Arc<App>>); 12] {
    [
        ("/", get(ui::page)),
        ("/ui/{name}", get(ui::part)),
        ("/openapi.json", get(openapi::document)),
        ("/v1/chat/completions", post(chat::complete)),
        ("/v1/completions", post(completions::complete)),
        ("/v1/models", get(status::models)),
        ("/v1/models/{*name}", get(status::model)),
        ("/tokenize", post(text::tokenize)),
        ("/detokenize", post(text::detokenize)),
        ("/health", get(status::health)),
        ("/ready", get(status::ready)),
        ("/metrics", get(status::metrics)),
    ]
}

/// The routes of `app`.
pub(crate) fn routes(app: Arc<App>) -> Router {
    addresses()
        .into_iter()
        .fold(Router::new(), |router, (path, answer)| router.route(path, answer))
        .fallback(|request: Request| async move { ApiError::no_route(request.uri()) })
        .method_not_allowed_fallback(
            |request: Request| async move { ApiError::no_method(request.method(), request.uri()) },
        )
        .layer(DefaultBodyLimit::max(app.config.body_limit))
        .layer(middleware::from_fn_with_state(app.clone(), guard::guard))
        .with_state(app)
}
