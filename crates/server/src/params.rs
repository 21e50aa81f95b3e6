//! The fields that chat and plain completions share, as the engine's sampling parameters.

use std::collections::BTreeMap;

use engine::{Drafting, SamplingParams, fresh_seed};
use model::chat::ToolFormat;
use serde_json::Value;

use crate::drafting;
use crate::error::ApiError;
use crate::fields::{Fields, is_off};
use crate::grammars::Wanted;
use crate::response_format;

/// Choices that one request may ask for, however many the engine would take.
const MAX_CHOICES: usize = 128;

/// What a request asks for besides its prompt.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) params: SamplingParams,
    /// Choices for each prompt.
    pub(crate) n: u32,
    pub(crate) stream: bool,
    /// End a stream with the tokens used.
    pub(crate) include_usage: bool,
    /// Prefixes of the cache are shared only among requests of the same salt.
    pub(crate) cache_salt: Option<String>,
    pub(crate) priority: i32,
    pub(crate) drafting: Drafting,
    /// What the choices of each prompt begin with; none: with nothing.
    pub(crate) leads: Vec<String>,
    /// The form that the answer must have, still to be compiled.
    pub(crate) form: Option<Wanted>,
    /// The answer may hold calls of tools, in this form.
    pub(crate) calls: Option<ToolFormat>,
}

/// Takes the shared fields, with at most `max_choices` choices. Temperature is 1 and the seed random where the client says nothing, as OpenAI has it.
///
/// # Errors
/// 400 for a value of the wrong type, and for one that asks for what is not supported.
pub(crate) fn take(fields: &mut Fields, max_choices: usize) -> Result<Asked, ApiError> {
    refuse_unsupported(fields)?;
    let n = fields.count("n")?.unwrap_or(1);
    let most = max_choices.min(MAX_CHOICES);
    if !(1..=most).contains(&n) {
        return Err(ApiError::field("n", format!("n is {n}; it must be from 1 to {most}")));
    }
    let stream = fields.flag("stream")?.unwrap_or(false);
    let include_usage = stream_options(fields, stream)?;
    Ok(Asked {
        params: sampling(fields)?,
        n: n as u32,
        stream,
        include_usage,
        cache_salt: fields.text("cache_salt")?,
        priority: fields
            .take("priority", "a whole number of 32 bits", |value| value.as_i64()?.try_into().ok())?
            .unwrap_or(0),
        drafting: drafting::take(fields)?,
        leads: Vec::new(),
        form: response_format::take(fields)?,
        calls: None,
    })
}

fn sampling(fields: &mut Fields) -> Result<SamplingParams, ApiError> {
    let default = SamplingParams::default();
    Ok(SamplingParams {
        temperature: fields.number("temperature")?.unwrap_or(1.0),
        // -1 is how some clients say "all".
        top_k: fields.take("top_k", "a whole number", Value::as_i64)?.map_or(Ok(0), top_k)?,
        top_p: fields.number("top_p")?.unwrap_or(default.top_p),
        min_p: fields.number("min_p")?.unwrap_or(default.min_p),
        typical_p: fields.number("typical_p")?.unwrap_or(default.typical_p),
        repetition_penalty: fields.number("repetition_penalty")?.unwrap_or(default.repetition_penalty),
        presence_penalty: fields.number("presence_penalty")?.unwrap_or(default.presence_penalty),
        frequency_penalty: fields.number("frequency_penalty")?.unwrap_or(default.frequency_penalty),
        logit_bias: fields.take("logit_bias", "an object of numbers by token id", logit_bias)?.unwrap_or_default(),
        seed: fields.take("seed", "a whole number of 64 bits", seed)?.unwrap_or_else(fresh_seed),
        stop: fields.take("stop", "a string or a list of strings", texts)?.unwrap_or_default(),
        stop_tokens: fields.tokens("stop_token_ids")?.unwrap_or_default(),
        max_tokens: limit(fields, "max_tokens")?,
        min_tokens: fields.count("min_tokens")?.unwrap_or(0),
        ignore_eos: fields.flag("ignore_eos")?.unwrap_or(false),
        logprobs: None,
        skip_special_tokens: fields.flag("skip_special_tokens")?.unwrap_or(true),
        grammar: None,
    })
}

