//! A draft model: a smaller model with the target's tokenizer that says what it would say itself.
//!
//! It has keys and values of its own, in a cache with a limit of its own. All requests of a step share its forwards: one
//! for what was committed since they last asked, then one for each further draft of a chain. The target without some of
//! its layers is a draft model as well ([`model::Model::without_layers`]); that its first layers' keys and values would
//! be the target's is not used, so that nothing that a drafter does can touch the target's.

mod chain;
mod followed;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Instant;

use kernels::{KvFormat, Pool};
use kv::KvCache;
use model::{ForwardError, Model, Segment, Workspace};
use spec::{CostCurve, Proposal};

use crate::{Ask, DraftError, Drafter, Key, Outlook, Round, Silence};
use chain::Chain;
use followed::Requests;

/// Drafts that count in what is usual.
const MEMORY: f64 = 100.0;

/// How often a draft of a model that is worth its while stands, given those before it.
const HOPE: f64 = 0.75;

/// How a draft model is used.
#[derive(Debug, Clone, Copy)]
pub struct DraftModelOptions {
    /// Its name, as users write it.
    pub name: &'static str,
    /// Tokens that the target knows: ids below this.
    pub vocab: usize,
    /// Number format of its keys and values.
    pub kv_format: KvFormat,
    /// Pages of keys and values that all requests share. Memory is taken as they fill.
    pub pages: usize,
    /// Tokens beyond the newest few of each request that one step reads at most, over all requests: a long prompt is
    /// read over several steps, and drafted for when it is done.
    pub read_ahead: usize,
    /// Chance that a chain stands, by its confidences, below which it is not continued.
    pub min_survival: f64,
}

/// Drafts with a model of its own.
///
/// Under `keyed` it draws with the request's own noise, so that it drafts what the target would say if it had the same
/// opinion. What it costs is weighed against what it may save before each further draft.
pub struct DraftModel {
    model: Arc<Model>,
    workspace: Workspace,
    requests: Requests,
    /// What a forward of so many rows of the draft model takes.
    curve: CostCurve,
    /// What a draft's confidence usually is: a guess at the next one's.
    usual_confidence: f64,
    /// Positions that it can follow a request to.
    context: usize,
    options: DraftModelOptions,
}

impl DraftModel {
    /// Drafts with `model`, whose forwards cost what `curve` says.
    pub fn new(model: Arc<Model>, curve: CostCurve, options: DraftModelOptions) -> Self {
        let pages = options.pages.max(1);
        let cache = KvCache::new(model.kv_layout(options.kv_format), pages);
        let context = model.config().context.min(pages.saturating_mul(kernels::PAGE));
        Self {
            workspace: Workspace::new(),
            requests: Requests::new(cache),
            model,
            curve,
            usual_confidence: 1.0,
            context,
            options,
        }
    }

    /// The chain that a request begins this round with, and room for it. `read_ahead` is what is left of the round's.
    fn begin<'a>(&mut self, index: usize, ask: &'a Ask<'a>, read_ahead: &mut usize) -> Result<Chain<'a>, Silence> {
        let (start, end) = (self.requests.computed(ask.key), ask.tokens.len());
        if end > self.context {
            self.requests.forget(ask.key);
            return Err(Silence::Context);
        }
        // The target may know more padding of its vocabulary than the draft model.
        if ask.tokens[start..].iter().any(|&token| token as usize >= self.model.config().vocab) {
            return Err(Silence::NoMatch);
        }
        // The last draft is not computed.
        let max_drafts = ask.max_drafts.min(self.context - end + 1);
        // What a step leaves to be read even if all goes well is free, or under load somebody would never catch up.
        let pending = end - start;
        let free = pending.min(ask.max_drafts + 1);
        let ahead = (pending - free).min(*read_ahead);
        let rows = free + ahead;
        let len = if rows == pending { end + max_drafts - 1 } else { start + rows };
        if !self.requests.reserve(ask.key, len, end + max_drafts - 1) {
            return Err(Silence::Behind);
        }
        *read_ahead -= ahead;
        Ok(Chain::new(index, ask, start, rows, max_drafts))
    }

    fn failed(&mut self, error: &ForwardError) -> DraftError {
        self.requests.end();
        DraftError { drafter: self.options.name, message: error.to_string() }
    }

