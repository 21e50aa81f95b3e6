//! A request's JSON object, taken field by field: what nobody has taken at the end is refused by name.
//!
//! A field that is absent and one that is `null` are the same.

use axum::body::Bytes;
use serde_json::{Map, Value};

use crate::error::ApiError;

/// Fields that clients send and that change nothing in the text: who asks, what is stored, how requests are routed and
/// billed, what is cached, hints that make an answer come sooner.
const WITHOUT_EFFECT: [&str; 13] = [
    "cache_prompt",
    "id_slot",
    "metadata",
    "parallel_tool_calls",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_retention",
    "request_id",
    "safety_identifier",
    "service_tier",
    "store",
    "timings_per_token",
    "user",
];

/// What is left of a request's object.
pub(crate) struct Fields(Map<String, Value>);

impl Fields {
    /// The object in a request's body.
    ///
    /// # Errors
    /// 400 when the body is not a JSON object.
    pub(crate) fn parse(body: &Bytes) -> Result<Self, ApiError> {
        let value = serde_json::from_slice(body)
            .map_err(|error| ApiError::invalid(format!("the body is not valid JSON: {error}")))?;
        let Value::Object(map) = value else {
            return Err(ApiError::invalid("the body must be a JSON object"));
        };
        Ok(Self(map))
    }

    /// Takes a field of any type.
    pub(crate) fn value(&mut self, name: &str) -> Option<Value> {
        self.0.swap_remove(name).filter(|value| !value.is_null())
    }

    /// Takes a field that `convert` understands; `wanted` says what that is.
    pub(crate) fn take<T>(
        &mut self,
        name: &str,
        wanted: &str,
        convert: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        convert(&value).map(Some).ok_or_else(|| ApiError::field(name, format!("{name} must be {wanted}")))
    }

    /// Takes a number. Whether it is in range is the engine's to say.
    pub(crate) fn number(&mut self, name: &str) -> Result<Option<f32>, ApiError> {
        self.take(name, "a number", |value| value.as_f64().map(|number| number as f32))
    }

    /// Takes a whole number of at least 0.
    pub(crate) fn count(&mut self, name: &str) -> Result<Option<usize>, ApiError> {
        self.take(name, "a whole number of at least 0", |value| value.as_u64().and_then(|n| n.try_into().ok()))
    }

    pub(crate) fn flag(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        self.take(name, "true or false", Value::as_bool)
    }

    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        self.take(name, "a string", |value| value.as_str().map(str::to_owned))
    }

    /// Takes a list of token ids.
    pub(crate) fn tokens(&mut self, name: &str) -> Result<Option<Vec<u32>>, ApiError> {
        self.take(name, "a list of token ids", tokens)
    }

    /// Takes a field that is supported only where its value says nothing.
    ///
    /// # Errors
    /// 400 naming the field, when its value would change the output.
    pub(crate) fn only(
        &mut self,
        name: &str,
        harmless: impl FnOnce(&Value) -> bool,
        instead: &str,
    ) -> Result<(), ApiError> {
        match self.value(name) {
            Some(value) if !harmless(&value) => Err(ApiError::unsupported(name, instead)),
            _ => Ok(()),
        }
    }

    /// Refuses the first field that is left and might have changed the output.
    pub(crate) fn finish(mut self) -> Result<(), ApiError> {
        self.0.retain(|name, value| !value.is_null() && !WITHOUT_EFFECT.contains(&name.as_str()));
        match self.0.keys().next() {
            None => Ok(()),
            Some(name) => Err(ApiError::unsupported(name, "this server does not know the field")),
        }
    }
}

/// A list of token ids.
pub(crate) fn tokens(value: &Value) -> Option<Vec<u32>> {
    value.as_array()?.iter().map(|id| id.as_u64()?.try_into().ok()).collect()
}

/// `false`, or a list or object without members: a feature that is not asked for.
pub(crate) fn is_off(value: &Value) -> bool {
    match value {
        Value::Bool(on) => !on,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}