/// The most tokens of an answer. −1 is how some clients say "as many as fit".
pub(crate) fn limit(fields: &mut Fields, name: &str) -> Result<Option<usize>, ApiError> {
    let limit = |n: i64| match n {
        -1 => Ok(usize::MAX),
        _ => n.try_into().map_err(|_| no_limit(name, n)),
    };
    fields.take(name, "a whole number", Value::as_i64)?.map(limit).transpose()
}

/// What a limit must be.
pub(crate) fn no_limit(name: &str, n: i64) -> ApiError {
    ApiError::field(name, format!("{name} is {n}; it must be at least 1, or -1 for as many tokens as fit"))
}

fn top_k(k: i64) -> Result<usize, ApiError> {
    match k {
        -1 => Ok(0),
        _ => k.try_into().map_err(|_| ApiError::field("top_k", format!("top_k is {k}; it must be at least -1"))),
    }
}

/// Keys are token ids written as strings.
fn logit_bias(value: &Value) -> Option<BTreeMap<u32, f32>> {
    value.as_object()?.iter().map(|(id, bias)| Some((id.parse().ok()?, bias.as_f64()? as f32))).collect()
}

/// Negative seeds are seeds too.
fn seed(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned))
}

/// One string or several.
pub(crate) fn texts(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::String(text) => Some(vec![text.clone()]),
        Value::Array(list) => list.iter().map(|text| text.as_str().map(str::to_owned)).collect(),
        _ => None,
    }
}

/// Whether a stream is to end with its usage.
fn stream_options(fields: &mut Fields, stream: bool) -> Result<bool, ApiError> {
    let Some(options) = fields.value("stream_options") else { return Ok(false) };
    let Value::Object(options) = options else {
        return Err(ApiError::field("stream_options", "stream_options must be an object"));
    };
    if !stream {
        return Err(ApiError::field("stream_options", "stream_options needs \"stream\": true"));
    }
    let mut include_usage = false;
    for (name, value) in &options {
        match (name.as_str(), value) {
            ("include_usage", Value::Bool(include)) => include_usage = *include,
            // Padding against eavesdroppers who measure lengths: without it the text is the same.
            (_, Value::Null | Value::Bool(false)) | ("include_obfuscation", Value::Bool(true)) => {}
            _ => return Err(ApiError::unsupported(&format!("stream_options.{name}"), "not supported")),
        }
    }
    Ok(include_usage)
}

/// Known fields whose values ask for what this server cannot do, and those that ask for nothing.
fn refuse_unsupported(fields: &mut Fields) -> Result<(), ApiError> {
    fields.only("functions", is_off, "send tools instead")?;
    fields.only("function_call", |value| value == "none" || value == "auto", "send tool_choice instead")?;
    let only_text = |value: &Value| value.as_array().is_some_and(|list| list.iter().all(|kind| kind == "text"));
    fields.only("modalities", only_text, "only [\"text\"] is supported")?;
    for name in ["use_beam_search", "include_stop_str_in_output", "return_token_ids"] {
        fields.only(name, is_off, "not supported")?;
    }
    fields.only("spaces_between_special_tokens", |value| value == true, "only true is supported")
}

#[cfg(test)]
mod tests {
    use axum::body::Bytes;
    use serde_json::json;

    use super::*;

    fn asked(body: &Value) -> Result<Asked, ApiError> {
        let mut fields = Fields::parse(&Bytes::from(body.to_string()))?;
        let asked = take(&mut fields, 3)?;
        fields.finish().map(|()| asked)
    }

    fn refused(body: &Value) -> Value {
        asked(body).expect_err(&body.to_string()).to_json(None)["error"].clone()
    }

