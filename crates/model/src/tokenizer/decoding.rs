//! How the bytes of tokens make a text: read off the decoder of a `tokenizer.json`.
//!
//! Almost every decoder is a function of the single token (byte alphabet, `▁` for a space, `<0xNN>`), plus a rule for the
//! spaces at the very start. Those become a byte table and a [`Lead`]. Any other decoder is left to the library.

use serde_json::Value;

use super::table::{byte_level_bytes, byte_token};

/// How ids become text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decoding {
    /// The tokens' bytes, one after another, with a rule for the start of the text.
    Bytes(Lead),
    /// By the library, which looks at neighbouring tokens.
    Library,
}

impl Decoding {
    pub(crate) fn lead(self) -> Lead {
        match self {
            Decoding::Bytes(lead) => lead,
            Decoding::Library => Lead::Spaces(0),
        }
    }
}

/// What is dropped at the start of a text. SentencePiece puts a space in front of a text when it encodes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lead {
    /// Up to this many spaces.
    Spaces(u32),
    /// All spaces of the first token.
    FirstToken,
}

impl Lead {
    /// Appends a token to a text, and becomes the rule for the next token.
    pub(crate) fn append(&mut self, token: &[u8], text: &mut Vec<u8>) {
        match *self {
            Lead::Spaces(0) => text.extend_from_slice(token),
            Lead::Spaces(limit) => {
                let spaces = token.iter().take(limit as usize).take_while(|&&b| b == b' ').count();
                text.extend_from_slice(&token[spaces..]);
                *self = Lead::Spaces(if spaces == token.len() { limit - spaces as u32 } else { 0 });
            }
            Lead::FirstToken => {
                text.extend(token.iter().filter(|&&b| b != b' '));
                *self = Lead::Spaces(0);
            }
        }
    }
}

/// A decoder as a function from a token's spelling to its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// The byte alphabet of GPT-2.
    ByteLevel,
    /// Literal replacements, in order, and perhaps byte tokens.
    Pieces {
        /// Pairs of what to replace and by what.
        replace: Vec<(String, String)>,
        /// Whether `<0xNN>` stands for a byte.
        byte_tokens: bool,
    },
}

impl Spelling {
    /// SentencePiece as in GGUF files.
    pub(crate) fn sentence_piece() -> Spelling {
        Spelling::Pieces { replace: vec![("▁".into(), " ".into())], byte_tokens: true }
    }

    /// The bytes of a token. An added token is spelled as it is in a text, except for the replacements.
    pub(crate) fn bytes(&self, spelling: &str, added: bool) -> Vec<u8> {
        match self {
            Spelling::ByteLevel if added => spelling.as_bytes().to_vec(),
            Spelling::ByteLevel => byte_level_bytes(spelling),
            Spelling::Pieces { replace, byte_tokens } => {
                if let (true, Some(byte)) = (*byte_tokens, byte_token(spelling)) {
                    return vec![byte];
                }
                let mut text = spelling.to_owned();
                for (from, to) in replace {
                    text = text.replace(from, to);
                }
                text.into_bytes()
            }
        }
    }
}

/// The byte table rule of a `tokenizer.json` decoder, or `None` if it is not a function of the single token.
pub(crate) fn from_decoder(decoder: &Value) -> Option<(Spelling, Lead)> {
    let steps = match kind(decoder) {
        "Sequence" => decoder.get("decoders")?.as_array()?.as_slice(),
        _ => std::slice::from_ref(decoder),
    };
    if let [only] = steps {
        match kind(only) {
            "ByteLevel" => return Some((Spelling::ByteLevel, Lead::Spaces(0))),
            "Metaspace" => return metaspace(only),
            _ => {}
        }
    }
    piece_steps(steps)
}

fn kind(step: &Value) -> &str {
    step.get("type").and_then(Value::as_str).unwrap_or("")
}

fn metaspace(step: &Value) -> Option<(Spelling, Lead)> {
    let replacement = step.get("replacement")?.as_str()?.to_owned();
    let never = step.get("prepend_scheme").and_then(Value::as_str) == Some("never");
    let spelling = Spelling::Pieces { replace: vec![(replacement, " ".into())], byte_tokens: false };
    Some((spelling, if never { Lead::Spaces(0) } else { Lead::FirstToken }))
}

/// `Replace*`, `ByteFallback?`, `Fuse`, `Strip?`: the Llama family. Before `Fuse` a step sees single tokens, after it the
/// whole text.
fn piece_steps(steps: &[Value]) -> Option<(Spelling, Lead)> {
    let (mut replace, mut byte_tokens, mut fused, mut lead) = (Vec::new(), false, false, Lead::Spaces(0));
    for step in steps {
        match (kind(step), fused) {
            ("Replace", false) if !byte_tokens => {
                let from = step.get("pattern")?.get("String")?.as_str()?;
                replace.push((from.to_owned(), step.get("content")?.as_str()?.to_owned()));
            }
            ("ByteFallback", false) => byte_tokens = true,
            ("Fuse", false) => fused = true,
            ("Strip", true) if step.get("content")?.as_str()? == " " && step.get("stop")?.as_u64()? == 0 => {
                lead = Lead::Spaces(u32::try_from(step.get("start")?.as_u64()?).ok()?);
            }
            _ => return None,
        }
    }
    fused.then_some((Spelling::Pieces { replace, byte_tokens }, lead))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn appended(mut lead: Lead, tokens: &[&str]) -> String {
        let mut text = Vec::new();
        tokens.iter().for_each(|t| lead.append(t.as_bytes(), &mut text));
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn the_lead_drops_only_what_the_encoder_put_there() {
        assert_eq!(appended(Lead::Spaces(1), &[" a", " b"]), "a b");
        assert_eq!(appended(Lead::Spaces(1), &["  a"]), " a");
        assert_eq!(appended(Lead::Spaces(2), &[" ", "", "  a"]), " a");
        assert_eq!(appended(Lead::Spaces(1), &["a", " b"]), "a b");
        assert_eq!(appended(Lead::FirstToken, &["  ", " a"]), " a");
    }

    #[test]
    fn decoders_become_tables_where_they_are_functions_of_one_token() {
        let llama = json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
        let (spelling, lead) = from_decoder(&llama).unwrap();
        assert_eq!((spelling.clone(), lead), (Spelling::sentence_piece(), Lead::Spaces(1)));
        assert_eq!(spelling.bytes("▁a▁b", false), b" a b");
        assert_eq!(spelling.bytes("<0xFF>", false), [0xFF]);

        assert_eq!(from_decoder(&json!({"type": "ByteLevel"})).unwrap(), (Spelling::ByteLevel, Lead::Spaces(0)));
        assert!(from_decoder(&json!({"type": "WordPiece", "prefix": "##", "cleanup": true})).is_none());
        let unfused = json!({"type": "Sequence", "decoders": [
            {"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "ab"}, "content": " "}]});
        assert!(from_decoder(&unfused).is_none());
        assert!(from_decoder(&Value::Null).is_none());
    }
}
