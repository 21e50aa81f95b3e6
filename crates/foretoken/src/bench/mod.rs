//! Measurements. Whatever a bench prints it measured in that run; `--json` writes the same to a file.

mod curve;
mod draft;
mod kernels;
mod paging;
mod probes;
pub(crate) mod random;
mod serve;
mod skip;
pub(crate) mod spec;

use anyhow::Result;
use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// The machine's ceilings, and what one forward of N rows costs: the verify cost curve
    Kernels(kernels::KernelsArgs),
    /// What clients of a server see, ours or another with OpenAI's API: throughput, first token, time per token
    Serve(Box<serve::ServeArgs>),
    /// What drafts earn against plain decoding, by drafter and task, for one request at a time and for many
    Spec(Box<spec::SpecArgs>),
    /// What a drafter of a shape would cost beside the model, before anybody trains one
    Draft(draft::DraftArgs),
    /// Which layers the model can skip to draft for itself (--draft skip:LAYERS), and whether that pays
    Skip(Box<skip::SkipArgs>),
}

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    match &args.what {
        What::Kernels(args) => kernels::run(args),
        What::Serve(args) => serve::run(args),
        What::Spec(args) => spec::run(args),
        What::Draft(args) => draft::run(args),
        What::Skip(args) => skip::run(args),
    }
}