    /// Runs one forward of the next rows of all `chains`, and continues those that are up to date.
    fn extend(&mut self, pool: &Pool, chains: &mut [Chain<'_>]) -> Result<(), ForwardError> {
        let Self { model, workspace, requests, curve, usual_confidence, options, .. } = self;
        let begin = Instant::now();
        let (cache, sequences) = requests.sequences(chains.iter().map(|chain| chain.ask.key));
        let batch: Vec<Segment<'_>> =
            chains.iter().zip(sequences).map(|(chain, sequence)| chain.segment(sequence)).collect();
        let output = model.forward(workspace, pool, cache, &batch, &[])?;
        let rows: usize = batch.iter().map(|segment| segment.tokens.len()).sum();
        let context = batch.iter().map(|segment| segment.start).sum::<usize>() / batch.len();
        drop(batch);
        for chain in chains.iter() {
            requests.note(chain.ask.key, chain.next().1);
        }
        // Forwards that read a text are others than those that are weighed: a row of logits comes with many without.
        if rows == chains.len() {
            // A clock that stood still teaches nothing.
            let _ = curve.observe(rows, context, begin.elapsed().as_secs_f64());
        }
        let mut logits = output.logits.chunks_exact(model.config().vocab);
        let mut up_to_date: Vec<(&mut Chain<'_>, &[f32])> =
            chains.iter_mut().filter(|chain| chain.is_up_to_date()).zip(&mut logits).collect();
        pool.for_each_mut(&mut up_to_date, |_, (chain, logits)| chain.extend(logits, options));
        for (chain, _) in up_to_date {
            if let Some(confidence) = chain.newest_confidence() {
                *usual_confidence += (confidence - *usual_confidence) / MEMORY;
            }
        }
        Ok(())
    }

    /// Whether one more forward for all `open` chains may save more time than it takes: a draft that stands saves the
    /// request a step, of which every request that asks has its part, and takes a row of the target's in any case.
    fn pays(&self, round: &Round<'_>, asks: usize, open: &[Chain<'_>]) -> bool {
        let worth = self.usual_confidence * round.step_seconds / asks as f64;
        let gain: f64 = open.iter().map(|chain| (chain.survival * worth - round.row_seconds).max(0.0)).sum();
        let context = open.iter().map(|chain| chain.next().0).sum::<usize>() / open.len().max(1);
        gain > self.curve.seconds(open.len(), context)
    }
}

impl Drafter for DraftModel {
    fn name(&self) -> &'static str {
        self.options.name
    }

    fn propose(
        &mut self,
        round: &mut Round<'_>,
        asks: &[Ask<'_>],
    ) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
        self.requests.begin(asks);
        let mut answers = vec![Err(Silence::NoMatch); asks.len()];
        let mut open = Vec::with_capacity(asks.len());
        let mut read_ahead = self.options.read_ahead;
        for (index, ask) in asks.iter().enumerate() {
            match self.begin(index, ask, &mut read_ahead) {
                Ok(chain) => open.push(chain),
                Err(silence) => answers[index] = Err(silence),
            }
        }
        while !open.is_empty() {
            self.extend(round.pool, &mut open).map_err(|error| self.failed(&error))?;
            for chain in open.extract_if(.., |chain| !(chain.open && chain.is_up_to_date())) {
                let index = chain.index;
                answers[index] = chain.into_answer();
            }
            if !self.pays(round, asks.len(), &open) {
                break;
            }
        }
        for chain in open {
            let index = chain.index;
            answers[index] = chain.into_answer();
        }
        self.requests.end();
        Ok(answers)
    }

    /// From what its forwards take: the chain as long as each further draft earns its own.
    fn outlook(&self, round: &Round<'_>, asks: usize, ask: &Ask<'_>) -> Outlook {
        let (asks_f, context) = (asks as f64, ask.tokens.len());
        let draft = self.curve.seconds(asks, context) / asks_f;
        let worth = round.step_seconds / asks_f;
        let gains = (1..=ask.max_drafts as i32).map(|depth| HOPE.powi(depth) * worth - round.row_seconds);
        let (mut seconds, mut gain) = (draft, 0.0);
        for (depth, each) in gains.take_while(|&each| each > draft).enumerate() {
            gain += each;
            seconds = draft * (depth + 1) as f64;
        }
        let unread = (context - self.requests.computed(ask.key)) as f64;
        let most = self.curve.rows().last().copied().unwrap_or(1);
        Outlook { seconds, reading: unread * self.curve.seconds(most, context) / most as f64, gain }
    }

    fn finished(&mut self, key: Key, _: &[u32], _: usize) {
        self.requests.forget(key);
    }
}
