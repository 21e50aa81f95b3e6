//! Training of drafters for a target, on one machine: texts that the target writes, its hidden states for them, and what is
//! learned from these.
//!
//! The room for what happens before a drafter can be loaded. It uses the engine to write texts and the target's forward for
//! features; candle carries the gradients. How a drafter drafts is crate `draft`'s business, and what a request is may not
//! enter.

mod chance;
mod error;
pub mod texts;

pub use error::TrainError;
