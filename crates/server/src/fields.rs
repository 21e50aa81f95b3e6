//! A request's JSON object, taken field by field: what nobody has taken at the end is refused by name.
//!
//! A field that is absent and one that is `null` are the same.

use std::fmt;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE, ORIGIN};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::{Map, Value};
use tokio::time::timeout;

use crate::app::App;
use crate::error::ApiError;

/// Fields that clients send and that change nothing in the text: who asks, what is stored, how requests are routed and
/// billed, what is cached or loaded, hints that make an answer come sooner; and how samplers of other servers would work
/// if they were on, which is refused by another field.
pub(crate) const WITHOUT_EFFECT: [&str; 23] = [
    "cache_prompt",
    "dry_allowed_length",
    "dry_base",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "dynatemp_exponent",
    "id_slot",
    "keep_alive",
    "metadata",
    "mirostat_eta",
    "mirostat_tau",
    "mm_processor_kwargs",
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_retention",
    "request_id",
    "return_progress",
    "safety_identifier",
    "service_tier",
    "store",
    "timings_per_token",
    "user",
    "xtc_threshold",
];

/// Whether a field, known or not supported, asks for nothing with this value.
fn says_nothing(name: &str, value: &Value) -> bool {
    match name {
        "length_penalty" | "repeat_penalty" | "tfs_z" => value.as_f64() == Some(1.0),
        "mirostat" | "dry_multiplier" | "dynatemp_range" | "xtc_probability" | "min_keep" => {
            value.as_f64() == Some(0.0)
        }
        "allowed_token_ids"
        | "bad_words"
        | "early_stopping"
        | "echo"
        | "kv_transfer_params"
        | "logits_processors"
        | "lora"
        | "post_sampling_probs"
        | "return_tokens"
        | "return_tokens_as_token_ids"
        | "vllm_xargs" => is_off(value),
        "detokenize" | "include_reasoning" => value == true,
        "reasoning_format" => value == "none",
        "grammar" => value == "",
        "verbosity" => value == "medium",
        _ => value.is_null() || WITHOUT_EFFECT.contains(&name),
    }
}

/// What is left of a request's object.
pub(crate) struct Fields(Map<String, Value>);

impl Fields {
    /// The object in a request's body.
    ///
    /// # Errors
    /// 400 when the body is not a JSON object.
    pub(crate) fn parse(body: &Bytes) -> Result<Self, ApiError> {
        let parsed: Result<Object, _> = serde_json::from_slice(body);
        parsed.map(|Object(map)| Self(map)).map_err(|error| ApiError::invalid(format!("the body is refused: {error}")))
    }

    /// Whether a field is there that nobody has taken.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| !value.is_null())
    }

    /// Takes a field of any type.
    pub(crate) fn value(&mut self, name: &str) -> Option<Value> {
        #[cfg(test)]
        taken::note(name);
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
        self.0.retain(|name, value| !says_nothing(name, value));
        match self.0.keys().next() {
            None => Ok(()),
            Some(name) => Err(ApiError::unsupported(name, "this server does not know the field")),
        }
    }
}

impl FromRequest<Arc<App>> for Fields {
    type Rejection = ApiError;

    /// Reads the body: in time, not too much of it, and only if it is said to be JSON.
    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        check(request.headers())?;
        let body = timeout(app.config.client_timeout, Bytes::from_request(request, app)).await;
        let body = body.map_err(|_| ApiError::slow_body())?;
        Self::parse(&body.map_err(|rejection| ApiError::body(&rejection, app.config.body_limit))?)
    }
}

/// What the head says of the body. A web page may send a form anywhere without asking, so one that has an origin is not
/// read; a form without one is how `curl -d` names what it sends.
fn check(headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |value: &axum::http::HeaderValue| value.to_str().unwrap_or("?").trim().to_ascii_lowercase();
    if let Some(encoding) = headers.get(CONTENT_ENCODING).map(text).filter(|encoding| encoding != "identity") {
        return Err(ApiError::no_json(format!("the body must not be compressed: content-encoding is '{encoding}'")));
    }
    let Some(kind) = headers.get(CONTENT_TYPE).map(text) else { return Ok(()) };
    let essence = kind.split(';').next().unwrap_or_default().trim_end();
    let is_json = essence == "application/json" || essence.starts_with("application/") && essence.ends_with("+json");
    let is_curl = essence == "application/x-www-form-urlencoded" && !headers.contains_key(ORIGIN);
    if is_json || is_curl || essence.is_empty() {
        return Ok(());
    }
    Err(ApiError::no_json(format!("the body must be JSON: content-type is '{essence}', not 'application/json'")))
}

/// A JSON object each of whose members is there once: of two, one would be ignored.
struct Object(Map<String, Value>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Object, A::Error> {
                let mut map = Map::new();
                while let Some((name, value)) = members.next_entry::<String, Value>()? {
                    if map.contains_key(&name) {
                        return Err(A::Error::custom(format!("'{name}' is given twice")));
                    }
                    map.insert(name, value);
                }
                Ok(Object(map))
            }
        }

        deserializer.deserialize_map(Members)
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

/// The names of the fields that were looked for on this thread, to hold the documentation against.
#[cfg(test)]
pub(crate) mod taken {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    thread_local! {
        static NAMES: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
    }

    pub(super) fn note(name: &str) {
        NAMES.with_borrow_mut(|names| names.insert(name.to_owned()));
    }

    pub(crate) fn clear() {
        NAMES.with_borrow_mut(BTreeSet::clear);
    }

    pub(crate) fn names() -> BTreeSet<String> {
        NAMES.with_borrow(BTreeSet::clone)
    }
}
