//! One request at a time, on the caller's thread: the step of [`batch`](crate::batch) for who needs no service.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use kernels::{KvFormat, PAGE, Pool};
use kv::{OutOfPages, Salt};
use model::tokenizer::Tokenizer;
use model::{ForwardError, Model};

use crate::batch::{Batch, BatchOptions, Outcome, RequestId, Speculation, Stats};
use crate::drafting::Drafting;
use crate::params::SamplingParams;
use crate::request::{CommitError, Delta, FinishReason, Limits, Request, RequestError, Usage};
use crate::sampler::SampleError;
use crate::timings::{Stopwatch, Timings};

/// How an engine is set up.
#[derive(Debug, Clone, Copy)]
pub struct EngineOptions {
    /// Number format of keys and values.
    pub kv_format: KvFormat,
    /// Positions of prompt and output together; `None`: all that the model was made for. Memory is taken as they fill.
    pub context: Option<usize>,
    /// Rows of a prompt that one step computes at most. At least 1. The output does not depend on it.
    pub prefill_chunk: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { kv_format: KvFormat::F16, context: None, prefill_chunk: 512 }
    }
}

/// A generation that could not begin or had to be given up.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// The request cannot run. Nothing has been computed.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The cache has too few pages.
    #[error(transparent)]
    OutOfPages(#[from] OutOfPages),
    /// The model refuses the rows.
    #[error("the forward failed: {0}")]
    Forward(#[from] ForwardError),
    /// The logits are of no use.
    #[error("after {outputs} output tokens, {source}")]
    Sample {
        /// Tokens committed before.
        outputs: usize,
        /// What is wrong with the logits.
        source: SampleError,
    },
    /// The token is of no use.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The step that the request took part in broke off, by no fault of the request.
    #[error("the step broke off: {message}")]
    Step {
        /// What happened.
        message: String,
    },
}

/// What a generation came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Generation {
    /// Why it ended.
    pub finish: FinishReason,
    /// Tokens of prompt and output.
    pub usage: Usage,
    /// Times measured.
    pub timings: Timings,
}

/// A model that answers one request after another.
pub struct Engine {
    batch: Batch,
}

impl Engine {
    /// An engine for `model` and its `tokenizer`, computing on `pool`.
    ///
    /// Ids of the model beyond the tokenizer's are padding of the vocabulary and no tokens: they are never sampled.
    pub fn new(
        model: impl Into<Arc<Model>>,
        tokenizer: Tokenizer,
        pool: Pool,
        options: EngineOptions,
        speculation: Option<Speculation>,
    ) -> Self {
        let EngineOptions { kv_format, context, prefill_chunk: row_budget } = options;
        // Without a prefix cache: a prompt that is measured twice is to be computed twice.
        let options = BatchOptions { pages: None, kv_format, context, row_budget, max_running: 1, prefix_cache: false };
        Self { batch: Batch::new(model.into(), tokenizer, pool, options, speculation) }
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.batch.model
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.batch.tokenizer
    }

    /// What a request may use.
    pub fn limits(&self) -> &Limits {
        &self.batch.limits
    }

    /// What it is doing and has done.
    pub fn stats(&self) -> Stats {
        self.batch.stats()
    }

    /// Bytes of the keys and values of `tokens` tokens.
    pub fn kv_bytes(&self, tokens: usize) -> usize {
        tokens.div_ceil(PAGE) * self.batch.cache.layout().bytes_per_page()
    }

    /// Continues `prompt` until the request ends, handing every token to `on_delta` as it is committed. A `Break` from
    /// it ends the request with [`FinishReason::Cancelled`].
    ///
    /// # Errors
    /// [`GenerateError`]; one of the request's own is found before anything is computed. What was committed before has
    /// been handed out.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        params: SamplingParams,
        drafting: &Drafting,
        mut on_delta: impl FnMut(&Delta) -> ControlFlow<()>,
    ) -> Result<Generation, GenerateError> {
        const ONLY: RequestId = RequestId(0);
        let mut stopwatch = Stopwatch::start(Instant::now());
        let request = Request::new(prompt, params, 0, &self.batch.limits, &self.batch.tokenizer)?;
        let request = request.with_drafting(drafting.clone());
        self.batch.add(ONLY, 0, Salt::default(), vec![request]);
        loop {
            if let Err(error) = self.batch.step() {
                self.batch.abandon(&error.to_string());
                self.batch.take_outcomes();
                return Err(error.into());
            }
            for (_, _, outcome) in self.batch.take_outcomes() {
                match outcome {
                    Outcome::Token(delta) => {
                        stopwatch.token(Instant::now());
                        if on_delta(&delta).is_break() {
                            self.batch.cancel(ONLY);
                        }
                    }
                    Outcome::Finished(finish, usage) => {
                        return Ok(Generation { finish, usage, timings: stopwatch.timings(usage) });
                    }
                    Outcome::Failed(error) => return Err(error),
                }
            }
        }
    }
}
