//! Requests, sampling and the step: from a prompt to its tokens.
//!
//! The room for what a request is, how its next token is chosen from a row of logits, and the one function that commits
//! a token. It knows the model by its `forward` and the tokenizer by its incremental decoder; HTTP, JSON and the
//! terminal may not enter.
//!
//! Two rules bind it. A token is a function of the model, the prompt, the sampling parameters and the seed alone: the
//! noise is keyed ([`gumbel`]), and no choice looks at batch mates, at a clock or at a thread. And every token,
//! drafted or not, is committed one by one through the same function.

pub mod batch;
mod cost;
mod drafting;
mod engine;
mod grammar;
mod history;
mod math;
mod noise;
mod params;
mod process;
mod request;
mod sampler;
mod stop;
mod timings;

pub use cost::{MeasureError, measure_cost};
pub use drafting::Drafting;
pub use engine::{Engine, EngineOptions, GenerateError, Generation};
pub use grammar::{Grammar, GrammarCompiler, GrammarError, GrammarSource};
pub use history::History;
pub use noise::{BLOCK, MAX_GUMBEL, MIN_GUMBEL, NoiseKey, gumbel};
pub use params::{ParamsError, SamplingParams, fresh_seed};
pub use process::Scratch;
pub use request::{CommitError, Committed, Delta, FinishReason, Limits, Request, RequestError, Usage};
pub use sampler::{SampleError, Sampled, Sampler};
pub use stop::{Released, StopMatcher};
pub use timings::Timings;
