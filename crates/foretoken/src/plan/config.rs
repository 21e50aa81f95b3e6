//! The few fields of a `config.json` that say what keys and values need, of any architecture.
//!
//! Crate `model` reads a config to run the model and refuses what there is no forward for. A plan needs less and must
//! take more; but what would make its figures wrong (layers with a state instead of keys and values, say) is refused.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use model::config::Config;
use serde_json::{Map, Value};
use spec::KvShape;

use super::parameters::{self, Parameters};

/// No field of a model is above it, and it keeps every product of them within 128 bits.
const MOST: u64 = 1 << 28;
/// No model has more layers.
const MOST_LAYERS: u64 = 4096;

/// What a plan needs to know of a model.
#[derive(Debug)]
pub(super) struct Shape {
    /// MHA, GQA, MQA or MLA, with its numbers.
    pub(super) attention: String,
    /// What is kept: parts that differ in shape or window.
    pub(super) parts: Vec<Part>,
    /// Positions that the model was made for, where it says so.
    pub(super) context: Option<u64>,
    /// The parameters, or why they cannot be counted.
    pub(super) parameters: Result<Parameters, String>,
}

/// What some layers keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) kv: KvShape,
    /// Tokens that a row of these layers sees, itself included, if not all.
    pub(super) window: Option<u64>,
}

impl Shape {
    /// Reads a `config.json`.
    ///
    /// # Errors
    /// Naming file and field, for what is missing, senseless or would make the figures wrong.
    pub(super) fn read(path: &Path) -> Result<Shape> {
        let file = path.display().to_string();
        let text = std::fs::read(path).with_context(|| format!("{file}: cannot read the file"))?;
        let map = serde_json::from_slice(&text).map_err(|e| anyhow!("{file}: not a JSON object: {e}"))?;
        Shape::from_fields(&Fields::new(&file, map)?)
    }

    /// What a model that this engine runs is known to be.
    pub(super) fn of(config: &Config) -> Shape {
        let (heads, kv_heads, head_dim) = (config.heads as u64, config.kv_heads as u64, config.head_dim as u64);
        let windows = config.windows.iter().map(|window| window.map(|window| window as u64)).collect();
        Shape {
            attention: attention(heads, kv_heads, head_dim, config.layers as u64),
            parts: parts(windows, |layers| KvShape::Heads { layers, kv_heads, head_dim }),
            context: Some(config.context as u64),
            parameters: Err("the weights were read from their file".into()),
        }
    }

    fn from_fields(fields: &Fields) -> Result<Shape> {
        refuse_states(fields)?;
        let layers = fields.need(&["num_hidden_layers", "n_layer", "n_layers", "num_layers"])?;
        if layers > MOST_LAYERS {
            return Err(fields.error("num_hidden_layers", format!("is {layers}, which is above {MOST_LAYERS}")));
        }
        let heads = fields.need(&["num_attention_heads", "n_head", "n_heads"])?;
        let windows = windows(fields, layers)?;
        let (attention, parts) = match fields.whole("kv_lora_rank")? {
            Some(latent) => {
                let rotary = fields.need(&["qk_rope_head_dim"])?;
                let text = format!("MLA: a latent of {latent} and a rotary key of {rotary}, {layers} layers");
                let mut parts = parts(windows, |layers| KvShape::Latent { layers, latent, rotary });
                // The lightning indexer of DeepSeek-V3.2 keeps one key more for each token.
                if let Some(latent) = fields.whole("index_head_dim")? {
                    parts.push(Part { kv: KvShape::Latent { layers, latent, rotary: 0 }, window: None });
                }
                (text, parts)
            }
            None => {
                let (kv_heads, head_dim) = (kv_heads(fields, heads)?, head_dim(fields, heads)?);
                let parts = parts(windows, |layers| KvShape::Heads { layers, kv_heads, head_dim });
                (attention(heads, kv_heads, head_dim, layers), parts)
            }
        };
        let context = fields.any(&["max_position_embeddings", "n_positions", "seq_length"])?;
        Ok(Shape { attention, parts, context, parameters: parameters::count(fields, layers, heads)? })
    }
}

