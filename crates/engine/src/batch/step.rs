//! The requests of one engine, and the step that they share: plan, forward, sample, commit.
//!
//! Each stage is a method and hands its result to the next one; nothing flows backwards. Nothing here blocks or knows who
//! is waiting for the outcome. The clock is read to say where the time goes and what rows cost, which decides how many
//! drafts are checked and nothing else.

use std::sync::Arc;
use std::time::Instant;

use kernels::{KvFormat, PAGE, Pool};
use kv::{KvCache, Salt, Sequence};
use model::tokenizer::Tokenizer;
use model::{ForwardError, Model, Segment, Workspace};

use super::counts::Reason;
use super::lane::{Choice, Lane};
use super::plan::{self, Demand, Room};
use super::speculate::{Speculation, Speculator};
use super::verify::commit;
use super::{RequestId, Stats};
use crate::engine::GenerateError;
use crate::process::SharedScratch;
use crate::request::{Delta, FinishReason, Limits, Request, Usage};

/// Steps that [`Stats::draft_budget`] looks back on.
const RECENT_STEPS: f64 = 32.0;

/// How a batch is set up. See [`ServiceOptions`](super::ServiceOptions).
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchOptions {
    /// Pages of the cache; `None`: as many as one request of the whole context needs.
    pub(crate) pages: Option<usize>,
    pub(crate) kv_format: KvFormat,
    pub(crate) context: Option<usize>,
    pub(crate) row_budget: usize,
    pub(crate) max_running: usize,
    pub(crate) prefix_cache: bool,
}

/// What came of a choice in a step.
#[derive(Debug)]
pub(crate) enum Outcome {
    Token(Delta),
    Finished(FinishReason, Usage),
    Failed(GenerateError),
}

/// A model with all that it takes to answer requests, and the requests.
pub(crate) struct Batch {
    pub(crate) model: Arc<Model>,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) limits: Limits,
    pub(crate) cache: KvCache,
    pool: Pool,
    workspace: Workspace,
    scratch: SharedScratch,
    row_budget: usize,
    max_running: usize,
    prefix_cache: bool,
    /// What drafts for the requests; `None`: nobody does.
    speculator: Option<Speculator>,
    /// In the order in which they are served.
    running: Vec<Lane>,
    /// In the order in which they begin. They hold no pages.
    waiting: Vec<Lane>,
    outcomes: Vec<(RequestId, u32, Outcome)>,
    /// The counters; what can be seen from the lanes is filled in by [`Batch::stats`].
    counters: Stats,
}

impl Batch {
    /// Ids of the model beyond the tokenizer's are padding of the vocabulary and no tokens: they are never sampled.
    pub(crate) fn new(
        model: Arc<Model>,
        tokenizer: Tokenizer,
        pool: Pool,
        options: BatchOptions,
        speculation: Option<Speculation>,
    ) -> Batch {
        let config = model.config();
        let context = options.context.map_or(config.context, |context| context.min(config.context));
        let pages = options.pages.unwrap_or(context.div_ceil(PAGE)).max(1);
        // No request may outgrow the pool: one that runs alone must be able to go on.
        let context = context.min(pages.saturating_mul(PAGE));
        let mut eos = config.eos.clone();
        eos.extend(tokenizer.eos().iter().filter(|token| !config.eos.contains(token)));
        let vocab = config.vocab.min(tokenizer.vocab_size());
        let limits = Limits { vocab, context, eos };
        let mut cache = KvCache::new(model.kv_layout(options.kv_format), pages);
        let speculator = speculation.map(|speculation| Speculator::new(speculation, vocab, &mut cache));
        Batch {
            model,
            tokenizer,
            limits,
            cache,
            pool,
            workspace: Workspace::new(),
            scratch: SharedScratch::default(),
            row_budget: options.row_budget.max(1),
            max_running: options.max_running.max(1),
            prefix_cache: options.prefix_cache,
            speculator,
            running: Vec::new(),
            waiting: Vec::new(),
            outcomes: Vec::new(),
            counters: Stats::default(),
        }
    }

