//! What each token id stands for: its spelling in the vocabulary and its bytes in a text.

use std::sync::LazyLock;

use super::TokenizerError;
use super::added::AddedTokens;

/// Strings one after another in one allocation: a vocabulary has 50,000 to 250,000 of them, of some 7 bytes each.
#[derive(Debug, Default)]
struct Arena {
    data: Vec<u8>,
    ends: Vec<u32>,
}

impl Arena {
    fn push(&mut self, item: &[u8]) {
        self.data.extend_from_slice(item);
        // A vocabulary of 4 GiB of text does not fit into the files that it could come from.
        self.ends.push(self.data.len() as u32);
    }

    fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)? as usize;
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        self.data.get(start..end)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// No token has this id.
    Absent,
    /// A place without a use: it has a name, but stands for nothing.
    Unused,
    Text,
    Special,
}

/// Spelling, bytes and role of every id.
#[derive(Debug, Default)]
pub(crate) struct Table {
    spellings: Arena,
    bytes: Arena,
    roles: Vec<Role>,
}

impl Table {
    /// Gives the next id to a token.
    pub(crate) fn push(&mut self, spelling: &str, bytes: &[u8], special: bool) {
        self.spellings.push(spelling.as_bytes());
        self.bytes.push(bytes);
        self.roles.push(if special { Role::Special } else { Role::Text });
    }

    /// Gives the next id to a place that has a name and no use.
    pub(crate) fn push_unused(&mut self, spelling: &str, bytes: &[u8]) {
        self.spellings.push(spelling.as_bytes());
        self.bytes.push(bytes);
        self.roles.push(Role::Unused);
    }

    /// Leaves the next id without a token.
    pub(crate) fn push_absent(&mut self) {
        self.spellings.push(b"");
        self.bytes.push(b"");
        self.roles.push(Role::Absent);
    }

    /// Highest id + 1.
    pub(crate) fn len(&self) -> usize {
        self.roles.len()
    }

    fn role(&self, id: u32) -> Role {
        self.roles.get(id as usize).copied().unwrap_or(Role::Absent)
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.role(id) == Role::Special
    }

    /// The control tokens, for finding them in a text.
    pub(crate) fn controls(&self) -> AddedTokens {
        let specials = (0..self.len() as u32).filter(|&id| self.is_special(id));
        AddedTokens::new(specials.filter_map(|id| Some((self.spelling(id)?.to_owned(), id, true))))
    }

    pub(crate) fn bytes(&self, id: u32) -> Result<&[u8], TokenizerError> {
        let unknown = TokenizerError::UnknownId { id, size: self.len() };
        if self.role(id) == Role::Absent {
            return Err(unknown);
        }
        self.bytes.get(id as usize).ok_or(unknown)
    }

    pub(crate) fn spelling(&self, id: u32) -> Option<&str> {
        if self.role(id) == Role::Absent {
            return None;
        }
        std::str::from_utf8(self.spellings.get(id as usize)?).ok()
    }

    /// Spelling and bytes of an id that stands for something.
    pub(crate) fn used(&self, id: u32) -> Option<(&str, &[u8])> {
        if self.role(id) == Role::Unused {
            return None;
        }
        Some((self.spelling(id)?, self.bytes.get(id as usize)?))
    }
}

/// Byte-level BPE spells every byte as one printable character: printable Latin-1 as itself, the other 68 bytes as
/// U+0100 onwards in ascending order.
fn is_spelled_as_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// For each character below U+0144, the byte that it spells.
static BYTE_OF_CHAR: LazyLock<[Option<u8>; 0x144]> = LazyLock::new(|| {
    let mut bytes = [None; 0x144];
    let mut next = 0x100;
    for byte in 0..=u8::MAX {
        if is_spelled_as_itself(byte) {
            bytes[byte as usize] = Some(byte);
        } else {
            bytes[next] = Some(byte);
            next += 1;
        }
    }
    bytes
});

/// The bytes of a byte-level spelling, or the spelling's own UTF-8 if a character is outside the alphabet.
pub(crate) fn byte_level_bytes(spelling: &str) -> Vec<u8> {
    let byte = |c: char| BYTE_OF_CHAR.get(c as usize).copied().flatten();
    spelling.chars().map(byte).collect::<Option<Vec<u8>>>().unwrap_or_else(|| spelling.as_bytes().to_vec())
}

/// The byte of a SentencePiece byte token `<0xNN>`.
pub(crate) fn byte_token(spelling: &str) -> Option<u8> {
    let hex = spelling.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_hex = hex.len() == 2 && hex.bytes().all(|b| b.is_ascii_hexdigit());
    is_hex.then(|| u8::from_str_radix(hex, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_alphabet_is_a_bijection_and_starts_where_gpt2_puts_it() {
        let mut seen = [false; 256];
        for byte in BYTE_OF_CHAR.iter().flatten() {
            assert!(!std::mem::replace(&mut seen[*byte as usize], true));
        }
        assert!(seen.iter().all(|&b| b));
        assert_eq!(byte_level_bytes("ĠuserĊ"), b" user\n");
        assert_eq!(byte_level_bytes("ä½ł"), "你".as_bytes());
        assert_eq!(byte_level_bytes("<｜end▁of｜>"), "<｜end▁of｜>".as_bytes());
    }

    #[test]
    fn byte_tokens_are_recognised_strictly() {
        assert_eq!(byte_token("<0x0A>"), Some(10));
        for other in ["<0x0A", "0x0A>", "<0x0AB>", "<0xZZ>", "<0x+1>", "<0x>", "é"] {
            assert_eq!(byte_token(other), None, "{other}");
        }
    }

    #[test]
    fn holes_and_high_ids_are_unknown() {
        let mut table = Table::default();
        table.push("a", b"a", false);
        table.push_absent();
        table.push("<s>", b"<s>", true);
        assert_eq!(table.len(), 3);
        assert_eq!(table.bytes(2).unwrap(), b"<s>");
        assert!(table.is_special(2) && !table.is_special(0) && !table.is_special(9));
        assert!(matches!(table.bytes(1), Err(TokenizerError::UnknownId { id: 1, size: 3 })));
        assert!(matches!(table.bytes(u32::MAX), Err(TokenizerError::UnknownId { .. })));
    }
}
