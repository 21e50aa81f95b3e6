//! `/openapi.json`: every address, every field and every answer, for programs that read such documents.
//!
//! The document is a file, written by hand; the tests hold it against the routes and against what the server takes.

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

const DOCUMENT: &str = include_str!("openapi/openapi.json");

pub(crate) async fn document() -> Response {
    ([(CONTENT_TYPE, "application/json")], DOCUMENT).into_response()
}

#[cfg(test)]
mod tests;
