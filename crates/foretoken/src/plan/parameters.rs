//! How many parameters a model has, counted from its `config.json`: for a plan without the weights at hand.

use anyhow::Result;

use super::config::{Fields, head_dim};

/// Families made of an embedding, layers of attention and a gated feed-forward, or experts, and a head.
const FAMILIES: [&str; 13] = [
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen2_moe",
    "qwen3_moe",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi3",
    "deepseek_v2",
    "deepseek_v3",
];

/// A model's parameters and their number format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parameters {
    pub(super) count: u64,
    pub(super) bits: u64,
    /// Whether the config says the format; 16 bits are assumed where it does not.
    pub(super) stated: bool,
}

/// The parameters, or why they cannot be counted. Biases and the norms inside attention are left out: with them no
/// model gets larger by a thousandth.
///
/// # Errors
/// For a field that makes no sense.
pub(super) fn count(fields: &Fields, layers: u64, heads: u64) -> Result<Result<Parameters, String>> {
    let kind = fields.text("model_type")?.unwrap_or("unknown");
    if !FAMILIES.contains(&kind) {
        return Ok(Err(format!("the parameters of model_type {kind:?} cannot be counted from its config")));
    }
    for field in ["moe_layer_freq", "decoder_sparse_step"] {
        if fields.natural(field)?.is_some_and(|every| every != 1) {
            return Ok(Err(format!("{field} is not 1, so that the parameters cannot be counted")));
        }
    }
    if fields.get("mlp_only_layers").is_some_and(|layers| layers.as_array().is_none_or(|some| !some.is_empty())) {
        return Ok(Err("mlp_only_layers is not empty, so that the parameters cannot be counted".into()));
    }
    if fields.get("quantization_config").is_some() {
        return Ok(Err("quantization_config says that the weights are quantised".into()));
    }
    let (bits, stated) = match fields.text("dtype")?.or(fields.text("torch_dtype")?) {
        Some("float32") => (32, true),
        Some("float16" | "bfloat16") => (16, true),
        Some(other) => return Ok(Err(format!("the weights' format {other:?} has no known size"))),
        None => (16, false),
    };
    let (Some(vocab), Some(hidden)) = (fields.whole("vocab_size")?, fields.whole("hidden_size")?) else {
        return Ok(Err("vocab_size or hidden_size is missing, so that the parameters cannot be counted".into()));
    };
    let Some(feed_forward) = feed_forward(fields, layers, hidden)? else {
        return Ok(Err("intermediate_size is missing, so that the parameters cannot be counted".into()));
    };
    let tied = match fields.get("tie_word_embeddings") {
        Some(_) => fields.flag("tie_word_embeddings")?,
        None => kind.starts_with("gemma"),
    };
    let embeddings = u128::from(if tied { vocab } else { 2 * vocab }) * u128::from(hidden);
    let norms = u128::from(2 * layers + 1) * u128::from(hidden);
    let attention = u128::from(layers) * attention(fields, heads, hidden)?;
    let count = embeddings + norms + attention + feed_forward;
    Ok(match u64::try_from(count) {
        Ok(count) => Ok(Parameters { count, bits, stated }),
        Err(_) => Err(format!("{count} parameters, as its fields say, are more than there can be")),
    })
}

/// Elements of a layer's projections.
fn attention(fields: &Fields, heads: u64, hidden: u64) -> Result<u128> {
    let wide = |number: u64| u128::from(number);
    let (hidden, query_heads) = (wide(hidden), wide(heads));
    let Some(latent) = fields.whole("kv_lora_rank")?.map(wide) else {
        let kv_heads = wide(fields.whole("num_key_value_heads")?.unwrap_or(heads));
        return Ok(2 * hidden * wide(head_dim(fields, heads)?) * (query_heads + kv_heads));
    };
    let need = |name| fields.need(&[name]).map(wide);
    let (plain, rotary, value) = (need("qk_nope_head_dim")?, need("qk_rope_head_dim")?, need("v_head_dim")?);
    let queries = query_heads * (plain + rotary);
    let queries = match fields.whole("q_lora_rank")?.map(wide) {
        Some(rank) => rank * (hidden + queries),
        None => hidden * queries,
    };
    let down = hidden * (latent + rotary);
    let up = latent * query_heads * (plain + value);
    Ok(queries + down + up + query_heads * value * hidden)
}

