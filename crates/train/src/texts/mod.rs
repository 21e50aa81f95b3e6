//! What a drafter learns from: conversations of the target, prompts and the answers that it gave.
//!
//! A room for their file, which grows by a line with each answer and can be taken up again after a kill, and for how they
//! come about. What is computed from them may not enter.

mod openings;
mod writer;

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use writer::{Asked, TextWriter, WriteError};

use crate::TrainError;

/// Who asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// A file of prompts.
    Prompts,
    /// The target, which was let write the user's words too.
    Own,
}

/// A prompt and its answer, as the target's tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Text {
    /// Who asked.
    pub origin: Origin,
    /// Which of those prompts, from 0.
    pub number: u32,
    /// Tokens of the prompt: the answer begins there.
    pub prompt: usize,
    /// Prompt and answer.
    pub tokens: Vec<u32>,
}

impl Text {
    /// What it is told from others by.
    pub fn key(&self) -> (Origin, u32) {
        (self.origin, self.number)
    }
}

/// What texts depend on, beside their numbers. The first line of a file says it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextSettings {
    /// The target's name.
    pub target: String,
    /// Seed of the run.
    pub seed: u64,
    /// Tokens of an answer at most.
    pub answer_tokens: usize,
}

/// A file of texts that may still grow.
#[derive(Debug)]
pub struct TextFile {
    path: PathBuf,
    file: BufWriter<File>,
}

impl TextFile {
    /// Opens the file at `path`, or begins it, and returns the texts that it has, in that order. A last line that a
    /// kill has cut off is taken away.
    ///
    /// # Errors
    /// When it cannot be read or written, is broken, or was begun with other settings.
    pub fn open(path: &Path, settings: &TextSettings) -> Result<(TextFile, Vec<Text>), TrainError> {
        let io = |source| TrainError::io("open", path, source);
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(io(error)),
        };
        let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let text = std::str::from_utf8(&bytes[..whole]).map_err(|_| TrainError::broken(path, "is not UTF-8"))?;
        let texts = parse(path, text, settings)?;
        let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(path).map_err(io)?;
        file.set_len(whole as u64).map_err(io)?;
        std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0)).map_err(io)?;
        let mut this = TextFile { path: path.to_owned(), file: BufWriter::new(file) };
        if whole == 0 {
            this.line(settings)?;
        }
        Ok((this, texts))
    }

    /// Appends a text.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn append(&mut self, text: &Text) -> Result<(), TrainError> {
        self.line(text)
    }

    fn line(&mut self, value: &impl Serialize) -> Result<(), TrainError> {
        let io = |source| TrainError::io("write", &self.path, source);
        serde_json::to_writer(&mut self.file, value).map_err(|error| io(error.into()))?;
        self.file.write_all(b"\n").and_then(|()| self.file.flush()).map_err(io)
    }
}

fn parse(path: &Path, text: &str, settings: &TextSettings) -> Result<Vec<Text>, TrainError> {
    let mut lines = text.lines().enumerate();
    let line_of = |at: usize, error: serde_json::Error| TrainError::broken(path, format!("line {}: {error}", at + 1));
    let Some((at, first)) = lines.next() else { return Ok(Vec::new()) };
    let found: TextSettings = serde_json::from_str(first).map_err(|error| line_of(at, error))?;
    if found != *settings {
        let problem = format!(
            "was written with {found:?}, and this run has {settings:?}: give the same options, or another --out"
        );
        return Err(TrainError::broken(path, problem));
    }
    let read = |(at, line): (usize, &str)| {
        let text: Text = serde_json::from_str(line).map_err(|error| line_of(at, error))?;
        match (1..=text.tokens.len()).contains(&text.prompt) {
            true => Ok(text),
            false => Err(TrainError::broken(path, format!("line {}: its prompt is not in its tokens", at + 1))),
        }
    };
    let mut texts = lines.map(read).collect::<Result<Vec<Text>, _>>()?;
    texts.sort_by_key(Text::key);
    texts.dedup_by_key(|text| text.key());
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_cut_off_goes_on_where_its_last_whole_line_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("texts.jsonl");
        let settings = TextSettings { target: "t".into(), seed: 1, answer_tokens: 8 };
        let text = |number| Text { origin: Origin::Own, number, prompt: 2, tokens: vec![1, 2, 3] };
        let (mut file, texts) = TextFile::open(&path, &settings).unwrap();
        assert!(texts.is_empty());
        for number in [3, 1] {
            file.append(&text(number)).unwrap();
        }
        drop(file);
        let mut bytes = fs::read(&path).unwrap();
        bytes.extend(b"{\"origin\":\"ow");
        fs::write(&path, bytes).unwrap();
        let (mut file, texts) = TextFile::open(&path, &settings).unwrap();
        assert_eq!(texts, [text(1), text(3)]);
        file.append(&text(2)).unwrap();
        drop(file);
        assert_eq!(TextFile::open(&path, &settings).unwrap().1, [text(1), text(2), text(3)]);
        let other = TextSettings { seed: 2, ..settings };
        let error = TextFile::open(&path, &other).unwrap_err().to_string();
        assert!(error.contains("seed: 1") && error.contains("another --out"), "{error}");
    }
}