fn attention(heads: u64, kv_heads: u64, head_dim: u64, layers: u64) -> String {
    let kind = match kv_heads {
        _ if kv_heads == heads => "MHA",
        1 => "MQA",
        _ => "GQA",
    };
    format!("{kind}: {heads} query heads, {kv_heads} KV heads of {head_dim}, {layers} layers")
}

/// Layers with the same window together, those that see everything first.
fn parts(windows: Vec<Option<u64>>, kv: impl Fn(u64) -> KvShape) -> Vec<Part> {
    let mut layers = BTreeMap::new();
    for window in windows {
        *layers.entry(window).or_insert(0) += 1;
    }
    layers.into_iter().map(|(window, layers)| Part { kv: kv(layers), window }).collect()
}

/// Layers with a state of fixed size instead of keys and values would be counted as if they had some.
fn refuse_states(fields: &Fields) -> Result<()> {
    for field in ["attn_layer_period", "hybrid_override_pattern", "full_attention_interval", "linear_attn_config"] {
        if fields.get(field).is_some() {
            let problem = "says that some layers keep a state instead of keys and values; that cannot be planned";
            return Err(fields.error(field, problem));
        }
    }
    Ok(())
}

fn kv_heads(fields: &Fields, heads: u64) -> Result<u64> {
    // Falcon and GPTBigCode say it with a flag, which the newer Falcons carry without meaning it.
    let multi_query = fields.flag("multi_query")? && !fields.flag("new_decoder_architecture")?;
    let kv_heads = if multi_query {
        1
    } else {
        fields.any(&["num_key_value_heads", "num_kv_heads", "multi_query_group_num"])?.unwrap_or(heads)
    };
    if !heads.is_multiple_of(kv_heads) {
        let problem = format!("is {kv_heads}, which does not divide the {heads} heads");
        return Err(fields.error("num_key_value_heads", problem));
    }
    Ok(kv_heads)
}

/// Width of a head of keys, which must be that of one of values.
pub(super) fn head_dim(fields: &Fields, heads: u64) -> Result<u64> {
    let kind = fields.text("model_type")?.unwrap_or_default();
    let dim = match fields.any(&["head_dim", "kv_channels"])? {
        Some(dim) => dim,
        // What the transformers library takes where these families do not say.
        None if kind.starts_with("qwen3") => 128,
        None if kind.starts_with("gemma") => 256,
        None => {
            let hidden = fields.need(&["hidden_size", "n_embd", "d_model"])?;
            if !hidden.is_multiple_of(heads) {
                let problem = format!("is missing, and hidden_size {hidden} is no multiple of {heads} heads");
                return Err(fields.error("head_dim", problem));
            }
            hidden / heads
        }
    };
    match fields.whole("v_head_dim")? {
        Some(other) if other != dim => {
            let problem = format!("is {other}: values of another width than keys ({dim}) cannot be planned");
            Err(fields.error("v_head_dim", problem))
        }
        _ => Ok(dim),
    }
}

/// For each layer its sliding window.
fn windows(fields: &Fields, layers: u64) -> Result<Vec<Option<u64>>> {
    if let Some(types) = fields.get("layer_types") {
        let types = types.as_array().filter(|types| types.len() as u64 == layers);
        let types = types.ok_or_else(|| fields.error("layer_types", format!("is not an array of {layers} names")))?;
        return types.iter().map(|kind| window_of_type(fields, kind)).collect();
    }
    let kind = fields.text("model_type")?.unwrap_or_default();
    let in_use = match fields.get("use_sliding_window") {
        Some(_) => fields.flag("use_sliding_window")?,
        None => !kind.starts_with("qwen"),
    };
    let window = match kind {
        // A Mistral that does not mention its window has this one; `null` means none.
        "mistral" if !fields.has("sliding_window") => Some(4096),
        "llama" => None,
        _ => fields.whole("sliding_window")?.filter(|_| in_use),
    };
    let first = if kind.starts_with("qwen") { fields.natural("max_window_layers")?.unwrap_or(28) } else { 0 };
    // Of so many layers the last sees everything.
    let pattern = match (fields.whole("sliding_window_pattern")?, kind) {
        (Some(pattern), _) => Some(pattern),
        (None, "gemma2" | "gpt_oss") => Some(2),
        (None, "gemma3" | "gemma3_text") => Some(6),
        (None, "cohere2") => Some(4),
        _ => None,
    };
    let slides = |layer: u64| layer >= first && pattern.is_none_or(|pattern| !(layer + 1).is_multiple_of(pattern));
    Ok((0..layers).map(|layer| window.filter(|_| slides(layer))).collect())
}

