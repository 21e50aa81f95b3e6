//! What every subcommand that runs a model shares: its options, and the way from a name to a loaded model.

use std::num::NonZeroUsize;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use kernels::{Compute, Isa, KvFormat, Pool};
use model::chat::ChatTemplate;
use model::config::Config;
use model::gguf::Gguf;
use model::source::{self, Kind, Located};
use model::tokenizer::Tokenizer;
use model::weights::Weights;
use model::{LoadOptions, Model};

use crate::machine;
use crate::progress::Bar;

/// Which model to run, and on what.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// A Hugging Face repository, a directory, a .gguf file or pip:PACKAGE [default: SmolLM2-135M-Instruct]
    #[arg(long, short, value_name = "MODEL")]
    model: Option<String>,
    /// Threads to compute with [default: all cores]
    #[arg(long, short, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Instruction set: portable, avx2 or avx512 [default: the best that this machine has]
    #[arg(long, value_name = "SET")]
    isa: Option<Isa>,
    /// Multiply quantised weights as they are, or decoded to f32 (slow; to compare with other programs)
    #[arg(long, value_name = "MODE", value_enum, default_value_t = ComputeMode::Quantised)]
    compute: ComputeMode,
    /// Number format of keys and values in memory
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = KvMode::F16)]
    kv_format: KvMode,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ComputeMode {
    Quantised,
    F32,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum KvMode {
    F16,
    F32,
}

/// A model ready to run.
pub struct Loaded {
    /// What it is called.
    pub name: String,
    /// Size of its weight files.
    pub bytes_on_disk: u64,
    /// Shared, so that several engines can run it.
    pub model: Arc<Model>,
    /// Its text.
    pub tokenizer: Tokenizer,
    /// `None` where the model has none, or it was not asked for.
    pub template: Option<ChatTemplate>,
    /// The threads that it runs on.
    pub pool: Pool,
    /// The instruction set that it was packed for.
    pub isa: Isa,
    /// How its quantised weights are multiplied.
    pub compute: Compute,
    /// Number format of its keys and values.
    pub kv_format: KvFormat,
}

impl ModelArgs {
    /// A model with default settings, for who chooses threads in another way.
    pub fn new(model: Option<String>, threads: NonZeroUsize) -> Self {
        let (compute, kv_format) = (ComputeMode::Quantised, KvMode::F16);
        Self { model, threads: Some(threads), isa: None, compute, kv_format }
    }

    /// The model that was asked for by name.
    pub fn name(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// Finds or fetches the model and loads it. `with_template` says whether a chat template will be needed: a broken
    /// one must not stop a use that does without.
    ///
    /// # Errors
    /// When the model cannot be had, read or run here.
    pub fn load(&self, with_template: bool) -> Result<Loaded> {
        let isa = self.isa()?;
        let threads = self.threads.or(NonZeroUsize::new(machine::cores())).unwrap_or(NonZeroUsize::MIN);
        let compute = match self.compute {
            ComputeMode::Quantised => Compute::Stored,
            ComputeMode::F32 => Compute::F32,
        };
        let kv_format = match self.kv_format {
            KvMode::F16 => KvFormat::F16,
            KvMode::F32 => KvFormat::F32,
        };
        let Located { kind, name } = locate(self.model.as_deref())?;
        let pool = Pool::new(threads);
        let context = || format!("cannot load {name}");
        let (weights, config, tokenizer, template) = open(&kind, with_template).with_context(context)?;
        tokenizer.check_vocab(config.vocab).with_context(context)?;
        let model = Model::load(&weights, config, &pool, LoadOptions { isa, compute, quantise: false })
            .with_context(context)?;
        let bytes_on_disk = weights.bytes_on_disk();
        let model = Arc::new(model);
        Ok(Loaded { name, bytes_on_disk, model, tokenizer, template, pool, isa, compute, kv_format })
    }

    fn isa(&self) -> Result<Isa> {
        match self.isa {
            Some(isa) if !isa.runs_here() => {
                let available: Vec<String> = Isa::available().iter().map(Isa::to_string).collect();
                bail!("--isa {isa} does not run on this machine; it has {}", available.join(", "))
            }
            Some(isa) => Ok(isa),
            None => Ok(Isa::detect()),
        }
    }
}

/// Finds or fetches the model of that name, or the default one, with a progress bar on stderr.
///
/// # Errors
/// When the name names nothing, or the model cannot be fetched.
pub fn locate(model: Option<&str>) -> Result<Located> {
    let progress = Bar::new();
    Ok(match model {
        Some(name) => source::locate(&name.parse()?, &progress)?,
        None => source::locate_default(&progress, &|notice| eprintln!("{notice}"))?,
    })
}

/// The tokenizer of the model of that name, or of the default one.
///
/// # Errors
/// When the name names nothing, or the model cannot be fetched or has no tokenizer that can be read.
pub fn tokenizer(model: Option<&str>) -> Result<Tokenizer> {
    let Located { kind, name } = locate(model)?;
    let tokenizer = match &kind {
        Kind::Directory(dir) => Tokenizer::from_dir(dir)?,
        Kind::Gguf(path) => {
            let mut gguf = Gguf::open(path).with_context(|| format!("cannot read {name}"))?;
            Tokenizer::from_gguf(&gguf.take_metadata())?
        }
    };
    Ok(tokenizer)
}

/// Maps a model's files and reads what they say; its chat template only where one is asked for.
///
/// # Errors
/// When a file is missing, broken or not supported.
pub fn open(kind: &Kind, with_template: bool) -> Result<(Weights, Config, Tokenizer, Option<ChatTemplate>)> {
    match kind {
        Kind::Directory(dir) => {
            let config = Config::from_dir(dir)?;
            let tokenizer = Tokenizer::from_dir(dir)?;
            let template = if with_template { ChatTemplate::from_dir(dir)? } else { None };
            Ok((Weights::open_dir(dir)?, config, tokenizer, template))
        }
        Kind::Gguf(path) => {
            let mut gguf = Gguf::open(path)?;
            let config = Config::from_gguf(&gguf)?;
            let metadata = gguf.take_metadata();
            let tokenizer = Tokenizer::from_gguf(&metadata)?;
            let template = if with_template { ChatTemplate::from_gguf(&metadata, &tokenizer)? } else { None };
            Ok((Weights::from_gguf(gguf), config, tokenizer, template))
        }
    }
}
