//! The training: steps over blocks of texts, a look at texts that it never learns from, and checkpoints.
//!
//! What a step does follows from the run's seed and its number, so that a run that was killed goes on as if it had not been.
//! What a drafter computes may not enter, nor how progress is shown.

use std::path::Path;
use std::time::{Duration, Instant};

use rand::seq::SliceRandom;
use rayon::prelude::*;

use crate::TrainError;
use crate::batch::{Batch, anchors};
use crate::chance::{Purpose, chance};
use crate::checkpoint::{self, Reached};
use crate::drafter::Drafter;
use crate::export::About;
use crate::features::FeatureStore;
use crate::held_out::{self, HeldOut};
use crate::parameters::Step;
use crate::texts::Text;

/// How long to train.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Length {
    /// So many steps.
    Steps(u64),
    /// So long, earlier runs included.
    Time(Duration),
}

/// How to train.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainOptions {
    /// How long.
    pub length: Length,
    /// Texts of a part of a step. At least 1.
    pub batch: usize,
    /// Blocks of a text, at most.
    pub anchors: usize,
    /// Parts of a step, which run side by side and whose gradients are added. At least 1.
    pub accumulate: usize,
    /// The greatest learning rate.
    pub rate: f32,
    /// The share of the run in which it grows to that; it then falls as a cosine.
    pub warm_up: f32,
    /// Weight decay.
    pub decay: f32,
    /// The greatest norm of a step's gradients.
    pub clip: f32,
    /// Everything random follows from it.
    pub seed: u64,
}

/// The learning rate at the end, by the greatest.
const LAST_RATE: f32 = 0.05;

/// Seconds that a step took, by part; those of parts that run side by side are summed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Profile {
    /// The target's forwards, or reading what they gave.
    pub features: f64,
    /// Laying out blocks.
    pub batch: f64,
    /// The drafter's layers, forward.
    pub layers: f64,
    /// The head, forward and backward.
    pub head: f64,
    /// The layers, backward.
    pub backward: f64,
    /// The optimiser.
    pub optimiser: f64,
}

/// What a step did.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StepReport {
    /// The mean loss of its rows.
    pub loss: f32,
    /// Tokens that a round would commit, by what its rows say.
    pub tau: f32,
    /// The norm of its gradients, before they were clipped.
    pub norm: f32,
    /// The learning rate.
    pub rate: f32,
    /// Rows: positions that it learned from.
    pub rows: usize,
    /// Where its time went.
    pub profile: Profile,
}

/// What a part of a step gives.
struct Part {
    loss: f32,
    tau: f32,
    rows: usize,
    /// Of each parameter; empty where nothing depends on it.
    gradients: Vec<Vec<f32>>,
    profile: Profile,
}

/// Adds the gradients of a part to those of the parts before it.
fn add(sums: &mut Vec<Vec<f32>>, part: Vec<Vec<f32>>) {
    if sums.is_empty() {
        *sums = part;
        return;
    }
    for (sum, part) in sums.iter_mut().zip(part) {
        match sum.is_empty() {
            true => *sum = part,
            false => sum.par_iter_mut().zip(part).for_each(|(sum, part)| *sum += part),
        }
    }
}

impl Profile {
    /// Adds the seconds of a part, which others may have shared.
    fn add(&mut self, part: &Profile) {
        for (sum, seconds) in
            [(&mut self.layers, part.layers), (&mut self.head, part.head), (&mut self.backward, part.backward)]
        {
            *sum += seconds;
        }
    }
}

/// A drafter in training.
pub struct Trainer {
    drafter: Drafter,
    store: FeatureStore,
    texts: Vec<Text>,
    held_out: Vec<Text>,
    options: TrainOptions,
    reached: Reached,
    /// When this run began, and what earlier ones had taken.
    began: Instant,
    /// The order of the texts in a pass over them, and which pass.
    order: (u64, Vec<usize>),
}

impl Trainer {
    /// A drafter that has `reached` so much, learns from `texts`, and is looked at with the texts `held_out`.
    ///
    /// # Errors
    /// When there is nothing to learn from.
    pub(crate) fn new(
        drafter: Drafter,
        store: FeatureStore,
        [texts, held_out]: [Vec<Text>; 2],
        options: TrainOptions,
        reached: Reached,
    ) -> Result<Trainer, TrainError> {
        if texts.is_empty() {
            return Err(TrainError::option("--self-prompts", "and --prompts give no text to learn from: ask for more"));
        }
        let (began, order) = (Instant::now(), (u64::MAX, Vec::new()));
        Ok(Trainer { drafter, store, texts, held_out, options, reached, began, order })
    }

    /// Steps that were done, those of earlier runs included.
    pub fn steps(&self) -> u64 {
        self.reached.steps
    }

    /// Seconds that were trained for, those of earlier runs included.
    pub fn seconds(&self) -> f64 {
        self.reached.seconds + self.began.elapsed().as_secs_f64()
    }

    /// How much of the training is done, from 0 to 1.
    pub fn done(&self) -> f64 {
        let done = match self.options.length {
            Length::Steps(steps) => self.reached.steps as f64 / steps as f64,
            Length::Time(time) => self.seconds() / time.as_secs_f64(),
        };
        done.min(1.0)
    }

