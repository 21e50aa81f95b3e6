//! Training of drafters for a target, on one machine: texts that the target writes, its hidden states for them, and what is
//! learned from these.
//!
//! The room for what happens before a drafter can be loaded. It uses the engine to write texts and the target's forward for
//! features; candle carries the gradients. How a drafter drafts is crate `draft`'s business, and what a request is may not
//! enter.

mod batch;
mod begin;
mod block;
mod chain;
mod chance;
mod checkpoint;
mod drafter;
mod error;
mod export;
mod features;
mod files;
#[cfg(test)]
mod forward_tests;
mod head_loss;
mod held_out;
mod layer;
mod medusa;
mod ops;
mod parameters;
mod run;
mod target;
pub mod texts;
mod trainer;
mod vocabulary;

pub use drafter::{DrafterShape, Method};
pub use error::TrainError;
pub use export::About;
pub use held_out::HeldOut;
pub use run::{Keeping, RunningTarget, begin};
pub use target::TargetWeights;
pub use trainer::{Length, Profile, StepReport, TrainOptions, Trainer};
