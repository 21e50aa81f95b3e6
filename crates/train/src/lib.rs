//! Training of drafters for a target, on one machine: texts that the target writes, its hidden states for them, and what is
//! learned from these.
//!
//! The room for what happens before a drafter can be loaded. It uses the engine to write texts and the target's forward for
//! features; candle carries the gradients. How a drafter drafts is crate `draft`'s business, and what a request is may not
//! enter.

mod batch;
mod chance;
mod checkpoint;
mod dspark;
mod error;
mod features;
mod files;
mod head_loss;
mod held_out;
mod ops;
mod parameters;
mod run;
mod target;
pub mod texts;
mod trainer;
mod vocabulary;

pub use dspark::{About, DsparkShape};
pub use error::TrainError;
pub use held_out::HeldOut;
pub use run::{Keeping, RunningTarget, dspark};
pub use target::TargetWeights;
pub use trainer::{Length, Profile, StepReport, TrainOptions, Trainer};
