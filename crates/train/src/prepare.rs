//! The texts of a run: those that were written before, and the others as soon as the target has written them.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use cli::load::Loaded;
use cli::progress;
use cli::prompts::{self, Encoder};
use engine::batch::{Service, ServiceOptions};
use train::texts::{Asked, Origin, Text, TextFile, TextSettings, TextWriter};

/// What to learn from.
#[derive(Debug, Args)]
#[command(next_help_heading = "Texts")]
pub(crate) struct TextArgs {
    /// Prompts, one JSON object a line, of which the first user message is used: {"prompt": TEXT}, {"turns": [TEXT]} or
    /// {"messages": [...]}
    #[arg(long, value_name = "FILE")]
    pub(crate) prompts: Option<PathBuf>,
    /// Prompts that the target invents
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) self_prompts: u32,
    /// Tokens of an answer at most
    #[arg(long, value_name = "N", default_value_t = 384, value_parser = clap::value_parser!(u32).range(1..))]
    answer_tokens: u32,
    /// Answers that are written at once
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=1024))]
    at_once: u32,
    /// Write the texts, and stop
    #[arg(long)]
    pub(crate) texts_only: bool,
}

/// All texts of the run.
///
/// # Errors
/// When the prompts cannot be read or asked, or the file of texts cannot be used.
pub(crate) fn texts(args: &TextArgs, seed: u64, work: &Path, loaded: Loaded) -> Result<Vec<Text>> {
    let answer_tokens = args.answer_tokens as usize;
    let settings = TextSettings { target: loaded.name.clone(), seed, answer_tokens };
    let path = work.join("texts.jsonl");
    let (mut file, mut texts) = TextFile::open(&path, &settings)?;
    let asked = asked(args, &loaded)?;
    let wanted: HashSet<(Origin, u32)> = asked.iter().map(Asked::key).collect();
    let done: HashSet<(Origin, u32)> = texts.iter().map(Text::key).collect();
    let left = wanted.difference(&done).count();
    if left > 0 {
        let Loaded { model, tokenizer, template, pool, kv_format, .. } = loaded;
        let at_once = args.at_once as usize;
        let options = ServiceOptions { kv_format, max_running: at_once, ..ServiceOptions::default() };
        let service = Service::start(model, tokenizer.clone(), pool, options, None);
        let (handle, template) = (&service.handle(), template.as_ref());
        let writer = TextWriter { handle, tokenizer: &tokenizer, template, settings: &settings, at_once };
        eprintln!("the target writes {left} texts; {} are there", wanted.len() - left);
        let bar = progress::steps("texts", left as u64);
        writer.write(asked, &done, &mut file, |_| bar.inc(1))?;
        bar.finish_and_clear();
        (_, texts) = TextFile::open(&path, &settings)?;
    }
    texts.retain(|text| wanted.contains(&text.key()));
    Ok(texts)
}

/// What is asked: the prompts of the file and those that the target invents, mixed evenly, so that the first texts are like
/// the last.
fn asked(args: &TextArgs, loaded: &Loaded) -> Result<Vec<Asked>> {
    let mut asked: Vec<(f64, Asked)> = Vec::new();
    if let Some(path) = &args.prompts {
        let encoder = Encoder { tokenizer: &loaded.tokenizer, template: loaded.template.as_ref() };
        let lines = prompts::read(path)?;
        let context = loaded.model.config().context;
        for (number, line) in lines.iter().enumerate() {
            let place = || format!("line {} of '{}' cannot be asked", line.number, path.display());
            let tokens = encoder.encode(&line.content).with_context(place)?;
            if tokens.len() < context {
                let share = (number as f64 + 0.5) / lines.len() as f64;
                asked.push((share, Asked::Prompt { number: number as u32, tokens }));
            }
        }
    }
    for number in 0..args.self_prompts {
        asked.push(((f64::from(number) + 0.5) / f64::from(args.self_prompts), Asked::Own { number }));
    }
    if asked.is_empty() {
        bail!("there is nothing to learn from: give --prompts FILE, --self-prompts N, or both");
    }
    asked.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(asked.into_iter().map(|(_, asked)| asked).collect())
}
