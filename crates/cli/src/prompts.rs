//! Files of prompts, one JSON object a line, in the forms that the field's sets come in.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use model::chat::{ChatTemplate, RenderOptions};
use model::tokenizer::Tokenizer;
use serde_json::{Value, json};

/// One line of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// From 1.
    pub number: usize,
    /// What the file calls it (`question_id` or `id`).
    pub id: Option<String>,
    /// The task that it belongs to.
    pub category: Option<String>,
    /// What is asked.
    pub content: Content,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// A `prompt`, or the first of `turns`.
    Text(String),
    /// `messages`, a conversation.
    Messages(Vec<Value>),
}

/// Reads all lines: `{"prompt": TEXT}`, `{"messages": [...]}` or `{"turns": [TEXT, ...]}`, each with an id and a
/// category or without.
///
/// # Errors
/// When the file cannot be read, has no prompts, or a line is none of these.
pub fn read(path: &Path) -> Result<Vec<Line>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read prompts from '{}'", path.display()))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let lines: Vec<Line> = lines.map(|(at, line)| parse(at + 1, line, path)).collect::<Result<_>>()?;
    if lines.is_empty() {
        bail!("'{}' has no prompts", path.display());
    }
    Ok(lines)
}

fn parse(number: usize, line: &str, path: &Path) -> Result<Line> {
    let place = || format!("line {number} of '{}'", path.display());
    let value: Value = serde_json::from_str(line).with_context(|| format!("{} is not JSON", place()))?;
    let text = value["prompt"].as_str().or_else(|| value["turns"][0].as_str());
    let content = match (text, &value["messages"]) {
        (Some(text), _) => Content::Text(text.to_owned()),
        (None, Value::Array(messages)) => Content::Messages(messages.clone()),
        _ => bail!("{} has neither \"prompt\" nor \"turns\" nor \"messages\"", place()),
    };
    let name = |value: &Value| match value {
        Value::String(name) => Some(name.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let id = name(&value["question_id"]).or_else(|| name(&value["id"]));
    Ok(Line { number, id, category: name(&value["category"]), content })
}

/// How prompts become tokens.
pub struct Encoder<'a> {
    /// The model's.
    pub tokenizer: &'a Tokenizer,
    /// `None`: prompts go to the model as they stand.
    pub template: Option<&'a ChatTemplate>,
}

impl Encoder<'_> {
    /// The tokens that ask for an answer.
    ///
    /// # Errors
    /// When the template refuses the conversation or there is none for it, or a text cannot be encoded.
    pub fn encode(&self, content: &Content) -> Result<Vec<u32>> {
        let (text, template) = match (content, self.template) {
            (Content::Text(text), None) => return Ok(self.tokenizer.encode_prompt(text)?),
            (Content::Messages(_), None) => bail!("it has messages, which need a chat template: leave out --raw"),
            (content, Some(template)) => (content, template),
        };
        let messages = match text {
            Content::Text(text) => vec![json!({ "role": "user", "content": text })],
            Content::Messages(messages) => messages.clone(),
        };
        let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
        Ok(template.encode(&messages, &options, self.tokenizer)?)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<Vec<Line>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        super::read(file.path())
    }

    #[test]
    fn a_line_has_a_prompt_turns_or_messages_and_perhaps_a_name() {
        let text = "{\"prompt\": \"a\"}\n\n{\"question_id\": 7, \"category\": \"x\", \"turns\": [\"b\", \"c\"]}\n\
                    {\"id\": \"m\", \"messages\": [{\"role\": \"user\", \"content\": \"d\"}]}";
        let line = |number, id: Option<&str>, category: Option<&str>, content| {
            let [id, category] = [id, category].map(|name| name.map(str::to_owned));
            Line { number, id, category, content }
        };
        let message = json!({ "role": "user", "content": "d" });
        let expected = [
            line(1, None, None, Content::Text("a".into())),
            line(3, Some("7"), Some("x"), Content::Text("b".into())),
            line(4, Some("m"), None, Content::Messages(vec![message])),
        ];
        assert_eq!(read(text).unwrap(), expected);
    }

    #[test]
    fn a_line_that_is_no_prompt_is_named() {
        for (text, told) in [
            ("{\"prompt\": \"a\"}\n{\"x\": 1}", "line 2"),
            ("hello", "not JSON"),
            ("\n", "no prompts"),
            ("{\"turns\": []}", "neither"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }
}
