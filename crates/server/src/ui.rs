//! The web page at `/`: files that the program carries, and the headers that keep them to themselves.
//!
//! The page holds nothing secret and needs no key; what it shows it asks of the API like any other client.

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::Uri;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;

/// Only this server's own files and answers; no page may frame this one, for a frame could lead clicks astray.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

/// Name, type and text of what is at `/ui/NAME`.
const FILES: [(&str, &str, &str); 10] = [
    ("api.js", SCRIPT, include_str!("ui/api.js")),
    ("chat.js", SCRIPT, include_str!("ui/chat.js")),
    ("dom.js", SCRIPT, include_str!("ui/dom.js")),
    ("figures.js", SCRIPT, include_str!("ui/figures.js")),
    ("icon.svg", IMAGE, include_str!("ui/icon.svg")),
    ("main.js", SCRIPT, include_str!("ui/main.js")),
    ("markdown.js", SCRIPT, include_str!("ui/markdown.js")),
    ("metrics.js", SCRIPT, include_str!("ui/metrics.js")),
    ("settings.js", SCRIPT, include_str!("ui/settings.js")),
    ("style.css", STYLE, include_str!("ui/style.css")),
];

/// The page itself.
pub(crate) async fn page() -> Response {
    file(HTML, include_str!("ui/index.html"))
}

/// What the page is made of.
///
/// # Errors
/// 404 for other names, 400 for one that is not UTF-8.
pub(crate) async fn part(name: Result<Path<String>, PathRejection>, uri: Uri) -> Result<Response, ApiError> {
    let Path(name) = name.map_err(|rejection| ApiError::invalid(rejection.body_text()))?;
    let found = FILES.iter().find(|(known, ..)| *known == name);
    found.map(|(_, kind, text)| file(kind, text)).ok_or_else(|| ApiError::no_route(&uri))
}

fn file(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        // A newer server has newer files.
        (CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}
