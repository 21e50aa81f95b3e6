//! The JSON of answers, whole and in chunks, of chats and of plain completions.

use engine::Delta;
use model::chat::ToolFormat;
use model::tokenizer::Tokenizer;
use serde_json::{Value, json};
use spec::Rule;

use crate::app::unix_time;
use crate::calls::{Calls, Part};
use crate::drafting;
use crate::generation::Tokens;
use crate::logprobs::{self, Entry};

/// Which of the two APIs is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Chat,
    Completion,
}

/// What else the answers are to be like.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShapeOptions {
    /// Chunks have the member `usage`, null but in the last.
    pub(crate) include_usage: bool,
    /// Calls of tools are looked for, in this form.
    pub(crate) calls: Option<ToolFormat>,
    /// The acceptance rule to tell of, where answers are not what they would be without drafts.
    pub(crate) lossy: Option<Rule>,
}

/// A choice as far as it has come.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    /// Comes before its first token's text.
    lead: String,
    text: String,
    /// Reads the text, where it may hold calls.
    calls: Option<Calls>,
    /// The calls so far, as the whole answer shows them.
    tool_calls: Vec<Value>,
    entries: Vec<Entry>,
    finish: Option<&'static str>,
    /// Whether a chunk has been made of it.
    begun: bool,
    /// Characters of the tokens in chunks so far.
    offset: usize,
    /// What the ids of its calls begin with.
    call_prefix: String,
}

/// Makes the answers to one request.
pub(crate) struct Shape {
    kind: Kind,
    id: String,
    created: u64,
    model: String,
    tokenizer: Tokenizer,
    choices: Vec<Choice>,
    include_usage: bool,
    lossy: Option<Rule>,
}

impl Shape {
    /// For a request with `choices` choices over all its prompts.
    pub(crate) fn new(
        kind: Kind,
        request_id: &str,
        model: String,
        tokenizer: Tokenizer,
        choices: usize,
        ShapeOptions { include_usage, calls, lossy }: ShapeOptions,
    ) -> Self {
        let prefix = match kind {
            Kind::Chat => "chatcmpl",
            Kind::Completion => "cmpl",
        };
        let choice = |index| Choice {
            calls: calls.map(Calls::new),
            call_prefix: format!("call_{request_id}_{index}"),
            ..Choice::default()
        };
        let choices = (0..choices).map(choice).collect();
        let id = format!("{prefix}-{request_id}");
        Self { kind, id, created: unix_time(), model, tokenizer, choices, include_usage, lossy }
    }

    /// Lets the choices of each prompt begin with a text.
    pub(crate) fn lead(&mut self, prompts: &[String]) {
        let n = self.choices.len() / prompts.len().max(1);
        let leads = prompts.iter().flat_map(|lead| std::iter::repeat_n(lead, n));
        self.choices.iter_mut().zip(leads).for_each(|(choice, lead)| choice.lead.clone_from(lead));
    }

    /// Takes in a token, for [`Shape::whole`].
    pub(crate) fn add(&mut self, choice: u32, delta: &Delta) {
        let entry = Entry::of(delta, &self.tokenizer);
        if let Some(choice) = self.choices.get_mut(choice as usize) {
            choice.entries.extend(entry);
            let text = choice.read(&delta.text).content;
            choice.text.push_str(&text);
        }
    }

