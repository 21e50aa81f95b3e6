//! `foretoken train`: hands everything to the trainer, a program of its own, so that what gradients need is no part of this one.

use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

/// The trainer, which lies beside this program.
const TRAINER: &str = "foretoken-train";

/// What the trainer runs fastest with (docs/performance.md), where the user has not set it: parts of a step run side by side,
/// each in one thread, and memory that a step gives back is kept for the next.
const SETTINGS: &[(&str, &str)] = &[
    ("RAYON_NUM_THREADS", "1"),
    ("MALLOC_MMAP_THRESHOLD_", "33554432"),
    ("MALLOC_TRIM_THRESHOLD_", "4000000000"),
    ("MALLOC_TOP_PAD_", "67108864"),
];

/// All arguments are the trainer's.
#[derive(Debug, Args)]
#[command(disable_help_flag = true, disable_version_flag = true)]
pub(crate) struct TrainArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Runs the trainer, and ends as it ends.
///
/// # Errors
/// When it is not there, or fails; it has said why.
pub(crate) fn run(args: &TrainArgs) -> Result<()> {
    let trainer = trainer()?;
    let unset = SETTINGS.iter().filter(|(name, _)| env::var_os(name).is_none()).copied();
    match Command::new(&trainer).args(&args.arguments).envs(unset).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => std::process::exit(status.code().unwrap_or(1)),
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(
            "the trainer is a program of its own, and not at '{}': build it with `cargo build --release -p train`, or \
             install it with `cargo install --path crates/train`",
            trainer.display()
        ),
        Err(error) => Err(error).with_context(|| format!("cannot run '{}'", trainer.display())),
    }
}

fn trainer() -> Result<PathBuf> {
    let own = env::current_exe().context("cannot tell where this program is")?;
    Ok(own.with_file_name(format!("{TRAINER}{}", env::consts::EXE_SUFFIX)))
}
