//! Streamed text is the decoded text, whatever the decoder and wherever the ids are cut.

use std::sync::LazyLock;

use model::tokenizer::{TokenKind, Tokenizer, Vocabulary};
use proptest::prelude::*;
use serde_json::{Value, json};

fn load(file: Value) -> Tokenizer {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), file.to_string()).unwrap();
    Tokenizer::from_dir(dir.path()).unwrap()
}

/// 256 bytes, then some pieces, then two control tokens.
fn sentence_piece() -> Tokenizer {
    let mut tokens: Vec<String> = (0..=255u8).map(|byte| format!("<0x{byte:02X}>")).collect();
    let mut kinds = vec![TokenKind::Byte; 256];
    for piece in ["▁", "▁▁", "▁a", "b", "é", "▁🙂", ""] {
        tokens.push(piece.to_owned());
        kinds.push(TokenKind::Normal);
    }
    tokens.extend(["<s>".to_owned(), "</s>".to_owned()]);
    kinds.extend([TokenKind::Control; 2]);
    let scores = vec![0.0; tokens.len()];
    Tokenizer::from_vocabulary(Vocabulary { model: "llama".to_owned(), tokens, kinds, scores, ..Vocabulary::default() })
        .unwrap()
}

fn metaspace() -> Tokenizer {
    load(json!({"version": "1.0", "added_tokens": [special(0, "<s>")], "decoder":
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        "model": {"type": "BPE", "vocab": {"<s>": 0, "▁": 1, "▁a": 2, "b▁c": 3, "▁▁": 4, "é": 5}, "merges": []}}))
}

/// A decoder that looks at the token before: left to the library.
fn word_pieces() -> Tokenizer {
    load(json!({"version": "1.0", "added_tokens": [special(0, "[CLS]")],
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": false},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": {"[CLS]": 0, "[UNK]": 1, "un": 2, "##able": 3, "é": 4, "##é": 5}}}))
}

fn special(id: u32, content: &str) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        "special": true})
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32], skip: bool) -> String {
    let mut detokenizer = tokenizer.detokenizer(skip);
    let mut text = String::new();
    for &id in ids {
        text += &detokenizer.push(id).unwrap();
    }
    text + &detokenizer.finish()
}

static TOKENIZERS: LazyLock<[Tokenizer; 3]> = LazyLock::new(|| [sentence_piece(), metaspace(), word_pieces()]);

#[test]
fn a_character_in_parts_comes_out_whole() {
    let tokenizer = sentence_piece();
    let mut detokenizer = tokenizer.detokenizer(true);
    let mut given = Vec::new();
    for byte in "a🙂é".bytes() {
        given.push(detokenizer.push(u32::from(byte)).unwrap());
        assert_eq!(detokenizer.pending(), given.last().unwrap().is_empty());
    }
    assert_eq!(given, ["a", "", "", "", "🙂", "", "é"]);
    // A control token that is skipped does not break the character that it stands in.
    let with_control = [0xC3, 263, 0xA9];
    assert_eq!(streamed(&tokenizer, &with_control, true), "é");
    assert_eq!(streamed(&tokenizer, &with_control, false), "\u{FFFD}<s>\u{FFFD}");
    // A copy goes its own way.
    detokenizer.push(0xC3).unwrap();
    let mut copy = detokenizer.clone();
    assert_eq!((copy.push(0xA9).unwrap(), detokenizer.finish()), ("é".to_owned(), "\u{FFFD}".to_owned()));
}

#[test]
fn the_space_of_the_encoder_is_dropped_once() {
    let tokenizer = sentence_piece();
    let (space, two, a) = (256, 257, 258);
    assert_eq!(streamed(&tokenizer, &[a, a], true), "a a");
    assert_eq!(streamed(&tokenizer, &[two, a], true), "  a");
    assert_eq!(streamed(&tokenizer, &[263, a], true), "a");
    assert_eq!(streamed(&tokenizer, &[263, a], false), "<s> a");
    assert_eq!(streamed(&tokenizer, &[space, space, 259], true), " b");
    let [_, metaspace, _] = &*TOKENIZERS;
    assert_eq!(metaspace.decode(&[4, 2, 3], true).unwrap(), " ab c");
}

#[test]
fn decoders_that_look_around_stream_too() {
    let tokenizer = word_pieces();
    let mut detokenizer = tokenizer.detokenizer(true);
    let given: Vec<String> = [0, 2, 3, 2, 3, 4].iter().map(|&id| detokenizer.push(id).unwrap()).collect();
    assert_eq!(given, ["", "un", "able", " un", "able", " é"]);
    assert!(tokenizer.decode(&[6], true).is_err() && detokenizer.push(6).is_err());
}

proptest! {
    #[test]
    fn streamed_text_is_the_decoded_text(
        which in 0usize..3, picks in prop::collection::vec(any::<prop::sample::Index>(), 0..60), skip: bool
    ) {
        let tokenizer = &TOKENIZERS[which];
        let ids: Vec<u32> = picks.iter().map(|pick| pick.index(tokenizer.vocab_size()) as u32).collect();
        let whole = tokenizer.decode(&ids, skip).unwrap();
        prop_assert_eq!(&streamed(tokenizer, &ids, skip), &whole);
    }

    #[test]
    fn broken_bytes_are_replaced_as_in_the_whole(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        // Behind a letter, so that the rule for the first space has nothing to do.
        let ids: Vec<u32> = std::iter::once(b'x').chain(bytes.iter().copied()).map(u32::from).collect();
        let lossy = format!("x{}", String::from_utf8_lossy(&bytes));
        prop_assert_eq!(TOKENIZERS[0].decode(&ids, true).unwrap(), lossy.clone());
        prop_assert_eq!(streamed(&TOKENIZERS[0], &ids, true), lossy);
    }

    #[test]
    fn valid_text_in_bytes_streams_without_replacement(text in "\\PC{0,20}") {
        let ids: Vec<u32> = std::iter::once(b'x').chain(text.bytes()).map(u32::from).collect();
        prop_assert_eq!(streamed(&TOKENIZERS[0], &ids, true), format!("x{text}"));
    }
}
