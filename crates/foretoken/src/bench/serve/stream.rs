//! What a streamed answer consists of: server-sent events, each noted with the moment of its arrival.
//!
//! Nothing is kept of the texts, and no tree is built of the JSON: the client shares its cores with what it measures.

use std::fmt;
use std::time::Instant;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::client::Failure;

/// Bytes of one event at most.
const EVENT_LIMIT: usize = 4 << 20;

/// Tokens as the server counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt: u64,
    /// Of these, what the server says it had computed before.
    pub(crate) cached: u64,
    pub(crate) output: u64,
}

/// A complete answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) sent: Instant,
    /// Arrivals of the events that carried text.
    pub(crate) events: Vec<Instant>,
    pub(crate) ended: Instant,
    pub(crate) usage: Usage,
    /// Why it ended, in the server's word.
    pub(crate) finish: String,
}

impl Answer {
    /// Seconds from sending to the first text; `None` where there was no text.
    pub(crate) fn first(&self) -> Option<f64> {
        self.events.first().map(|first| (*first - self.sent).as_secs_f64())
    }

    /// Seconds from sending to the end of the stream.
    pub(crate) fn whole(&self) -> f64 {
        (self.ended - self.sent).as_secs_f64()
    }

    /// Seconds between one event with text and the next.
    pub(crate) fn gaps(&self) -> impl Iterator<Item = f64> {
        self.events.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64())
    }

    /// Seconds for each token after the first: from the first text to the last, by the server's count of tokens.
    /// `None` where there is no time to divide.
    pub(crate) fn per_token(&self) -> Option<f64> {
        let (first, last) = (self.events.first()?, self.events.last()?);
        let seconds = (*last - *first).as_secs_f64();
        (self.usage.output > 1 && seconds > 0.0).then(|| seconds / (self.usage.output - 1) as f64)
    }
}

/// An answer as far as it has come.
pub(crate) struct Stream {
    sent: Instant,
    /// The beginning of a line whose end has not come.
    rest: Vec<u8>,
    events: Vec<Instant>,
    usage: Option<Usage>,
    finish: Option<String>,
}

impl Stream {
    pub(crate) fn new(sent: Instant) -> Self {
        Self { sent, rest: Vec::new(), events: Vec::new(), usage: None, finish: None }
    }

    /// Events with text so far.
    pub(crate) fn events(&self) -> usize {
        self.events.len()
    }

    /// Takes what arrived at `now`.
    ///
    /// # Errors
    /// When an event is an error, none of OpenAI's, or too long.
    pub(crate) fn take(&mut self, mut bytes: &[u8], now: Instant) -> Result<(), Failure> {
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            let (line, after) = (&bytes[..end], &bytes[end + 1..]);
            if self.rest.is_empty() {
                self.line(line, now)?;
            } else {
                let mut whole = std::mem::take(&mut self.rest);
                whole.extend_from_slice(line);
                self.line(&whole, now)?;
            }
            bytes = after;
        }
        if self.rest.len() + bytes.len() > EVENT_LIMIT {
            return Err(Failure::new("event too long", format!("an event has more than {EVENT_LIMIT} bytes")));
        }
        self.rest.extend_from_slice(bytes);
        Ok(())
    }

    fn line(&mut self, line: &[u8], now: Instant) -> Result<(), Failure> {
        let Some(data) = line.trim_ascii_end().strip_prefix(b"data:") else { return Ok(()) };
        let data = data.trim_ascii_start();
        if data == b"[DONE]" {
            return Ok(());
        }
        let event: Event = serde_json::from_slice(data).map_err(|error| {
            let text = String::from_utf8_lossy(&data[..data.len().min(200)]);
            Failure::new("not OpenAI's event", format!("{error} in {text}"))
        })?;
        if event.error.is_some() {
            return Err(Failure::new("error event", String::from_utf8_lossy(data)));
        }
        if event.choices.iter().any(Choice::has_text) {
            self.events.push(now);
        }
        let finish = event.choices.into_iter().find_map(|choice| choice.finish_reason);
        self.finish = finish.or(self.finish.take());
        let cached = |details: Details| details.cached_tokens.unwrap_or(0);
        let usage = event.usage.map(|usage| Usage {
            prompt: usage.prompt_tokens,
            cached: usage.prompt_tokens_details.map_or(0, cached),
            output: usage.completion_tokens,
        });
        self.usage = usage.or(self.usage);
        Ok(())
    }

    /// The answer, of a stream that ended at `now`.
    ///
    /// # Errors
    /// When it ended too soon, or without the server's count of tokens.
    pub(crate) fn finish(self, now: Instant) -> Result<Answer, Failure> {
        let Self { sent, events, usage, finish, .. } = self;
        let finish = finish.ok_or_else(|| Failure::new("cut stream", "the stream ended without a finish_reason"))?;
        let usage = usage.ok_or_else(|| {
            Failure::new("no usage", "the server does not answer stream_options.include_usage: nothing to count by")
        })?;
        Ok(Answer { sent, events, ended: now, usage, finish })
    }
}

