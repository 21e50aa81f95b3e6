//! From documents to a datastore.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::file::{self, DatastoreError, END, Header, ORDER};

/// Documents that are to be a datastore. Takes 8 bytes of memory for each token.
#[derive(Debug)]
pub struct DatastoreBuilder {
    vocab: u32,
    fingerprint: u64,
    max_tokens: usize,
    tokens: Vec<u32>,
    documents: u64,
}

/// A document that cannot be taken in. Nothing of it was.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum DocumentError {
    #[error("more than {max_tokens} tokens: give less text, or a higher limit")]
    Full { max_tokens: usize },
    #[error("token {token} is not among the {vocab} of the tokenizer")]
    Token { token: u32, vocab: u32 },
}

impl DatastoreBuilder {
    /// No documents, of a tokenizer with `vocab` ids and this [fingerprint](model::tokenizer::Tokenizer::fingerprint). At
    /// most `max_tokens` are taken in, ends of documents included; a datastore cannot have 2³² − 1 or more.
    pub fn new(vocab: usize, fingerprint: u64, max_tokens: usize) -> DatastoreBuilder {
        let vocab = u32::try_from(vocab).unwrap_or(END);
        let max_tokens = max_tokens.min(END as usize - 1);
        DatastoreBuilder { vocab, fingerprint, max_tokens, tokens: Vec::new(), documents: 0 }
    }

    /// Takes in a document; one without tokens is none.
    ///
    /// # Errors
    ///
    /// More tokens than there is room for, or one that the tokenizer does not know.
    pub fn add(&mut self, document: &[u32]) -> Result<(), DocumentError> {
        let DatastoreBuilder { vocab, max_tokens, .. } = *self;
        if let Some(&token) = document.iter().find(|&&token| token >= vocab) {
            return Err(DocumentError::Token { token, vocab });
        }
        if document.is_empty() {
            return Ok(());
        }
        if document.len() >= max_tokens - self.tokens.len().min(max_tokens) {
            return Err(DocumentError::Full { max_tokens });
        }
        self.tokens.extend_from_slice(document);
        self.tokens.push(END);
        self.documents += 1;
        Ok(())
    }

    /// Tokens so far, ends of documents included.
    pub fn tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Sorts with `threads`, and writes the datastore to `path`, which is replaced in one go. `sorted` is told of places as
    /// they are done.
    ///
    /// # Errors
    ///
    /// A file that cannot be written.
    pub fn write(self, path: &Path, threads: usize, sorted: &(dyn Fn(usize) + Sync)) -> Result<Header, DatastoreError> {
        let places = places(&self.tokens, self.vocab, threads, sorted);
        let tokenizer = (self.vocab, self.fingerprint);
        file::replace(path, |out| file::write(out, tokenizer, self.documents, &self.tokens, &places))
    }

    #[cfg(test)]
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let places = places(&self.tokens, self.vocab, 2, &|_| ());
        file::write(&mut bytes, (self.vocab, self.fingerprint), self.documents, &self.tokens, &places).unwrap();
        bytes
    }
}

/// All places but the ends of documents, in their order: first put apart by the token that stands there, and then each of
/// these parts sorted by itself. A comparison looks at no more than [`ORDER`] tokens, so that no text takes long.
fn places(tokens: &[u32], vocab: u32, threads: usize, sorted: &(dyn Fn(usize) + Sync)) -> Vec<u32> {
    let mut starts = vec![0; vocab as usize + 1];
    for &token in tokens.iter().filter(|&&token| token != END) {
        starts[token as usize + 1] += 1;
    }
    for token in 0..vocab as usize {
        starts[token + 1] += starts[token];
    }
    let sizes: Vec<usize> = starts.windows(2).map(|pair| pair[1] - pair[0]).filter(|&size| size > 0).collect();
    let mut places = vec![0; starts[vocab as usize]];
    for (place, &token) in tokens.iter().enumerate().filter(|&(_, &token)| token != END) {
        places[starts[token as usize]] = place as u32;
        starts[token as usize] += 1;
    }
    let mut rest = &mut places[..];
    let parts = sizes.into_iter().map(move |size| rest.split_off_mut(..size).unwrap_or_default());
    let parts = Mutex::new(parts);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let part = parts.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some(part) = part else { break };
                    part.sort_unstable_by(|&a, &b| key(tokens, a).cmp(key(tokens, b)).then(a.cmp(&b)));
                    sorted(part.len());
                }
            });
        }
    });
    places
}

/// What a place is sorted by: the tokens there up to the end of the document, which counts as one.
fn key(tokens: &[u32], place: u32) -> impl Iterator<Item = u32> {
    let mut ended = false;
    tokens[place as usize..]
        .iter()
        .take(ORDER)
        .copied()
        .take_while(move |&token| !std::mem::replace(&mut ended, token == END))
}