fn window_of_type(fields: &Fields, kind: &Value) -> Result<Option<u64>> {
    match kind.as_str() {
        Some("full_attention") => Ok(None),
        Some("sliding_attention") => fields.need(&["sliding_window"]).map(Some),
        Some("chunked_attention") => fields.need(&["attention_chunk_size"]).map(Some),
        _ => Err(fields.error("layer_types", format!("has {}, whose keys and values cannot be planned", short(kind)))),
    }
}

/// The fields of the language model, with errors that say file and field.
pub(super) struct Fields {
    file: String,
    /// `text_config.` in models that see or hear as well, else empty.
    at: &'static str,
    map: Map<String, Value>,
}

impl Fields {
    fn new(file: &str, mut map: Map<String, Value>) -> Result<Fields> {
        match map.remove("text_config") {
            None | Some(Value::Null) => Ok(Fields { file: file.into(), at: "", map }),
            Some(Value::Object(mut text)) => {
                // These two are often said of the whole model only.
                for field in ["dtype", "torch_dtype", "quantization_config", "tie_word_embeddings"] {
                    if let (false, Some(value)) = (text.contains_key(field), map.remove(field)) {
                        text.insert(field.into(), value);
                    }
                }
                Ok(Fields { file: file.into(), at: "text_config.", map: text })
            }
            Some(other) => bail!("{file}: text_config is {}, where an object is needed", short(&other)),
        }
    }

    pub(super) fn error(&self, field: &str, problem: impl std::fmt::Display) -> anyhow::Error {
        anyhow!("{}: {}{field} {problem}", self.file, self.at)
    }

    fn has(&self, field: &str) -> bool {
        self.map.contains_key(field)
    }

    /// The value, unless it is `null`, which means absent.
    pub(super) fn get(&self, field: &str) -> Option<&Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    /// A whole number that may be 0.
    pub(super) fn natural(&self, field: &str) -> Result<Option<u64>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        match value.as_u64().filter(|&number| number <= MOST) {
            Some(number) => Ok(Some(number)),
            None => Err(self.error(field, format!("is {}, where a whole number up to {MOST} is needed", short(value)))),
        }
    }

    /// A whole number of at least 1.
    pub(super) fn whole(&self, field: &str) -> Result<Option<u64>> {
        match self.natural(field)? {
            Some(0) => Err(self.error(field, "is 0, where at least 1 is needed")),
            number => Ok(number),
        }
    }

    /// The first of the names that architectures have for the same number.
    pub(super) fn any(&self, names: &[&str]) -> Result<Option<u64>> {
        names.iter().find_map(|name| self.whole(name).transpose()).transpose()
    }

    pub(super) fn need(&self, names: &[&str]) -> Result<u64> {
        self.any(names)?.ok_or_else(|| self.error(names.first().unwrap_or(&"a field"), "is missing"))
    }

    pub(super) fn flag(&self, field: &str) -> Result<bool> {
        let Some(value) = self.get(field) else { return Ok(false) };
        value.as_bool().ok_or_else(|| self.error(field, format!("is {}, where true or false is needed", short(value))))
    }

    pub(super) fn text(&self, field: &str) -> Result<Option<&str>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let text = value.as_str();
        text.map(Some).ok_or_else(|| self.error(field, format!("is {}, where a string is needed", short(value))))
    }
}

