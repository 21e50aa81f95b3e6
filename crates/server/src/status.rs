//! What the server says of itself: models, health, metrics.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
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

pub(crate) async fn model(
    State(app): State<Arc<App>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path(name) = name.map_err(|rejection| ApiError::invalid(rejection.body_text()))?;
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

/// The model is loaded and requests are taken.
///
/// # Errors
/// 503 when the server goes down, and when the engine has stopped by a fault.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    if app.is_stopping() {
        return Err(ApiError::shutting_down());
    }
    if !app.served.handle.is_open() {
        return Err(ApiError::engine_stopped());
    }
    let stats = app.served.handle.stats();
    Ok(Json(json!({ "status": "ready", "running": stats.running, "waiting": stats.waiting })))
}

/// Figures in the text form that Prometheus reads.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let text = app.metrics.text().map_err(|error| ApiError::failed(error.to_string()))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(CONTENT_TYPE, kind)], text).into_response())
}
