//! Models: weight files, configurations, tokenizers and chat templates, and the architectures that turn rows of tokens
//! into logits.
//!
//! Everything that depends on what a model *is* lives here: how its files are read ([`gguf`], [`weights`]), what shape
//! it has ([`config`]), its text on both sides, and how a forward is computed from the operations of crate `kernels`.
//! Drafting, sampling and serving may not enter.

mod architecture;
pub mod batch;
pub mod chat;
pub mod config;
pub mod detokenize;
pub mod gguf;
pub mod load;
mod mmap;
pub mod source;
pub mod tokenizer;
pub mod transformer;
pub mod weights;

pub use batch::{ForwardError, Logits, Segment, Tap, Visibility};
pub use load::{Linear, LoadError, LoadOptions, Loader};
pub use mmap::Mapped;
pub use transformer::{
    Backbone, BlockShape, ConvolutionShape, Eagle, EagleKind, EagleShape, Model, Output, PrefixLayer, Sight, SkipError,
    Workspace,
};
