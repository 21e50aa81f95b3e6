//! `foretoken bench draft`: what a learned drafter of a shape would cost beside a model, before anybody trains one.
//!
//! Drafters with random weights draft for the real model, which they do as fast as trained ones. What they say is nonsense,
//! and what share of it would stand is no question here.

mod make;

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use draft::{Ask, Choose, Chosen, Computed, Drafter, Greedy, Key, Round, Target, Unread, Words};
use kernels::PAGE;
use kv::{KvCache, Sequence};
use model::{LoadOptions, Logits, Segment, Tap, Visibility, Workspace};
use serde_json::{Value, json};
use spec::Expansion;

use self::make::{Kind, Shape};
use crate::report::Report;
use crate::stats::Samples;
use cli::load::{Loaded, ModelArgs};
use cli::progress;

/// Rows of a forward that reads the context.
const ROWS: usize = 128;

#[derive(Debug, Args)]
pub(crate) struct DraftArgs {
    /// Families of drafters
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',', default_values_t = [Kind::Dspark, Kind::Dflash, Kind::Eagle3])]
    kinds: Vec<Kind>,
    /// Drafts of a round
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [2, 4, 8, 16], value_parser = clap::value_parser!(u16).range(2..=64))]
    drafts: Vec<u16>,
    /// Layers of block drafters
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [2], value_parser = clap::value_parser!(u16).range(1..=64))]
    layers: Vec<u16>,
    /// Rank of the head by which a draft depends on the one before
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    rank: u16,
    /// Hidden states of the model that are read
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=64))]
    taps: u16,
    /// Tokens that the drafters' own heads know; without it they have the model's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    draft_vocab: Option<u32>,
    /// Turn the drafters' weights into 8-bit ones
    #[arg(long)]
    q8: bool,
    /// Tokens before the drafts
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(2..))]
    context: u16,
    /// Times that each is measured, all in turns
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u16).range(1..))]
    passes: u16,
    /// Write all results to a file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
}

/// A drafter that has read the context.
struct Contestant {
    shape: Shape,
    drafter: Box<dyn Drafter>,
    cache: KvCache,
    sequence: Sequence,
    workspace: Workspace,
    /// Seconds of a forward of the target over one row, of taking it in, and of a round of drafts.
    step: Samples,
    read: Samples,
    round: Samples,
}

/// Takes the likeliest token and holds it for certain, so that a round says all its drafts.
struct Sure;

impl Choose for Sure {
    fn choose(&self, drafts: &[u32], logits: &[f32]) -> Option<Chosen> {
        Greedy.choose(drafts, logits)
    }

    fn choices(&self, _: &[u32], words: Words<'_>, most: usize) -> Expansion {
        let mut choices = words.likeliest(most);
        choices.iter_mut().take(1).for_each(|(_, p)| *p = 1.0);
        choices
    }

    fn draws(&self) -> bool {
        false
    }
}

/// Measures, and prints what each shape costs.
///
/// # Errors
/// When the model cannot be had, or a drafter not be written or run.
pub(crate) fn run(args: &DraftArgs) -> Result<()> {
    let mut report = Report::new("draft");
    let loaded = args.model.load(false)?;
    let tokens: Vec<u32> = (0..u32::from(args.context)).map(|at| at * 7 % loaded.model.config().vocab as u32).collect();
    let mut contestants = args.contestants(&loaded, &tokens)?;
    let bar = progress::steps("rounds", u64::from(args.passes) * contestants.len() as u64);
    // Once more than counts: the first has the buffers to grow.
    for pass in 0..=args.passes {
        for contestant in &mut contestants {
            contestant.measure(&loaded, &tokens, pass > 0)?;
            bar.inc(u64::from(pass > 0));
        }
    }
    bar.finish_and_clear();
    report.set("model", loaded.name.as_str());
    report.set("threads", loaded.pool.threads());
    report.set("context", args.context);
    report.set("rank", args.rank);
    report.set("taps", args.taps);
    report.set("draft_vocab", args.draft_vocab);
    report.set("q8", args.q8);
    report.set("drafters", contestants.iter().map(Contestant::to_json).collect::<Value>());
    report.write(args.json.as_deref())?;
    print(&mut io::stdout().lock(), args, &loaded, &contestants)
}

impl DraftArgs {
    fn contestants(&self, loaded: &Loaded, tokens: &[u32]) -> Result<Vec<Contestant>> {
        let mut all = Vec::new();
        for &kind in &self.kinds {
            let layers = if kind == Kind::Eagle3 { &[1][..] } else { &self.layers };
            for (&layers, &drafts) in
                layers.iter().flat_map(|layers| self.drafts.iter().map(move |drafts| (layers, drafts)))
            {
                let [layers, drafts, rank, taps] = [layers, drafts, self.rank, self.taps].map(usize::from);
                let known = self.draft_vocab.map(|known| (known as usize).min(loaded.model.config().vocab));
                all.push(Contestant::new(Shape { kind, layers, drafts, rank, taps, known }, self.q8, loaded, tokens)?);
            }
        }
        Ok(all)
    }
}

