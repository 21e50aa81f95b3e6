//! Fields that ask for a form of the answer: OpenAI's `response_format`, and what clients of vLLM send.

use engine::GrammarSource;
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::grammars::Wanted;

/// From a field's name and value to what is asked for.
type Convert = fn(&'static str, Value) -> Result<Option<GrammarSource>, ApiError>;

/// Takes all fields that ask for a form.
///
/// # Errors
/// 400 for a form that is not known, and for two at once.
pub(crate) fn take(fields: &mut Fields) -> Result<Option<Wanted>, ApiError> {
    let mut wanted: Option<Wanted> = None;
    let takes: [(&'static str, Convert); 6] = [
        ("response_format", response_format),
        ("structured_outputs", structured_outputs),
        ("guided_json", |field, value| json_schema(field, value).map(Some)),
        ("guided_regex", |field, value| regex(field, &value).map(Some)),
        ("guided_choice", |field, value| choice(field, &value).map(Some)),
        ("guided_grammar", |field, value| lark(field, &value).map(Some)),
    ];
    for (field, convert) in takes {
        let source = fields.value(field).map_or(Ok(None), |value| convert(field, value))?;
        match (source, &wanted) {
            (Some(_), Some(first)) => {
                return Err(ApiError::field(field, format!("{field}: {} is given too; give one of them", first.field)));
            }
            (Some(source), None) => wanted = Some(Wanted { field, source }),
            (None, _) => {}
        }
    }
    Ok(wanted)
}

fn object(field: &str, value: Value) -> Result<Map<String, Value>, ApiError> {
    match value {
        Value::Object(members) => Ok(members),
        _ => Err(ApiError::field(field, format!("{field} must be an object"))),
    }
}

fn any_object() -> GrammarSource {
    GrammarSource::JsonSchema { schema: json!({ "type": "object" }), lenient: false }
}

fn response_format(field: &'static str, value: Value) -> Result<Option<GrammarSource>, ApiError> {
    let mut members = object(field, value)?;
    let kind = members.remove("type");
    let unknown = |name: &str| ApiError::unsupported(field, &format!("it has the member '{name}', which is not known"));
    let source = match kind.as_ref().and_then(Value::as_str) {
        Some("text") => None,
        Some("json_object") => Some(any_object()),
        Some("json_schema") => {
            let format = members.remove("json_schema").unwrap_or_default();
            let mut format = object("response_format.json_schema", format)
                .map_err(|_| ApiError::field(field, "response_format.json_schema must be an object with \"schema\""))?;
            let wrong = |what: &str| ApiError::field(field, format!("response_format.json_schema.{what}"));
            let strict = match format.remove("strict") {
                None | Some(Value::Null) => false,
                Some(Value::Bool(strict)) => strict,
                Some(_) => return Err(wrong("strict must be true or false")),
            };
            let schema = match format.remove("schema") {
                Some(schema @ Value::Object(_)) => schema,
                _ => return Err(wrong("schema must be an object, a JSON schema")),
            };
            let known = ["name", "description"];
            if let Some(name) = format.keys().find(|name| !known.contains(&name.as_str())) {
                return Err(unknown(&format!("json_schema.{name}")));
            }
            Some(GrammarSource::JsonSchema { schema, lenient: !strict })
        }
        _ => {
            let kinds = "its type must be \"text\", \"json_object\" or \"json_schema\"";
            return Err(ApiError::unsupported(field, kinds));
        }
    };
    match members.iter().find(|(_, value)| !value.is_null()) {
        Some((name, _)) => Err(unknown(name)),
        None => Ok(source),
    }
}

fn structured_outputs(field: &'static str, value: Value) -> Result<Option<GrammarSource>, ApiError> {
    let mut members = object(field, value)?;
    members.retain(|_, value| !value.is_null() && *value != false);
    let mut members = members.into_iter();
    let Some((name, value)) = members.next() else { return Ok(None) };
    if let Some((other, _)) = members.next() {
        let message = format!("structured_outputs has '{name}' and '{other}'; give one of them");
        return Err(ApiError::field(field, message));
    }
    match (name.as_str(), &value) {
        ("json", _) => json_schema(field, value).map(Some),
        ("regex", _) => regex(field, &value).map(Some),
        ("choice", _) => choice(field, &value).map(Some),
        ("grammar", _) => lark(field, &value).map(Some),
        ("json_object", Value::Bool(true)) => Ok(Some(any_object())),
        _ => Err(ApiError::unsupported(field, &format!("'{name}' is not supported"))),
    }
}

/// A schema, or one written as a text.
fn json_schema(field: &str, value: Value) -> Result<GrammarSource, ApiError> {
    let schema = match &value {
        Value::String(text) => serde_json::from_str(text).ok().filter(Value::is_object),
        Value::Object(_) => Some(value),
        _ => None,
    };
    let schema = schema.ok_or_else(|| ApiError::field(field, format!("{field} must be a JSON schema")))?;
    Ok(GrammarSource::JsonSchema { schema, lenient: false })
}

fn regex(field: &str, value: &Value) -> Result<GrammarSource, ApiError> {
    let regex =
        value.as_str().ok_or_else(|| ApiError::field(field, format!("{field} must be a regular expression")))?;
    Ok(GrammarSource::Regex(regex.to_owned()))
}

fn choice(field: &str, value: &Value) -> Result<GrammarSource, ApiError> {
    let texts = value.as_array().filter(|list| !list.is_empty()).map(|list| {
        list.iter().map(|text| text.as_str().filter(|text| !text.is_empty()).map(str::to_owned)).collect::<Option<_>>()
    });
    let texts = texts.flatten();
    let texts = texts.ok_or_else(|| ApiError::field(field, format!("{field} must be a list of texts, none empty")))?;
    Ok(GrammarSource::Choice(texts))
}

fn lark(field: &str, value: &Value) -> Result<GrammarSource, ApiError> {
    let lark = value.as_str().ok_or_else(|| ApiError::field(field, format!("{field} must be a grammar in Lark")))?;
    Ok(GrammarSource::Lark(lark.to_owned()))
}
