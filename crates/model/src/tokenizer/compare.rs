//! Whether two tokenizers mean the same by every token id.

use super::{Tokenizer, table::Table};

/// A token id that means one thing to the target and another to a draft model, so that drafts would be nonsense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the tokenizers differ: token {id} is {} to the draft and {} to the target ({draft_size} and {target_size} ids); drafts \
     are token ids, so a draft model must share the target's tokenizer",
    named(.draft), named(.target)
)]
pub struct VocabularyDifference {
    /// The first id that differs.
    pub id: u32,
    /// What the draft's tokenizer spells so, if it has the id.
    pub draft: Option<String>,
    /// What the target's tokenizer spells so, if it has the id.
    pub target: Option<String>,
    /// Highest id of the draft's tokenizer + 1.
    pub draft_size: usize,
    /// Highest id of the target's tokenizer + 1.
    pub target_size: usize,
}

fn named(token: &Option<String>) -> String {
    token.as_ref().map_or_else(|| "no token".to_owned(), |token| format!("{token:?}"))
}

impl Tokenizer {
    /// Checks that a draft model with this tokenizer means the same token by every id as a target with the `target`
    /// tokenizer. Ids without a use (padding, gaps, ids past one's end) are the same as none.
    ///
    /// How text is cut into tokens is not compared: only the target's tokenizer does that.
    ///
    /// # Errors
    /// The first id that differs.
    pub fn check_drafts_for(&self, target: &Tokenizer) -> Result<(), VocabularyDifference> {
        let (draft, target) = (&self.inner.table, &target.inner.table);
        let ids = 0..draft.len().max(target.len()) as u32;
        let Some(id) = ids.into_iter().find(|&id| !is_same(draft, target, id)) else { return Ok(()) };
        let spelling = |table: &Table| table.used(id).map(|(spelling, _)| spelling.to_owned());
        Err(VocabularyDifference {
            id,
            draft: spelling(draft),
            target: spelling(target),
            draft_size: draft.len(),
            target_size: target.len(),
        })
    }

    /// A number for what the token ids mean: tokenizers that mean the same by every id have the same one, whatever padding
    /// they have, and others hardly ever do. It is the same everywhere and in every version, so that files can name a
    /// tokenizer by it.
    pub fn fingerprint(&self) -> u64 {
        let table = &self.inner.table;
        let mut hash = 0xcbf2_9ce4_8422_2325; // FNV-1a.
        let mut add = |bytes: &[u8]| {
            bytes.iter().for_each(|&byte| hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        };
        for id in 0..table.len() as u32 {
            if let Some((_, bytes)) = table.used(id) {
                add(&id.to_le_bytes());
                add(&(bytes.len() as u32).to_le_bytes());
                add(bytes);
            }
        }
        hash
    }
}

/// Files differ in how they spell what they mean (a space as a space or as `▁`): one of spelling and bytes is enough.
fn is_same(draft: &Table, target: &Table, id: u32) -> bool {
    match (draft.used(id), target.used(id)) {
        (None, None) => true,
        (Some(draft), Some(target)) => draft.0 == target.0 || draft.1 == target.1,
        _ => false,
    }
}
