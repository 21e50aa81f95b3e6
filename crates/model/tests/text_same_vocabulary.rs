//! Whether a draft model's tokenizer means what the target's does.

use model::tokenizer::{TokenKind, Tokenizer, Vocabulary};

/// 256 byte tokens, with the token `id` spelled otherwise, and more tokens after them.
fn tokenizer(other: Option<(usize, &str)>, more: &[(&str, TokenKind)]) -> Tokenizer {
    let mut tokens: Vec<String> = (0..256).map(|byte| format!("<0x{byte:02X}>")).collect();
    let mut kinds = vec![TokenKind::Byte; 256];
    if let Some((id, spelling)) = other {
        (tokens[id], kinds[id]) = (spelling.to_owned(), TokenKind::Normal);
    }
    for &(spelling, kind) in more {
        tokens.push(spelling.to_owned());
        kinds.push(kind);
    }
    let scores = vec![0.0; tokens.len()];
    let (file, model) = ("test".into(), "llama".into());
    Tokenizer::from_vocabulary(Vocabulary { file, model, tokens, kinds, scores, ..Vocabulary::default() }).unwrap()
}

#[test]
fn a_tokenizer_drafts_for_itself() {
    let target = tokenizer(None, &[("<s>", TokenKind::Control)]);
    target.check_drafts_for(&target).unwrap();
    target.check_drafts_for(&tokenizer(None, &[("<s>", TokenKind::Control)])).unwrap();
}

#[test]
fn padding_is_no_difference() {
    let plain = tokenizer(None, &[]);
    let padding: Vec<(String, TokenKind)> = (0..5).map(|i| (format!("[PAD{i}]"), TokenKind::Unused)).collect();
    let padding: Vec<(&str, TokenKind)> = padding.iter().map(|(name, kind)| (name.as_str(), *kind)).collect();
    let padded = tokenizer(None, &padding);
    padded.check_drafts_for(&plain).unwrap();
    plain.check_drafts_for(&padded).unwrap();
}

#[test]
fn the_first_token_that_differs_is_named() {
    let target = tokenizer(None, &[("▁the", TokenKind::Normal)]);
    let draft = tokenizer(Some((65, "▁house")), &[("▁a", TokenKind::Normal)]);
    let error = draft.check_drafts_for(&target).unwrap_err();
    assert_eq!((error.id, error.draft_size, error.target_size), (65, 257, 257));
    assert_eq!(
        error.to_string(),
        "the tokenizers differ: token 65 is \"▁house\" to the draft and \"<0x41>\" to the target (257 and 257 ids); drafts \
         are token ids, so a draft model must share the target's tokenizer"
    );
}

#[test]
fn a_token_that_only_one_has_is_a_difference() {
    let (small, large) = (tokenizer(None, &[]), tokenizer(None, &[("<tool>", TokenKind::Control)]));
    let error = small.check_drafts_for(&large).unwrap_err();
    assert_eq!((error.id, error.draft, error.target.as_deref()), (256, None, Some("<tool>")));
    let error = large.check_drafts_for(&small).unwrap_err();
    assert!(error.to_string().contains("token 256 is \"<tool>\" to the draft and no token to the target"), "{error}");
}

#[test]
fn one_token_spelled_in_two_ways_is_one() {
    let target = tokenizer(None, &[(" the", TokenKind::Normal)]);
    let draft = tokenizer(None, &[("▁the", TokenKind::Normal)]);
    draft.check_drafts_for(&target).unwrap();
}

#[test]
fn a_fingerprint_tells_meanings_apart_and_not_padding() {
    let plain = tokenizer(None, &[("▁the", TokenKind::Normal)]);
    let padded = tokenizer(None, &[("▁the", TokenKind::Normal), ("[PAD0]", TokenKind::Unused)]);
    assert_eq!(plain.fingerprint(), padded.fingerprint());
    for other in [tokenizer(None, &[]), tokenizer(Some((65, "▁house")), &[("▁the", TokenKind::Normal)])] {
        assert_ne!(plain.fingerprint(), other.fingerprint());
    }
}
