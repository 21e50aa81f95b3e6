//! The documents of text and JSON lines files.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Map, Value};

/// Bytes of a text that are encoded in one go, about: tokens do not cross the end of a line.
const PIECE: usize = 64 << 10;

/// A file that is read document by document.
pub(super) struct Input<'a> {
    path: PathBuf,
    reader: BufReader<File>,
    bytes: u64,
    /// Lines read so far.
    lines: usize,
    kind: Kind<'a>,
}

enum Kind<'a> {
    /// A text, which is a document.
    Text,
    /// An object a line, whose texts are in these fields; and those of the newest line that are still to come.
    Lines { fields: &'a [String], waiting: VecDeque<String> },
}

/// A text whose tokens belong together.
pub(super) struct Document(String);

impl Document {
    /// The text in parts that can be encoded one by one.
    pub(super) fn pieces(&self) -> impl Iterator<Item = &str> {
        let mut rest = &self.0[..];
        std::iter::from_fn(move || {
            // A line feed is a character of its own, so that this never cuts one apart.
            let end = rest.as_bytes().iter().skip(PIECE).position(|&byte| byte == b'\n');
            let (piece, after) = rest.split_at(end.map_or(rest.len(), |end| PIECE + end + 1));
            rest = after;
            (!piece.is_empty()).then_some(piece)
        })
    }
}

impl<'a> Input<'a> {
    /// Opens a file: JSON lines if it is called .jsonl or .ndjson, with texts in `fields`; text otherwise.
    pub(super) fn open(path: &Path, fields: &'a [String]) -> Result<Input<'a>> {
        let context = || format!("cannot read '{}'", path.display());
        let file = File::open(path).with_context(context)?;
        let bytes = file.metadata().with_context(context)?.len();
        let lines = path.extension().is_some_and(|extension| extension == "jsonl" || extension == "ndjson");
        let kind = if lines { Kind::Lines { fields, waiting: VecDeque::new() } } else { Kind::Text };
        Ok(Input { path: path.to_owned(), reader: BufReader::new(file), bytes, lines: 0, kind })
    }

    /// Size of the file.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next document, if there is one more. `read` is told of the bytes that this took.
    ///
    /// # Errors
    /// A file that cannot be read or is not UTF-8, and a line that is no object or has none of the fields.
    pub(super) fn next_document(&mut self, read: &mut dyn FnMut(u64)) -> Result<Option<Document>> {
        let Input { path, reader, lines, kind, .. } = self;
        let mut line = String::new();
        let Kind::Lines { fields, waiting } = kind else {
            let text = std::io::read_to_string(reader);
            let text = text.with_context(|| format!("cannot read '{}' as UTF-8 text", path.display()))?;
            read(text.len() as u64);
            return Ok((!text.is_empty()).then_some(Document(text)));
        };
        loop {
            if let Some(text) = waiting.pop_front() {
                return Ok(Some(Document(text)));
            }
            line.clear();
            *lines += 1;
            let context = || format!("'{}', line {lines}", path.display());
            match reader.read_line(&mut line).with_context(context)? {
                0 => return Ok(None),
                bytes => read(bytes as u64),
            }
            if !line.trim().is_empty() {
                let object: Map<String, Value> = serde_json::from_str(&line).map_err(problem).with_context(context)?;
                waiting.extend(texts(object, fields).with_context(context)?);
            }
        }
    }
}

/// What is wrong with a line. The parser takes it for a file of one line.
fn problem(error: serde_json::Error) -> anyhow::Error {
    let (column, text) = (error.column(), error.to_string());
    let problem = text.split(" at line ").next().unwrap_or_default();
    anyhow!("column {column}: not a JSON object: {problem}")
}

/// The texts of an object, in the order of `fields`.
fn texts(mut object: Map<String, Value>, fields: &[String]) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    let mut known = false;
    for field in fields {
        let Some(value) = object.remove(field) else { continue };
        known = true;
        match value {
            Value::String(text) => texts.push(text),
            Value::Array(values) => {
                for value in values {
                    texts
                        .extend(text(value).with_context(|| format!("field {field:?} has something that is no text"))?);
                }
            }
            _ => bail!("field {field:?} is neither a text nor a list of texts or messages"),
        }
    }
    if !known {
        bail!("none of the fields {} is there: name others with --fields", fields.join(", "));
    }
    Ok(texts)
}

