//! The vocabulary that a GGUF file carries, and the tokenizer built from it.

use std::collections::{HashMap, HashSet};

use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, Vocab};

use super::added::AddedTokens;
use super::decoding::{Decoding, Lead, Spelling};
use super::library::Library;
use super::pieces::PieceEncoder;
use super::table::{Table, byte_token};
use super::{Encoder, Inner, Tokenizer, TokenizerError, pre};
use crate::gguf::Metadata;

/// What kind of token an entry is (`tokenizer.ggml.token_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// Ordinary text.
    Normal,
    /// Stands for text that cannot be expressed.
    Unknown,
    /// Steers the model and is no text, such as `<|im_end|>`.
    Control,
    /// Text that is found before anything else is done with a text.
    UserDefined,
    /// A place in the table without a use.
    Unused,
    /// One byte, spelled `<0xNN>`.
    Byte,
}

impl TokenKind {
    /// From GGUF's number for it. Numbers without a meaning are ordinary text.
    pub fn from_type(token_type: i32) -> TokenKind {
        match token_type {
            2 => TokenKind::Unknown,
            3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            5 => TokenKind::Unused,
            6 => TokenKind::Byte,
            _ => TokenKind::Normal,
        }
    }
}

/// A tokenizer in GGUF's terms.
#[derive(Debug, Clone, Default)]
pub struct Vocabulary {
    /// The file that it comes from, for error messages.
    pub file: String,
    /// `gpt2` (byte-level BPE) or `llama` (SentencePiece BPE).
    pub model: String,
    /// How text is cut into words, for `gpt2`; `default` when the file does not say.
    pub pre: Option<String>,
    /// Spelling of every id.
    pub tokens: Vec<String>,
    /// Kind of every id; empty: all normal.
    pub kinds: Vec<TokenKind>,
    /// For `gpt2`: pairs to merge, `left right`, the first ones first.
    pub merges: Vec<String>,
    /// For `llama`: score of every id, the highest is merged first.
    pub scores: Vec<f32>,
    /// Begin-of-text token.
    pub bos: Option<u32>,
    /// Tokens that end an answer, the main one first.
    pub eos: Vec<u32>,
    /// Token for what cannot be expressed.
    pub unknown: Option<u32>,
    /// Whether a prompt starts with [`Vocabulary::bos`]; `None`: as is usual for the kind of tokenizer.
    pub add_bos: Option<bool>,
    /// Whether a space goes in front of a text; `None`: as is usual for the kind of tokenizer.
    pub add_space_prefix: Option<bool>,
}

/// Control tokens that end a turn in the chat formats in use. Many files name only the end-of-text token as theirs.
const TURN_ENDS: &[&str] = &[
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<EOT>",
];

