//! Refusals and failures in OpenAI's shape, each with its status.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::BytesRejection;
use axum::http::header::{CONNECTION, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderName, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use engine::batch::SubmitError;
use engine::{ParamsError, RequestError};
use serde_json::{Value, json};

/// Seconds after which a client that found the queue full should come back: a slot is free as soon as one answer ends.
const RETRY_SECONDS: HeaderValue = HeaderValue::from_static("1");

/// Tells OpenAI's clients not to try again: what took too long will take too long once more.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// An answer that is an error.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    /// The field that is at fault.
    param: Option<String>,
    message: String,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, code: None, param: None, message: message.into() }
    }

    fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// 400: something about the request as a whole.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400: the value of `field` is not what it may be.
    pub(crate) fn field(field: &str, message: impl Into<String>) -> Self {
        Self { param: Some(field.to_owned()), ..Self::invalid(message) }
    }

    /// 400: `field`, or its value, would change the output and cannot be honoured.
    pub(crate) fn unsupported(field: &str, what: &str) -> Self {
        Self::field(field, format!("{field}: {what}")).with_code("unsupported_parameter")
    }

    /// 401.
    pub(crate) fn unauthorized() -> Self {
        let message = "a valid API key is needed: send the header 'Authorization: Bearer KEY'";
        Self::new(StatusCode::UNAUTHORIZED, "invalid_request_error", message).with_code("invalid_api_key")
    }

    /// 404: no such model.
    pub(crate) fn no_model(asked: &str, served: &str) -> Self {
        let message = format!("the model '{asked}' does not exist here; this server has '{served}'");
        let error = Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message);
        Self { param: Some("model".into()), ..error }.with_code("model_not_found")
    }

    /// 404: no such address.
    pub(crate) fn no_route(uri: &Uri) -> Self {
        let message = format!("there is nothing at {}", uri.path());
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message).with_code("not_found")
    }

    /// 405.
    pub(crate) fn no_method(method: &Method, uri: &Uri) -> Self {
        let message = format!("{} does not answer {method}", uri.path());
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message).with_code("method_not_allowed")
    }

    /// 413, or 400 for a body that broke off.
    pub(crate) fn body(rejection: &BytesRejection, limit: usize) -> Self {
        if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
            let message = format!("the body is larger than the {limit} bytes that this server takes");
            return Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message).with_code("too_large");
        }
        Self::invalid(format!("the body cannot be read: {}", rejection.body_text()))
    }

    /// 408: the body did not come.
    pub(crate) fn slow_body() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", "the body took too long to come")
            .with_code("timeout")
    }

    /// 415: a body that is no plain JSON.
    pub(crate) fn no_json(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message)
            .with_code("unsupported_media_type")
    }

    /// 503: the server goes down.
    pub(crate) fn shutting_down() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", "the server is shutting down")
            .with_code("unavailable")
    }

    /// 503: nothing is computed any more.
    pub(crate) fn engine_stopped() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", "the engine has stopped: restart the server")
            .with_code("engine_stopped")
    }

    /// 503: no place for one more connection.
    pub(crate) fn too_many_connections() -> Self {
        let message = "the server has as many connections as it takes: try again";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message).with_code("too_many_connections")
    }

    /// 504: the generation took longer than the server lets it.
    pub(crate) fn timed_out(limit: Duration) -> Self {
        let message = format!("the request took longer than the {} s that this server gives it", limit.as_secs_f64());
        Self::new(StatusCode::GATEWAY_TIMEOUT, "server_error", message).with_code("request_timeout")
    }

    /// 500, or rather the end of a stream: the client has left too much of its answer unread.
    pub(crate) fn not_read(backlog: usize) -> Self {
        Self::failed(format!("the request was cancelled: more than {backlog} tokens of its answer were not read"))
            .with_code("not_read")
    }

    /// 500.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// The same where clients know the field `from` as `to`.
    pub(crate) fn renamed(self, from: &str, to: &str) -> Self {
        let param = self.param.map(|param| if param == from { to.to_owned() } else { param });
        Self { param, ..self }
    }

    /// A word for the kind of error, for counting.
    pub(crate) fn code(&self) -> &'static str {
        self.code.unwrap_or(self.kind)
    }

    /// The error as a JSON value: the body, or a frame of a stream that had begun.
    pub(crate) fn to_json(&self, request_id: Option<&str>) -> Value {
        let Self { kind, code, param, message, .. } = self;
        let mut error = json!({ "message": message, "type": kind, "param": param, "code": code });
        if let Some(id) = request_id {
            error["request_id"] = id.into();
        }
        json!({ "error": error })
    }

    /// The error as an answer.
    pub(crate) fn answer(&self, request_id: Option<&str>) -> Response {
        let mut response = (self.status, Json(self.to_json(request_id))).into_response();
        let headers = response.headers_mut();
        match self.status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(RETRY_AFTER, RETRY_SECONDS);
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::GATEWAY_TIMEOUT => {
                headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
            }
            // The rest of the body may still come: it is not the next request.
            StatusCode::REQUEST_TIMEOUT => {
                headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}

/// The error that an answer is, for those who hand the answer on.
#[derive(Debug, Clone)]
pub(crate) struct Refusal(pub(crate) ApiError);

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::QueueFull => {
                let message = "the waiting queue is full: try again";
                Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message).with_code("queue_full")
            }
            SubmitError::ShuttingDown => Self::shutting_down(),
            SubmitError::Invalid(error) => error.into(),
        }
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> Self {
        let error = match error {
            RequestError::Params(error) => RequestError::Params(ParamsError { field: api_name(error.field), ..error }),
            error => error,
        };
        let invalid = Self::invalid(error.to_string());
        let param = match error {
            RequestError::PromptTooLong { .. } => {
                return Self { param: Some("prompt".into()), ..invalid.with_code("context_length_exceeded") };
            }
            RequestError::Params(error) => error.field,
            RequestError::Choices { .. } => "n",
            RequestError::EmptyPrompt | RequestError::UnknownToken { .. } => "prompt",
        };
        Self { param: Some(param.to_owned()), ..invalid }
    }
}

/// What a field of the engine's is called by clients.
fn api_name(field: &'static str) -> &'static str {
    match field {
        "stop_tokens" => "stop_token_ids",
        field => field,
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.answer(None);
        response.extensions_mut().insert(Refusal(self));
        response
    }
}
