//! How a training goes, for who looks at the terminal and for a file.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};
use train::{HeldOut, StepReport, Trainer};

/// Parts of the bar.
const PARTS: u64 = 1000;
/// What a step weighs in the mean that is shown.
const NEWEST: f32 = 0.05;

/// What is shown.
pub(crate) struct Shown {
    bar: ProgressBar,
    log: File,
    /// Means of the last steps' loss and τ.
    means: Option<[f32; 2]>,
    /// Since when: the rows that were learned from.
    rows: (Instant, usize),
    held_out: Option<HeldOut>,
}

impl Shown {
    /// Begins to show a training, and to note it in a file that may be there already.
    pub(crate) fn begin(log: &Path, trainer: &Trainer) -> Result<Shown> {
        let place = || format!("cannot write '{}'", log.display());
        let log = OpenOptions::new().create(true).append(true).open(log).with_context(place)?;
        let style = ProgressStyle::with_template("{wide_bar} {percent}% {msg}, {eta} to go");
        let bar = ProgressBar::with_draw_target(Some(PARTS), ProgressDrawTarget::stderr());
        let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let [texts, held_out] = trainer.texts();
        eprintln!(
            "{texts} texts to learn from, {held_out} held out; the drafter knows {:.2} % of their tokens; {} steps done before",
            100.0 * trainer.coverage(),
            trainer.steps()
        );
        Ok(Shown { bar, log, means: None, rows: (Instant::now(), 0), held_out: None })
    }

    /// What the last look at the texts that are held out has shown.
    pub(crate) fn held_out(&self) -> Option<&HeldOut> {
        self.held_out.as_ref()
    }

    /// A step was done.
    pub(crate) fn step(&mut self, trainer: &Trainer, report: &StepReport) -> Result<()> {
        let [loss, tau] = self.means.unwrap_or([report.loss, report.tau]);
        let mean = |mean: f32, new: f32| mean + NEWEST * (new - mean);
        let [loss, tau] = [mean(loss, report.loss), mean(tau, report.tau)];
        self.means = Some([loss, tau]);
        self.rows.1 += report.rows;
        let speed = self.rows.1 as f64 / self.rows.0.elapsed().as_secs_f64();
        self.bar.set_position((trainer.done() * PARTS as f64) as u64);
        self.bar.set_message(format!("step {}, loss {loss:.3}, τ {tau:.2}, {speed:.0} rows/s", trainer.steps()));
        let profile = report.profile;
        self.note(json!({
            "step": trainer.steps(), "seconds": trainer.seconds(), "loss": report.loss, "tau": report.tau,
            "norm": report.norm, "rate": report.rate, "rows": report.rows,
            "took": {
                "features": profile.features, "batch": profile.batch, "layers": profile.layers, "head": profile.head,
                "backward": profile.backward, "optimiser": profile.optimiser,
            },
        }))
    }

    /// Looks at the texts that are held out.
    pub(crate) fn evaluated(&mut self, trainer: &mut Trainer) -> Result<()> {
        let Some(held_out) = trainer.evaluate()? else { return Ok(()) };
        let percent = |shares: Vec<f64>| -> String {
            shares.iter().map(|share| format!("{:.0}", 100.0 * share)).collect::<Vec<_>>().join(" ")
        };
        let sure = held_out.confidence_error();
        let sure = sure.map_or(String::new(), |error| format!(", confidence off by {error:.3}"));
        let line = format!(
            "step {}, {:.0} min: held out τ {:.3} at temperature 1 (accepted {} %), {:.3} greedy ({} %){sure}",
            trainer.steps(),
            trainer.seconds() / 60.0,
            held_out.tau(),
            percent(held_out.acceptance()),
            held_out.greedy_tau(),
            percent(held_out.agreement()),
        );
        self.bar.suspend(|| eprintln!("{line}"));
        self.note(json!({
            "step": trainer.steps(), "seconds": trainer.seconds(),
            "held_out": {
                "tau": held_out.tau(), "greedy_tau": held_out.greedy_tau(), "acceptance": held_out.acceptance(),
                "agreement": held_out.agreement(), "confidence_error": held_out.confidence_error(),
            },
        }))?;
        self.held_out = Some(held_out);
        Ok(())
    }

    /// The training has ended.
    pub(crate) fn end(&self, out: &Path) {
        self.bar.finish_and_clear();
        eprintln!("the drafter is in {}", out.display());
    }

    fn note(&mut self, value: Value) -> Result<()> {
        writeln!(self.log, "{value}").context("cannot write the training's log")
    }
}
