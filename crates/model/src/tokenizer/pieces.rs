//! SentencePiece BPE by scores, as GGUF files carry it (`tokenizer.ggml.model` = `llama`).
//!
//! Starting from single characters, the neighbouring pair whose concatenation is the token with the highest score is
//! merged, the leftmost of equals, until no pair is a token. What is left and is no token is spelled in byte tokens.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};

use super::added::{AddedTokens, Part};
use super::stand_in::StandIns;
use super::{Specials, TokenizerError};

/// Encoder of a SentencePiece vocabulary.
#[derive(Debug)]
pub(crate) struct PieceEncoder {
    /// Tokens that merging may produce, with id and score. No control and no byte tokens: text must not spell them.
    pub(crate) pieces: HashMap<String, (u32, f32)>,
    /// The token of each byte.
    pub(crate) bytes: Box<[Option<u32>; 256]>,
    pub(crate) unknown: Option<u32>,
    pub(crate) added: AddedTokens,
    /// A space goes in front of a text, and of what follows a control token.
    pub(crate) add_space_prefix: bool,
}

/// A run of bytes that is one symbol so far; a doubly linked list by index.
struct Symbol {
    start: usize,
    /// 0 when it was merged into its left neighbour.
    len: usize,
    prev: Option<usize>,
    next: Option<usize>,
}

/// A merge that may be done: of the symbols `left` and the one behind it, `len` bytes together.
struct Candidate {
    score: f32,
    left: usize,
    right: usize,
    len: usize,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |c: &Candidate| (Reverse(c.left), c.len);
        self.score.total_cmp(&other.score).then_with(|| key(self).cmp(&key(other)))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Candidate {}

impl PieceEncoder {
    pub(crate) fn id(&self, token: &str) -> Option<u32> {
        let piece = || self.pieces.get(token).map(|&(id, _)| id);
        let byte = || super::table::byte_token(token).and_then(|byte| self.bytes[byte as usize]);
        self.added.id(token).or_else(piece).or_else(byte)
    }

    /// The ids of a text; control tokens with a stand-in are read as ordinary text.
    pub(crate) fn encode(
        &self,
        text: &str,
        specials: Specials,
        stand_ins: &StandIns,
    ) -> Result<Vec<u32>, TokenizerError> {
        let (mut ids, mut at_start) = (Vec::with_capacity(text.len() / 3 + 1), true);
        for part in self.added.split(text, specials) {
            match part {
                Part::Token(id) => {
                    ids.push(id);
                    at_start = true;
                }
                Part::Text(text) => {
                    let text = stand_ins.take_out(text);
                    let prefix = if at_start && self.add_space_prefix { "▁" } else { "" };
                    self.encode_text(&format!("{prefix}{}", text.replace(' ', "▁")), &mut ids)?;
                    at_start = false;
                }
            }
        }
        Ok(ids)
    }

    /// Merges a text that has `▁` for its spaces.
    fn encode_text(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let mut symbols = symbols(text);
        let mut queue = BinaryHeap::new();
        for left in 0..symbols.len().saturating_sub(1) {
            self.propose(text, &symbols, left, &mut queue);
        }
        while let Some(candidate) = queue.pop() {
            let (left, right) = (candidate.left, candidate.right);
            let stale = symbols[left].len == 0
                || symbols[right].len == 0
                || symbols[left].len + symbols[right].len != candidate.len;
            if stale {
                continue;
            }
            symbols[left].len = candidate.len;
            symbols[right].len = 0;
            symbols[left].next = symbols[right].next;
            if let Some(next) = symbols[right].next {
                symbols[next].prev = Some(left);
            }
            if let Some(prev) = symbols[left].prev {
                self.propose(text, &symbols, prev, &mut queue);
            }
            self.propose(text, &symbols, left, &mut queue);
        }
        for symbol in symbols.iter().filter(|s| s.len > 0) {
            self.emit(&text[symbol.start..symbol.start + symbol.len], ids)?;
        }
        Ok(())
    }

    /// Queues the merge of a symbol with the one behind it, if that is a token.
    fn propose(&self, text: &str, symbols: &[Symbol], left: usize, queue: &mut BinaryHeap<Candidate>) {
        let Some(right) = symbols[left].next else { return };
        let (start, len) = (symbols[left].start, symbols[left].len + symbols[right].len);
        if let Some(&(_, score)) = self.pieces.get(&text[start..start + len]) {
            queue.push(Candidate { score, left, right, len });
        }
    }

    fn emit(&self, piece: &str, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        if let Some(&(id, _)) = self.pieces.get(piece) {
            ids.push(id);
            return Ok(());
        }
        let bytes: Option<Vec<u32>> = piece.bytes().map(|byte| self.bytes[byte as usize]).collect();
        match (bytes, self.unknown) {
            (Some(bytes), _) => ids.extend(bytes),
            (None, Some(unknown)) => ids.push(unknown),
            (None, None) => return Err(TokenizerError::Unencodable(piece.chars().next().unwrap_or_default())),
        }
        Ok(())
    }
}

/// One symbol for each character.
fn symbols(text: &str) -> Vec<Symbol> {
    let mut symbols: Vec<Symbol> = text
        .char_indices()
        .enumerate()
        .map(|(i, (start, c))| Symbol { start, len: c.len_utf8(), prev: i.checked_sub(1), next: Some(i + 1) })
        .collect();
    if let Some(last) = symbols.last_mut() {
        last.next = None;
    }
    symbols
}
