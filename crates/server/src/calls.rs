//! Finding calls of tools in the text of an answer as it comes.
//!
//! The grammar of [`Tools`](crate::tools::Tools) fixes how a call is written up to its arguments, so the text is read
//! once, character by character, and what is streamed is what the whole answer holds, however it was cut into tokens.

use model::chat::ToolFormat;

/// What a part of an answer turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    /// Text to the client.
    Text(String),
    /// A call of this function begins.
    Call(String),
    /// A piece of the JSON of its arguments.
    Arguments(String),
}

/// Opens a tagged call.
const OPEN: &str = "<tool_call>";

/// White space that is held back, in case a call follows.
const MAX_SPACE: usize = 64;

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Text, or the beginning of a call.
    Text,
    /// A call, up to its arguments.
    Head,
    /// Arguments: how deep their brackets are, whether in a string, and behind a backslash.
    Arguments { depth: usize, string: bool, escape: bool },
    /// What closes a call.
    Tail,
    /// Text to the end: an answer in the bare form that is no call.
    Plain,
}

/// Reads one answer.
#[derive(Debug, Clone)]
pub(crate) struct Calls {
    format: ToolFormat,
    state: State,
    /// Text that is not told yet: it may belong to what opens a call.
    held: String,
    begun: usize,
    closed: usize,
}

impl Calls {
    pub(crate) fn new(format: ToolFormat) -> Self {
        let state = match format {
            ToolFormat::Tagged => State::Text,
            ToolFormat::Bare => State::Head,
        };
        Self { format, state, held: String::new(), begun: 0, closed: 0 }
    }

    /// Takes in more of the answer.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Part> {
        let mut parts = Vec::new();
        text.chars().for_each(|c| self.step(c, &mut parts));
        parts
    }

    /// Text that was held back, at the end of the answer.
    pub(crate) fn finish(&mut self) -> Option<String> {
        let held = std::mem::take(&mut self.held);
        // A call that was cut before its arguments is no text; in the bare form it was not sure to be one.
        let is_text = self.state == State::Text || (self.state == State::Head && self.format == ToolFormat::Bare);
        (is_text && !held.is_empty() && !(self.begun > 0 && held.trim().is_empty())).then_some(held)
    }

    /// Whether the answer has calls, and all of them are complete.
    pub(crate) fn complete(&self) -> bool {
        self.begun > 0 && self.begun == self.closed
    }

    fn step(&mut self, c: char, parts: &mut Vec<Part>) {
        match &mut self.state {
            State::Plain => say(c, parts),
            State::Text => {
                self.held.push(c);
                self.text(parts);
            }
            State::Head => {
                self.held.push(c);
                self.head(parts);
            }
            State::Arguments { depth, string, escape } => {
                match (c, *string, *escape) {
                    (_, true, true) => *escape = false,
                    ('\\', true, _) => *escape = true,
                    ('"', _, _) => *string = !*string,
                    ('{' | '[', false, _) => *depth += 1,
                    ('}' | ']', false, _) => *depth = depth.saturating_sub(1),
                    _ => {}
                }
                if *depth == 0 {
                    self.state = State::Tail;
                }
                argue(c, parts);
            }
            State::Tail => {
                self.held.push(c);
                let close = match self.format {
                    ToolFormat::Tagged => "</tool_call>",
                    ToolFormat::Bare => "}",
                };
                if self.held.ends_with(close) {
                    self.held.clear();
                    self.closed += 1;
                    self.state = State::Text;
                }
            }
        }
    }

    /// Gives out what cannot belong to a call any more: a call may have white space before it that is not text.
    fn text(&mut self, parts: &mut Vec<Part>) {
        if self.format == ToolFormat::Tagged && self.held.trim_start() == OPEN {
            self.held.clear();
            self.state = State::Head;
            return;
        }
        while !self.held.is_empty() {
            let rest = self.held.trim_start();
            let space = self.held.len() - rest.len();
            if space <= MAX_SPACE && (rest.is_empty() || self.format == ToolFormat::Tagged && OPEN.starts_with(rest)) {
                return;
            }
            say(self.held.remove(0), parts);
        }
    }

    /// Looks whether the head is complete, or cannot become one.
    fn head(&mut self, parts: &mut Vec<Part>) {
        let (before, after) = match self.format {
            ToolFormat::Tagged => ("\n{\"name\": \"", "\", \"arguments\": {"),
            ToolFormat::Bare => ("{\"name\": \"", "\", \"parameters\": {"),
        };
        if let Some(rest) = self.held.strip_prefix(before) {
            if let Some(name) = rest.strip_suffix(after) {
                parts.push(Part::Call(name.to_owned()));
                argue('{', parts);
                self.begun += 1;
                self.held.clear();
                self.state = State::Arguments { depth: 1, string: false, escape: false };
            }
        } else if !before.starts_with(&self.held) && self.format == ToolFormat::Bare {
            std::mem::take(&mut self.held).chars().for_each(|c| say(c, parts));
            self.state = State::Plain;
        }
    }
}

