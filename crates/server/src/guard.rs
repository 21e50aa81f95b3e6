//! What every request goes through: its id, the API key, CORS, the count and the log line.

use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, AUTHORIZATION, VARY,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use engine::fresh_seed;

use crate::app::App;
use crate::error::{ApiError, Refusal};
use crate::record::Record;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest id that is taken over from a client.
const MAX_ID: usize = 128;

/// Routes that tell nothing secret: for probes, which have no key, the page, which asks its user for one, and those who
/// want to know what they could ask.
const OPEN: [&str; 5] = ["/", "/ui/{name}", "/openapi.json", "/health", "/ready"];

/// The request that a handler answers.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(pub(crate) Arc<Record>);

pub(crate) async fn guard(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let record = Arc::new(Record::new(id(request.headers()), request.method().clone(), &path));
    request.extensions_mut().insert(RequestId(Arc::clone(&record)));
    let route = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    let mut response = if app.config.cors.is_some() && is_preflight(&request) {
        StatusCode::NO_CONTENT.into_response()
    } else if may_pass(app.config.api_key.as_deref(), &route, request.headers()) {
        next.run(request).await
    } else {
        ApiError::unauthorized().into_response()
    };
    let refusal = response.extensions_mut().remove::<Refusal>();
    let code = refusal.map(|Refusal(error)| {
        response = error.answer(Some(&record.id));
        error.code()
    });
    let status = response.status().as_u16();
    if let Ok(value) = HeaderValue::from_str(&record.id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    if let Some(origin) = &app.config.cors {
        allow_origin(response.headers_mut(), origin);
    }
    app.metrics.answered(&route, status);
    if let Some(code) = code {
        app.metrics.rejected(code);
    }
    record.answered(status, code);
    response
}

/// The client's own id if it sent a sane one, else a random one.
fn id(headers: &HeaderMap) -> String {
    let sane = |id: &&str| (1..=MAX_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
    let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok()).filter(sane);
    given.map_or_else(|| format!("{:016x}", fresh_seed()), str::to_owned)
}

/// A browser that asks whether it may ask.
fn is_preflight(request: &Request) -> bool {
    request.method() == Method::OPTIONS && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

fn may_pass(key: Option<&str>, route: &str, headers: &HeaderMap) -> bool {
    let Some(key) = key else { return true };
    let given = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
    let is_bearer = given.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer "));
    OPEN.contains(&route) || is_bearer && is_equal(&given[7..], key.as_bytes())
}

/// Looks at every byte whatever it finds: the time tells nothing of where a guess went wrong.
fn is_equal(given: &[u8], key: &[u8]) -> bool {
    given.len() == key.len() && given.iter().zip(key).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

fn allow_origin(headers: &mut HeaderMap, origin: &str) {
    let Ok(origin) = HeaderValue::from_str(origin) else { return };
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, OPTIONS"));
    // `*` does not cover Authorization.
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("*, Authorization"));
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("x-request-id, retry-after"));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    headers.insert(VARY, HeaderValue::from_static("Origin"));
}
