//! What several tests need.

use model::tokenizer::{TokenKind, Tokenizer, Vocabulary};

/// End of sequence of [`byte_tokenizer`].
pub(crate) const EOS: u32 = 254;

/// A tokenizer of 256 ids: id n is byte n, but for the control tokens [`EOS`] and 255 (bytes that UTF-8 never uses).
pub(crate) fn byte_tokenizer() -> Tokenizer {
    let mut tokens: Vec<String> = (0..254).map(|byte| format!("<0x{byte:02X}>")).collect();
    tokens.extend(["</s>".to_owned(), "<s>".to_owned()]);
    let mut kinds = vec![TokenKind::Byte; 254];
    kinds.extend([TokenKind::Control; 2]);
    let vocabulary = Vocabulary {
        file: "bytes".into(),
        model: "llama".into(),
        tokens,
        kinds,
        scores: vec![0.0; 256],
        eos: vec![EOS],
        add_bos: Some(false),
        add_space_prefix: Some(false),
        ..Vocabulary::default()
    };
    Tokenizer::from_vocabulary(vocabulary).unwrap()
}
