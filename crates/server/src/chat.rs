//! `/v1/chat/completions`: a conversation through the model's template.
//!
//! The template's control tokens are control tokens; one that somebody writes out in a message is ordinary text.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use model::chat::RenderOptions;
use serde_json::{Map, Value};

use crate::app::{App, Served};
use crate::error::ApiError;
use crate::fields::{Fields, is_off};
use crate::guard::RequestId;
use crate::params;
use crate::respond;
use crate::shape::Kind;

/// Likeliest tokens that OpenAI lets a client ask for at each position.
const MAX_TOP: usize = 20;

pub(crate) async fn complete(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    let model = app.model(&mut fields)?;
    let mut asked = params::take(&mut fields)?;
    asked.params.max_tokens = max_tokens(&mut fields, asked.params.max_tokens)?;
    asked.params.logprobs = logprobs(&mut fields)?;
    let conversation = Conversation::take(&mut fields)?;
    fields.finish()?;
    let prompt = conversation.encode(app.served.clone()).await?;
    respond::answer(&app, Kind::Chat, (model, id), vec![prompt], &asked).await
}

/// `max_completion_tokens` is the newer name of `max_tokens`. Without either the context is the limit.
fn max_tokens(fields: &mut Fields, older: Option<usize>) -> Result<Option<usize>, ApiError> {
    let newer = fields.count("max_completion_tokens")?;
    match (older, newer) {
        (Some(older), Some(newer)) if older != newer => {
            let message = format!("max_completion_tokens is {newer} and max_tokens {older}: give one of them");
            Err(ApiError::field("max_completion_tokens", message))
        }
        _ => Ok(newer.or(older)),
    }
}

fn logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    match fields.count("top_logprobs")? {
        Some(top) if top > MAX_TOP => {
            let message = format!("top_logprobs is {top}; it must be from 0 to {MAX_TOP}");
            Err(ApiError::field("top_logprobs", message))
        }
        Some(top) if top > 0 && !wanted => {
            Err(ApiError::field("top_logprobs", "top_logprobs needs \"logprobs\": true"))
        }
        top => Ok(wanted.then_some(top.unwrap_or(0))),
    }
}

/// What the chat template is given.
pub(crate) struct Conversation {
    messages: Vec<Value>,
    options: RenderOptions,
}

impl Conversation {
    /// Takes the fields that make the prompt.
    ///
    /// # Errors
    /// 400 for messages that are no messages, and for kinds of content that are not supported.
    pub(crate) fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        fields.only("chat_template", |_| false, "only the model's own template is used")?;
        fields.only("documents", is_off, "not supported")?;
        fields.only("continue_final_message", is_off, "not supported")?;
        let as_object = |value: &Value| value.as_object().cloned();
        let options = RenderOptions {
            add_generation_prompt: fields.flag("add_generation_prompt")?.unwrap_or(true),
            tools: None,
            extra: fields.take("chat_template_kwargs", "an object", as_object)?.unwrap_or_default(),
        };
        let messages = match fields.value("messages") {
            Some(Value::Array(messages)) if !messages.is_empty() => messages,
            _ => return Err(ApiError::field("messages", "messages must be a list of at least one message")),
        };
        let messages = messages.into_iter().enumerate().map(|(index, message)| self::message(index, message));
        Ok(Self { messages: messages.collect::<Result<_, _>>()?, options })
    }

    /// The prompt's token ids. A long conversation takes a while: not on a thread that answers others.
    ///
    /// # Errors
    /// 400 when the model has no template, or the template refuses the conversation.
    pub(crate) async fn encode(self, served: Served) -> Result<Vec<u32>, ApiError> {
        let encode = move || {
            let template = served.template.as_ref();
            let template =
                template.ok_or_else(|| ApiError::invalid("the model has no chat template: use /v1/completions"))?;
            let tokens = template.encode(&self.messages, &self.options, &served.tokenizer);
            tokens.map_err(|error| ApiError::field("messages", error.to_string()))
        };
        tokio::task::spawn_blocking(encode).await.map_err(|error| ApiError::failed(error.to_string()))?
    }
}

/// A message as templates know it: role, text and what else they may read.
fn message(index: usize, message: Value) -> Result<Value, ApiError> {
    let at = |field: &str| format!("messages[{index}].{field}");
    let wrong = |field: &str, wanted: &str| ApiError::field(&at(field), format!("{} must be {wanted}", at(field)));
    let Value::Object(mut message) = message else {
        return Err(ApiError::field("messages", format!("messages[{index}] must be an object")));
    };
    message.retain(|_, value| !value.is_null());
    let role = match message.remove("role") {
        // OpenAI's newer name; models know the older one.
        Some(Value::String(role)) if role == "developer" => "system".to_owned(),
        Some(Value::String(role)) => role,
        _ => return Err(wrong("role", "a string")),
    };
    if role == "tool" || role == "function" {
        return Err(ApiError::unsupported(&at("role"), "calling tools is not supported"));
    }
    let content = match message.remove("content") {
        Some(content) => content_text(&content, &at("content"))?,
        None => return Err(wrong("content", "a string or a list of text parts")),
    };
    let known = ["name", "reasoning_content"];
    if let Some((field, _)) = message.iter().find(|(field, value)| !known.contains(&field.as_str()) && !is_off(value)) {
        return Err(ApiError::unsupported(&at(field), "not supported"));
    }
    let mut clean = Map::new();
    clean.insert("role".into(), role.into());
    clean.insert("content".into(), content.into());
    clean.extend(message.into_iter().filter(|(field, _)| known.contains(&field.as_str())));
    Ok(Value::Object(clean))
}

/// A text, or text parts as lines of one.
fn content_text(content: &Value, at: &str) -> Result<String, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) => parts,
        _ => return Err(ApiError::field(at, format!("{at} must be a string or a list of text parts"))),
    };
    let text = |part: &Value| match (part["type"].as_str(), part["text"].as_str()) {
        (Some("text"), Some(text)) => Ok(text.to_owned()),
        (Some("text") | None, _) => {
            Err(ApiError::field(at, format!("each part of {at} must be an object with \"type\" and \"text\"")))
        }
        (Some(kind), _) => Err(ApiError::unsupported(at, &format!("parts of type '{kind}' are not supported"))),
    };
    Ok(parts.iter().map(text).collect::<Result<Vec<_>, _>>()?.join("\n"))
}
