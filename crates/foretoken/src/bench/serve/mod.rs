//! `foretoken bench serve`: what clients of a server see, of ours or of any other with OpenAI's API.
//!
//! Tokens are counted by the server's usage and times by this client: nothing is estimated. Whatever is printed, written
//! as JSON or drawn comes from the run itself, or from a run whose JSON is named to be shown beside it.

mod client;
mod drive;
mod intruder;
mod own;
mod page;
mod point;
mod prefix;
mod scenarios;
mod stream;
mod table;
mod words;
mod workload;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tracing::level_filters::LevelFilter;

use self::client::Client;
use self::drive::{Driver, Extent, Load};
use self::own::Own;
use self::page::Run;
use self::point::Point;
use self::scenarios::ScenarioArgs;
use self::words::Words;
use self::workload::{Endpoint, Params, Prompts, Workload};
use crate::report::{self, Report};
use crate::serve::{self, BatchArgs, KEY_VARIABLE, LogFormat};
use cli::load::ModelArgs;

/// Requests of each client of a closed loop, and of an open one, where nothing else is asked for.
const REQUESTS_PER_CLIENT: u64 = 8;
const REQUESTS_OPEN: u64 = 64;

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Measure the server at this address instead of one of our own; --model is then the name to ask for [default: the
    /// first that the server lists]
    #[arg(long, value_name = "URL", conflicts_with_all = ["threads", "isa", "compute", "kv_format", "context",
        "kv_memory", "max_running", "max_waiting", "row_budget", "no_prefix_cache"])]
    url: Option<String>,
    /// Key to send to the server at --url [default: the variable FORETOKEN_API_KEY]
    #[arg(long, value_name = "KEY", requires = "url")]
    api_key: Option<String>,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    requests: RequestArgs,
    #[command(flatten)]
    scenarios: ScenarioArgs,
    /// Write all results to a file
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    json: Option<PathBuf>,
    /// Write a page with charts and tables, which needs nothing but itself
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    html: Option<PathBuf>,
    /// Show the run that --json wrote to FILE beside this one on the page (repeatable)
    #[arg(long, value_name = "FILE", requires = "html", help_heading = "Output")]
    compare: Vec<PathBuf>,
    /// What to call this run beside others [default: Foretoken and its commit, or the URL]
    #[arg(long, value_name = "NAME", help_heading = "Output")]
    label: Option<String>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    batch: BatchArgs,
}

/// When requests are sent, and for how long.
#[derive(Debug, Args)]
#[command(next_help_heading = "Load")]
struct LoadArgs {
    /// Clients of a closed loop, each with one request at a time: a point for each number
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 4, 8, 16], conflicts_with = "rate")]
    concurrency: Vec<usize>,
    /// Requests a second of an open loop (Poisson arrivals): a point for each number
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    rate: Vec<f64>,
    /// Requests of a point [default: 8 for each client, or 64 at a rate]
    #[arg(long, value_name = "N", conflicts_with = "seconds")]
    requests: Option<u64>,
    /// Send requests for S seconds at each point
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Requests before each point that are not counted [default: one for each client, or 4 at a rate]
    #[arg(long, value_name = "N")]
    warm_up: Option<u64>,
    /// Seconds that a request may take
    #[arg(long, value_name = "S", default_value_t = 600)]
    timeout: u64,
}

