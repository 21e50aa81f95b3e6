//! What GGUF calls the tensors that Hugging Face checkpoints have.

/// The GGUF name of a tensor of a Llama, Mistral or Qwen model.
pub(super) fn gguf(name: &str) -> Option<String> {
    let whole = match name {
        "model.embed_tokens.weight" => "token_embd.weight",
        "model.norm.weight" => "output_norm.weight",
        "lm_head.weight" => "output.weight",
        // The divisors of Llama 3.1's rotary frequencies; checkpoints have them in config.json.
        "rope_freqs.weight" => "rope_freqs.weight",
        _ => "",
    };
    if !whole.is_empty() {
        return Some(whole.into());
    }
    let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let (part, kind) = rest.rsplit_once('.')?;
    if !layer.bytes().all(|b| b.is_ascii_digit()) || !matches!(kind, "weight" | "bias") {
        return None;
    }
    let part = match part {
        "input_layernorm" => "attn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "post_attention_layernorm" => "ffn_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        _ => return None,
    };
    Some(format!("blk.{layer}.{part}.{kind}"))
}

#[cfg(test)]
mod tests {
    use super::gguf;

    #[test]
    fn names_of_layers_are_mapped() {
        assert_eq!(gguf("model.layers.12.self_attn.q_proj.bias").as_deref(), Some("blk.12.attn_q.bias"));
        assert_eq!(gguf("model.layers.0.post_attention_layernorm.weight").as_deref(), Some("blk.0.ffn_norm.weight"));
        assert_eq!(gguf("lm_head.weight").as_deref(), Some("output.weight"));
        assert_eq!(gguf("model.layers.x.self_attn.q_proj.weight"), None);
        assert_eq!(gguf("model.layers.1.self_attn.rotary_emb.inv_freq"), None);
    }
}
