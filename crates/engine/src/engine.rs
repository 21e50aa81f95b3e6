//! The step: plan, forward, sample, commit. One request at a time for now.
//!
//! Each stage is a function and hands its result to the next one; nothing flows backwards.

use std::ops::ControlFlow;
use std::time::Instant;

use kernels::{KvFormat, PAGE, Pool};
use kv::{KvCache, OutOfPages, Sequence};
use model::tokenizer::Tokenizer;
use model::{ForwardError, Logits, Model, Segment, Visibility, Workspace};

use crate::params::SamplingParams;
use crate::process::Scratch;
use crate::request::{CommitError, Committed, Delta, FinishReason, Limits, Request, RequestError, Usage};
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

/// A model with all that it takes to answer requests.
pub struct Engine {
    model: Model,
    tokenizer: Tokenizer,
    pool: Pool,
    cache: KvCache,
    workspace: Workspace,
    scratch: Scratch,
    limits: Limits,
    prefill_chunk: usize,
}

/// A request on its way, and its keys and values.
struct Running {
    request: Request,
    sequence: Sequence,
    /// Tokens whose keys and values are in the cache: the next forward starts there.
    computed: usize,
}

impl Engine {
    /// An engine for `model` and its `tokenizer`, computing on `pool`.
    ///
    /// Ids of the model beyond the tokenizer's are padding of the vocabulary and no tokens: they are never sampled.
    pub fn new(model: Model, tokenizer: Tokenizer, pool: Pool, options: EngineOptions) -> Self {
        let config = model.config();
        let context = options.context.map_or(config.context, |context| context.min(config.context));
        let mut eos = config.eos.clone();
        eos.extend(tokenizer.eos().iter().filter(|token| !config.eos.contains(token)));
        let limits = Limits { vocab: config.vocab.min(tokenizer.vocab_size()), context, eos };
        let cache = KvCache::new(model.kv_layout(options.kv_format), context.div_ceil(PAGE));
        let prefill_chunk = options.prefill_chunk.max(1);
        let (workspace, scratch) = (Workspace::new(), Scratch::new());
        Self { model, tokenizer, pool, cache, workspace, scratch, limits, prefill_chunk }
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// What a request may use.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Bytes of the keys and values of `tokens` tokens.
    pub fn kv_bytes(&self, tokens: usize) -> usize {
        tokens.div_ceil(PAGE) * self.cache.layout().bytes_per_page()
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
        on_delta: impl FnMut(&Delta) -> ControlFlow<()>,
    ) -> Result<Generation, GenerateError> {
        let stopwatch = Stopwatch::start(Instant::now());
        let request = Request::new(prompt, params, 0, &self.limits, &self.tokenizer)?;
        let mut running = Running { request, sequence: Sequence::new(), computed: 0 };
        let outcome = self.run(&mut running, stopwatch, on_delta);
        self.cache.free(running.sequence);
        outcome
    }

    /// Steps until the request ends.
    fn run(
        &mut self,
        running: &mut Running,
        mut stopwatch: Stopwatch,
        mut on_delta: impl FnMut(&Delta) -> ControlFlow<()>,
    ) -> Result<Generation, GenerateError> {
        loop {
            if let Some(committed) = self.step(running)? {
                stopwatch.token(Instant::now());
                if on_delta(&committed.delta).is_break() {
                    running.request.cancel();
                }
            }
            if let Some(finish) = running.request.finish() {
                let usage = running.request.usage();
                return Ok(Generation { finish, usage, timings: stopwatch.timings(usage) });
            }
        }
    }

    /// One step of one request: the next chunk of its prompt or its newest token, and if that is all of its tokens,
    /// the token that follows.
    fn step(&mut self, running: &mut Running) -> Result<Option<Committed>, GenerateError> {
        let Running { request, sequence, computed } = running;
        let tokens = request.tokens();
        let end = tokens.len().min(*computed + self.prefill_chunk);
        let complete = end == tokens.len();
        self.cache.reserve(sequence, end)?;
        let segment = Segment {
            sequence,
            start: *computed,
            tokens: &tokens[*computed..end],
            visibility: Visibility::Causal,
            logits: if complete { Logits::Last } else { Logits::None },
        };
        let output = self.model.forward(&mut self.workspace, &self.pool, &mut self.cache, &[segment], &[])?;
        *computed = end;
        if !complete {
            return Ok(None);
        }
        let outputs = request.outputs().len();
        let sampled = request
            .sample(&output.logits[..self.limits.vocab], &mut self.scratch)
            .map_err(|source| GenerateError::Sample { outputs, source })?;
        Ok(Some(request.commit(sampled)?))
    }
}
