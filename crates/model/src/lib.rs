//! Models: weight files, configurations, tokenizers and chat templates, and the architectures that turn rows of tokens
//! into logits.
//!
//! Everything that depends on what a model *is* lives here: where it comes from , how its files are read
//! ([`gguf`]), and how a forward is computed from the operations of crate `kernels`. Drafting,
//! sampling and serving may not enter.

pub mod gguf;