    #[test]
    fn fields_become_sampling_parameters() {
        let asked = asked(&json!({
            "temperature": 0.5, "top_k": -1, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.5, "n": 3,
            "presence_penalty": -1, "frequency_penalty": 0.5, "logit_bias": {"5": -100}, "seed": -1, "stop": "x",
            "stop_token_ids": [7], "max_tokens": 9, "min_tokens": 2, "ignore_eos": true, "cache_salt": "s",
            "priority": -3, "stream": true, "stream_options": {"include_usage": true, "include_obfuscation": true},
        }))
        .unwrap();
        let want = SamplingParams {
            temperature: 0.5,
            top_p: 0.9,
            min_p: 0.1,
            repetition_penalty: 1.5,
            presence_penalty: -1.0,
            frequency_penalty: 0.5,
            logit_bias: BTreeMap::from([(5, -100.0)]),
            seed: u64::MAX,
            stop: vec!["x".into()],
            stop_tokens: vec![7],
            max_tokens: Some(9),
            min_tokens: 2,
            ignore_eos: true,
            ..SamplingParams::default()
        };
        assert_eq!(asked.params, want);
        assert_eq!((asked.n, asked.stream, asked.include_usage, asked.priority), (3, true, true, -3));
        assert_eq!(asked.cache_salt.as_deref(), Some("s"));
    }

    #[test]
    fn what_changes_nothing_is_accepted() {
        asked(&json!({
            "user": "u", "metadata": {"a": "b"}, "store": true, "service_tier": "auto", "seed": null,
            "response_format": {"type": "text"}, "modalities": ["text"], "unheard_of": null, "guided_json": null,
            "structured_outputs": {}, "functions": [], "echo": false, "detokenize": true, "include_reasoning": true,
            "reasoning_format": "none", "vllm_xargs": {}, "dynatemp_range": 0, "dynatemp_exponent": 1,
            "xtc_probability": 0, "xtc_threshold": 0.1, "dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2,
            "dry_penalty_last_n": -1, "mirostat": 0, "mirostat_tau": 5, "mirostat_eta": 0.1,
        }))
        .unwrap();
    }

    #[test]
    fn what_would_change_the_output_is_refused_by_name() {
        for (field, value) in [
            ("functions", json!([{}])),
            ("function_call", json!({"name": "f"})),
            ("response_format", json!({"type": "xml"})),
            ("response_format", json!({"type": "json_object", "more": 1})),
            ("structured_outputs", json!({"structural_tag": "x"})),
            ("guided_decoding_backend", json!("xgrammar")),
            ("guided_whitespace_pattern", json!(" ")),
            ("grammar", json!("root ::= \"a\"")),
            ("modalities", json!(["text", "audio"])),
            ("reasoning_effort", json!("high")),
            ("use_beam_search", json!(true)),
            ("dry_multiplier", json!(0.8)),
            ("mirostat", json!(2)),
            ("reasoning_format", json!("deepseek")),
            ("include_reasoning", json!(false)),
            ("unheard_of", json!(false)),
        ] {
            let error = refused(&json!({ field: value }));
            assert_eq!((&error["param"], &error["code"]), (&json!(field), &json!("unsupported_parameter")));
        }
    }

    #[test]
    fn a_value_of_the_wrong_type_is_named() {
        for (field, value) in [
            ("n", json!(0)),
            ("n", json!(4)),
            ("n", json!(1.5)),
            ("temperature", json!("hot")),
            ("stop", json!([1])),
            ("logit_bias", json!({"x": 1})),
            ("top_k", json!(-2)),
            ("max_tokens", json!(-2)),
            ("max_tokens", json!(1.5)),
            ("stream", json!("yes")),
            ("seed", json!(1.5)),
            ("stream_options", json!({"include_usage": true})),
        ] {
            assert_eq!(refused(&json!({ field: value }))["param"], field);
        }
    }
}
