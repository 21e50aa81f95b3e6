//! What a request says about drafts: `speculation`, and OpenAI's `prediction` of the answer.

use std::sync::Arc;

use engine::Drafting;
use model::tokenizer::Specials;
use serde_json::{Map, Value, json};
use spec::Rule;

use crate::app::Served;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::messages::text_parts;

/// Takes the field `speculation`. What it does not say is as the server has it.
///
/// # Errors
/// 400 naming the member that is unknown or not what it must be.
pub(crate) fn take(fields: &mut Fields) -> Result<Drafting, ApiError> {
    let mut drafting = Drafting::default();
    for (name, value) in object(fields, "speculation", "an object")?.into_iter().flatten() {
        let field = format!("speculation.{name}");
        let wrong = |wanted: &str| ApiError::field(&field, format!("{field} must be {wanted}"));
        match (name.as_str(), value) {
            (_, Value::Null) => {}
            ("enabled", value) => drafting.enabled = value.as_bool().ok_or_else(|| wrong("true or false"))?,
            ("max_draft", value) => {
                let most = value.as_u64().ok_or_else(|| wrong("a whole number of at least 0"))?;
                drafting.max_drafts = Some(most.try_into().unwrap_or(usize::MAX));
            }
            ("acceptance", value) => {
                let rule = value.as_str().and_then(|name| name.parse().ok());
                drafting.rule = rule.ok_or_else(|| wrong("'keyed', 'ratio' or 'typical'"))?;
            }
            _ => return Err(ApiError::unsupported(&field, "this server does not know the member")),
        }
    }
    Ok(drafting)
}

/// Takes the field `prediction`: the text of the answer, as its client expects it.
///
/// # Errors
/// 400 for what is no predicted text.
pub(crate) fn take_prediction(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let wanted = "{\"type\": \"content\", \"content\": a text or a list of text parts}";
    let Some(mut prediction) = object(fields, "prediction", wanted)? else { return Ok(None) };
    match prediction.remove("type").as_ref().map(Value::as_str) {
        Some(Some("content")) => {}
        Some(Some(kind)) => {
            return Err(ApiError::unsupported(
                "prediction.type",
                &format!("'{kind}' is not supported, only 'content'"),
            ));
        }
        _ => return Err(ApiError::field("prediction.type", "prediction.type must be 'content'")),
    }
    let content = prediction.remove("content").unwrap_or_default();
    if let Some(name) = prediction.keys().next() {
        return Err(ApiError::unsupported(&format!("prediction.{name}"), "this server does not know the member"));
    }
    // Parts are pieces of one text, which nothing stands between.
    text_parts(&content, "prediction.content").map(|parts| Some(parts.concat()))
}

/// The tokens of a predicted text, as many as an answer can have. A long text takes a while: not on a thread that
/// answers others.
///
/// # Errors
/// 400 for a text that the vocabulary does not cover.
pub(crate) async fn encode_prediction(text: String, served: &Served) -> Result<Arc<[u32]>, ApiError> {
    let (tokenizer, most) = (served.tokenizer.clone(), served.handle.limits().context);
    let encode = move || {
        let tokens = tokenizer.encode(&text, Specials::Plain);
        let mut tokens = tokens.map_err(|error| ApiError::field("prediction.content", error.to_string()))?;
        tokens.truncate(most);
        Ok(tokens.into())
    };
    tokio::task::spawn_blocking(encode).await.map_err(|error| ApiError::failed(error.to_string()))?
}

/// The rule, where answers may be neither what they would be without drafts nor samples of the same law. Without chance
/// there is one answer under every rule.
pub(crate) fn lossy(drafting: &Drafting, temperature: f32) -> Option<Rule> {
    let drafts = drafting.enabled && drafting.max_drafts != Some(0);
    Some(drafting.rule).filter(|rule| drafts && temperature > 0.0 && !rule.is_lossless())
}

