//! `foretoken bench spec`: what drafting earns, by drafter and by task, against plain decoding in the same run.
//!
//! Plain decoding and all drafters answer the same prompts in turns, and all answers are compared: drafts may change when
//! a token comes and never which. Counts are the engine's own; times are taken where tokens leave the engine. Whatever is
//! printed, written as JSON or drawn was measured in the run itself.

mod contest;
mod crowd;
mod drive;
mod oracle;
mod page;
pub(crate) mod questions;
mod single;
mod table;
#[cfg(test)]
pub(super) mod tests;

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Result, bail};
use clap::{ArgAction, Args};
use engine::batch::ServiceOptions;
use engine::measure_cost;
use serde_json::{Value, json};

use self::contest::{Checks, Contestant, Setup};
use self::crowd::Point;
use self::drive::Asking;
use self::oracle::Truths;
use self::questions::{Question, Questions};
use self::single::Summary;
use crate::bench::kernels::compute_name;
use crate::draft::{Allowance, Kind};
use crate::report::{self, Report};
use crate::serve::{kv_bytes, public_name};
use cli::load::ModelArgs;
use cli::progress;
use cli::prompts;
use cli::prompts::Encoder;

/// Requests of one turn at a number of clients, where nothing else is asked for: for each client, and at least.
const REQUESTS_PER_CLIENT: usize = 2;
const LEAST_REQUESTS: usize = 8;

#[derive(Debug, Args)]
pub(crate) struct SpecArgs {
    #[command(flatten)]
    prompts: PromptArgs,
    #[command(flatten)]
    drafts: DraftsArgs,
    #[command(flatten)]
    load: LoadArgs,
    /// Write all results to a file
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    json: Option<PathBuf>,
    /// Write a page with charts and tables, which needs nothing but itself
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    html: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
}

/// What is asked.
#[derive(Debug, Args)]
#[command(next_help_heading = "Prompts")]
struct PromptArgs {
    /// Prompts, one JSON object a line: {"turns"} (the first is asked), {"prompt"} or {"messages"}, with or without an id
    /// and a category
    #[arg(long, value_name = "FILE")]
    prompts: PathBuf,
    /// Prompts of each category that are answered one at a time at most, the first ones [default: all]
    #[arg(long, value_name = "N")]
    limit: Option<NonZeroUsize>,
    /// Ask only prompts of these categories
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    categories: Vec<String>,
    /// Continue prompts as they stand, without the model's chat template
    #[arg(long)]
    raw: bool,
    /// Tokens of each answer at most
    #[arg(long, value_name = "N", default_value = "256")]
    max_tokens: NonZeroUsize,
    /// Go on after the model's own end token
    #[arg(long)]
    ignore_eos: bool,
    /// Measure at each of these temperatures
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [0.0], allow_negative_numbers = true)]
    temperatures: Vec<f32>,
    /// Decides on sampling and on the luck of synthetic drafts
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

/// Who drafts.
#[derive(Debug, Args)]
#[command(next_help_heading = "Drafters")]
struct DraftsArgs {
    /// Drafters to measure, as `run --draft` names them; plain decoding is always measured beside them
    #[arg(long, value_name = "LIST", default_value = "auto")]
    drafters: Drafters,
    /// Measure also a drafter that proposes what the model will say, each token right with probability A: what drafts of
    /// that quality would earn
    #[arg(long, value_name = "A", allow_negative_numbers = true)]
    synthetic_acceptance: Option<f64>,
    /// Tokens that are proposed ahead at most
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    draft_max: u16,
    #[command(flatten)]
    allowance: Allowance,
}

/// Drafters with commas between them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Drafters(Vec<Kind>);

impl FromStr for Drafters {
    type Err = String;

    fn from_str(list: &str) -> Result<Self, String> {
        let mut names: Vec<String> = Vec::new();
        for piece in list.split(',') {
            // Layers to skip have commas of their own, and no drafter is called by numbers.
            let layers = !piece.is_empty() && piece.chars().all(|letter| letter.is_ascii_digit() || letter == '-');
            match names.last_mut().filter(|_| layers) {
                Some(name) => *name = format!("{name},{piece}"),
                None => names.push(piece.to_owned()),
            }
        }
        names.iter().map(|name| name.parse()).collect::<Result<_, _>>().map(Self)
    }
}

/// How much is asked at once, and how often.
#[derive(Debug, Args)]
#[command(next_help_heading = "Load")]
struct LoadArgs {
    /// Measure also so many requests at a time, out of all prompts, of every category in turn: a point for each number
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    concurrency: Vec<usize>,
    /// Requests of a turn at each point [default: 2 for each client, at least 8]
    #[arg(long, value_name = "N", requires = "concurrency")]
    requests: Option<usize>,
    /// Answer prompts one at a time too
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    one_at_a_time: bool,
    /// Times that everything is measured, there and back
    #[arg(long, value_name = "N", default_value = "1")]
    repeat: NonZeroUsize,
    /// Positions for prompt and answer together [default: all that the model was made for]
    #[arg(long, value_name = "N")]
    context: Option<NonZeroUsize>,
    /// Memory for keys and values of an engine, in MiB [default: a quarter of what is free]
    #[arg(long, value_name = "MIB")]
    kv_memory: Option<NonZeroUsize>,
    /// Rows that one step computes at most
    #[arg(long, value_name = "N", default_value_t = ServiceOptions::default().row_budget)]
    row_budget: usize,
}