impl Vocabulary {
    /// Reads the `tokenizer.ggml.*` keys of a GGUF file.
    ///
    /// # Errors
    /// Keys that are missing, of the wrong type, or of the wrong length.
    pub fn from_gguf(meta: &Metadata) -> Result<Vocabulary, TokenizerError> {
        let id = |key: &str| meta.opt_u32(key);
        let mut eos = Vec::new();
        for key in ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"] {
            eos.extend(id(key)?);
        }
        let types = meta.opt_i32s("tokenizer.ggml.token_type")?.unwrap_or_default();
        Ok(Vocabulary {
            file: meta.file().to_owned(),
            model: meta.str("tokenizer.ggml.model")?.to_owned(),
            pre: meta.opt_str("tokenizer.ggml.pre")?.map(str::to_owned),
            tokens: meta.strings("tokenizer.ggml.tokens")?.to_vec(),
            kinds: types.into_iter().map(TokenKind::from_type).collect(),
            merges: meta.opt_strings("tokenizer.ggml.merges")?.unwrap_or_default().to_vec(),
            scores: meta.opt_f32s("tokenizer.ggml.scores")?.unwrap_or_default(),
            bos: id("tokenizer.ggml.bos_token_id")?,
            eos,
            unknown: id("tokenizer.ggml.unknown_token_id")?,
            add_bos: meta.opt_bool("tokenizer.ggml.add_bos_token")?,
            add_space_prefix: meta.opt_bool("tokenizer.ggml.add_space_prefix")?,
        })
    }

    pub(super) fn build(mut self) -> Result<Tokenizer, TokenizerError> {
        self.check()?;
        self.add_turn_ends();
        match self.model.as_str() {
            "gpt2" => self.build_byte_level(),
            "llama" => self.build_pieces(),
            _ => Err(TokenizerError::UnsupportedModel { file: self.file, model: self.model }),
        }
    }

    fn check(&self) -> Result<(), TokenizerError> {
        let count = self.tokens.len();
        if count == 0 {
            return Err(self.field("tokens", "the vocabulary is empty".to_owned()));
        }
        for (field, len) in [("token_type", self.kinds.len()), ("scores", self.scores.len())] {
            if len != 0 && len != count {
                return Err(self.field(field, format!("has {len} entries for {count} tokens")));
            }
        }
        let named = [("bos_token_id", self.bos), ("unknown_token_id", self.unknown)];
        let ends = self.eos.iter().map(|&id| ("eos_token_id", Some(id)));
        for (field, id) in named.into_iter().chain(ends) {
            if let Some(id) = id.filter(|&id| id as usize >= count) {
                return Err(self.field(field, format!("is {id}, but there are only {count} tokens")));
            }
        }
        Ok(())
    }

    fn field(&self, field: &str, reason: String) -> TokenizerError {
        TokenizerError::Field { file: self.file.clone(), field: format!("tokenizer.ggml.{field}"), reason }
    }

    fn kind(&self, id: usize) -> TokenKind {
        self.kinds.get(id).copied().unwrap_or(TokenKind::Normal)
    }

    fn add_turn_ends(&mut self) {
        for (id, token) in self.tokens.iter().enumerate() {
            if self.kind(id) == TokenKind::Control && TURN_ENDS.contains(&token.as_str()) {
                self.eos.push(id as u32);
            }
        }
        let mut seen = HashSet::new();
        self.eos.retain(|&id| seen.insert(id));
    }

    /// Control, unknown and user-defined tokens as they are found in a text, with id and whether they are control tokens.
    fn added(&self) -> impl Iterator<Item = (String, u32, bool)> + '_ {
        self.tokens.iter().enumerate().filter_map(|(id, token)| match self.kind(id) {
            TokenKind::Control | TokenKind::Unknown => Some((token.clone(), id as u32, true)),
            TokenKind::UserDefined => Some((self.added_text(token), id as u32, false)),
            _ => None,
        })
    }

    fn added_text(&self, token: &str) -> String {
        if self.model == "llama" { token.replace('▁', " ") } else { token.to_owned() }
    }

    fn table(&self, spelling: &Spelling) -> Table {
        let mut table = Table::default();
        for (id, token) in self.tokens.iter().enumerate() {
            let (added, special) = match self.kind(id) {
                TokenKind::Control | TokenKind::Unknown => (true, true),
                TokenKind::UserDefined => (true, false),
                TokenKind::Unused => {
                    table.push_unused(token, &spelling.bytes(token, false));
                    continue;
                }
                TokenKind::Normal | TokenKind::Byte => (false, false),
            };
            table.push(token, &spelling.bytes(token, added), special);
        }
        table
    }

    fn build_byte_level(self) -> Result<Tokenizer, TokenizerError> {
        let rule = pre::rule(self.pre.as_deref().unwrap_or("default"), &self.file)?;
        let mut vocab = Vocab::with_capacity(self.tokens.len());
        for (id, token) in self.tokens.iter().enumerate() {
            vocab.entry(token.clone()).or_insert(id as u32);
        }
        let merges = self.byte_level_merges(&vocab)?;
        let builder = BPE::builder().vocab_and_merges(vocab, merges).ignore_merges(rule.ignore_merges);
        let model = builder.build().map_err(|e| self.field("merges", e.to_string()))?;
        let mut tokenizer = tokenizers::Tokenizer::new(model);
        tokenizer.with_pre_tokenizer(Some(rule.pre_tokenizer(self.add_space_prefix.unwrap_or(false))?));
        let added = self.added().map(|(text, _, special)| AddedToken::from(text, special).normalized(false));
        tokenizer.add_tokens(added).map_err(|e| self.field("tokens", e.to_string()))?;
        let table = self.table(&Spelling::ByteLevel);
        Ok(Tokenizer::from_inner(Inner {
            encoder: Encoder::Library(Box::new(Library::new(tokenizer))),
            controls: table.controls(),
            table,
            decoding: Decoding::Bytes(Lead::Spaces(0)),
            bos: self.bos,
            add_bos: self.add_bos.unwrap_or(rule.add_bos),
            eos: self.eos,
        }))
    }

    /// The merges as pairs. Every part and every result must be a token: the library does not check that.
    fn byte_level_merges(&self, vocab: &Vocab) -> Result<Vec<(String, String)>, TokenizerError> {
        if self.merges.is_empty() {
            return Err(self.field("merges", "are missing; a gpt2 tokenizer needs them".to_owned()));
        }
        let mut merged = String::new();
        let mut merges = Vec::with_capacity(self.merges.len());
        for (i, merge) in self.merges.iter().enumerate() {
            // A space inside a merge can only be the separator, but for one that would start the left part.
            let split = merge.char_indices().skip(1).find(|&(_, c)| c == ' ').map(|(at, _)| merge.split_at(at));
            let Some((left, right)) = split.map(|(left, right)| (left, &right[1..])) else {
                return Err(self.field("merges", format!("entry {i} is not a pair: {merge:?}")));
            };
            merged.clear();
            merged.push_str(left);
            merged.push_str(right);
            if let Some(missing) = [left, right, &merged].into_iter().find(|&part| !vocab.contains_key(part)) {
                return Err(self.field("merges", format!("entry {i} ({merge:?}): {missing:?} is not a token")));
            }
            merges.push((left.to_owned(), right.to_owned()));
        }
        Ok(merges)
    }

    fn build_pieces(self) -> Result<Tokenizer, TokenizerError> {
        if self.scores.is_empty() {
            return Err(self.field("scores", "are missing; a llama tokenizer needs them".to_owned()));
        }
        let mut pieces = HashMap::with_capacity(self.tokens.len());
        let mut bytes = Box::new([None; 256]);
        for (id, token) in self.tokens.iter().enumerate() {
            match self.kind(id) {
                TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused => {
                    pieces.entry(token.clone()).or_insert((id as u32, self.scores[id]));
                }
                TokenKind::Byte => {
                    let byte = byte_token(token).ok_or_else(|| {
                        self.field("tokens", format!("byte token {id} is spelled {token:?}, not <0xNN>"))
                    })?;
                    bytes[byte as usize] = Some(id as u32);
                }
                TokenKind::Control | TokenKind::Unknown => {}
            }
        }
        let add_space_prefix = self.add_space_prefix.unwrap_or(true);
        let encoder = PieceEncoder {
            pieces,
            bytes,
            unknown: self.unknown,
            added: AddedTokens::new(self.added()),
            add_space_prefix,
        };
        let table = self.table(&Spelling::sentence_piece());
        Ok(Tokenizer::from_inner(Inner {
            encoder: Encoder::Pieces(Box::new(encoder)),
            controls: table.controls(),
            table,
            decoding: Decoding::Bytes(Lead::Spaces(u32::from(add_space_prefix))),
            bos: self.bos,
            add_bos: self.add_bos.unwrap_or(true),
            eos: self.eos,
        }))
    }
}
