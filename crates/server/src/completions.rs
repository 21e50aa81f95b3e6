//! `/v1/completions`: texts or tokens continued as they stand.
//!
//! With `echo` each choice begins with its prompt, and `max_tokens` may be 0: then it is the prompt, and nothing runs.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use engine::SamplingParams;
use model::tokenizer::Tokenizer;
use serde_json::Value;

use crate::app::App;
use crate::error::ApiError;
use crate::fields::{Fields, is_off, tokens};
use crate::guard::RequestId;
use crate::params;
use crate::respond;
use crate::shape::Kind;

/// Tokens of an answer where the client gives no limit, as OpenAI has it.
const MAX_TOKENS: usize = 16;

/// Likeliest tokens that a client may ask for at each position.
const MAX_TOP: usize = 20;

/// Prompts of one request.
const MAX_PROMPTS: usize = 128;

pub(crate) async fn complete(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    let model = app.model(&mut fields)?;
    let mut asked = params::take(&mut fields, app.served.handle.max_choices())?;
    asked.params.max_tokens.get_or_insert(MAX_TOKENS);
    asked.params.logprobs = logprobs(&mut fields)?;
    let echo = echo(&mut fields, &asked.params)?;
    refuse_unsupported(&mut fields, asked.n)?;
    let prompts = prompts(&mut fields)?;
    fields.finish()?;
    if let Some(form) = asked.form.take() {
        asked.params.grammar = Some(app.grammars.compile(form).await?);
    }
    let tokenizer = app.served.tokenizer.clone();
    let encode = move || {
        let leads = prompts.iter().filter(|_| echo).map(|prompt| prompt.text(&tokenizer)).collect::<Result<_, _>>()?;
        let prompts = prompts.into_iter().map(|prompt| prompt.encode(&tokenizer)).collect::<Result<_, _>>()?;
        Ok::<(Vec<String>, Vec<Vec<u32>>), ApiError>((leads, prompts))
    };
    let encoded = tokio::task::spawn_blocking(encode).await.map_err(|error| ApiError::failed(error.to_string()))?;
    let (leads, prompts) = encoded?;
    check_size(&leads, asked.n, app.config.body_limit)?;
    asked.leads = leads;
    respond::answer(&app, Kind::Completion, (model, id), prompts, &asked).await
}

fn logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    match fields.count("logprobs")? {
        Some(top) if top > MAX_TOP => {
            Err(ApiError::field("logprobs", format!("logprobs is {top}; it must be from 0 to {MAX_TOP}")))
        }
        top => Ok(top),
    }
}

/// Whether choices begin with their prompts.
fn echo(fields: &mut Fields, params: &SamplingParams) -> Result<bool, ApiError> {
    let echo = fields.flag("echo")?.unwrap_or(false);
    if echo && params.logprobs.is_some() {
        return Err(ApiError::unsupported(
            "echo",
            "a prompt's log-probabilities are not supported: leave logprobs out",
        ));
    }
    if params.max_tokens == Some(0) && !echo {
        let message = "max_tokens is 0; it must be at least 1, unless \"echo\": true asks for the prompt";
        return Err(ApiError::field("max_tokens", message));
    }
    match params.min_tokens {
        min @ 1.. if params.max_tokens == Some(0) => {
            Err(ApiError::field("min_tokens", format!("min_tokens is {min}; it must be at most max_tokens, 0")))
        }
        _ => Ok(echo),
    }
}

/// An answer must not grow beyond what a question may be by repeating it.
fn check_size(leads: &[String], n: u32, limit: usize) -> Result<(), ApiError> {
    let size = leads.iter().map(String::len).sum::<usize>().saturating_mul(n as usize);
    if size <= limit {
        return Ok(());
    }
    let message = format!("echo: the prompts of all choices have {size} bytes; they may have {limit} together");
    Err(ApiError::field("echo", message))
}

fn refuse_unsupported(fields: &mut Fields, n: u32) -> Result<(), ApiError> {
    fields.only("tools", is_off, "only /v1/chat/completions has tools")?;
    fields.only("tool_choice", |value| value == "none" || value == "auto", "only /v1/chat/completions has tools")?;
    fields.only("add_special_tokens", |value| value == true, "only true: without them send tokens")?;
    fields.only("prediction", |_| false, "only /v1/chat/completions has predictions")?;
    fields.only("suffix", |value| value == "", "filling in the middle is not supported")?;
    fields.only("best_of", |value| *value == n, "it must be n: all choices are returned")
}

/// What one completion continues.
#[derive(Debug, PartialEq)]
enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

impl Prompt {
    /// What `echo` repeats: control tokens included.
    fn text(&self, tokenizer: &Tokenizer) -> Result<String, ApiError> {
        match self {
            Prompt::Text(text) => Ok(text.clone()),
            Prompt::Tokens(tokens) => {
                tokenizer.decode(tokens, false).map_err(|error| ApiError::field("prompt", error.to_string()))
            }
        }
    }

    fn encode(self, tokenizer: &Tokenizer) -> Result<Vec<u32>, ApiError> {
        match self {
            Prompt::Text(text) => {
                tokenizer.encode_prompt(&text).map_err(|error| ApiError::field("prompt", error.to_string()))
            }
            Prompt::Tokens(tokens) => Ok(tokens),
        }
    }
}

/// A text, a list of texts, a list of tokens, or a list of such lists.
fn prompts(fields: &mut Fields) -> Result<Vec<Prompt>, ApiError> {
    let wanted = "a string, a list of strings, a list of token ids, or a list of such lists";
    let prompts = fields.take("prompt", wanted, |value| match value {
        Value::String(text) => Some(vec![Prompt::Text(text.clone())]),
        Value::Array(list) if list.iter().all(Value::is_string) => {
            Some(params::texts(value)?.into_iter().map(Prompt::Text).collect())
        }
        Value::Array(list) if list.iter().all(Value::is_array) => {
            list.iter().map(|list| tokens(list).map(Prompt::Tokens)).collect()
        }
        value => Some(vec![Prompt::Tokens(tokens(value)?)]),
    })?;
    match prompts {
        Some(prompts) if (1..=MAX_PROMPTS).contains(&prompts.len()) => Ok(prompts),
        _ => Err(ApiError::field("prompt", format!("prompt must be {wanted}, from 1 to {MAX_PROMPTS} of them"))),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Bytes;
    use serde_json::json;

    use super::*;

    fn parsed(prompt: Value) -> Result<Vec<Prompt>, ApiError> {
        prompts(&mut Fields::parse(&Bytes::from(json!({ "prompt": prompt }).to_string())).unwrap())
    }

    #[test]
    fn a_prompt_has_four_forms() {
        let text = |text: &str| Prompt::Text(text.into());
        assert_eq!(parsed(json!("a")).unwrap(), [text("a")]);
        assert_eq!(parsed(json!(["a", "b"])).unwrap(), [text("a"), text("b")]);
        assert_eq!(parsed(json!([1, 2])).unwrap(), [Prompt::Tokens(vec![1, 2])]);
        assert_eq!(parsed(json!([[1], [2, 3]])).unwrap(), [Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2, 3])]);
        for bad in [json!(null), json!([]), json!(5), json!([1, "a"]), json!([-1]), json!([[1], "a"])] {
            assert!(parsed(bad.clone()).is_err(), "{bad}");
        }
    }
}
