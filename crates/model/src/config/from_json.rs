//! `config.json` and `generation_config.json` of a Hugging Face directory.

use std::path::Path;

use serde_json::{Map, Value};

use super::{Architecture, Config, ConfigError, Names, RopeConfig, RopeLayout, RopeScaling};

/// The window of a Mistral whose `config.json` does not mention one (`null` means none).
const MISTRAL_WINDOW: usize = 4096;

pub(super) fn read(dir: &Path) -> Result<Config, ConfigError> {
    config(&Fields::open(&dir.join("config.json"))?, dir)
}

/// The object `part` of the file.
pub(super) fn read_part(dir: &Path, part: &str) -> Result<Config, ConfigError> {
    let file = Fields::open(&dir.join("config.json"))?;
    let inner = file.object(part)?.ok_or_else(|| file.error(part, "is missing"))?;
    config(&inner, dir)
}

fn config(file: &Fields, dir: &Path) -> Result<Config, ConfigError> {
    let architecture = architecture(file)?;
    supported(file)?;
    let heads = file.usize("num_attention_heads")?;
    let hidden = file.usize("hidden_size")?;
    let layers = file.usize("num_hidden_layers")?;
    let context = file.usize("max_position_embeddings")?;
    let rope = rope(file, context)?;
    let attention_bias = file.bool("attention_bias")?.unwrap_or(false);
    let llama = architecture == Architecture::Llama;
    let config = Config {
        architecture,
        layers,
        hidden,
        intermediate: file.usize("intermediate_size")?,
        heads,
        kv_heads: file.opt_usize("num_key_value_heads")?.unwrap_or(heads),
        head_dim: head_dim(file, architecture, hidden, heads)?,
        vocab: file.usize("vocab_size")?,
        context: stretched(&rope.scaling, context),
        norm_eps: file.f32("rms_norm_eps")?.unwrap_or(1e-6),
        rope,
        windows: windows(file, architecture, layers)?,
        qkv_bias: match architecture {
            Architecture::Llama | Architecture::Qwen3 => attention_bias,
            Architecture::Qwen2 => true,
            Architecture::Mistral => false,
        },
        output_bias: matches!(architecture, Architecture::Llama | Architecture::Qwen3) && attention_bias,
        mlp_bias: llama && file.bool("mlp_bias")?.unwrap_or(false),
        tie_word_embeddings: file.bool("tie_word_embeddings")?.unwrap_or(false),
        bos: file.ids("bos_token_id")?.first().copied(),
        eos: eos(file, dir)?,
    };
    config.validate(&file.file, &NAMES)?;
    Ok(config)
}

const NAMES: Names = Names {
    prefix: String::new(),
    layers: "num_hidden_layers",
    hidden: "hidden_size",
    intermediate: "intermediate_size",
    heads: "num_attention_heads",
    kv_heads: "num_key_value_heads",
    head_dim: "head_dim",
    vocab: "vocab_size",
    context: "max_position_embeddings",
    norm_eps: "rms_norm_eps",
    window: "sliding_window",
    eos: "bos_token_id or eos_token_id",
    rope: &[("theta", "rope_theta"), ("original_context", "original_max_position_embeddings")],
};

fn architecture(file: &Fields) -> Result<Architecture, ConfigError> {
    let name = file.str("model_type")?.ok_or_else(|| file.error("model_type", "is missing"))?;
    Ok(match name {
        "llama" => Architecture::Llama,
        "qwen2" => Architecture::Qwen2,
        "qwen3" => Architecture::Qwen3,
        "mistral" => Architecture::Mistral,
        _ => {
            let problem =
                format!("is the unsupported architecture {name:?}; supported are llama, mistral, qwen2 and qwen3");
            return Err(file.error("model_type", problem));
        }
    })
}

/// Refuses what would load and then compute something else.
fn supported(file: &Fields) -> Result<(), ConfigError> {
    let act = file.str("hidden_act")?.unwrap_or("silu");
    if !matches!(act, "silu" | "swish") {
        return Err(file.error("hidden_act", format!("is {act:?}; only silu is supported")));
    }
    if let Some(quantisation) = file.object("quantization_config")? {
        let method = quantisation.str("quant_method")?.unwrap_or("unknown");
        let problem =
            format!("says that the weights are quantised ({method}); use the unquantised model or a GGUF file");
        return Err(file.error("quantization_config", problem));
    }
    Ok(())
}