/// A value as an error shows it.
fn short(value: &Value) -> String {
    match value {
        Value::Array(_) => "an array".into(),
        Value::Object(_) => "an object".into(),
        other => other.to_string().chars().take(60).collect(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    pub(in super::super) fn shape(value: Value) -> Result<Shape> {
        Shape::from_fields(&Fields::new("config.json", value.as_object().unwrap().clone())?)
    }

    /// Layers by window.
    fn layers(value: Value) -> Vec<(Option<u64>, u64)> {
        let of = |part: &Part| match part.kv {
            KvShape::Heads { layers, .. } | KvShape::Latent { layers, .. } => (part.window, layers),
        };
        shape(value).unwrap().parts.iter().map(of).collect()
    }

    #[test]
    fn kinds_of_attention_are_told_apart() {
        for (more, begins) in [
            (json!({}), "MHA: 8 query heads, 8 KV heads of 16"),
            (json!({"num_key_value_heads": 2, "head_dim": 32}), "GQA: 8 query heads, 2 KV heads of 32"),
            (json!({"num_key_value_heads": 1}), "MQA: 8"),
            (json!({"multi_query": true}), "MQA: 8"),
            (json!({"multi_query": true, "new_decoder_architecture": true, "num_kv_heads": 4}), "GQA: 8"),
            (json!({"kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128}), "MLA: a latent of 512"),
        ] {
            let mut config = json!({"num_hidden_layers": 2, "num_attention_heads": 8, "hidden_size": 128});
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let found = shape(config).unwrap().attention;
            assert!(found.starts_with(begins), "{found}");
        }
        let gpt2 = shape(json!({"n_layer": 12, "n_head": 12, "n_embd": 768})).unwrap();
        assert_eq!(gpt2.parts[0].kv, KvShape::Heads { layers: 12, kv_heads: 12, head_dim: 64 });
        let nested = json!({"text_config": {"num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 8}});
        assert_eq!(layers(nested), [(None, 3)]);
    }

    #[test]
    fn each_layer_has_its_window() {
        let with = |kind: &str, more: Value| {
            let mut config = json!({"model_type": kind, "num_hidden_layers": 12, "num_attention_heads": 1,
                "head_dim": 8, "sliding_window": 512});
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            layers(config)
        };
        assert_eq!(with("mistral", json!({})), [(Some(512), 12)]);
        assert_eq!(with("mistral", json!({"sliding_window": null})), [(None, 12)]);
        assert_eq!(with("llama", json!({})), [(None, 12)]);
        assert_eq!(with("gemma2", json!({})), [(None, 6), (Some(512), 6)]);
        assert_eq!(with("gemma3_text", json!({})), [(None, 2), (Some(512), 10)]);
        assert_eq!(with("other", json!({"sliding_window_pattern": 4})), [(None, 3), (Some(512), 9)]);
        assert_eq!(with("qwen2", json!({})), [(None, 12)]);
        let qwen = json!({"use_sliding_window": true, "max_window_layers": 8});
        assert_eq!(with("qwen2", qwen), [(None, 8), (Some(512), 4)]);
        let mut types = vec!["sliding_attention"; 11];
        types.push("full_attention");
        assert_eq!(with("any", json!({"layer_types": types})), [(None, 1), (Some(512), 11)]);
    }

    #[test]
    fn errors_name_file_and_field() {
        let base = json!({"num_hidden_layers": 2, "num_attention_heads": 8, "hidden_size": 128});
        for (field, value, named) in [
            ("num_hidden_layers", json!(null), "num_hidden_layers is missing"),
            ("num_hidden_layers", json!(1_000_000), "above 4096"),
            ("num_attention_heads", json!("8"), "num_attention_heads is \"8\""),
            ("num_attention_heads", json!(0), "num_attention_heads is 0"),
            ("num_key_value_heads", json!(3), "does not divide"),
            ("hidden_size", json!(100), "head_dim is missing"),
            ("hidden_size", json!(-1), "hidden_size is -1"),
            ("kv_lora_rank", json!(512), "qk_rope_head_dim is missing"),
            ("v_head_dim", json!(128), "v_head_dim is 128"),
            ("layer_types", json!(["full_attention"]), "not an array of 2"),
            ("layer_types", json!(["linear_attention", "full_attention"]), "linear_attention"),
            ("attn_layer_period", json!(8), "attn_layer_period"),
            ("text_config", json!(1), "text_config is 1"),
        ] {
            let mut config = base.clone();
            config[field] = value;
            let error = shape(config).unwrap_err().to_string();
            assert!(error.starts_with("config.json: ") && error.contains(named), "{error}");
        }
    }
}
