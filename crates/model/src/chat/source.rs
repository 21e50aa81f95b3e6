//! Where the source of a template is found, and what is done to it before it is compiled.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{DEFAULT, TOOL_USE, TemplateError};
use crate::tokenizer::{TokenizerError, read_json};

/// The template of a model directory with the file that it comes from. `configured` is that of `tokenizer_config.json`.
pub(super) fn find(dir: &Path, configured: Option<Value>) -> Result<Option<(PathBuf, Value)>, TemplateError> {
    let path = dir.join("chat_template.jinja");
    match std::fs::read_to_string(&path) {
        Ok(source) => return Ok(Some((path, Value::String(source)))),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(source) => return Err(TokenizerError::Read { path, source }.into()),
    }
    let path = dir.join("chat_template.json");
    if let Some(mut file) = read_json::<BTreeMap<String, Value>>(&path)?
        && let Some(template) = file.remove("chat_template")
    {
        return Ok(Some((path, template)));
    }
    Ok(configured.map(|template| (dir.join("tokenizer_config.json"), template)))
}

/// The sources of a `chat_template` value under the names that are used, or `None` if it has no default.
pub(super) fn named(value: &Value) -> Option<Vec<(String, String)>> {
    if let Some(source) = value.as_str() {
        return Some(vec![(DEFAULT.to_owned(), source.to_owned())]);
    }
    let mut sources = Vec::new();
    for entry in value.as_array()? {
        let name = entry.get("name")?.as_str()?;
        if [DEFAULT, TOOL_USE].contains(&name) {
            sources.push((name.to_owned(), entry.get("template")?.as_str()?.to_owned()));
        }
    }
    sources.iter().any(|(name, _)| name == DEFAULT).then_some(sources)
}

/// The source with `{% generation %}` blocks made transparent. They mark the assistant's text for training and render
/// as their contents.
pub(super) fn without_generation_blocks(source: &str) -> String {
    let (mut rest, mut out) = (source, String::with_capacity(source.len()));
    while let Some(open) = rest.find("{%") {
        let inside = &rest[open + 2..];
        let Some(close) = inside.find("%}") else { break };
        let tag = &inside[..close];
        let word = tag.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        out.push_str(&rest[..open + 2]);
        match word {
            "generation" => out.push_str(&tag.replace(word, "if true")),
            "endgeneration" => out.push_str(&tag.replace(word, "endif")),
            _ => out.push_str(tag),
        }
        out.push_str("%}");
        rest = &inside[close + 2..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn generation_blocks_become_transparent_and_nothing_else_changes() {
        let source = "a{%- generation -%}b{% endgeneration %}{% set generation = 1 %}{{ generation }}{# {% x #}";
        let expected = "a{%- if true -%}b{% endif %}{% set generation = 1 %}{{ generation }}{# {% x #}";
        assert_eq!(without_generation_blocks(source), expected);
        for plain in ["", "no tags", "{% open", "é {% if x %} ü {% endif %}"] {
            assert_eq!(without_generation_blocks(plain), plain);
        }
    }

    #[test]
    fn a_template_list_needs_a_default() {
        let list = json!([{"name": "default", "template": "d"}, {"name": "rag", "template": "r"},
            {"name": "tool_use", "template": "t"}]);
        let names: Vec<_> = named(&list).unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["default", "tool_use"]);
        assert!(named(&json!([{"name": "tool_use", "template": "t"}])).is_none());
        assert!(named(&json!({"default": "d"})).is_none());
        assert!(named(&json!([{"name": "default"}])).is_none());
    }
}