fn head_dim(file: &Fields, architecture: Architecture, hidden: usize, heads: usize) -> Result<usize, ConfigError> {
    match file.opt_usize("head_dim")? {
        Some(dim) => Ok(dim),
        None if architecture == Architecture::Qwen3 => Ok(128),
        None if heads > 0 && hidden.is_multiple_of(heads) => Ok(hidden / heads),
        None => {
            Err(file.error("head_dim", format!("is missing, and hidden_size {hidden} is no multiple of {heads} heads")))
        }
    }
}

fn windows(file: &Fields, architecture: Architecture, layers: usize) -> Result<Vec<Option<usize>>, ConfigError> {
    let window = match architecture {
        Architecture::Llama => None,
        Architecture::Mistral if file.has("sliding_window") => file.opt_usize("sliding_window")?,
        Architecture::Mistral => Some(MISTRAL_WINDOW),
        Architecture::Qwen2 | Architecture::Qwen3 if file.bool("use_sliding_window")?.unwrap_or(false) => {
            Some(file.usize("sliding_window")?)
        }
        Architecture::Qwen2 | Architecture::Qwen3 => None,
    };
    // Bounded here as well: validation comes only after this has been allocated.
    let layers = layers.min(1 << 16);
    if architecture == Architecture::Mistral || window.is_none() {
        return Ok(vec![window; layers]);
    }
    let Some(types) = file.get("layer_types") else {
        let first = file.opt_usize("max_window_layers")?.unwrap_or(28);
        return Ok((0..layers).map(|i| window.filter(|_| i >= first)).collect());
    };
    let types = types.as_array().filter(|types| types.len() == layers);
    let types = types.ok_or_else(|| file.error("layer_types", format!("is not an array of {layers} names")))?;
    let window = |kind: &Value| match kind.as_str() {
        Some("full_attention") => Ok(None),
        Some("sliding_attention") => Ok(window),
        _ => {
            Err(file.error("layer_types", format!("has {kind}, which is neither full_attention nor sliding_attention")))
        }
    };
    types.iter().map(window).collect()
}

/// New files have `rope_parameters`; older ones `rope_theta` beside `rope_scaling`.
fn rope(file: &Fields, context: usize) -> Result<RopeConfig, ConfigError> {
    let parameters = match file.object("rope_parameters")? {
        Some(parameters) => Some(parameters),
        None => file.object("rope_scaling")?,
    };
    let inner = parameters.as_ref().map(|p| p.f32("rope_theta")).transpose()?.flatten();
    let theta = inner.map_or_else(|| file.f32("rope_theta"), |theta| Ok(Some(theta)))?.unwrap_or(10_000.0);
    for fields in parameters.iter().chain([file]) {
        if fields.f32("partial_rotary_factor")?.is_some_and(|f| f != 1.0) {
            return Err(fields.error("partial_rotary_factor", "is not 1; rotating part of a head is not supported"));
        }
    }
    let scaling = parameters.map_or(Ok(RopeScaling::None), |p| scaling(&p, context))?;
    Ok(RopeConfig { theta, scaling, layout: RopeLayout::Halves })
}

fn scaling(p: &Fields, context: usize) -> Result<RopeScaling, ConfigError> {
    let kind = match p.str("rope_type")? {
        Some(kind) => kind,
        None => p.str("type")?.unwrap_or("default"),
    };
    let need = |key: &str| p.f32(key)?.ok_or_else(|| p.error(key, "is missing"));
    let original = || Ok::<_, ConfigError>(p.opt_usize("original_max_position_embeddings")?.unwrap_or(context));
    Ok(match kind {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: need("factor")? },
        "llama3" => RopeScaling::Llama3 {
            factor: need("factor")?,
            low_freq_factor: need("low_freq_factor")?,
            high_freq_factor: need("high_freq_factor")?,
            original_context: original()?,
        },
        "yarn" => RopeScaling::Yarn {
            factor: need("factor")?,
            original_context: original()?,
            beta_fast: p.f32("beta_fast")?.filter(|&b| b != 0.0).unwrap_or(32.0),
            beta_slow: p.f32("beta_slow")?.filter(|&b| b != 0.0).unwrap_or(1.0),
            attention_factor: p.f32("attention_factor")?,
            mscale: p.f32("mscale")?,
            mscale_all_dim: p.f32("mscale_all_dim")?,
            truncate: p.bool("truncate")?.unwrap_or(true),
        },
        _ => {
            let problem =
                format!("is {kind:?}, which is not supported; supported are default, linear, llama3 and yarn");
            return Err(p.error("rope_type", problem));
        }
    })
}