/// What is asked.
#[derive(Debug, Args)]
#[command(next_help_heading = "Requests")]
struct RequestArgs {
    /// Prompts, one JSON object a line: {"prompt"}, {"messages"} or {"turns"} [default: words, none twice]
    #[arg(long, value_name = "FILE", conflicts_with = "prompt_tokens")]
    prompts: Option<PathBuf>,
    /// Tokens of each prompt that is made of words
    #[arg(long, value_name = "N", default_value_t = 62)]
    prompt_tokens: usize,
    /// Which API to ask [default: chat for prompts of a file, completions for words]
    #[arg(long, value_name = "API", value_enum)]
    endpoint: Option<Endpoint>,
    /// Tokens of each answer at most
    #[arg(long, value_name = "N", default_value_t = 128)]
    max_tokens: u64,
    /// Go on after the model's own end token [default: true for words, false for prompts of a file]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    ignore_eos: Option<bool>,
    /// 0 picks the likeliest token; higher is more varied
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f64,
    /// Decides on words, arrivals and sampling
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

pub(crate) fn run(args: &ServeArgs) -> Result<()> {
    let loads = args.load.loads()?;
    args.requests.check()?;
    args.scenarios.check()?;
    // Before anything is measured: a file that is none is known at once.
    let others = args.compare.iter().map(|path| Run::read(path)).collect::<Result<Vec<Run>>>()?;
    serve::log(LogFormat::Text, LevelFilter::WARN);
    let mut report = Report::new("serve");
    // One thread: the cores are for what is measured.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the client")?;
    let subject = Subject::start(args, &args.batch, &runtime)?;
    let mut out = io::stdout().lock();
    subject.describe(args, &mut report);
    table::head(&mut out, &report.to_json())?;
    let points = match args.scenarios.with_load() {
        true => measure(args, &loads, &subject, &runtime, &mut out)?,
        false => Vec::new(),
    };
    report.set("points", serde_json::to_value(&points)?);
    let prefix = args.scenarios.shared_prefix(&subject, &runtime, &mut out)?;
    report.set("shared_prefix", serde_json::to_value(prefix)?);
    let chunked = args.scenarios.intruder(&subject, &runtime, &mut out)?;
    subject.stop()?;
    let whole = args.scenarios.whole_intruder(args, &runtime, &mut out)?;
    let settings: Vec<_> = chunked.into_iter().chain(whole).collect();
    report.set("intruder", serde_json::to_value(Some(settings).filter(|settings| !settings.is_empty()))?);
    report.write(args.json.as_deref())?;
    if let Some(path) = &args.html {
        let runs: Vec<Run> = [Run::from_json(report.to_json())?].into_iter().chain(others).collect();
        report::save(path, &page::render(&runs))?;
    }
    Ok(())
}

/// Measures all points, with a line for each as it is there.
fn measure(
    args: &ServeArgs,
    loads: &[Load],
    subject: &Subject,
    runtime: &Runtime,
    out: &mut impl Write,
) -> Result<Vec<Point>> {
    let mut driver = Driver::new(subject.client.clone(), subject.workload.clone(), args.requests.seed);
    let mut points = Vec::new();
    table::columns(out)?;
    for &load in loads {
        let outcome = runtime.block_on(async {
            driver.run(load, Extent::Requests(args.load.warm_up(load))).await;
            driver.run(load, args.load.extent(load)).await
        });
        let point = Point::of(load, outcome);
        table::row(out, &point)?;
        points.push(point);
    }
    table::notes(out, &points)?;
    Ok(points)
}

/// The server that is measured, and how it is asked.
struct Subject {
    own: Option<Own>,
    client: Arc<Client>,
    workload: Arc<Workload>,
}

impl Subject {
    /// Connects to the server that was named, or starts our own with the options `batch`.
    fn start(args: &ServeArgs, batch: &BatchArgs, runtime: &Runtime) -> Result<Self> {
        let own = match args.url {
            Some(_) => None,
            None => Some(Own::start(&args.model, batch)?),
        };
        let url = args.url.as_deref().or(own.as_ref().map(|own| own.url.as_str())).unwrap_or_default();
        let key = args.api_key.clone().or_else(|| std::env::var(KEY_VARIABLE).ok()).filter(|_| own.is_none());
        let client = Client::new(url, key.as_deref(), Duration::from_secs(args.load.timeout))?;
        let name = args.model.name().filter(|_| own.is_none());
        let workload = runtime.block_on(args.requests.workload(&client, name))?;
        Ok(Self { own, client: Arc::new(client), workload: Arc::new(workload) })
    }

    fn stop(self) -> Result<()> {
        self.own.map_or(Ok(()), Own::stop)
    }