/// What an answer under such a rule says of it.
pub(crate) fn notice(rule: Rule) -> Value {
    json!({ "acceptance": rule.name(), "lossless": false })
}

fn object(fields: &mut Fields, name: &str, wanted: &str) -> Result<Option<Map<String, Value>>, ApiError> {
    match fields.value(name) {
        None => Ok(None),
        Some(Value::Object(members)) => Ok(Some(members)),
        Some(_) => Err(ApiError::field(name, format!("{name} must be {wanted}"))),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Bytes;

    use super::*;

    fn fields(name: &str, value: &Value) -> Fields {
        Fields::parse(&Bytes::from(json!({ name: value }).to_string())).unwrap()
    }

    fn taken(speculation: &Value) -> Result<Drafting, ApiError> {
        take(&mut fields("speculation", speculation))
    }

    fn prediction(value: &Value) -> Result<Option<String>, ApiError> {
        take_prediction(&mut fields("prediction", value))
    }

    #[test]
    fn what_is_not_said_is_as_the_server_has_it() {
        for nothing in [json!(null), json!({}), json!({ "enabled": null, "max_draft": null, "acceptance": null })] {
            assert_eq!(taken(&nothing).unwrap(), Drafting::default());
        }
        let all = json!({ "enabled": false, "max_draft": 3, "acceptance": "ratio" });
        let want =
            Drafting { enabled: false, max_drafts: Some(3), rule: "ratio".parse().unwrap(), ..Drafting::default() };
        assert_eq!(taken(&all).unwrap(), want);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (value, param) in [
            (json!(true), "speculation"),
            (json!({ "enabled": 1 }), "speculation.enabled"),
            (json!({ "max_draft": -1 }), "speculation.max_draft"),
            (json!({ "max_draft": 1.5 }), "speculation.max_draft"),
            (json!({ "acceptance": "greedy" }), "speculation.acceptance"),
            (json!({ "acceptance": 1 }), "speculation.acceptance"),
            (json!({ "max_drafts": 1 }), "speculation.max_drafts"),
        ] {
            let error = taken(&value).expect_err(&value.to_string()).to_json(None);
            assert_eq!(error["error"]["param"], param);
            assert!(error["error"]["message"].as_str().unwrap().contains(param), "{error}");
        }
        for (value, param) in [
            (json!("text"), "prediction"),
            (json!({}), "prediction.type"),
            (json!({ "type": "tokens", "content": "" }), "prediction.type"),
            (json!({ "type": "content" }), "prediction.content"),
            (json!({ "type": "content", "content": 5 }), "prediction.content"),
            (json!({ "type": "content", "content": [{ "type": "image_url" }] }), "prediction.content"),
            (json!({ "type": "content", "content": "", "strict": true }), "prediction.strict"),
        ] {
            let error = prediction(&value).expect_err(&value.to_string()).to_json(None);
            assert_eq!(error["error"]["param"], param);
        }
    }

    #[test]
    fn the_parts_of_a_prediction_are_one_text() {
        let text = prediction(&json!({ "type": "content", "content": "ab" })).unwrap();
        let parts = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]);
        assert_eq!(prediction(&json!({ "type": "content", "content": parts })).unwrap(), text);
        assert_eq!(prediction(&json!(null)).unwrap(), None);
    }

    #[test]
    fn only_what_is_in_force_is_lossy() {
        for (value, temperature, is_lossy) in [
            (json!({ "acceptance": "typical" }), 0.5, true),
            (json!({ "acceptance": "typical" }), 0.0, false),
            (json!({ "acceptance": "ratio" }), 0.5, false),
            (json!({ "acceptance": "typical", "enabled": false }), 0.5, false),
            (json!({ "acceptance": "typical", "max_draft": 0 }), 0.5, false),
        ] {
            assert_eq!(lossy(&taken(&value).unwrap(), temperature).is_some(), is_lossy, "{value}");
        }
    }
}
