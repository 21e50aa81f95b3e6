//! `foretoken train`: the command line around the library.
//!
//! This room turns arguments into a target, texts and a training, and shows how that goes. What is learned, and how, may not
//! enter.

mod card;
mod prepare;
mod show;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, ValueEnum};
use cli::load::{Loaded, ModelArgs, locate, open};
use cli::machine;
use train::{About, DrafterShape, Keeping, Length, Method, RunningTarget, TargetWeights, TrainOptions, Trainer};

use show::Shown;

/// Train a drafter for a model, from texts that the model itself writes
///
/// The drafter is written to --out again and again while it learns, and is there to be tried: foretoken run --draft DIR.
#[derive(Debug, Parser)]
#[command(name = "foretoken-train", bin_name = "foretoken train", version, max_term_width = 100)]
struct TrainArgs {
    /// The model to draft for: a Hugging Face repository, a directory, a .gguf file or pip:PACKAGE
    /// [default: SmolLM2-135M-Instruct]
    #[arg(long, value_name = "MODEL")]
    target: Option<String>,
    /// Threads to compute with [default: all cores]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Directory for the drafter; texts, features and checkpoints go to its folder `work`. A run that was interrupted goes on
    /// where it was
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Everything random follows from it
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    texts: prepare::TextArgs,
    #[command(flatten)]
    drafter: DrafterArgs,
    #[command(flatten)]
    training: TrainingArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum MethodArg {
    /// A block of drafts in one forward, each corrected by the one before, with confidences
    Dspark,
    /// A block of drafts in one forward
    Dflash,
    /// One draft after the other, from features of the target
    Eagle3,
    /// One draft after the other, by a layer behind the target's last
    Mtp,
    /// A head for each draft
    Medusa,
}

impl MethodArg {
    fn method(self) -> Method {
        match self {
            MethodArg::Dspark => Method::Dspark,
            MethodArg::Dflash => Method::Dflash,
            MethodArg::Eagle3 => Method::Eagle3,
            MethodArg::Mtp => Method::Mtp,
            MethodArg::Medusa => Method::Medusa,
        }
    }
}

/// What to train.
#[derive(Debug, Args)]
#[command(next_help_heading = "Drafter")]
struct DrafterArgs {
    /// How it drafts
    #[arg(long, value_name = "METHOD", value_enum, default_value_t = MethodArg::Dspark)]
    method: MethodArg,
    /// Layers that it has [default: 2 of a block drafter; eagle3 and mtp have 1, medusa has none]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(..=64))]
    layers: Option<u8>,
    /// Layers of the target that its own begin as, one for each, from 0 [default: spread over the target's later half]
    #[arg(long, value_name = "LAYERS", value_delimiter = ',')]
    init_layers: Vec<usize>,
    /// Drafts of a round
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u8).range(2..=63))]
    block: u8,
    /// dspark: rank of the head that makes a draft depend on the one before
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    markov_rank: u16,
    /// Tokens that it knows, the most frequent ones of the texts [default: all of the target's]. mtp and medusa learn from
    /// these only, which is faster, and draft all
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    draft_vocab: Option<u32>,
    /// Layers of the target whose outputs it reads, from 0 [default: five, from the second to the third last; three for
    /// eagle3; mtp and medusa read the last hidden state]
    #[arg(long, value_name = "LAYERS", value_delimiter = ',')]
    taps: Vec<usize>,
    /// The token that stands for what is to be drafted [default: a control token that the target hardly uses]
    #[arg(long, value_name = "ID")]
    mask_token: Option<u32>,
}

