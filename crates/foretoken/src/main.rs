//! The command line: one file for each subcommand, and what they share.
//!
//! This room turns arguments into calls of the libraries, and results into text or JSON. What a token is, how a model is
//! read or how a step runs may not enter.

mod answer;
mod audit;
mod bench;
mod calibrate;
mod cost_cache;
mod datastore;
mod draft;
mod draft_model;
mod models;
mod plan;
mod prompt;
mod report;
mod run;
mod sampling;
mod serve;
mod shipped;
mod stats;
mod tally;
mod train;

use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// LLM inference with lossless speculative decoding.
#[derive(Parser)]
#[command(name = "foretoken", version, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Answer a prompt, or chat when there is none and the terminal is yours
    Run(Box<run::RunArgs>),
    /// Serve a model to many clients at once, with OpenAI's API over HTTP
    Serve(Box<serve::ServeArgs>),
    /// List the models on this machine, or fetch one
    Models(models::ModelsArgs),
    /// Make a file of texts that drafts can be retrieved from, or look into one
    Datastore(datastore::DatastoreArgs),
    /// Make the confidences of a trained drafter true, by answers of the model
    Calibrate(calibrate::CalibrateArgs),
    /// Work out, before anything runs, what a model's keys and values need and what drafting could earn
    Plan(plan::PlanArgs),
    /// Train a drafter for a model (`foretoken train --help` lists the options)
    Train(train::TrainArgs),
    /// Prove that drafts change no answer: exit code 1 and the first difference if they do
    Audit(audit::AuditArgs),
    /// Measure: every figure printed comes from this run on this machine
    Bench(bench::BenchArgs),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Models(args) => models::run(&args),
        Command::Datastore(args) => datastore::run(&args),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Train(args) => train::run(&args),
        Command::Audit(args) => audit::run(&args),
        Command::Bench(args) => bench::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has seen enough (`foretoken run ... | head`): not an error of ours.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", one_line(&error));
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// The error and its causes, outermost first. A cause that its parent's message already ends with is not said twice.
fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string().replace('\n', " ");
        if line.is_empty() {
            line = text;
        } else if !line.ends_with(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use anyhow::Context;
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn an_error_is_one_line_with_its_causes_once() {
        let cause = || io::Error::new(io::ErrorKind::NotFound, "no such\nfile");
        let error = Err::<(), _>(cause()).context("cannot read 'a.gguf'").unwrap_err();
        assert_eq!(one_line(&error), "cannot read 'a.gguf': no such file");
        let error = Err::<(), _>(cause()).context("cannot read 'a.gguf': no such file").unwrap_err();
        assert_eq!(one_line(&error), "cannot read 'a.gguf': no such file");
    }

    #[test]
    fn a_closed_pipe_is_told_from_other_errors() {
        let pipe = anyhow::Error::from(io::Error::from(io::ErrorKind::BrokenPipe)).context("cannot write");
        assert!(is_broken_pipe(&pipe));
        assert!(!is_broken_pipe(&anyhow::anyhow!("something else")));
    }
}
