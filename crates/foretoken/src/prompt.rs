//! Where the prompt of a request comes from: an argument, a file, or standard input.

use std::fs;
use std::io::{self, IsTerminal, Read};
use std::path::Path;

use anyhow::{Context, Result, bail};

/// What the user wants answered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Prompt {
    /// One prompt, whole.
    Text(String),
    /// None given, and a person at the terminal: ask for one after another.
    Interactive,
}

/// Finds the prompt: the argument (`-` means standard input), else the file, else standard input.
///
/// # Errors
/// When the text cannot be read, is not UTF-8, or is empty.
pub(crate) fn find(argument: Option<&str>, file: Option<&Path>) -> Result<Prompt> {
    let (text, origin) = match (argument, file) {
        (Some("-"), _) => (read_stdin()?, "standard input".to_owned()),
        (Some(text), _) => (text.to_owned(), "the PROMPT argument".to_owned()),
        (None, Some(path)) if path == Path::new("-") => (read_stdin()?, "standard input".to_owned()),
        (None, Some(path)) => (read_file(path)?, format!("'{}'", path.display())),
        (None, None) if io::stdin().is_terminal() => return Ok(Prompt::Interactive),
        (None, None) => (read_stdin()?, "standard input".to_owned()),
    };
    if text.trim().is_empty() {
        bail!("the prompt from {origin} is empty: give a PROMPT, --prompt-file FILE, or text on standard input");
    }
    Ok(Prompt::Text(text))
}

fn read_file(path: &Path) -> Result<String> {
    let bytes = fs::read(path).with_context(|| format!("cannot read the prompt from '{}'", path.display()))?;
    utf8(bytes, &format!("'{}'", path.display()))
}

fn read_stdin() -> Result<String> {
    let mut bytes = Vec::new();
    io::stdin().lock().read_to_end(&mut bytes).context("cannot read the prompt from standard input")?;
    utf8(bytes, "standard input")
}

fn utf8(bytes: Vec<u8>, origin: &str) -> Result<String> {
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            bail!("the prompt from {origin} is not UTF-8: invalid byte at offset {at}; convert it to UTF-8 first")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_wins_and_must_not_be_empty() {
        assert_eq!(find(Some("Hi"), None).unwrap(), Prompt::Text("Hi".to_owned()));
        let error = find(Some(" \n"), None).unwrap_err();
        assert!(error.to_string().contains("PROMPT argument is empty"), "{error}");
    }

    #[test]
    fn bytes_that_are_not_utf8_are_named() {
        let error = utf8(b"abc\xff".to_vec(), "standard input").unwrap_err().to_string();
        assert!(error.contains("standard input") && error.contains("offset 3"), "{error}");
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = find(None, Some(Path::new("absent.txt"))).unwrap_err();
        assert!(error.to_string().contains("absent.txt"), "{error}");
    }
}