/// How to train.
#[derive(Debug, Args)]
#[command(next_help_heading = "Training")]
struct TrainingArgs {
    /// How long, in hours, those of earlier runs of this training included
    #[arg(long, value_name = "HOURS", conflicts_with = "steps", default_value_t = 4.0)]
    hours: f64,
    /// How long, in steps
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Texts of a batch
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    batch: u16,
    /// Blocks of a text in a step, at most
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    anchors: u16,
    /// Batches whose gradients make one step; they run side by side, as many as there are threads
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    accumulate: u16,
    /// The greatest learning rate
    #[arg(long, value_name = "RATE", default_value_t = 1e-3)]
    learning_rate: f32,
    /// The share of the training in which the learning rate grows to that; then it falls as a cosine
    #[arg(long, value_name = "SHARE", default_value_t = 0.03)]
    warm_up: f32,
    /// Weight decay
    #[arg(long, value_name = "DECAY", default_value_t = 0.01)]
    weight_decay: f32,
    /// The greatest norm of a step's gradients
    #[arg(long, value_name = "NORM", default_value_t = 1.0)]
    clip: f32,
    /// Texts that are looked at, at most, of the twentieth that is never learned from
    #[arg(long, value_name = "N", default_value_t = 48)]
    held_out: u16,
    /// Steps from one look at them to the next
    #[arg(long, value_name = "STEPS", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    evaluate_every: u32,
    /// Minutes from one checkpoint to the next
    #[arg(long, value_name = "MINUTES", default_value_t = 5.0)]
    checkpoint_every: f64,
    /// What the target says of texts is kept in so many GiB of files; beyond that it is computed again each time
    #[arg(long, value_name = "GIB", default_value_t = 4.0)]
    feature_cache: f64,
}

