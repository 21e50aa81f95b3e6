//! Text to token ids and back.
//!
//! A [`Tokenizer`] is built from a model directory (`tokenizer.json` and its side files) or from the vocabulary inside a
//! GGUF file, and answers the same questions either way. Encoding is the `tokenizers` crate's, except for
//! SentencePiece vocabularies of GGUF files, which carry scores instead of merges (`pieces`). Decoding is ours: every
//! id has its bytes in a `Table`, so a stream is decoded without looking back ([`crate::detokenize`]).
//!
//! Chat templates ([`crate::chat`]), sampling and stop strings may not enter.

mod added;
mod compare;
mod decoding;
mod directory;
mod library;
mod pieces;
mod pre;
mod stand_in;
mod table;
mod vocabulary;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::detokenize::Detokenizer;
use crate::gguf;

use added::AddedTokens;
pub use compare::VocabularyDifference;
pub(crate) use decoding::{Decoding, Lead};
pub(crate) use directory::{TokenizerConfig, read_json};
use library::Library;
use pieces::PieceEncoder;
pub(crate) use stand_in::StandIns;
use table::Table;
pub use vocabulary::{TokenKind, Vocabulary};

/// What is wrong with a tokenizer, or with what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("{}: {reason}", .path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where in the file if known.
        reason: String,
    },
    /// A GGUF key is missing or of the wrong type.
    #[error(transparent)]
    Gguf(#[from] gguf::GgufError),
    /// A vocabulary field contradicts another one.
    #[error("{file}: {field}: {reason}")]
    Field {
        /// The file that the vocabulary comes from.
        file: String,
        /// The metadata key.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The kind of tokenizer is not supported.
    #[error(
        "{file}: tokenizer model \"{model}\" is not supported; supported are \"gpt2\" (byte-level BPE) and \"llama\" (SentencePiece BPE)"
    )]
    UnsupportedModel {
        /// The file that the vocabulary comes from.
        file: String,
        /// `tokenizer.ggml.model`.
        model: String,
    },
    /// The rule that splits text into words is not known: guessing would give wrong token ids silently.
    #[error("{file}: pre-tokenizer \"{pre}\" (tokenizer.ggml.pre) is not supported; supported are {supported}")]
    UnsupportedPre {
        /// The file that the vocabulary comes from.
        file: String,
        /// `tokenizer.ggml.pre`.
        pre: String,
        /// The names that would do.
        supported: String,
    },
    /// An id that no token has.
    #[error("token id {id} is not in the vocabulary of {size} ids")]
    UnknownId {
        /// The id.
        id: u32,
        /// Highest known id + 1.
        size: usize,
    },
    /// The tokenizer can produce ids that the model has no embedding for.
    #[error("the tokenizer has ids up to {}, the model's vocabulary ends at {}: tokenizer and weights do not belong together", .tokenizer - 1, .model - 1)]
    VocabMismatch {
        /// Highest id of the tokenizer + 1.
        tokenizer: usize,
        /// Rows of the model's embedding.
        model: usize,
    },
    /// A character cannot be expressed in the vocabulary.
    #[error("the vocabulary has neither a token, nor byte tokens, nor an unknown token for {0:?}")]
    Unencodable(char),
    /// The `tokenizers` crate failed on a text or on ids.
    #[error("tokenizer: {0}")]
    Library(String),
}

/// Whether control tokens written out in a text are control tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Specials {
    /// `<|im_end|>` in the text becomes the control token: for rendered chat templates.
    Parse,
    /// `<|im_end|>` in the text stays ten ordinary characters: for text that a user wrote. No control id comes out.
    Plain,
}

/// A model's tokenizer. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    pub(crate) inner: Arc<Inner>,
}

/// What all clones of a tokenizer and all its detokenizers share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) encoder: Encoder,
    pub(crate) table: Table,
    /// The control tokens, for finding those that somebody wrote out.
    pub(crate) controls: AddedTokens,
    pub(crate) decoding: Decoding,
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Vec<u32>,
    pub(crate) add_bos: bool,
}

/// Who turns text into ids.
#[derive(Debug)]
pub(crate) enum Encoder {
    /// The `tokenizers` crate.
    Library(Box<Library>),
    /// Score-based merging of SentencePiece vocabularies.
    Pieces(Box<PieceEncoder>),
}

impl Tokenizer {
    /// The tokenizer of a model directory: `tokenizer.json`, with begin- and end-of-text tokens from
    /// `tokenizer_config.json`, `generation_config.json` and `config.json` where they are there.
    ///
    /// # Errors
    /// A file that is missing, unreadable or malformed, by name.
    pub fn from_dir(dir: &Path) -> Result<Tokenizer, TokenizerError> {
        directory::load(dir)
    }