fn say(c: char, parts: &mut Vec<Part>) {
    match parts.last_mut() {
        Some(Part::Text(text)) => text.push(c),
        _ => parts.push(Part::Text(c.into())),
    }
}

fn argue(c: char, parts: &mut Vec<Part>) {
    match parts.last_mut() {
        Some(Part::Arguments(json)) => json.push(c),
        _ => parts.push(Part::Arguments(c.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text, the calls and whether they are complete, with the answer cut into pieces of `size` characters.
    fn read(format: ToolFormat, answer: &str, size: usize) -> (String, Vec<(String, String)>, bool) {
        let mut calls = Calls::new(format);
        let (mut text, mut found) = (String::new(), Vec::new());
        let characters: Vec<char> = answer.chars().collect();
        for piece in characters.chunks(size) {
            for part in calls.push(&piece.iter().collect::<String>()) {
                match part {
                    Part::Text(more) => text.push_str(&more),
                    Part::Call(name) => found.push((name, String::new())),
                    Part::Arguments(more) => found.last_mut().unwrap().1.push_str(&more),
                }
            }
        }
        text.push_str(&calls.finish().unwrap_or_default());
        (text, found, calls.complete())
    }

    fn check(format: ToolFormat, answer: &str, text: &str, calls: &[(&str, &str)], complete: bool) {
        let calls: Vec<_> = calls.iter().map(|(name, json)| (name.to_string(), json.to_string())).collect();
        for size in [1, 2, 3, 7, 1000] {
            assert_eq!(read(format, answer, size), (text.to_owned(), calls.clone(), complete), "{size}: {answer}");
        }
    }

    #[test]
    fn tagged_calls_and_the_text_before_them() {
        let check = |answer: &str, text: &str, calls: &[(&str, &str)], complete| {
            check(ToolFormat::Tagged, answer, text, calls, complete);
        };
        let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
        check(call, "", &[("f", "{}")], true);
        check(&format!("Let me see.\n{call}\n{call}"), "Let me see.", &[("f", "{}"), ("f", "{}")], true);
        check(&format!("\n\n{call}"), "", &[("f", "{}")], true);
        let nested = r#"{"a": "}]\"<tool_call>\\", "ü": [{"b": "😀</tool_call>"}]}"#;
        let answer = format!("<tool_call>\n{{\"name\": \"g.h\", \"arguments\": {nested}}}\n</tool_call>");
        check(&answer, "", &[("g.h", nested)], true);
        check("a < b <tool_cal <b>", "a < b <tool_cal <b>", &[], false);
        check(" a \n", " a \n", &[], false);
        check("<<tool_call>\n{\"name\": \"f\", \"arg", "<", &[], false);
        check("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"b", "", &[("f", "{\"a\": \"b")], false);
        check("ends in <tool_", "ends in <tool_", &[], false);
    }

    #[test]
    fn a_bare_call_is_the_whole_answer() {
        let check = |answer: &str, text: &str, calls: &[(&str, &str)], complete| {
            check(ToolFormat::Bare, answer, text, calls, complete);
        };
        check(r#"{"name": "f", "parameters": {"a": {}}}"#, "", &[("f", r#"{"a": {}}"#)], true);
        check("Hello {\"name\"", "Hello {\"name\"", &[], false);
        check("", "", &[], false);
        check("{\"na", "{\"na", &[], false);
    }
}