/// The text of a list's value: itself, or the content of a message; a message may have none.
fn text(value: Value) -> Result<Option<String>> {
    match value {
        Value::String(text) => Ok(Some(text)),
        Value::Object(mut message) => match message.remove("content") {
            Some(Value::String(text)) => Ok(Some(text)),
            Some(Value::Null) | None => Ok(None),
            Some(Value::Array(parts)) => {
                let parts = parts.into_iter().filter_map(|part| Some(part.get("text")?.as_str()?.to_owned()));
                Ok(Some(parts.collect()))
            }
            Some(_) => bail!("the content of a message is neither a text nor a list of parts"),
        },
        _ => bail!("a list's values must be texts or messages"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn documents(name: &str, bytes: &[u8]) -> Result<Vec<String>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let fields = ["text", "messages", "turns"].map(str::to_owned);
        let mut input = Input::open(&path, &fields)?;
        let (mut read, mut documents) = (0, Vec::new());
        while let Some(Document(text)) = input.next_document(&mut |bytes| read += bytes)? {
            documents.push(text);
        }
        assert_eq!((read, input.bytes()), (bytes.len() as u64, bytes.len() as u64));
        Ok(documents)
    }

    #[test]
    fn a_text_file_is_one_document_and_json_lines_have_one_for_each_text() {
        assert_eq!(documents("a.txt", b"one\ntwo\n").unwrap(), ["one\ntwo\n"]);
        assert!(documents("a.txt", b"").unwrap().is_empty());
        let lines = br#"{"id": 1, "text": "one"}

{"turns": ["two", "three"], "text": "first"}
{"messages": [{"role": "user", "content": "four"}, {"content": [{"type": "text", "text": "fi"}, {"text": "ve"}]},
"#;
        let lines = [&lines[..], br#"{"role": "assistant"}]}"#].concat();
        let lines = String::from_utf8(lines).unwrap().replace("]},\n", "]},");
        assert_eq!(documents("a.jsonl", lines.as_bytes()).unwrap(), ["one", "first", "two", "three", "four", "five"]);
    }

    #[test]
    fn what_cannot_be_read_is_named_with_its_line() {
        let error = |name, bytes: &[u8]| format!("{:#}", documents(name, bytes).unwrap_err());
        assert!(error("a.txt", b"\xff").contains("a.txt' as UTF-8 text"));
        let line = error("a.jsonl", b"{\"text\": \"a\"}\n[1]\n");
        assert!(line.contains("a.jsonl', line 2: column 0: not a JSON object: ") && !line.contains("line 1"), "{line}");
        let missing = error("a.jsonl", b"{\"answer\": \"a\"}");
        assert!(
            missing.ends_with("line 1: none of the fields text, messages, turns is there: name others with --fields")
        );
        assert!(error("a.jsonl", b"{\"text\": 3}").ends_with("neither a text nor a list of texts or messages"));
        assert!(error("a.jsonl", b"{\"turns\": [3]}").contains("has something that is no text"));
        assert!(Input::open(Path::new("no/such"), &[]).is_err());
    }

    #[test]
    fn a_long_text_is_cut_at_ends_of_lines_only() {
        let text = "a line that is all of them\n".repeat(10_000) + &"é".repeat(PIECE);
        let document = Document(text.clone());
        let pieces: Vec<&str> = document.pieces().collect();
        assert!(pieces.len() >= 4 && pieces[..pieces.len() - 1].iter().all(|piece| piece.ends_with('\n')));
        assert_eq!(pieces.concat(), text);
    }
}