    /// The tokenizer that a GGUF file's metadata describes.
    ///
    /// # Errors
    /// Missing or contradictory keys, and kinds of tokenizers and pre-tokenizers that are not supported.
    pub fn from_gguf(meta: &gguf::Metadata) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::from_vocabulary(Vocabulary::from_gguf(meta)?)
    }

    /// The tokenizer of a vocabulary in GGUF's terms.
    ///
    /// # Errors
    /// As [`Tokenizer::from_gguf`].
    pub fn from_vocabulary(vocabulary: Vocabulary) -> Result<Tokenizer, TokenizerError> {
        vocabulary.build()
    }

    pub(crate) fn from_inner(inner: Inner) -> Tokenizer {
        Tokenizer { inner: Arc::new(inner) }
    }

    /// The token ids of a text, without a begin-of-text token.
    ///
    /// # Errors
    /// [`TokenizerError::Unencodable`] with a vocabulary that does not cover all bytes.
    pub fn encode(&self, text: &str, specials: Specials) -> Result<Vec<u32>, TokenizerError> {
        self.encode_with(text, specials, &StandIns::default())
    }

    fn encode_with(&self, text: &str, specials: Specials, stand_ins: &StandIns) -> Result<Vec<u32>, TokenizerError> {
        match &self.inner.encoder {
            Encoder::Library(library) => library.encode(text, specials, stand_ins),
            Encoder::Pieces(pieces) => pieces.encode(text, specials, stand_ins),
        }
    }

    /// The token ids of a prompt as the model expects it: control tokens parsed, and the begin-of-text token in front
    /// if the model wants one and the text does not bring it.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.encode_rendered(text, &StandIns::default())
    }

    /// As [`Tokenizer::encode_prompt`], but control tokens with a stand-in are ordinary text.
    pub(crate) fn encode_rendered(&self, text: &str, stand_ins: &StandIns) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = self.encode_with(text, Specials::Parse, stand_ins)?;
        if let (true, Some(bos)) = (self.inner.add_bos, self.inner.bos)
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// The text of a token sequence. Bytes that are not UTF-8 become U+FFFD, as in [`String::from_utf8_lossy`].
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`].
    pub fn decode(&self, ids: &[u32], skip_specials: bool) -> Result<String, TokenizerError> {
        if let (Decoding::Library, Encoder::Library(library)) = (self.inner.decoding, &self.inner.encoder) {
            ids.iter().try_for_each(|&id| self.inner.table.bytes(id).map(drop))?;
            return library.decode(ids, skip_specials);
        }
        let mut lead = self.inner.decoding.lead();
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        for &id in ids {
            let token = self.inner.table.bytes(id)?;
            if !(skip_specials && self.inner.table.is_special(id)) {
                lead.append(token, &mut bytes);
            }
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A decoder for ids that come one by one.
    pub fn detokenizer(&self, skip_specials: bool) -> Detokenizer {
        Detokenizer::new(self.clone(), skip_specials)
    }

    /// Highest id + 1, added tokens included.
    pub fn vocab_size(&self) -> usize {
        self.inner.table.len()
    }

    /// Checks that a model with `model_vocab` logits has one for every id of this tokenizer. More logits than ids are
    /// fine: embeddings are often padded.
    ///
    /// # Errors
    /// [`TokenizerError::VocabMismatch`].
    pub fn check_vocab(&self, model_vocab: usize) -> Result<(), TokenizerError> {
        let tokenizer = self.vocab_size();
        if tokenizer <= model_vocab {
            Ok(())
        } else {
            Err(TokenizerError::VocabMismatch { tokenizer, model: model_vocab })
        }
    }

    /// The token as the vocabulary spells it, such as `Ġthe` or `▁the`.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.table.spelling(id).map(str::to_owned)
    }

    /// The bytes that the token adds to a text (perhaps a part of a character only).
    pub fn bytes(&self, id: u32) -> Option<Vec<u8>> {
        self.inner.table.bytes(id).ok().map(<[u8]>::to_vec)
    }

    /// The id of a token in the vocabulary's spelling.
    pub fn id(&self, token: &str) -> Option<u32> {
        match &self.inner.encoder {
            Encoder::Library(library) => library.id(token),
            Encoder::Pieces(pieces) => pieces.id(token),
        }
    }

    /// The begin-of-text token.
    pub fn bos(&self) -> Option<u32> {
        self.inner.bos
    }

    /// Whether [`Tokenizer::encode_prompt`] puts the begin-of-text token in front.
    pub fn adds_bos(&self) -> bool {
        self.inner.add_bos && self.inner.bos.is_some()
    }

    /// The tokens that end an answer, the model's main one first.
    pub fn eos(&self) -> &[u32] {
        &self.inner.eos
    }

    /// Whether the id is a control token, which is no part of the text.
    pub fn is_special(&self, id: u32) -> bool {
        self.inner.table.is_special(id)
    }
}