/// The parts of an event that count.
#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<RawUsage>,
    error: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct RawUsage {
    prompt_tokens: u64,
    completion_tokens: u64,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct Choice {
    delta: Option<Delta>,
    #[serde(default)]
    text: Filled,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Delta {
    #[serde(default)]
    content: Filled,
    /// Two names for what a model thinks before it answers.
    #[serde(default)]
    reasoning_content: Filled,
    #[serde(default)]
    reasoning: Filled,
    #[serde(default)]
    tool_calls: Filled,
}

impl Choice {
    fn has_text(&self) -> bool {
        let delta =
            |delta: &Delta| delta.content.0 || delta.reasoning_content.0 || delta.reasoning.0 || delta.tool_calls.0;
        self.text.0 || self.delta.as_ref().is_some_and(delta)
    }
}

/// Whether a value is there and not empty. What it is does not matter.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Filled(bool);

impl<'de> Deserialize<'de> for Filled {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FilledVisitor)
    }
}

struct FilledVisitor;

impl<'de> Visitor<'de> for FilledVisitor {
    type Value = Filled;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("text, a list or null")
    }

    fn visit_str<E>(self, text: &str) -> Result<Filled, E> {
        Ok(Filled(!text.is_empty()))
    }

    fn visit_unit<E>(self) -> Result<Filled, E> {
        Ok(Filled(false))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Filled, A::Error> {
        let mut filled = false;
        while list.next_element::<IgnoredAny>()?.is_some() {
            filled = true;
        }
        Ok(Filled(filled))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Filled, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Filled(true))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Takes `chunks`, one a second.
    fn read(chunks: &[&str]) -> Result<Answer, Failure> {
        let start = Instant::now();
        let mut stream = Stream::new(start);
        for (second, chunk) in (1..).zip(chunks) {
            stream.take(chunk.as_bytes(), start + Duration::from_secs(second))?;
        }
        stream.finish(start + Duration::from_secs(100))
    }

    const USAGE: &str = "data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 9, \"completion_tokens\": 5, \
                         \"prompt_tokens_details\": {\"cached_tokens\": 4}}}\r\n\r\ndata: [DONE]\r\n\r\n";

    #[test]
    fn events_are_timed_however_they_are_cut() {
        let answer = read(&[
            ": a comment\nevent: x\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
            "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":null}],\"usage\":null}\n\nda",
            "ta: {\"choices\":[{\"delta\":{\"content\":\"\\u00e9",
            "\"}}]}\n",
            "\ndata:{\"choices\":[{\"text\":\"c\"}]}\n\ndata: {\"choices\":[{\"text\":\"d\"}]}\n\n",
            "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}\n\n",
            USAGE,
        ]);
        let answer = answer.unwrap();
        assert_eq!(answer.first(), Some(2.0));
        assert_eq!(answer.gaps().collect::<Vec<_>>(), [2.0, 1.0, 0.0]);
        assert_eq!(answer.usage, Usage { prompt: 9, cached: 4, output: 5 });
        // Five tokens in four events: by the server's count, not by events.
        assert_eq!(answer.per_token(), Some(3.0 / 4.0));
        assert_eq!((answer.whole(), answer.finish.as_str()), (100.0, "length"));
    }

    #[test]
    fn text_is_also_what_a_model_thinks_or_calls() {
        for delta in ["\"reasoning_content\":\"x\"", "\"reasoning\":\"x\"", "\"tool_calls\":[{\"a\":[1]}]"] {
            let event = format!(
                "data: {{\"choices\":[{{\"delta\":{{{delta},\"content\":null}},\"finish_reason\":\"stop\"}}]}}\n"
            );
            assert_eq!(read(&[&event, USAGE]).unwrap().events.len(), 1, "{delta}");
        }
        let empty = "data: {\"choices\":[{\"delta\":{\"tool_calls\":[]},\"finish_reason\":\"stop\"}]}\n";
        assert_eq!(read(&[empty, USAGE]).unwrap().first(), None);
    }

    #[test]
    fn what_cannot_be_counted_is_an_error_of_its_kind() {
        let end = "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"stop\"}]}\n\n";
        for (chunks, kind) in [
            (vec![end], "no usage"),
            (vec![USAGE], "cut stream"),
            (vec!["data: {\"error\":{\"message\":\"out of pages\"}}\n\n"], "error event"),
            (vec!["data: hello\n\n"], "not OpenAI's event"),
            (vec!["data: {\"choices\":[{\"text\":5}]}\n\n"], "not OpenAI's event"),
        ] {
            assert_eq!(read(&chunks).unwrap_err().kind, kind);
        }
        let endless = "x".repeat(EVENT_LIMIT + 1);
        assert_eq!(read(&[&endless]).unwrap_err().kind, "event too long");
    }
}