/// Prompts one at a time, at one temperature.
struct Single {
    temperature: f32,
    summaries: Vec<Summary>,
    prompts: Value,
}

/// What a run measured.
struct Results {
    drafters: Vec<String>,
    singles: Vec<Single>,
    points: Vec<Point>,
    checks: Checks,
}

pub(crate) fn run(args: &SpecArgs) -> Result<()> {
    let contestants = args.contestants()?;
    let lines = prompts::read(&args.prompts.prompts)?;
    let mut report = Report::new("spec");
    let setup = args.setup(contestants)?;
    let context = setup.engine(None, &Truths::default(), 1)?.handle().limits().context;
    let template = setup.loaded.template.as_ref().filter(|_| !args.prompts.raw);
    let encoder = Encoder { tokenizer: &setup.loaded.tokenizer, template };
    let questions = Questions::new(&lines, &args.prompts.categories, &encoder, context)?;
    let crowds = args.load.crowds(&questions)?;
    args.describe(&setup, &questions, &mut report);
    let mut out = io::stdout().lock();
    table::head(&mut out, &report.to_json())?;
    let results = args.measure(&setup, &questions, &crowds, &mut report, &mut out)?;
    table::checks(&mut out, &results.checks)?;
    match results.checks.differences.len() {
        0 => Ok(()),
        differences => bail!("{differences} answers differ from plain decoding: speculation must not change a token"),
    }
}

impl SpecArgs {
    fn contestants(&self) -> Result<Vec<Contestant>> {
        let temperatures = &self.prompts.temperatures;
        if let Some(wrong) = temperatures.iter().find(|temperature| !(temperature.is_finite() && **temperature >= 0.0))
        {
            bail!("--temperatures has {wrong}; they must be 0 or above");
        }
        if let Some((_, twice)) =
            temperatures.iter().enumerate().find(|(at, temperature)| temperatures[..*at].contains(temperature))
        {
            bail!("--temperatures has {twice} twice");
        }
        if let Some(wrong) = self.drafts.synthetic_acceptance.filter(|acceptance| !(0.0..=1.0).contains(acceptance)) {
            bail!("--synthetic-acceptance is {wrong}; it must be from 0 to 1");
        }
        if self.load.concurrency.contains(&0) || self.load.row_budget == 0 {
            bail!("--concurrency and --row-budget must be above 0");
        }
        if !self.load.one_at_a_time && self.load.concurrency.is_empty() {
            bail!("nothing is to be measured: --one-at-a-time is false and there is no --concurrency");
        }
        let mut contestants: Vec<Contestant> = Vec::new();
        let drafters = self.drafts.drafters.0.iter().filter(|kind| !matches!(kind, Kind::None));
        let drafters = drafters.cloned().map(Contestant::Drafter);
        for contestant in drafters.chain(self.drafts.synthetic_acceptance.map(Contestant::Synthetic)) {
            if !contestants.contains(&contestant) {
                contestants.push(contestant);
            }
        }
        if contestants.is_empty() {
            bail!("nobody drafts: name a drafter with --drafters, or give --synthetic-acceptance");
        }
        Ok(contestants)
    }

    fn setup(&self, contestants: Vec<Contestant>) -> Result<Setup> {
        let loaded = self.model.load(!self.prompts.raw)?;
        if !self.prompts.raw && loaded.template.is_none() {
            bail!("{} has no chat template: add --raw to continue prompts as they stand", loaded.name);
        }
        let most = loaded.model.config().context;
        if let Some(context) = self.load.context.filter(|context| context.get() > most) {
            bail!("--context is {context}; {} was made for {most} positions", loaded.name);
        }
        // Not as an earlier run found it: what is measured here is to come from here.
        let curve = measure_cost(&loaded.model, &loaded.pool, loaded.kv_format)?;
        let options = ServiceOptions {
            kv_bytes: kv_bytes(self.load.kv_memory),
            kv_format: loaded.kv_format,
            context: self.load.context.map(NonZeroUsize::get),
            row_budget: self.load.row_budget,
            // A prompt that is asked again is to be computed again.
            prefix_cache: false,
            ..ServiceOptions::default()
        };
        let (max_drafts, seed) = (self.drafts.draft_max.into(), self.prompts.seed);
        let allowance = self.drafts.allowance;
        Ok(Setup { loaded, options, contestants, allowance, max_drafts, curve, seed })
    }

    fn asking(&self, temperature: f32) -> Asking {
        let PromptArgs { max_tokens, ignore_eos, seed, .. } = self.prompts;
        Asking { temperature, max_tokens: max_tokens.get(), ignore_eos, seed }
    }

