//! `/v1/chat/completions`: a conversation through the model's template.
//!
//! The template's control tokens are control tokens; one that somebody writes out in a message is ordinary text.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use engine::Grammar;
use model::chat::{ChatTemplate, RenderOptions, ToolFormat};
use serde_json::Value;

use crate::app::{App, Served};
use crate::drafting;
use crate::error::ApiError;
use crate::fields::{Fields, is_off};
use crate::guard::RequestId;
use crate::messages;
use crate::params::{self, Asked};
use crate::respond;
use crate::shape::Kind;
use crate::tools::Tools;

/// Likeliest tokens that OpenAI lets a client ask for at each position.
const MAX_TOP: usize = 20;

pub(crate) async fn complete(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    let model = app.model(&mut fields)?;
    let mut asked = params::take(&mut fields, app.served.handle.max_choices())?;
    asked.params.max_tokens = max_tokens(&mut fields, asked.params.max_tokens)?;
    asked.params.logprobs = logprobs(&mut fields)?;
    let conversation = Conversation::take(&mut fields)?;
    let prediction = drafting::take_prediction(&mut fields)?;
    fields.finish()?;
    asked.params.grammar = grammar(&app, &conversation, &mut asked).await?;
    if let Some(text) = prediction {
        asked.drafting.predicted = drafting::encode_prediction(text, &app.served).await?;
    }
    let prompt = conversation.encode(app.served.clone()).await?;
    let answer = respond::answer(&app, Kind::Chat, (model, id), vec![prompt], &asked).await;
    answer.map_err(|error| error.renamed("prompt", "messages"))
}

/// The grammar of the answer: of calls if there are tools, of the form that was asked for, or none.
async fn grammar(app: &App, conversation: &Conversation, asked: &mut Asked) -> Result<Option<Grammar>, ApiError> {
    let form = asked.form.take();
    let Some(tools) = &conversation.tools else {
        return match form {
            Some(form) => app.grammars.compile(form).await.map(Some),
            None => Ok(None),
        };
    };
    let template = app.served.template.as_ref();
    let format = template.and_then(ChatTemplate::tool_format).unwrap_or(ToolFormat::Tagged);
    asked.calls = Some(format);
    tools.compile(tools.grammar(format, form)?, &app.grammars).await.map(Some)
}

/// `max_completion_tokens` is the newer name of `max_tokens`. Without either the context is the limit.
fn max_tokens(fields: &mut Fields, older: Option<usize>) -> Result<Option<usize>, ApiError> {
    let newer = params::limit(fields, "max_completion_tokens")?;
    match (older, newer) {
        (Some(0), _) => Err(params::no_limit("max_tokens", 0)),
        (_, Some(0)) => Err(params::no_limit("max_completion_tokens", 0)),
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
    /// Tools that may be called.
    tools: Option<Tools>,
}

impl Conversation {
    /// Takes the fields that make the prompt.
    ///
    /// # Errors
    /// 400 for messages that are no messages, and for kinds of content that are not supported.
    pub(crate) fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        fields.only("chat_template", |_| false, "only the model's own template is used")?;
        fields.only("documents", is_off, "not supported")?;
        fields.only("add_special_tokens", |value| value == false, "only false: the template has them")?;
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
        let messages = messages.into_iter().enumerate().map(|(index, message)| messages::clean(index, message));
        let messages = messages.collect::<Result<_, _>>()?;
        Ok(Self { messages, options, tools: Tools::take(fields)? })
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
            let Self { mut messages, mut options, tools } = self;
            if template.tool_format().is_some() {
                options.tools = tools.as_ref().map(Tools::for_template);
            } else {
                messages = messages::without_tools(messages, tools.as_ref().map(Tools::in_words));
            }
            let tokens = template.encode(&messages, &options, &served.tokenizer);
            tokens.map_err(|error| ApiError::field("messages", error.to_string()))
        };
        tokio::task::spawn_blocking(encode).await.map_err(|error| ApiError::failed(error.to_string()))?
    }
}
