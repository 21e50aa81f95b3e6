//! `/tokenize` and `/detokenize`: what a text is to the model, without running it.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use model::tokenizer::Specials;
use serde_json::{Value, json};

use crate::app::App;
use crate::chat::Conversation;
use crate::error::ApiError;
use crate::fields::Fields;

/// The token ids of `prompt`, or of `messages` through the chat template.
pub(crate) async fn tokenize(State(app): State<Arc<App>>, mut fields: Fields) -> Result<Json<Value>, ApiError> {
    app.model(&mut fields)?;
    let with_texts = fields.flag("return_token_strs")?.unwrap_or(false);
    let served = app.served.clone();
    let tokens = match fields.text("prompt")? {
        Some(prompt) => {
            fields.only("messages", |_| false, "prompt is given too; give one of them")?;
            let as_prompt = fields.flag("add_special_tokens")?.unwrap_or(true);
            fields.finish()?;
            let encode = move || match as_prompt {
                true => served.tokenizer.encode_prompt(&prompt),
                false => served.tokenizer.encode(&prompt, Specials::Parse),
            };
            let tokens = tokio::task::spawn_blocking(encode).await;
            let tokens = tokens.map_err(|error| ApiError::failed(error.to_string()))?;
            tokens.map_err(|error| ApiError::field("prompt", error.to_string()))?
        }
        None if !fields.has("messages") => {
            return Err(ApiError::field("prompt", "prompt or messages is missing"));
        }
        None => {
            let conversation = Conversation::take(&mut fields)?;
            fields.finish()?;
            conversation.encode(served).await?
        }
    };
    let mut answer =
        json!({ "count": tokens.len(), "max_model_len": app.served.handle.limits().context, "tokens": tokens });
    if with_texts {
        answer["token_strs"] = tokens.iter().map(|&id| app.served.tokenizer.token(id)).collect();
    }
    Ok(Json(answer))
}

/// The text of `tokens`, control tokens included.
pub(crate) async fn detokenize(State(app): State<Arc<App>>, mut fields: Fields) -> Result<Json<Value>, ApiError> {
    app.model(&mut fields)?;
    let tokens = fields.tokens("tokens")?.ok_or_else(|| ApiError::field("tokens", "tokens is missing"))?;
    fields.finish()?;
    let text = app.served.tokenizer.decode(&tokens, false);
    let text = text.map_err(|error| ApiError::field("tokens", error.to_string()))?;
    Ok(Json(json!({ "prompt": text })))
}
