//! Text out of token ids that come one by one.
//!
//! A token can be a part of a character, and the text of a prefix is not always a prefix of the text: a
//! [`Detokenizer`] gives out only what no later token can change. The concatenation of everything that it gives out is
//! what [`Tokenizer::decode`] answers for the same ids. Stop strings and anything else that looks at the text may not
//! enter.

use crate::tokenizer::{Decoding, Encoder, Lead, Tokenizer, TokenizerError};

/// Turns ids into text as they come. See [`Tokenizer::detokenizer`].
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_specials: bool,
    state: State,
}

#[derive(Debug, Clone)]
enum State {
    /// The start-of-text rule, and bytes that may still become a character: at most three, between calls.
    Bytes { lead: Lead, tail: Vec<u8> },
    /// The ids since the last text given out but one, and what they gave as text: see [`Detokenizer::push_window`].
    Window { ids: Vec<u32>, known: usize, text: String },
}

/// A library-decoded window that gives no text for so many tokens is given out as it is.
const WINDOW_LIMIT: usize = 32;

impl Detokenizer {
    pub(crate) fn new(tokenizer: Tokenizer, skip_specials: bool) -> Detokenizer {
        let state = match tokenizer.inner.decoding {
            Decoding::Bytes(lead) => State::Bytes { lead, tail: Vec::new() },
            Decoding::Library => State::Window { ids: Vec::new(), known: 0, text: String::new() },
        };
        Detokenizer { tokenizer, skip_specials, state }
    }

    /// Adds a token. The answer is the new text that is final; empty while a UTF-8 character is incomplete.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`]; the state is then as before.
    pub fn push(&mut self, id: u32) -> Result<String, TokenizerError> {
        let Detokenizer { tokenizer, skip_specials, state } = self;
        let token = tokenizer.inner.table.bytes(id)?;
        if *skip_specials && tokenizer.is_special(id) {
            return Ok(String::new());
        }
        match state {
            State::Bytes { lead, tail } => {
                lead.append(token, tail);
                Ok(take_complete(tail))
            }
            State::Window { .. } => self.push_window(id),
        }
    }

    /// What is left at the end of the ids: bytes of an unfinished character become U+FFFD.
    pub fn finish(&mut self) -> String {
        match &mut self.state {
            State::Bytes { tail, .. } => {
                let rest = String::from_utf8_lossy(tail).into_owned();
                tail.clear();
                rest
            }
            State::Window { ids, text, known } => {
                let rest = decode(&self.tokenizer, ids).ok().and_then(|all| all.get(text.len()..).map(str::to_owned));
                ids.clear();
                text.clear();
                *known = 0;
                rest.unwrap_or_default()
            }
        }
    }

    /// Whether a part of a character is being held back.
    pub fn pending(&self) -> bool {
        match &self.state {
            State::Bytes { tail, .. } => !tail.is_empty(),
            State::Window { ids, known, .. } => ids.len() > *known,
        }
    }

    /// For decoders that look at neighbouring tokens: the new text is what the window's text has grown by. The window is
    /// the tokens of the last text given out, so that the decoder sees what stands before the new ones.
    fn push_window(&mut self, id: u32) -> Result<String, TokenizerError> {
        let State::Window { ids, known, text } = &mut self.state else { return Ok(String::new()) };
        ids.push(id);
        let all = decode(&self.tokenizer, ids)?;
        let grown = all.len() > text.len() && !all.ends_with('\u{FFFD}');
        if !grown && ids.len() - *known < WINDOW_LIMIT {
            return Ok(String::new());
        }
        let new = all.get(text.len()..).unwrap_or_default().to_owned();
        ids.drain(..*known);
        *known = ids.len();
        *text = decode(&self.tokenizer, ids)?;
        Ok(new)
    }
}

/// Skipped control tokens never get into a window, so nothing is to be skipped here.
fn decode(tokenizer: &Tokenizer, ids: &[u32]) -> Result<String, TokenizerError> {
    match &tokenizer.inner.encoder {
        Encoder::Library(library) => library.decode(ids, false),
        Encoder::Pieces(_) => tokenizer.decode(ids, false),
    }
}

/// Takes the characters that are complete off the front of `tail`, with U+FFFD for bytes that cannot become one, and
/// leaves a beginning of a character.
fn take_complete(tail: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut done = 0;
    while done < tail.len() {
        match std::str::from_utf8(&tail[done..]) {
            Ok(rest) => {
                text.push_str(rest);
                done = tail.len();
            }
            Err(error) => {
                let valid = done + error.valid_up_to();
                text.push_str(std::str::from_utf8(&tail[done..valid]).unwrap_or_default());
                done = valid;
                let Some(bad) = error.error_len() else { break };
                text.push('\u{FFFD}');
                done += bad;
            }
        }
    }
    tail.drain(..done);
    text
}
