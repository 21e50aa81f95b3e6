//! Log-probabilities of tokens in the two forms that OpenAI's API has for them.

use engine::Delta;
use model::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

/// What a token that cannot be chosen has: JSON knows no infinity.
const LEAST: f64 = -9999.0;

/// A token with its log-probability and those of the likeliest tokens in its place.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    own: Token,
    top: Vec<Token>,
}

#[derive(Debug, Clone)]
struct Token {
    bytes: Vec<u8>,
    logprob: f64,
}

impl Entry {
    /// The entry of a token; `None` where log-probabilities were not asked for.
    pub(crate) fn of(delta: &Delta, tokenizer: &Tokenizer) -> Option<Self> {
        let own = Token::new(delta.token, delta.logprob?, tokenizer);
        let top = delta.top.iter().map(|&(id, logprob)| Token::new(id, logprob, tokenizer)).collect();
        Some(Self { own, top })
    }
}

impl Token {
    fn new(id: u32, logprob: f32, tokenizer: &Tokenizer) -> Self {
        // Six decimals: more than the logits are exact to.
        let logprob = ((f64::from(logprob) * 1e6).round() / 1e6).max(LEAST);
        Self { bytes: tokenizer.bytes(id).unwrap_or_default(), logprob }
    }

    /// A part of a character is no text: U+FFFD, and the bytes say the rest.
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    fn to_json(&self) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("token".into(), self.text().into());
        map.insert("logprob".into(), self.logprob.into());
        map.insert("bytes".into(), json!(self.bytes));
        map
    }
}

/// `logprobs` of a chat's choice.
pub(crate) fn of_chat(entries: &[Entry]) -> Value {
    let content = entries.iter().map(|Entry { own, top }| {
        let mut map = own.to_json();
        map.insert("top_logprobs".into(), top.iter().map(Token::to_json).collect());
        Value::Object(map)
    });
    json!({ "content": content.collect::<Vec<_>>(), "refusal": null })
}

/// `logprobs` of a plain completion's choice. `offset` is the number of characters that the tokens before these had,
/// and is moved past them.
pub(crate) fn of_completion(entries: &[Entry], offset: &mut usize) -> Value {
    let mut offsets = Vec::with_capacity(entries.len());
    for entry in entries {
        offsets.push(*offset);
        *offset += entry.own.text().chars().count();
    }
    let top = |entry: &Entry| -> Map<String, Value> {
        // The token itself is in any case in its place's list.
        [&entry.own].into_iter().chain(&entry.top).map(|token| (token.text(), token.logprob.into())).collect()
    };
    json!({
        "tokens": entries.iter().map(|entry| entry.own.text()).collect::<Vec<_>>(),
        "token_logprobs": entries.iter().map(|entry| entry.own.logprob).collect::<Vec<_>>(),
        "top_logprobs": entries.iter().map(top).collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}