/// Elements of all layers' feed-forwards, experts and routers; `None` if their width is not given.
fn feed_forward(fields: &Fields, layers: u64, hidden: u64) -> Result<Option<u128>> {
    let dense = fields.whole("intermediate_size")?;
    let experts = fields.any(&["n_routed_experts", "num_local_experts", "num_experts"])?.unwrap_or(0);
    let gated = |width: u64| 3 * u128::from(hidden) * u128::from(width);
    let Some(width) = fields.whole("moe_intermediate_size")?.filter(|_| experts > 0).or(dense) else {
        return Ok(None);
    };
    if experts == 0 {
        return Ok(Some(u128::from(layers) * gated(width)));
    }
    let first_dense = fields.natural("first_k_dense_replace")?.unwrap_or(0).min(layers);
    let shared = match fields.whole("shared_expert_intermediate_size")? {
        Some(width) => gated(width),
        None => u128::from(fields.natural("n_shared_experts")?.unwrap_or(0)) * gated(width),
    };
    let router = u128::from(experts) * u128::from(hidden);
    let sparse = u128::from(experts) * gated(width) + shared + router;
    let plain = u128::from(first_dense) * gated(dense.unwrap_or(width));
    Ok(Some(plain + u128::from(layers - first_dense) * sparse))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::config::tests::shape;
    use super::*;

    fn llama() -> Value {
        json!({"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096,
            "intermediate_size": 11008, "vocab_size": 32000, "torch_dtype": "float16"})
    }

    fn mixtral() -> Value {
        json!({"model_type": "mixtral", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "hidden_size": 4096, "intermediate_size": 14336, "num_local_experts": 8, "vocab_size": 32000})
    }

    fn deepseek() -> Value {
        json!({"model_type": "deepseek_v2", "num_hidden_layers": 60, "num_attention_heads": 128, "hidden_size": 5120,
            "intermediate_size": 12288, "moe_intermediate_size": 1536, "n_routed_experts": 160, "n_shared_experts": 2,
            "first_k_dense_replace": 1, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 102_400, "torch_dtype": "bfloat16"})
    }

    #[test]
    fn models_have_the_parameters_that_they_are_known_for() {
        let found = shape(llama()).unwrap().parameters.unwrap();
        assert_eq!(found, Parameters { count: 6_738_415_616, bits: 16, stated: true });
        let found = shape(mixtral()).unwrap().parameters.unwrap();
        assert_eq!(found, Parameters { count: 46_702_792_704, bits: 16, stated: false });
        let found = shape(deepseek()).unwrap().parameters.unwrap();
        assert_eq!(found.count / 100_000_000, 2357, "{found:?}");
    }

    #[test]
    fn what_cannot_be_counted_says_why() {
        for (field, value, named) in [
            ("model_type", json!("gpt2"), "gpt2"),
            ("quantization_config", json!({}), "quantised"),
            ("torch_dtype", json!("float8_e4m3fn"), "float8_e4m3fn"),
            ("intermediate_size", json!(null), "intermediate_size"),
            ("vocab_size", json!(null), "vocab_size"),
            ("decoder_sparse_step", json!(2), "decoder_sparse_step"),
            ("mlp_only_layers", json!([1]), "mlp_only_layers"),
        ] {
            let mut config = llama();
            config[field] = value;
            let why = shape(config).unwrap().parameters.unwrap_err();
            assert!(why.contains(named), "{why}");
        }
    }
}
