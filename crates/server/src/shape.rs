//! The JSON of answers, whole and in chunks, of chats and of plain completions.

use engine::Delta;
use model::tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::app::unix_time;
use crate::generation::Tokens;
use crate::logprobs::{self, Entry};

/// Which of the two APIs is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Chat,
    Completion,
}

/// A choice as far as it has come.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    text: String,
    entries: Vec<Entry>,
    finish: Option<&'static str>,
    /// Whether a chunk has been made of it.
    begun: bool,
    /// Characters of the tokens in chunks so far.
    offset: usize,
}

/// Makes the answers to one request.
pub(crate) struct Shape {
    kind: Kind,
    id: String,
    created: u64,
    model: String,
    tokenizer: Tokenizer,
    choices: Vec<Choice>,
    /// Chunks have the member `usage`, null but in the last.
    include_usage: bool,
}

impl Shape {
    /// For a request with `choices` choices over all its prompts.
    pub(crate) fn new(
        kind: Kind,
        request_id: &str,
        model: String,
        tokenizer: Tokenizer,
        choices: usize,
        include_usage: bool,
    ) -> Self {
        let prefix = match kind {
            Kind::Chat => "chatcmpl",
            Kind::Completion => "cmpl",
        };
        let choices = (0..choices).map(|_| Choice::default()).collect();
        let id = format!("{prefix}-{request_id}");
        Self { kind, id, created: unix_time(), model, tokenizer, choices, include_usage }
    }

    /// Takes in a token, for [`Shape::whole`].
    pub(crate) fn add(&mut self, choice: u32, delta: &Delta) {
        let entry = Entry::of(delta, &self.tokenizer);
        if let Some(choice) = self.choices.get_mut(choice as usize) {
            choice.text.push_str(&delta.text);
            choice.entries.extend(entry);
        }
    }

    /// Notes why a choice ended, for [`Shape::whole`].
    pub(crate) fn end(&mut self, choice: u32, reason: &'static str) {
        if let Some(choice) = self.choices.get_mut(choice as usize) {
            choice.finish = Some(reason);
        }
    }

    /// The whole answer.
    pub(crate) fn whole(&mut self, tokens: Tokens) -> Value {
        let kind = self.kind;
        let choices: Vec<Value> =
            self.choices.iter_mut().enumerate().map(|(index, choice)| choice.whole(index, kind)).collect();
        let object = match kind {
            Kind::Chat => "chat.completion",
            Kind::Completion => "text_completion",
        };
        let mut answer = self.envelope(object, choices);
        answer["usage"] = tokens.to_json();
        answer
    }

    /// The chunk of a token; `None` if it adds nothing that shows yet.
    pub(crate) fn chunk(&mut self, index: u32, delta: &Delta) -> Option<Value> {
        let entry = Entry::of(delta, &self.tokenizer);
        let kind = self.kind;
        let choice = self.choices.get_mut(index as usize)?;
        let first = !std::mem::replace(&mut choice.begun, true);
        if !first && delta.text.is_empty() && entry.is_none() {
            return None;
        }
        let logprobs = choice.logprobs(entry.as_slice(), kind);
        let body = match kind {
            Kind::Chat if first => json!({ "delta": { "role": "assistant", "content": delta.text } }),
            Kind::Chat => json!({ "delta": { "content": delta.text } }),
            Kind::Completion => json!({ "text": delta.text }),
        };
        Some(self.one_choice(index, body, logprobs, None))
    }

    /// The chunk that ends a choice.
    pub(crate) fn last_chunk(&mut self, index: u32, reason: &'static str) -> Value {
        let body = match self.kind {
            Kind::Chat => json!({ "delta": {} }),
            Kind::Completion => json!({ "text": "" }),
        };
        self.one_choice(index, body, Value::Null, Some(reason))
    }

    /// The chunk that ends a stream, if it was asked for.
    pub(crate) fn usage_chunk(&self, tokens: Tokens) -> Option<Value> {
        let mut chunk = self.include_usage.then(|| self.envelope(self.chunk_object(), Vec::new()))?;
        chunk["usage"] = tokens.to_json();
        Some(chunk)
    }

    fn one_choice(&self, index: u32, mut body: Value, logprobs: Value, finish: Option<&str>) -> Value {
        body["index"] = index.into();
        body["logprobs"] = logprobs;
        body["finish_reason"] = finish.into();
        let mut chunk = self.envelope(self.chunk_object(), vec![body]);
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn chunk_object(&self) -> &'static str {
        match self.kind {
            Kind::Chat => "chat.completion.chunk",
            Kind::Completion => "text_completion",
        }
    }

    fn envelope(&self, object: &str, choices: Vec<Value>) -> Value {
        let Self { id, created, model, .. } = self;
        json!({ "id": id, "object": object, "created": created, "model": model, "choices": choices })
    }
}

impl Choice {
    fn whole(&mut self, index: usize, kind: Kind) -> Value {
        let entries = std::mem::take(&mut self.entries);
        let logprobs = self.logprobs(&entries, kind);
        let text = std::mem::take(&mut self.text);
        let mut choice = json!({ "index": index });
        match kind {
            Kind::Chat => choice["message"] = json!({ "role": "assistant", "content": text, "refusal": null }),
            Kind::Completion => choice["text"] = text.into(),
        }
        choice["logprobs"] = logprobs;
        choice["finish_reason"] = self.finish.into();
        choice
    }

    fn logprobs(&mut self, entries: &[Entry], kind: Kind) -> Value {
        match kind {
            _ if entries.is_empty() => Value::Null,
            Kind::Chat => logprobs::of_chat(entries),
            Kind::Completion => logprobs::of_completion(entries, &mut self.offset),
        }
    }
}