    /// The share of the answers' tokens that the drafter knows.
    pub fn coverage(&self) -> f64 {
        self.drafter.base.vocabulary.coverage(&self.texts)
    }

    /// Texts of which something is learned, and texts that are held out.
    pub fn texts(&self) -> [usize; 2] {
        [self.texts.len(), self.held_out.len()]
    }

    /// Does a step.
    ///
    /// # Errors
    /// When the target cannot read a text, or the arithmetic fails.
    pub fn step(&mut self) -> Result<StepReport, TrainError> {
        let (options, number) = (self.options, self.reached.steps);
        let done = self.done() as f32;
        let rate = learning_rate(options, done);
        let (mut report, mut gradients) = (StepReport { rate, ..StepReport::default() }, Vec::new());
        let first = number as usize * options.accumulate;
        let batches =
            (first..first + options.accumulate).map(|part| self.batch(part * options.batch, &mut report.profile));
        let batches: Vec<Batch> = batches.collect::<Result<_, _>>()?;
        // Side by side: much of a part's arithmetic is too small to be shared by threads.
        let parts: Vec<Part> =
            batches.par_iter().map(|batch| self.part(batch, done)).collect::<Result<_, TrainError>>()?;
        let share = 1.0 / options.accumulate as f32;
        for part in parts {
            report.loss += part.loss * share;
            report.tau += part.tau * share;
            report.rows += part.rows;
            report.profile.add(&part.profile);
            add(&mut gradients, part.gradients);
        }
        let TrainOptions { decay, clip, .. } = options;
        let step = Step { rate, decay, clip, number };
        let parameters = &mut self.drafter.base.parameters;
        report.norm = timed(&mut report.profile.optimiser, || parameters.step(&gradients, options.accumulate, step))?;
        self.reached.steps += 1;
        Ok(report)
    }

    /// What a part of a step gives.
    fn part(&self, batch: &Batch, done: f32) -> Result<Part, TrainError> {
        let mut profile = Profile::default();
        let (loss, says) = self.drafter.loss(batch, done, &mut profile)?;
        let tau = held_out::rounds(&says, &[], &batch.targets(), batch.shape).tau() as f32;
        let gradients = timed(&mut profile.backward, || self.drafter.base.parameters.gradients(&loss.backward()?))?;
        Ok(Part { loss: loss.to_scalar()?, tau, rows: says.len(), gradients, profile })
    }

    /// The blocks of the texts that come after the first `from` ones, over all passes.
    fn batch(&mut self, from: usize, profile: &mut Profile) -> Result<Batch, TrainError> {
        let mut batch = Batch::new(self.drafter.layout());
        for at in from..from + self.options.batch {
            let text = self.text_at(at);
            let text = &self.texts[text];
            let features = timed(&mut profile.features, || self.store.of(text))?;
            let mut chance = chance(self.options.seed, Purpose::Anchors, at as u64);
            let anchors = anchors(text, self.options.anchors, Some(&mut chance));
            let vocabulary = &self.drafter.base.vocabulary;
            timed(&mut profile.batch, || batch.add(text, &features, vocabulary, anchors))?;
        }
        Ok(batch)
    }

    /// Which text is number `at` over all passes: every pass has an order of its own.
    fn text_at(&mut self, at: usize) -> usize {
        let count = self.texts.len();
        let (pass, within) = ((at / count) as u64, at % count);
        if self.order.0 != pass {
            let mut order: Vec<usize> = (0..count).collect();
            order.shuffle(&mut chance(self.options.seed, Purpose::Order, pass));
            self.order = (pass, order);
        }
        self.order.1[within]
    }

    /// What the drafter says of the texts that it does not learn from; `None`: there are none.
    ///
    /// # Errors
    /// As [`Trainer::step`].
    pub fn evaluate(&mut self) -> Result<Option<HeldOut>, TrainError> {
        held_out::evaluate(&self.drafter, &mut self.store, &self.held_out)
    }

    /// Writes the checkpoint at `path`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), TrainError> {
        let reached = Reached { steps: self.reached.steps, seconds: self.seconds() };
        checkpoint::write(path, &self.drafter, reached)
    }

    /// Writes the drafter as it is to a directory.
    ///
    /// # Errors
    /// When its files cannot be written.
    pub fn export(&self, dir: &Path, about: &About) -> Result<(), TrainError> {
        self.drafter.export(dir, about)
    }
}

/// Grows with the first steps, and falls as half a cosine.
fn learning_rate(options: TrainOptions, done: f32) -> f32 {
    // The first step, of which nothing is done, has to move too.
    let warm = ((done + 1e-3) / options.warm_up.max(1e-3)).min(1.0);
    let cosine = 0.5 + 0.5 * (std::f32::consts::PI * done).cos();
    options.rate * warm * (LAST_RATE + (1.0 - LAST_RATE) * cosine)
}

/// Adds the seconds that something takes to a sum.
pub(crate) fn timed<T>(sum: &mut f64, what: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let result = what();
    *sum += began.elapsed().as_secs_f64();
    result
}