/// YaRN is switched on by an edit of the file that often leaves `max_position_embeddings` as it was.
fn stretched(scaling: &RopeScaling, context: usize) -> usize {
    match *scaling {
        RopeScaling::Yarn { factor, original_context, .. } => {
            context.max((f64::from(factor) * original_context as f64) as usize)
        }
        _ => context,
    }
}

/// End tokens of both files: some models list the end of a turn in one and the end of a text in the other.
fn eos(config: &Fields, dir: &Path) -> Result<Vec<u32>, ConfigError> {
    let mut ids = config.ids("eos_token_id")?;
    let generation = dir.join("generation_config.json");
    if generation.exists() {
        ids.extend(Fields::open(&generation)?.ids("eos_token_id")?);
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// A JSON object whose errors say file and field.
struct Fields {
    file: String,
    /// Path of this object inside the file, ending with a dot unless empty.
    at: String,
    map: Map<String, Value>,
}

impl Fields {
    fn open(path: &Path) -> Result<Fields, ConfigError> {
        let file = path.display().to_string();
        let text = std::fs::read(path).map_err(|source| ConfigError::Io { file: file.clone(), source })?;
        match serde_json::from_slice(&text) {
            Ok(map) => Ok(Fields { file, at: String::new(), map }),
            Err(e) => Err(ConfigError::Json { file, problem: e.to_string() }),
        }
    }

    fn error(&self, field: &str, problem: impl Into<String>) -> ConfigError {
        ConfigError::Field { file: self.file.clone(), field: format!("{}{field}", self.at), problem: problem.into() }
    }

    fn has(&self, field: &str) -> bool {
        self.map.contains_key(field)
    }

    /// The value, unless it is `null`, which means absent everywhere.
    fn get(&self, field: &str) -> Option<&Value> {
        self.map.get(field).filter(|v| !v.is_null())
    }

    fn pick<'a, T>(
        &'a self,
        field: &str,
        wanted: &str,
        pick: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let picked = pick(value);
        picked.map(Some).ok_or_else(|| self.error(field, format!("is {}, where {wanted} is needed", brief(value))))
    }

    fn opt_usize(&self, field: &str) -> Result<Option<usize>, ConfigError> {
        self.pick(field, "a whole number", |v| v.as_u64().and_then(|n| n.try_into().ok()))
    }

    fn usize(&self, field: &str) -> Result<usize, ConfigError> {
        self.opt_usize(field)?.ok_or_else(|| self.error(field, "is missing"))
    }

    fn f32(&self, field: &str) -> Result<Option<f32>, ConfigError> {
        self.pick(field, "a number", |v| v.as_f64().map(|x| x as f32))
    }

    fn bool(&self, field: &str) -> Result<Option<bool>, ConfigError> {
        self.pick(field, "true or false", Value::as_bool)
    }

    fn str(&self, field: &str) -> Result<Option<&str>, ConfigError> {
        self.pick(field, "a string", Value::as_str)
    }

    fn object(&self, field: &str) -> Result<Option<Fields>, ConfigError> {
        let map = self.pick(field, "an object", Value::as_object)?;
        let at = format!("{}{field}.", self.at);
        Ok(map.map(|map| Fields { file: self.file.clone(), at, map: map.clone() }))
    }

    /// One token id or a list of them.
    fn ids(&self, field: &str) -> Result<Vec<u32>, ConfigError> {
        let id = |v: &Value| v.as_u64().and_then(|n| n.try_into().ok());
        let ids = self.pick(field, "a token id or a list of them", |v| match v.as_array() {
            Some(list) => list.iter().map(id).collect(),
            None => id(v).map(|id| vec![id]),
        })?;
        Ok(ids.unwrap_or_default())
    }
}

/// A value as an error shows it.
fn brief(value: &Value) -> String {
    match value {
        Value::Array(_) => "an array".into(),
        Value::Object(_) => "an object".into(),
        other => other.to_string().chars().take(60).collect(),
    }
}
