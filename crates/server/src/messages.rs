//! The messages of a conversation, as clients send them and as chat templates read them.

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::is_off;

/// A message as templates know it: role, text and what else they may read.
///
/// # Errors
/// 400 naming the member that is not what it must be or not supported.
pub(crate) fn clean(index: usize, message: Value) -> Result<Value, ApiError> {
    let at = |field: &str| format!("messages[{index}].{field}");
    let wrong = |field: &str, wanted: &str| ApiError::field(&at(field), format!("{} must be {wanted}", at(field)));
    let Value::Object(mut message) = message else {
        return Err(ApiError::field("messages", format!("messages[{index}] must be an object")));
    };
    // Hints to servers that cache only what they are told to.
    message.retain(|name, value| !value.is_null() && name != "cache_control");
    let role = match message.remove("role") {
        // OpenAI's newer name; models know the older one.
        Some(Value::String(role)) if role == "developer" => "system".to_owned(),
        Some(Value::String(role)) => role,
        _ => return Err(wrong("role", "a string")),
    };
    if role == "function" {
        return Err(ApiError::unsupported(&at("role"), "use the role 'tool'"));
    }
    let tool_calls = match message.remove("tool_calls") {
        Some(calls) if role == "assistant" => tool_calls(&calls, &at("tool_calls"))?,
        Some(calls) if !is_off(&calls) => {
            return Err(ApiError::unsupported(&at("tool_calls"), "only the assistant calls tools"));
        }
        _ => Vec::new(),
    };
    let content = match message.remove("content") {
        Some(content) => content_text(&content, &at("content"))?,
        None if !tool_calls.is_empty() => String::new(),
        None => return Err(wrong("content", "a string or a list of text parts")),
    };
    let known: &[&str] = if role == "tool" { &["name", "tool_call_id"] } else { &["name", "reasoning_content"] };
    if let Some((field, _)) = message.iter().find(|(field, value)| !known.contains(&field.as_str()) && !is_off(value)) {
        return Err(ApiError::unsupported(&at(field), "not supported"));
    }
    let mut clean = Map::new();
    clean.insert("role".into(), role.into());
    clean.insert("content".into(), content.into());
    clean.extend(message.into_iter().filter(|(field, _)| known.contains(&field.as_str())));
    if !tool_calls.is_empty() {
        clean.insert("tool_calls".into(), tool_calls.into());
    }
    Ok(Value::Object(clean))
}

/// Calls that the assistant made. Clients write arguments as a text; templates print them as JSON.
fn tool_calls(calls: &Value, at: &str) -> Result<Vec<Value>, ApiError> {
    let calls = calls.as_array().ok_or_else(|| ApiError::field(at, format!("{at} must be a list")))?;
    let call = |(index, call): (usize, &Value)| {
        let at = format!("{at}[{index}].function");
        let name = call["function"]["name"].as_str();
        let name = name.ok_or_else(|| ApiError::field(&at, format!("{at}.name must be a string")))?;
        let arguments = match &call["function"]["arguments"] {
            Value::String(text) if text.trim().is_empty() => Some(json!({})),
            Value::String(text) => serde_json::from_str(text).ok().filter(Value::is_object),
            Value::Object(members) => Some(members.clone().into()),
            Value::Null => Some(json!({})),
            _ => None,
        };
        let wrong = || ApiError::field(&at, format!("{at}.arguments must be the text of a JSON object"));
        let arguments = arguments.ok_or_else(wrong)?;
        let function = json!({ "name": name, "arguments": arguments });
        let mut clean = json!({ "type": "function", "function": function });
        if let Some(id) = call["id"].as_str() {
            clean["id"] = id.into();
        }
        Ok(clean)
    };
    calls.iter().enumerate().map(call).collect()
}

/// The conversation for a template that knows nothing of tools: calls and results become text, and `instructions` the
/// end of the system message.
pub(crate) fn without_tools(messages: Vec<Value>, instructions: Option<String>) -> Vec<Value> {
    let mut plain: Vec<Value> = Vec::with_capacity(messages.len() + 1);
    let mut after_result = false;
    for mut message in messages {
        let is_result = message["role"] == "tool";
        if is_result {
            let result = format!("<tool_response>\n{}\n</tool_response>", text(&message["content"]));
            match plain.last_mut().filter(|_| after_result) {
                Some(before) => before["content"] = format!("{}\n{result}", text(&before["content"])).into(),
                // Many templates know no other roles, and refuse two turns of the same.
                None => plain.push(json!({ "role": "user", "content": result })),
            }
        } else {
            let calls = message.as_object_mut().and_then(|members| members.remove("tool_calls"));
            for call in calls.iter().flat_map(|calls| calls.as_array().into_iter().flatten()) {
                let before = text(&message["content"]);
                let line_break = if before.is_empty() { "" } else { "\n" };
                message["content"] = format!("{before}{line_break}{}", written(&call["function"])).into();
            }
            plain.push(message);
        }
        after_result = is_result;
    }
    if let Some(instructions) = instructions {
        match plain.first_mut().filter(|first| first["role"] == "system") {
            Some(system) => system["content"] = format!("{}\n\n{instructions}", text(&system["content"])).into(),
            None => plain.insert(0, json!({ "role": "system", "content": instructions })),
        }
    }
    plain
}

/// A call as the model was told to write it.
fn written(function: &Value) -> String {
    let Value::String(name) = &function["name"] else { return String::new() };
    format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {}}}\n</tool_call>", function["arguments"])
}

fn text(content: &Value) -> &str {
    content.as_str().unwrap_or_default()
}

/// A text, or text parts as lines of one.
fn content_text(content: &Value, at: &str) -> Result<String, ApiError> {
    text_parts(content, at).map(|parts| parts.join("\n"))
}

/// The texts of content that is a string or a list of text parts.
///
/// # Errors
/// 400 naming `at`.
pub(crate) fn text_parts(content: &Value, at: &str) -> Result<Vec<String>, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(vec![text.clone()]),
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
    parts.iter().map(text).collect()
}
