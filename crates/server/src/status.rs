//! What the server says of itself: models, health, metrics.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiError;

/// The one model under each of its names.
pub(crate) async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let models: Vec<Value> = app.config.served_model_names.iter().map(|name| describe(&app, name)).collect();
    Json(json!({ "object": "list", "data": models }))
}

pub(crate) async fn model(State(app): State<Arc<App>>, Path(name): Path<String>) -> Result<Json<Value>, ApiError> {
    app.check_model(&name)?;
    Ok(Json(describe(&app, &name)))
}

fn describe(app: &App, name: &str) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": app.started,
        "owned_by": "foretoken",
        "root": app.name(),
        "max_model_len": app.served.handle.limits().context,
    })
}

/// The process answers.
pub(crate) async fn health() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// The model is loaded and requests are taken: it answers only when that is so.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Json<Value> {
    let stats = app.served.handle.stats();
    Json(json!({ "status": "ready", "running": stats.running, "waiting": stats.waiting }))
}

/// Figures in the text form that Prometheus reads.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let text = app.metrics.text().map_err(|error| ApiError::failed(error.to_string()))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(CONTENT_TYPE, kind)], text).into_response())
}
