//! Continuous batching: many requests, one step after another.
//!
//! A [`Service`] owns one plain thread that runs the steps, and is talked to through a [`Handle`]. Each step computes
//! one row for every choice that decodes and, within the row budget, the next chunks of the prompts that have begun;
//! who has ended makes room at once for who waits. What a request answers depends on none of it: neither on the
//! others, nor on chunks, the prefix cache, a preemption or the number of threads.
//!
//! The room for scheduling: who runs, with which pages, and where the tokens go. What a token is worth is the
//! sampler's, what follows from it the request's; sockets and JSON may not enter.

mod counts;
mod lane;
mod plan;
mod reading;
mod service;
mod speculate;
mod step;
mod verify;

pub use counts::{DRAFT_POSITIONS, DraftCounts, Reason, STEP_ROWS, STEP_SECONDS, StepCounts};
pub use service::{Handle, Service, Sink};
pub use speculate::{Check, Speculation};
pub(crate) use step::{Batch, BatchOptions, Outcome};

use kernels::KvFormat;

use crate::drafting::Drafting;
use crate::params::SamplingParams;
use crate::request::{Delta, FinishReason, RequestError, Usage};

/// A request as it is handed in.
#[derive(Debug, Clone, PartialEq)]
pub struct Submission {
    /// What to continue. Not empty.
    pub prompt: Vec<u32>,
    /// How. A client that gave no seed gets one by [`fresh_seed`](crate::fresh_seed) before: the engine draws none.
    pub params: SamplingParams,
    /// Choices: independent continuations of the same prompt, each with its own noise. At least 1, at most
    /// [`ServiceOptions::max_running`].
    pub n: u32,
    /// Prefixes are shared only between requests with the same salt.
    pub cache_salt: Option<String>,
    /// Higher ones begin first and are preempted last; equal ones in the order of arrival.
    pub priority: i32,
    /// What its client says about drafts.
    pub drafting: Drafting,
}

/// Names a request of one service. Later ones are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(crate) u64);

/// What a request's sink is told. Each choice ends with one `Finished` or one `Failed`, its last event.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A token was committed.
    Delta {
        /// Which of the n choices.
        choice: u32,
        /// What the token adds.
        delta: Delta,
    },
    /// The choice has ended.
    Finished {
        /// Which of the n choices.
        choice: u32,
        /// Why.
        reason: FinishReason,
        /// Its tokens.
        usage: Usage,
    },
    /// The choice could not go on.
    Failed {
        /// Which of the n choices.
        choice: u32,
        /// What went wrong, for a human.
        message: String,
    },
}

/// How a service is set up.
#[derive(Debug, Clone, Copy)]
pub struct ServiceOptions {
    /// Bytes for keys and values: rounded down to whole pages, at least one. Taken from the system as they fill.
    pub kv_bytes: usize,
    /// Number format of keys and values.
    pub kv_format: KvFormat,
    /// Positions of prompt and output together; `None`: all that the model was made for. Never more than
    /// `kv_bytes` can hold.
    pub context: Option<usize>,
    /// Rows that one step computes at most; but every decode runs in every step, and beside them at least one row of
    /// a prompt. Rows deep in a long prompt count for several. A larger budget computes prompts a little faster and lets decodes wait longer between tokens. The
    /// output does not depend on it.
    pub row_budget: usize,
    /// Choices that run at the same time. At least 1.
    pub max_running: usize,
    /// Requests that wait to run. At least 1; one more is refused.
    pub max_waiting: usize,
    /// Whether prompts are spared what earlier requests have computed. The output does not depend on it.
    pub prefix_cache: bool,
}

impl Default for ServiceOptions {
    fn default() -> Self {
        Self {
            kv_bytes: 1 << 30,
            kv_format: KvFormat::F16,
            context: None,
            row_budget: 128,
            max_running: 32,
            max_waiting: 256,
            prefix_cache: true,
        }
    }
}

/// A submission that is not taken. Nothing of it is kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// As many requests wait as may.
    #[error("as many requests are waiting as may: try again later")]
    QueueFull,
    /// It could never run.
    #[error(transparent)]
    Invalid(#[from] RequestError),
    /// The service takes no more.
    #[error("the service is shutting down")]
    ShuttingDown,
}

/// What a service is doing and has done since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stats {
    /// Requests of which a choice runs.
    pub running: usize,
    /// Requests that wait to run or to go on.
    pub waiting: usize,
    /// Pages that running requests hold.
    pub kv_pages_used: usize,
    /// All pages.
    pub kv_pages_total: usize,
    /// Pages that nobody holds but that a later request may find its prefix in.
    pub cached_pages: usize,
    /// Prompt tokens of the requests that have begun, those found in the cache included.
    pub prompt_tokens: u64,
    /// Tokens committed.
    pub generated_tokens: u64,
    /// Prompt tokens that were found in the cache.
    pub cached_prompt_tokens: u64,
    /// What became of drafts.
    pub drafts: DraftCounts,
    /// Drafts that were checked of each request that decoded, in the mean of the last steps: what came before the last 32
    /// weighs a third.
    pub draft_budget: f64,
    /// Times that a request lost its pages to an older one.
    pub preemptions: u64,
    /// Steps.
    pub steps: u64,
    /// Rows computed by them.
    pub rows: u64,
    /// Seconds that they took.
    pub step_seconds: f64,
    /// Them by their seconds and their rows.
    pub step_counts: StepCounts,
    /// Of these, seconds that drafters took, and the decision what is checked.
    pub propose_seconds: f64,
    /// Seconds that forwards of the target took.
    pub forward_seconds: f64,
    /// Seconds that sampling, acceptance and commits took.
    pub commit_seconds: f64,
    /// Seconds that the forwards should have taken by the curve of costs; 0 without drafts.
    pub predicted_seconds: f64,
}