    /// Notes why a choice ended, for [`Shape::whole`].
    pub(crate) fn end(&mut self, choice: u32, reason: &'static str) {
        if let Some(choice) = self.choices.get_mut(choice as usize) {
            let (rest, reason) = choice.close(reason);
            choice.text.push_str(&rest);
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
        let read = choice.read(&delta.text);
        if !first && read.is_empty() && entry.is_none() {
            return None;
        }
        let logprobs = choice.logprobs(entry.as_slice(), kind);
        let body = match kind {
            Kind::Chat => json!({ "delta": read.into_delta(first) }),
            Kind::Completion => json!({ "text": read.content }),
        };
        Some(self.one_choice(index, body, logprobs, None))
    }

    /// The chunk that ends a choice.
    pub(crate) fn last_chunk(&mut self, index: u32, reason: &'static str) -> Value {
        let choice = self.choices.get_mut(index as usize);
        let (rest, reason) = choice.map_or((String::new(), reason), |choice| choice.close(reason));
        let body = match self.kind {
            Kind::Chat if rest.is_empty() => json!({ "delta": {} }),
            Kind::Chat => json!({ "delta": { "content": rest } }),
            Kind::Completion => json!({ "text": rest }),
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
        let mut all = json!({ "id": id, "object": object, "created": created, "model": model, "choices": choices });
        if let Some(rule) = self.lossy {
            all["speculation"] = drafting::notice(rule);
        }
        all
    }
}

/// What a token adds to a choice.
#[derive(Debug, Default)]
struct Read {
    content: String,
    /// Calls that begin, and pieces of arguments, as a stream shows them.
    tool_calls: Vec<Value>,
}

impl Read {
    fn is_empty(&self) -> bool {
        self.content.is_empty() && self.tool_calls.is_empty()
    }

    /// The `delta` of a chunk; the first of a choice says who speaks.
    fn into_delta(self, first: bool) -> Value {
        let mut delta = if first { json!({ "role": "assistant" }) } else { json!({}) };
        if self.tool_calls.is_empty() || !self.content.is_empty() {
            delta["content"] = self.content.into();
        } else if first {
            delta["content"] = Value::Null;
        }
        if !self.tool_calls.is_empty() {
            delta["tool_calls"] = self.tool_calls.into();
        }
        delta
    }
}

impl Choice {
    /// Takes in a token's text. Calls go to `tool_calls` as well.
    fn read(&mut self, text: &str) -> Read {
        let mut read = Read { content: std::mem::take(&mut self.lead), ..Read::default() };
        let Some(calls) = &mut self.calls else {
            read.content.push_str(text);
            return read;
        };
        for part in calls.push(text) {
            match part {
                Part::Text(text) => read.content.push_str(&text),
                Part::Call(name) => {
                    let index = self.tool_calls.len();
                    let id = format!("{}_{index}", self.call_prefix);
                    let function = json!({ "name": name, "arguments": "" });
                    let call = json!({ "id": id, "type": "function", "function": function });
                    self.tool_calls.push(call.clone());
                    let mut begin = json!({ "index": index });
                    begin
                        .as_object_mut()
                        .into_iter()
                        .for_each(|begin| begin.extend(call.as_object().cloned().unwrap_or_default()));
                    read.tool_calls.push(begin);
                }
                Part::Arguments(json) => self.argue(&json, &mut read.tool_calls),
            }
        }
        read
    }

    /// Adds to the arguments of the last call, in the answer and among the `news`.
    fn argue(&mut self, json: &str, news: &mut Vec<Value>) {
        let append = |call: &mut Value| {
            if let Value::String(arguments) = &mut call["function"]["arguments"] {
                arguments.push_str(json);
            }
        };
        let index = self.tool_calls.len().saturating_sub(1);
        self.tool_calls.last_mut().into_iter().for_each(append);
        match news.last_mut().filter(|call| call["index"] == index) {
            Some(call) => append(call),
            None => news.push(json!({ "index": index, "function": { "arguments": json } })),
        }
    }

    /// What was held back of the text, and why the choice ends in OpenAI's words.
    fn close(&mut self, reason: &'static str) -> (String, &'static str) {
        // Still there if no token came.
        let lead = std::mem::take(&mut self.lead);
        let Some(calls) = &mut self.calls else { return (lead, reason) };
        let rest = lead + &calls.finish().unwrap_or_default();
        (rest, if reason == "stop" && calls.complete() { "tool_calls" } else { reason })
    }

    fn whole(&mut self, index: usize, kind: Kind) -> Value {
        let entries = std::mem::take(&mut self.entries);
        let logprobs = self.logprobs(&entries, kind);
        let text = std::mem::take(&mut self.text);
        let mut choice = json!({ "index": index });
        match kind {
            Kind::Chat => {
                let mut message = json!({ "role": "assistant", "content": text, "refusal": null });
                if !self.tool_calls.is_empty() {
                    message["tool_calls"] = std::mem::take(&mut self.tool_calls).into();
                    if message["content"] == "" {
                        message["content"] = Value::Null;
                    }
                }
                choice["message"] = message;
            }
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