    /// Takes in the choices of one request: `requests` differ in nothing but that, and are at most `max_running`.
    pub(crate) fn add(&mut self, id: RequestId, priority: i32, salt: Salt, requests: Vec<Request>) {
        insert(&mut self.waiting, Lane::new(id, priority, salt, requests));
    }

    /// Ends what is left of a request, and frees its pages.
    pub(crate) fn cancel(&mut self, id: RequestId) {
        for lane in self.running.iter_mut().chain(&mut self.waiting).filter(|lane| lane.id == id) {
            for choice in &mut lane.choices {
                choice.request.cancel();
                let outcome = Outcome::Finished(FinishReason::Cancelled, choice.request.usage());
                self.outcomes.push((id, choice.index, outcome));
            }
            forget(lane, &mut self.speculator, |_| true);
        }
        self.waiting.retain(|lane| !lane.choices.is_empty());
        self.sweep();
    }

    /// Whether there is nothing to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// What came of the choices since the last call, in order.
    pub(crate) fn take_outcomes(&mut self) -> Vec<(RequestId, u32, Outcome)> {
        std::mem::take(&mut self.outcomes)
    }

    /// One step of every request that can take part: plan, propose, admit, forward, verify, commit.
    ///
    /// # Errors
    /// When the model refuses the rows, which no request that was let in can bring about; no request that runs can go
    /// on then: see [`Batch::abandon`].
    pub(crate) fn step(&mut self) -> Result<(), ForwardError> {
        let (start, drafts) = (Instant::now(), self.counters.drafts);
        self.admit();
        self.plan();
        self.propose();
        self.reserve();
        let rows: usize = self.running.iter().map(|lane| lane.rows + lane.drafts()).sum();
        if rows > 0 {
            self.compute(rows)?;
            self.settle();
            self.collect();
            self.sweep();
            let seconds = start.elapsed().as_secs_f64();
            self.counters.steps += 1;
            self.counters.rows += rows as u64;
            self.counters.step_seconds += seconds;
            self.counters.step_counts.count(seconds, rows);
            if let Some(budget) = self.counters.drafts.budget(&drafts) {
                self.counters.draft_budget += (budget - self.counters.draft_budget) / RECENT_STEPS;
            }
        }
        Ok(())
    }

    /// Asks for drafts, and takes in as many as pay.
    fn propose(&mut self) {
        let Some(speculator) = &mut self.speculator else { return };
        let start = Instant::now();
        speculator.reserve(&mut self.running, &mut self.cache);
        let lent = (&self.pool, &mut self.cache);
        speculator.propose(&mut self.running, lent, &self.scratch, &mut self.counters.drafts);
        // What was only scratch is free for whoever needs pages.
        for lane in &mut self.running {
            self.cache.truncate(&mut lane.sequence, lane.computed + lane.rows);
        }
        self.counters.propose_seconds += start.elapsed().as_secs_f64();
    }

    /// Computes the planned rows in one ragged batch, and commits a token to every lane that is then up to date.
    fn compute(&mut self, rows: usize) -> Result<(), ForwardError> {
        let Batch { model, pool, cache, workspace, running, counters, .. } = self;
        let start = Instant::now();
        let context = context(running);
        let batch: Vec<Segment<'_>> = running.iter().filter(|lane| lane.rows > 0).map(Lane::segment).collect();
        let taps = self.speculator.as_ref().map_or(&[][..], Speculator::taps);
        let output = model.forward(workspace, pool, cache, &batch, taps)?;
        let computed = Instant::now();
        if let Some(speculator) = &mut self.speculator {
            speculator.computed((pool, cache), running, &batch, &output);
            counters.propose_seconds += computed.elapsed().as_secs_f64();
        }
        drop(batch);
        let committing = Instant::now();
        advance(running, cache, self.prefix_cache);
        split(running, cache);
        let (width, vocab, scratch) = (model.config().vocab, self.limits.vocab, &self.scratch);
        pool.for_each_mut(running, |_, lane| {
            let Some(row) = lane.logits_row.take() else { return };
            let logits = |node: usize| &output.logits[(row + node) * width..][..vocab];
            scratch.with(|scratch| commit(lane, logits, scratch));
        });
        let seconds = (computed - start).as_secs_f64();
        if let Some(speculator) = &mut self.speculator {
            counters.predicted_seconds += speculator.timed(rows, context, seconds);
        }
        counters.forward_seconds += seconds;
        counters.commit_seconds += committing.elapsed().as_secs_f64();
        Ok(())
    }

