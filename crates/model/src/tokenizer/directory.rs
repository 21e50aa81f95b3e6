//! The tokenizer of a model directory, as the `transformers` library lays it out.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::library::Library;
use super::{Encoder, Inner, Tokenizer, TokenizerError};

/// What `tokenizer_config.json` (and, for the named tokens, the older `special_tokens_map.json`) says.
#[derive(Debug, Default)]
pub(crate) struct TokenizerConfig {
    /// Text of `bos_token`, `eos_token`, `pad_token`, ... by these names.
    pub(crate) named: BTreeMap<String, String>,
    /// Whether a prompt starts with the begin-of-text token, if the file says so.
    pub(crate) add_bos: Option<bool>,
    /// The chat template or templates.
    pub(crate) chat_template: Option<Value>,
}

impl TokenizerConfig {
    pub(crate) fn read(dir: &Path) -> Result<TokenizerConfig, TokenizerError> {
        let mut config = TokenizerConfig::default();
        if let Some(map) = read_json::<BTreeMap<String, Value>>(&dir.join("special_tokens_map.json"))? {
            config.add_named(&map);
        }
        if let Some(map) = read_json::<BTreeMap<String, Value>>(&dir.join("tokenizer_config.json"))? {
            config.add_named(&map);
            config.add_bos = map.get("add_bos_token").and_then(Value::as_bool);
            config.chat_template = map.get("chat_template").filter(|t| !t.is_null()).cloned();
        }
        Ok(config)
    }

    /// A named token is a string, or an object with the string as `content`.
    fn add_named(&mut self, map: &BTreeMap<String, Value>) {
        for (name, value) in map.iter().filter(|(name, _)| name.ends_with("_token")) {
            if let Some(text) = value.as_str().or_else(|| value.get("content")?.as_str()) {
                self.named.insert(name.clone(), text.to_owned());
            }
        }
    }
}

/// See [`Tokenizer::from_dir`].
pub(super) fn load(dir: &Path) -> Result<Tokenizer, TokenizerError> {
    let path = dir.join("tokenizer.json");
    let bytes = std::fs::read(&path).map_err(|source| TokenizerError::Read { path: path.clone(), source })?;
    let malformed = |reason: String| TokenizerError::Parse { path: path.clone(), reason };
    // The library indexes by what the file says: a lying file makes it panic.
    let parsed = catch_unwind(AssertUnwindSafe(|| tokenizers::Tokenizer::from_bytes(&bytes)));
    let mut parsed = parsed
        .map_err(|_| malformed("is inconsistent: a merge or an added token does not fit the vocabulary".to_owned()))?
        .map_err(|e| malformed(format!("is not a tokenizer: {e}")))?;
    drop(bytes);
    parsed.with_padding(None);
    parsed.with_truncation(None).map_err(|e| malformed(e.to_string()))?;
    let library = Library::new(parsed);
    let (table, decoding) = library.table().map_err(|e| malformed(e.to_string()))?;
    if table.len() == 0 {
        return Err(malformed("has an empty vocabulary".to_owned()));
    }

    let config = TokenizerConfig::read(dir)?;
    let prefix = library.prefix();
    let named = |name: &str| config.named.get(name).and_then(|token| library.id(token));
    let bos = named("bos_token").or_else(|| prefix.first().copied().filter(|&id| table.is_special(id)));
    let add_bos = config.add_bos.unwrap_or_else(|| bos.is_some() && prefix.first() == bos.as_ref());
    let mut eos: Vec<u32> = named("eos_token").into_iter().collect();
    for file in ["generation_config.json", "config.json"] {
        for id in eos_ids(&dir.join(file))? {
            if !eos.contains(&id) && table.bytes(id).is_ok() {
                eos.push(id);
            }
        }
    }
    Ok(Tokenizer::from_inner(Inner {
        encoder: Encoder::Library(Box::new(library)),
        controls: table.controls(),
        table,
        decoding,
        bos,
        eos,
        add_bos,
    }))
}

/// `eos_token_id` of a configuration: a number or a list of them.
fn eos_ids(path: &Path) -> Result<Vec<u32>, TokenizerError> {
    let config = read_json::<BTreeMap<String, Value>>(path)?.unwrap_or_default();
    let value = config.get("eos_token_id");
    let ids = match value {
        Some(Value::Array(ids)) => ids.as_slice(),
        Some(id) => std::slice::from_ref(id),
        None => &[],
    };
    Ok(ids.iter().filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect())
}

/// A JSON file, or `None` if it is not there.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, TokenizerError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(TokenizerError::Read { path: path.to_owned(), source }),
    };
    let parsed = serde_json::from_slice(&bytes);
    parsed.map(Some).map_err(|e| TokenizerError::Parse { path: path.to_owned(), reason: e.to_string() })
}
