//! Encoding by the `tokenizers` crate.

use std::collections::HashSet;

use tokenizers::tokenizer::{AddedVocabulary, Model, NormalizedString, OffsetType, PreTokenizer, Token};

use super::decoding::{self, Decoding, Spelling};
use super::stand_in::StandIns;
use super::table::Table;
use super::{Specials, TokenizerError};

/// A tokenizer of the `tokenizers` crate, with what is needed to read control tokens in a text as ordinary text.
///
/// Only its stages are used (added tokens, normaliser, pre-tokenizer, model): its post-processor, truncation and padding
/// would add or drop tokens behind the engine's back.
#[derive(Debug)]
pub(crate) struct Library {
    tokenizer: tokenizers::Tokenizer,
    /// The added tokens with the control tokens switched off.
    plain: AddedVocabulary,
    specials: HashSet<u32>,
}

/// Ids above this are not believed: the table would take all memory.
const MAX_ID: u32 = 1 << 24;

impl Library {
    pub(crate) fn new(tokenizer: tokenizers::Tokenizer) -> Library {
        let mut plain = tokenizer.get_added_vocabulary().clone();
        plain.set_encode_special_tokens(true);
        let added = tokenizer.get_added_tokens_decoder();
        let specials = added.iter().filter(|(_, token)| token.special).map(|(&id, _)| id).collect();
        Library { tokenizer, plain, specials }
    }

    pub(crate) fn id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    /// The ids of a text; control tokens with a stand-in are read as ordinary text.
    pub(crate) fn encode(
        &self,
        text: &str,
        specials: Specials,
        stand_ins: &StandIns,
    ) -> Result<Vec<u32>, TokenizerError> {
        let added = match specials {
            Specials::Parse => self.tokenizer.get_added_vocabulary(),
            Specials::Plain => &self.plain,
        };
        let mut words = added.extract_and_normalize(self.tokenizer.get_normalizer(), text);
        let put_back = |part: &mut NormalizedString| {
            stand_ins.pairs().try_for_each(|(stand_in, first)| part.replace(stand_in, &first.to_string()))
        };
        if !stand_ins.is_empty() {
            words.normalize(put_back).map_err(library_error)?;
        }
        if let Some(pre_tokenizer) = self.tokenizer.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut words).map_err(library_error)?;
        }
        let model = self.tokenizer.get_model();
        words
            .tokenize(|word| match specials {
                Specials::Parse if stand_ins.is_empty() => model.tokenize(word.get()),
                _ => self.tokenize_plain(word.get()),
            })
            .map_err(library_error)?;
        let encoding = words.into_encoding(None, 0, OffsetType::None).map_err(library_error)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Tokens of a word, none of them a control token. A merge (or a whole word that is in the vocabulary) can spell a
    /// control token out of ordinary text; such a place is cut behind the token's first character.
    fn tokenize_plain(&self, word: &str) -> tokenizers::Result<Vec<Token>> {
        let model = self.tokenizer.get_model();
        let (mut done, mut todo) = (Vec::new(), vec![word]);
        while let Some(part) = todo.pop() {
            let tokens = model.tokenize(part)?;
            let specials = tokens.iter().filter(|t| self.specials.contains(&t.id));
            let cuts: Vec<usize> = specials.filter_map(|t| cut_inside(part, t.offsets)).collect();
            if cuts.is_empty() {
                done.extend(tokens);
                continue;
            }
            let starts = std::iter::once(0).chain(cuts.iter().copied());
            let ends = cuts.iter().copied().chain(std::iter::once(part.len()));
            let pieces: Vec<&str> = starts.zip(ends).map(|(start, end)| &part[start..end]).collect();
            todo.extend(pieces.into_iter().rev());
        }
        Ok(done)
    }

    pub(crate) fn decode(&self, ids: &[u32], skip_specials: bool) -> Result<String, TokenizerError> {
        self.tokenizer.decode(ids, skip_specials).map_err(library_error)
    }

    /// Bytes of every id, and the rule by which they make a text.
    pub(crate) fn table(&self) -> Result<(Table, Decoding), TokenizerError> {
        let decoder = serde_json::to_value(self.tokenizer.get_decoder()).unwrap_or_default();
        let (spelling, decoding) = match decoding::from_decoder(&decoder) {
            Some((spelling, lead)) => (spelling, Decoding::Bytes(lead)),
            None => (Spelling::Pieces { replace: Vec::new(), byte_tokens: false }, Decoding::Library),
        };
        let added = self.tokenizer.get_added_tokens_decoder();
        let mut tokens: Vec<(u32, String)> =
            self.tokenizer.get_vocab(true).into_iter().map(|(token, id)| (id, token)).collect();
        tokens.sort_unstable();
        let mut table = Table::default();
        for (id, token) in tokens {
            if id >= MAX_ID {
                return Err(TokenizerError::Library(format!("token {token:?} has the id {id}, which is out of range")));
            }
            while table.len() < id as usize {
                table.push_absent();
            }
            if table.len() == id as usize {
                let token = added.get(&id).map_or(token.as_str(), |added| added.content.as_str());
                table.push(token, &spelling.bytes(token, added.contains_key(&id)), self.specials.contains(&id));
            }
        }
        Ok((table, decoding))
    }

    /// The ids that the tokenizer's own post-processor puts in front of a text.
    pub(crate) fn prefix(&self) -> Vec<u32> {
        self.tokenizer.encode_fast("", true).map(|encoding| encoding.get_ids().to_vec()).unwrap_or_default()
    }
}

/// The place behind the first character of a token, if the token has more than one.
fn cut_inside(part: &str, (start, end): (usize, usize)) -> Option<usize> {
    let first = part.get(start..end)?.chars().next()?;
    let cut = start + first.len_utf8();
    (cut < end).then_some(cut)
}

fn library_error(error: tokenizers::Error) -> TokenizerError {
    TokenizerError::Library(error.to_string())
}