    /// Says under which conditions the run measures.
    fn describe(&self, args: &ServeArgs, report: &mut Report) {
        let params = self.workload.params();
        let label = match (&args.label, &args.url) {
            (Some(label), _) => label.clone(),
            (None, Some(url)) => url.clone(),
            (None, None) => format!("Foretoken {}", report::commit()),
        };
        report.set("label", label);
        report.set("model", params.model.as_str());
        report.set("url", json!(args.url));
        report.set("server", json!(self.own.as_ref().map(|own| &own.conditions)));
        report.set("workload", args.requests.describe(self.workload.path(), params));
    }
}

impl LoadArgs {
    fn loads(&self) -> Result<Vec<Load>> {
        let rates = self.rate.iter().all(|rate| rate.is_finite() && *rate > 0.0);
        let seconds = self.seconds.is_none_or(|seconds| seconds.is_finite() && seconds > 0.0);
        if self.concurrency.contains(&0) || !rates || !seconds || self.requests == Some(0) || self.timeout == 0 {
            bail!("--concurrency, --rate, --requests, --seconds and --timeout must be above 0");
        }
        Ok(match self.rate.is_empty() {
            true => self.concurrency.iter().map(|&clients| Load::Closed(clients)).collect(),
            false => self.rate.iter().map(|&rate| Load::Open(rate)).collect(),
        })
    }

    fn extent(&self, load: Load) -> Extent {
        match (self.seconds, load) {
            (Some(seconds), _) => Extent::Seconds(seconds),
            (None, Load::Closed(clients)) => {
                Extent::Requests(self.requests.unwrap_or(REQUESTS_PER_CLIENT * clients as u64))
            }
            (None, Load::Open(_)) => Extent::Requests(self.requests.unwrap_or(REQUESTS_OPEN)),
        }
    }

    fn warm_up(&self, load: Load) -> u64 {
        self.warm_up.unwrap_or(match load {
            Load::Closed(clients) => clients as u64,
            Load::Open(_) => 4,
        })
    }
}

impl RequestArgs {
    fn check(&self) -> Result<()> {
        if self.prompt_tokens == 0 || self.max_tokens == 0 {
            bail!("--prompt-tokens and --max-tokens must be at least 1");
        }
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            bail!("--temperature is {}; it must be 0 or above", self.temperature);
        }
        Ok(())
    }

    /// Asks the server what must be known of it, and makes its requests.
    async fn workload(&self, client: &Client, name: Option<&str>) -> Result<Workload> {
        let listed = client.get("/v1/models").await;
        let first = listed.as_ref().map_or(&Value::Null, |listed| &listed["data"][0]);
        let model = match (name.or(first["id"].as_str()), &listed) {
            (Some(name), _) => name.to_owned(),
            (None, Err(failure)) => bail!("the server lists no models: {}: {}", failure.kind, failure.message),
            (None, Ok(_)) => bail!("the server lists no models: name one with --model"),
        };
        let words = Endpoint::Completions;
        let endpoint = self.endpoint.unwrap_or(if self.prompts.is_some() { Endpoint::Chat } else { words });
        let prompts = match &self.prompts {
            Some(path) => Prompts::File(workload::read_prompts(path, endpoint)?),
            None => {
                let words = Words::find(client, &model, endpoint).await?;
                if self.prompt_tokens <= words.shortest() {
                    bail!("--prompt-tokens is {}; here it must be above {}", self.prompt_tokens, words.shortest());
                }
                Prompts::Synthetic(words, self.prompt_tokens)
            }
        };
        let params = Params {
            model,
            max_tokens: self.max_tokens,
            temperature: self.temperature,
            seed: self.seed,
            ignore_eos: self.ignore_eos.unwrap_or(self.prompts.is_none()),
            salted: first["owned_by"] == "foretoken",
        };
        Ok(Workload::new(endpoint, prompts, params))
    }

    fn describe(&self, path: &str, params: &Params) -> Value {
        let prompts = match &self.prompts {
            Some(file) => format!("file {}", file.file_name().unwrap_or_default().to_string_lossy()),
            None => format!("synthetic, {} tokens, no two alike", self.prompt_tokens),
        };
        json!({
            "path": path,
            "prompts": prompts,
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "seed": params.seed,
            "ignore_eos": params.ignore_eos,
            "own_cache_salt_each": params.salted,
        })
    }
}