    /// Measures everything, and prints and writes each part as it is there: who breaks off a long run keeps what it has.
    fn measure(
        &self,
        setup: &Setup,
        questions: &Questions,
        crowds: &[(usize, Vec<&Question>)],
        report: &mut Report,
        out: &mut impl Write,
    ) -> Result<Results> {
        let drafters: Vec<String> = setup.contestants.iter().map(ToString::to_string).collect();
        let mut results = Results { drafters, singles: Vec::new(), points: Vec::new(), checks: Checks::default() };
        // A file that cannot be written is known at once.
        self.write(&results, report)?;
        let repeat = self.load.repeat.get();
        for &temperature in &self.prompts.temperatures {
            let asking = self.asking(temperature);
            if self.load.one_at_a_time {
                let asked = questions.first(self.prompts.limit.map(NonZeroUsize::get));
                let measured = single::measure(setup, &asked, &asking, repeat, &mut results.checks)?;
                let summaries = single::summaries(&measured, &results.drafters);
                table::single(out, temperature, &summaries, &results.drafters)?;
                let prompts = measured.iter().map(single::Measured::to_json).collect();
                results.singles.push(Single { temperature, summaries, prompts });
                self.write(&results, report)?;
            }
            let turns = contest::turns(results.drafters.len()).len() * repeat;
            let total: usize = crowds.iter().map(|(_, asked)| asked.len() * turns).sum();
            let bar = progress::steps("many at once", total as u64);
            let before = results.points.len();
            for (clients, asked) in crowds {
                let point = crowd::measure(setup, asked, &asking, (*clients, repeat), &mut results.checks, &bar)?;
                results.points.push(point);
                self.write(&results, report)?;
            }
            bar.finish_and_clear();
            table::crowd(out, temperature, &results.points[before..], &results.drafters)?;
        }
        Ok(results)
    }

    fn write(&self, results: &Results, report: &mut Report) -> Result<()> {
        results.fill(report);
        report.write(self.json.as_deref())?;
        match &self.html {
            Some(path) => report::save(path, &page::render(results, &report.to_json())),
            None => Ok(()),
        }
    }

    /// Says under which conditions the run measures.
    fn describe(&self, setup: &Setup, questions: &Questions, report: &mut Report) {
        let loaded = &setup.loaded;
        let PromptArgs { prompts, limit, raw, max_tokens, ignore_eos, seed, .. } = &self.prompts;
        let file = prompts.file_name().unwrap_or_default().to_string_lossy();
        report.set("model", public_name(&loaded.name));
        report.set(
            "engine",
            json!({
                "threads": loaded.pool.threads(),
                "isa": loaded.isa.to_string(),
                "compute": compute_name(loaded.compute),
                "kv_format": format!("{:?}", loaded.kv_format).to_lowercase(),
                "row_budget": setup.options.row_budget,
                "draft_max": setup.max_drafts,
                "acceptance": "keyed",
            }),
        );
        let curve = &setup.curve;
        report.set(
            "cost_curve",
            json!({ "rows": curve.rows(), "contexts": curve.contexts(), "seconds": curve.points() }),
        );
        let mut asked = questions.to_json();
        asked["file"] = json!(file);
        asked["limit_per_category"] = json!(limit);
        asked["chat_template"] = json!(!raw);
        asked["max_tokens"] = json!(max_tokens);
        asked["ignore_eos"] = json!(ignore_eos);
        asked["seed"] = json!(seed);
        report.set("prompts", asked);
        report.set("repeat", self.load.repeat.get());
    }
}

impl LoadArgs {
    /// Who is asked at each number of clients. No prompt is asked twice in a turn: the second answer would be a copy.
    fn crowds<'q>(&self, questions: &'q Questions) -> Result<Vec<(usize, Vec<&'q Question>)>> {
        let crowd = |&clients: &usize| {
            let requests = self.requests.unwrap_or((REQUESTS_PER_CLIENT * clients).max(LEAST_REQUESTS));
            let asked = questions.mixed(requests);
            if requests < clients {
                bail!("--requests is {requests}, which is less than --concurrency {clients}");
            }
            if asked.len() < requests {
                let there = asked.len();
                bail!("{clients} clients want {requests} different prompts, and there are {there}: lower --requests");
            }
            Ok((clients, asked))
        };
        self.concurrency.iter().map(crowd).collect()
    }
}

impl Results {
    fn fill(&self, report: &mut Report) {
        let single = |single: &Single| {
            let summaries: Value = single.summaries.iter().map(Summary::to_json).collect();
            json!({ "temperature": single.temperature, "categories": summaries, "prompts": single.prompts })
        };
        report.set("drafters", json!(self.drafters));
        report.set("one_at_a_time", self.singles.iter().map(single).collect::<Value>());
        let points: Value = self.points.iter().map(|point| point.to_json(&self.drafters)).collect();
        report.set("many_at_once", points);
        report.set("answers_compared", self.checks.compared);
        let differences: Value = self.checks.differences.iter().map(contest::Difference::to_json).collect();
        report.set("differences", differences);
    }
}