impl Contestant {
    fn new(shape: Shape, q8: bool, loaded: &Loaded, tokens: &[u32]) -> Result<Self> {
        let Loaded { model, pool, isa, compute, kv_format, .. } = loaded;
        let dir = tempfile::tempdir()?;
        shape.write(dir.path(), model.config())?;
        let target = Target { model, vocab: model.config().vocab, kv_format: *kv_format };
        let options = LoadOptions { isa: *isa, compute: *compute, quantise: q8 };
        let mut drafter = draft::load_learned(dir.path(), target, pool, options)?;
        let room = tokens.len() + drafter.slots_ahead();
        let mut cache = KvCache::new(model.kv_layout(*kv_format), room.div_ceil(PAGE));
        drafter.attach(&mut cache);
        let mut sequence = Sequence::new();
        cache.reserve(&mut sequence, room)?;
        let (workspace, [step, read, round]) = (Workspace::new(), [(); 3].map(|()| Samples::default()));
        let mut contestant = Self { shape, drafter, cache, sequence, workspace, step, read, round };
        let before = tokens.len() - 1;
        for start in (0..before).step_by(ROWS) {
            contestant.compute(loaded, start, &tokens[start..before.min(start + ROWS)])?;
        }
        Ok(contestant)
    }

    /// Has the target compute rows and the drafter take them in. Answers the seconds of each.
    fn compute(&mut self, loaded: &Loaded, start: usize, tokens: &[u32]) -> Result<[f64; 2]> {
        let Self { drafter, cache, sequence, workspace, .. } = self;
        let (visibility, logits) = (Visibility::Causal, Logits::Last);
        let batch = [Segment { sequence, start, tokens, visibility, logits }];
        let wanted = drafter.taps();
        let begin = Instant::now();
        let output = loaded.model.forward(workspace, &loaded.pool, cache, &batch, &wanted)?;
        let step = begin.elapsed().as_secs_f64();
        let taps: Vec<(Tap, &[f32])> = wanted.iter().copied().zip(output.taps.iter().map(Vec::as_slice)).collect();
        let begin = Instant::now();
        drafter.computed(&mut Computed { pool: &loaded.pool, cache, taps: &taps, batch: &batch })?;
        Ok([step, begin.elapsed().as_secs_f64()])
    }

    /// One step of the target and one round of drafts, noted where it `counts`.
    fn measure(&mut self, loaded: &Loaded, tokens: &[u32], counts: bool) -> Result<()> {
        let before = tokens.len() - 1;
        let [step, read] = self.compute(loaded, before, &tokens[before..])?;
        // Rows are so dear that nobody drafts trees.
        let mut round = Round {
            pool: &loaded.pool,
            cache: &mut self.cache,
            step_seconds: 1.0,
            row_seconds: 1.0,
            checks_all: false,
            unread: &mut Unread::default(),
        };
        let ask = Ask {
            key: Key { request: 0, choice: 0 },
            tokens,
            prompt: before,
            predicted: &[],
            max_drafts: self.shape.drafts,
            remaining: usize::MAX,
            choose: &Sure,
            sequence: &self.sequence,
        };
        let begin = Instant::now();
        self.drafter.propose(&mut round, &[ask])?;
        let seconds = begin.elapsed().as_secs_f64();
        if counts {
            self.step.push(step);
            self.read.push(read);
            self.round.push(seconds);
        }
        Ok(())
    }

    fn to_json(&self) -> Value {
        let Shape { layers, drafts, .. } = self.shape;
        json!({
            "drafter": self.drafter.name(), "layers": layers, "drafts": drafts,
            "round": self.round.to_json(), "read_a_row": self.read.to_json(), "target_step": self.step.to_json(),
        })
    }
}

fn print(out: &mut impl Write, args: &DraftArgs, loaded: &Loaded, contestants: &[Contestant]) -> Result<()> {
    let width = if args.q8 { "8-bit" } else { "f32" };
    writeln!(
        out,
        "{}: drafters with random {width} weights after {} tokens; medians of {} rounds in turns",
        loaded.name, args.context, args.passes
    )?;
    writeln!(out, "drafter  layers  drafts  round, ms  by a step  a draft by a step  a row read by a step")?;
    for Contestant { shape, drafter, step, read, round, .. } in contestants {
        let by_step = |seconds: f64| seconds / step.median();
        writeln!(
            out,
            "{:<7}  {:>6}  {:>6}  {:>9.2}  {:>9.2}  {:>17.3}  {:>20.3}",
            drafter.name(),
            shape.layers,
            shape.drafts,
            round.median() * 1e3,
            by_step(round.median()),
            by_step(round.median()) / shape.drafts as f64,
            by_step(read.median()),
        )?;
    }
    Ok(writeln!(out, "a step: the model's forward of one row, {:.2} ms", contestants[0].step.median() * 1e3)?)
}