    /// Keeps, of the drafts' keys and values, those of accepted ones.
    fn settle(&mut self) {
        let Some(speculator) = &mut self.speculator else { return };
        for lane in self.running.iter_mut() {
            let Some(checked) = lane.checked.take() else { continue };
            let before = lane.computed;
            lane.keep(&mut self.cache);
            speculator.accepted((&self.pool, &mut self.cache), lane, before);
            if self.prefix_cache && before / PAGE < lane.computed / PAGE {
                lane.remember(&mut self.cache);
            }
            speculator.observe(lane, &checked, &mut self.counters.drafts);
        }
    }

    /// Takes what came of the lanes, in their order.
    fn collect(&mut self) {
        for lane in &mut self.running {
            let is_token = |(_, outcome): &&(u32, Outcome)| matches!(outcome, Outcome::Token(_));
            self.counters.generated_tokens += lane.outcomes.iter().filter(is_token).count() as u64;
            self.outcomes.extend(lane.outcomes.drain(..).map(|(choice, outcome)| (lane.id, choice, outcome)));
            forget(lane, &mut self.speculator, |choice| choice.request.finish().is_some());
        }
    }

    /// Lets in who waits, in order, while there is room. Nobody overtakes: what is too large now would wait for ever.
    fn admit(&mut self) {
        while let Some(first) = self.waiting.first() {
            if !self.room().takes(first.choices.len(), 0) {
                break;
            }
            // The prefix is taken before the pages are counted, for what it holds can no longer be evicted.
            let sequence = match self.prefix_cache {
                true => self.cache.match_prefix(first.tokens(), &first.salt),
                false => Sequence::new(),
            };
            let wanted = first.wanted_pages(sequence.table().len());
            if !self.room().takes(first.choices.len(), wanted) {
                self.cache.free(sequence);
                break;
            }
            let mut lane = self.waiting.remove(0);
            lane.computed = sequence.len();
            lane.sequence = sequence;
            self.count_admission(&mut lane);
            insert(&mut self.running, lane);
        }
    }

    fn room(&self) -> Room {
        let promised = self.running.iter().map(|lane| lane.wanted_pages(lane.sequence.table().len()));
        Room {
            running: self.running.iter().map(|lane| lane.choices.len()).sum(),
            max_running: self.max_running,
            free_pages: self.cache.free_pages(),
            promised_pages: promised.sum(),
        }
    }

    fn count_admission(&mut self, lane: &mut Lane) {
        if !std::mem::replace(&mut lane.has_run, true) {
            self.counters.prompt_tokens += lane.tokens().len() as u64;
            self.counters.cached_prompt_tokens += lane.computed as u64;
            lane.choices.iter_mut().for_each(|choice| choice.request.set_cached_tokens(lane.computed));
        }
    }

    /// Gives every lane its rows.
    fn plan(&mut self) {
        let demands: Vec<Demand> = self.running.iter().map(Lane::demand).collect();
        for (lane, rows) in self.running.iter_mut().zip(plan::rows(&demands, self.row_budget)) {
            lane.rows = rows;
        }
    }

    /// Finds pages for the rows, the oldest lane's first. When there are none left the youngest lane gives back its own.
    fn reserve(&mut self) {
        let mut index = 0;
        while let Some(lane) = self.running.get_mut(index) {
            let reserved = match lane.rows {
                0 => Ok(()),
                rows => {
                    let len = lane.computed + rows + lane.drafts();
                    self.cache.reserve(&mut lane.sequence, len)
                }
            };
            match reserved {
                Ok(()) => index += 1,
                // Nobody loses a page for a guess.
                Err(_) if lane.checked.take().is_some() => self.counters.drafts.silent(Reason::NoPages),
                Err(_) if self.running.len() > 1 => self.preempt_youngest(),
                Err(error) => {
                    self.fail_all(|| error.into());
                    return self.sweep();
                }
            }
        }
    }

