//! A server on the tiny Llama of the fixtures, whose tokens are bytes.
#![allow(dead_code)] // Each test file uses a part of it.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use draft::Drafter;
use engine::batch::{Service, ServiceOptions, Speculation};
use http_body_util::BodyExt;
use kernels::Pool;
use model::chat::ChatTemplate;
use serde_json::{Value, json};
use server::{Served, ServerConfig, router};
use spec::CostCurve;
use testkit::byte_tokenizer;
use tower::ServiceExt;

/// The fixture's positions.
pub(crate) const CONTEXT: usize = 256;

/// For conversations with tools: more than the fixture was made for, and its answers are noise anyway.
pub(crate) const LONG_CONTEXT: usize = 4096;

pub(crate) const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}\
    {% if add_generation_prompt %}assistant:{% endif %}";

fn start(context: usize, max_waiting: usize, speculation: Option<Speculation>) -> Service {
    let pool = Pool::new(NonZeroUsize::MIN);
    let model = testkit::target_with("llama", &pool, |config| config.context = config.context.max(context));
    let options =
        ServiceOptions { kv_bytes: 4 << 20, context: Some(context), max_waiting, ..ServiceOptions::default() };
    Service::start(model, byte_tokenizer(), pool, options, speculation)
}

/// A running engine with a server in front.
pub(crate) struct Fixture {
    pub(crate) service: Service,
    pub(crate) served: Served,
    pub(crate) router: Router,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with(ServerConfig::default(), 64)
    }

    pub(crate) fn with(config: ServerConfig, max_waiting: usize) -> Self {
        Self::with_template(config, start(CONTEXT, max_waiting, None), TEMPLATE)
    }

    /// A server for longer conversations, with a template of its own.
    pub(crate) fn talking(template: &str) -> Self {
        Self::with_template(ServerConfig::default(), start(LONG_CONTEXT, 64, None), template)
    }

    /// A server that drafts, and that checks whatever is drafted: steps cost the same whatever their rows.
    pub(crate) fn drafting(drafter: Box<dyn Drafter>) -> Self {
        let curve = CostCurve::new(&[1, 128], &[0], &[1.0, 1.0]).unwrap();
        let speculation = Speculation::new(drafter, 8, curve);
        Self::with_template(ServerConfig::default(), start(CONTEXT, 64, Some(speculation)), TEMPLATE)
    }

    fn with_template(config: ServerConfig, service: Service, template: &str) -> Self {
        let template = Some(ChatTemplate::new(template, &BTreeMap::new()).unwrap());
        let served = Served { handle: service.handle(), tokenizer: byte_tokenizer(), template };
        Self { router: router(config, served.clone()), served, service }
    }

    /// Sends a request and waits for the whole answer.
    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { status: head.status, headers: head.headers, body: String::from_utf8(body.to_vec()).unwrap() }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(Request::post(path).body(Body::from(body.to_string())).unwrap()).await
    }
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The answer, which must be a success.
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, StatusCode::OK, "{}", self.body);
        self.json()
    }

    /// The error in the answer, which must have that status.
    pub(crate) fn error(&self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.body);
        let error = self.json()["error"].clone();
        assert!(error["message"].is_string() && error["type"].is_string(), "{error}");
        error
    }

    /// The events of a stream, whose framing must be right and whose last must be `[DONE]`.
    pub(crate) fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, StatusCode::OK, "{}", self.body);
        assert_eq!(self.headers["content-type"], "text/event-stream");
        let frames = self.body.strip_suffix("data: [DONE]\n\n").expect("[DONE] at the end");
        let frames = frames.split_terminator("\n\n");
        frames.map(|frame| serde_json::from_str(frame.strip_prefix("data: ").unwrap()).unwrap()).collect()
    }
}

/// More tokens than a test waits for: 8 prompts of 32 choices that never stop by themselves.
pub(crate) fn endless() -> Value {
    let prompts: Vec<String> = (0..8).map(|i| format!("Prompt {i}")).collect();
    json!({ "prompt": prompts, "n": 32, "max_tokens": 200, "ignore_eos": true, "stream": true })
}

const ENDLESS_TOKENS: u64 = 8 * 32 * 200;

/// Waits until the engine has nothing to do.
pub(crate) async fn idle(fixture: &Fixture) {
    while {
        let stats = fixture.served.handle.stats();
        stats.running + stats.waiting > 0
    } {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

pub(crate) async fn busy(fixture: &Fixture) {
    while fixture.served.handle.stats().generated_tokens == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

pub(crate) fn assert_cancelled(fixture: &Fixture) {
    let stats = fixture.served.handle.stats();
    assert!(stats.generated_tokens < ENDLESS_TOKENS, "{} tokens for nobody", stats.generated_tokens);
    assert_eq!(stats.kv_pages_used, 0);
}

/// A request as bytes on a connection of its own.
pub(crate) fn raw(path: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")
        .into_bytes()
}