fn main() -> ExitCode {
    match run(&TrainArgs::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &TrainArgs) -> Result<()> {
    let options = args.training.options(args.seed)?;
    let threads = args.threads.or(NonZeroUsize::new(machine::cores())).unwrap_or(NonZeroUsize::MIN);
    let load = || ModelArgs::new(args.target.clone(), threads).load(true);
    rayon::ThreadPoolBuilder::new().num_threads(threads.get()).build_global().context("cannot start threads")?;
    let work = args.out.join("work");
    std::fs::create_dir_all(&work).with_context(|| format!("cannot make the directory '{}'", work.display()))?;
    let loaded = load()?;
    let shape = args.drafter.shape(&loaded)?;
    shape.check(loaded.model.config())?;
    let name = loaded.name.clone();
    // The engine that writes texts takes the threads with it.
    let texts = prepare::texts(&args.texts, args.seed, &work, loaded)?;
    if args.texts.texts_only {
        return Ok(());
    }
    let loaded = load()?;
    let (weights, config, ..) = open(&locate(args.target.as_deref())?.kind, false)?;
    let weights = TargetWeights { weights: &weights, config: &config };
    let read = if shape.taps.is_empty() { "final".into() } else { written(&shape.taps, "-") };
    let features = work.join(format!("features-{read}"));
    let bytes = (args.training.feature_cache.max(0.0) * f64::from(1 << 30)) as u64;
    let checkpoint = work.join("checkpoint.safetensors");
    let held_out = args.training.held_out.into();
    let keeping = Keeping { features: &features, bytes, held_out, checkpoint: &checkpoint };
    let target = RunningTarget { model: loaded.model, pool: loaded.pool, isa: loaded.isa };
    let draft_vocab = args.drafter.draft_vocab.map(|size| size as usize);
    let mut trainer = train::begin(target, &weights, texts, (shape.clone(), draft_vocab), options, keeping)?;
    train(args, &mut trainer, &shape, &name, &checkpoint)
}

/// Steps until the end, with looks at the texts that are held out, checkpoints and exports in between.
fn train(args: &TrainArgs, trainer: &mut Trainer, shape: &DrafterShape, target: &str, checkpoint: &Path) -> Result<()> {
    let pause = Duration::try_from_secs_f64(args.training.checkpoint_every * 60.0).context("--checkpoint-every")?;
    let every = u64::from(args.training.evaluate_every);
    let mut shown = Shown::begin(&args.out.join("work").join("log.jsonl"), trainer)?;
    let mut saved = Instant::now();
    let keep = |trainer: &Trainer, shown: &Shown| -> Result<()> {
        trainer.save(checkpoint)?;
        let card = card::card(args, shape, target, trainer, shown.held_out());
        Ok(trainer.export(&args.out, &About { target: target.to_owned(), card })?)
    };
    if shown.held_out().is_none() {
        shown.evaluated(trainer)?;
    }
    while trainer.done() < 1.0 {
        let report = trainer.step()?;
        shown.step(trainer, &report)?;
        if trainer.steps().is_multiple_of(every) || trainer.done() >= 1.0 {
            shown.evaluated(trainer)?;
        }
        if saved.elapsed() >= pause {
            keep(trainer, &shown)?;
            saved = Instant::now();
        }
    }
    keep(trainer, &shown)?;
    shown.end(&args.out);
    Ok(())
}

impl DrafterArgs {
    fn shape(&self, loaded: &Loaded) -> Result<DrafterShape> {
        let (config, method) = (loaded.model.config(), self.method.method());
        let usual = 2.clamp(*method.layers().start(), *method.layers().end());
        let count = self.layers.map_or(usual, usize::from);
        let layers = match self.init_layers.len() {
            0 => spread(count, 0.4 * config.layers as f64, 0.8 * config.layers as f64),
            given if given == count => self.init_layers.clone(),
            given => bail!("--init-layers names {given} layers, and the drafter has {count}"),
        };
        if !method.reads_taps() && !self.taps.is_empty() {
            bail!("--taps: {} reads the target's last hidden state, and no layers", method.name());
        }
        let mut taps = match (method, self.taps.is_empty()) {
            (_, false) => self.taps.clone(),
            (Method::Eagle3, true) => {
                [1, (config.layers / 2).saturating_sub(1), config.layers.saturating_sub(4)].into()
            }
            (_, true) if method.reads_taps() => spread(5, 1.0, config.layers.saturating_sub(3).max(1) as f64),
            _ => Vec::new(),
        };
        taps.sort_unstable();
        taps.dedup();
        let tokenizer = &loaded.tokenizer;
        let unused =
            |id: &u32| tokenizer.is_special(*id) && !tokenizer.eos().contains(id) && tokenizer.bos() != Some(*id);
        let mask = self.mask_token.or_else(|| (0..config.vocab as u32).rev().find(unused)).unwrap_or(0);
        if mask as usize >= config.vocab {
            bail!("--mask-token is {mask}, and the target has {} tokens", config.vocab);
        }
        Ok(DrafterShape { method, layers, drafts: self.block.into(), rank: self.markov_rank.into(), mask, taps })
    }
}

/// So many layers from the `first` to the `last`, evenly.
fn spread(count: usize, first: f64, last: f64) -> Vec<usize> {
    let step = (last - first) / count.saturating_sub(1).max(1) as f64;
    let from = if count == 1 { last } else { first };
    (0..count).map(|at| (from + at as f64 * step).round() as usize).collect()
}

/// Numbers with something between them.
fn written(numbers: &[usize], between: &str) -> String {
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(between)
}

impl TrainingArgs {
    fn options(&self, seed: u64) -> Result<TrainOptions> {
        let positive = |name: &str, value: f64| match value.is_finite() && value > 0.0 {
            true => Ok(()),
            false => bail!("{name} is {value}, and must be above 0"),
        };
        positive("--hours", self.hours)?;
        positive("--learning-rate", self.learning_rate.into())?;
        positive("--clip", self.clip.into())?;
        if !(0.0..1.0).contains(&self.warm_up) || !(0.0..1.0).contains(&self.weight_decay) {
            bail!("--warm-up and --weight-decay must be at least 0 and below 1");
        }
        let time = Duration::try_from_secs_f64(self.hours * 3600.0).context("--hours")?;
        Ok(TrainOptions {
            length: self.steps.map_or(Length::Time(time), Length::Steps),
            batch: self.batch.into(),
            anchors: self.anchors.into(),
            accumulate: self.accumulate.into(),
            rate: self.learning_rate,
            warm_up: self.warm_up,
            decay: self.weight_decay,
            clip: self.clip,
            seed,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_well_formed() {
        TrainArgs::command().debug_assert();
    }

    #[test]
    fn layers_are_spread_evenly() {
        assert_eq!(spread(2, 12.0, 24.0), [12, 24]);
        assert_eq!(spread(1, 12.0, 24.0), [24]);
        assert_eq!(spread(5, 1.0, 27.0), [1, 8, 14, 21, 27]);
    }
}