    /// Sends the last of the running lanes back to wait. Its tokens stay; their keys and values are computed again, or
    /// found in the prefix cache.
    fn preempt_youngest(&mut self) {
        let Some(mut lane) = self.running.pop() else { return };
        self.cache.free(std::mem::take(&mut lane.sequence));
        if let Some(speculator) = &mut self.speculator {
            speculator.preempted(&lane);
        }
        (lane.computed, lane.rows, lane.checked) = (0, 0, None);
        self.counters.preemptions += 1;
        insert(&mut self.waiting, lane);
    }

    /// Removes lanes without choices, and frees their pages.
    fn sweep(&mut self) {
        let Batch { running, cache, .. } = self;
        running.retain_mut(|lane| {
            if lane.choices.is_empty() {
                cache.free(std::mem::take(&mut lane.sequence));
            }
            !lane.choices.is_empty()
        });
    }

    /// Fails every choice that runs.
    fn fail_all(&mut self, error: impl Fn() -> GenerateError) {
        for lane in &mut self.running {
            let id = lane.id;
            let failed = lane.choices.iter().map(|choice| (id, choice.index, Outcome::Failed(error())));
            self.outcomes.extend(failed);
            forget(lane, &mut self.speculator, |_| true);
        }
    }

    /// Fails every choice that runs, because of a step that broke off. Whatever state it left behind is thrown away:
    /// the cache is made anew. Those who wait go on.
    pub(crate) fn abandon(&mut self, message: &str) {
        self.fail_all(|| GenerateError::Step { message: message.to_owned() });
        self.running.clear();
        self.cache = self.cache.anew();
        (self.workspace, self.scratch) = (Workspace::new(), SharedScratch::default());
    }

    /// What is going on, and what has been.
    pub(crate) fn stats(&self) -> Stats {
        let requests = |lanes: &[Lane]| lanes.chunk_by(|a, b| a.id == b.id).count();
        let (total, free) = (self.cache.total_pages(), self.cache.free_pages());
        Stats {
            running: requests(&self.running),
            waiting: requests(&self.waiting),
            kv_pages_used: total - free,
            kv_pages_total: total,
            cached_pages: self.cache.cached_pages(),
            ..self.counters
        }
    }
}

/// Tokens that the running lanes have before their rows, on average.
pub(super) fn context(running: &[Lane]) -> usize {
    running.iter().map(|lane| lane.computed).sum::<usize>() / running.len().max(1)
}

/// Notes that the planned rows are in the cache, and makes the pages that they filled findable.
fn advance(running: &mut [Lane], cache: &mut KvCache, prefix_cache: bool) {
    let mut logits_rows = 0;
    for lane in running {
        let (before, after) = (lane.computed, lane.computed + lane.rows);
        lane.computed = after;
        let complete = lane.rows > 0 && after == lane.tokens().len();
        lane.logits_row = complete.then_some(logits_rows);
        logits_rows += if complete { 1 + lane.drafts() } else { 0 };
        if prefix_cache && before / PAGE < after / PAGE {
            lane.remember(cache);
        }
    }
}

/// Gives each choice of a prompt that is now computed a lane of its own, on the same pages.
fn split(running: &mut Vec<Lane>, cache: &mut KvCache) {
    let mut index = 0;
    while let Some(lane) = running.get_mut(index) {
        if lane.logits_row.is_some() && lane.choices.len() > 1 {
            let sequence = cache.fork(&lane.sequence);
            let split = lane.split(sequence);
            insert(running, split);
        } else {
            index += 1;
        }
    }
}

/// Takes the choices that are `gone` from a lane, and from what the drafter keeps.
fn forget(lane: &mut Lane, speculator: &mut Option<Speculator>, gone: impl Fn(&Choice) -> bool) {
    let id = lane.id;
    lane.choices.retain(|choice| {
        let gone = gone(choice);
        if let (true, Some(speculator)) = (gone, speculator.as_mut()) {
            speculator.finished(id, choice);
        }
        !gone
    });
}

/// Adds a lane at its place in the order.
fn insert(lanes: &mut Vec<Lane>, lane: Lane) {
    let place = lanes.partition_point(|other| other.order() < lane.order());
    lanes.insert(place, lane);
}
