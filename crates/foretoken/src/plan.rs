//! `foretoken plan`: what a model's keys and values need, how many requests fit, and what drafting could earn, before
//! anything runs. The formulas are those of crate `spec`; here is where their numbers come from.

mod config;
mod parameters;
mod size;
mod table;

use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, ValueEnum};
use model::gguf::Gguf;
use model::source::Kind;
use model::weights::Weights as Files;
use serde_json::{Value, json};
use spec::{CostCurve, Number, best_draft_length, expected_tokens, largest_batch, speedup};

use self::config::{Part, Shape};
use cli::load::locate;

/// Drafts of the longest chain in the table.
const MOST_DRAFTS: usize = 16;

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// A config.json of any architecture, or a model as `run` takes it (fetched whole if it is not cached) [default:
    /// SmolLM2-135M-Instruct]
    #[arg(long, short, value_name = "MODEL")]
    model: Option<String>,
    /// Tokens of a request, prompt and answer [default: what the model was made for]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    context: Option<u64>,
    /// Number format of keys and values
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Kv::F16)]
    kv: Kv,
    /// Memory for weights, keys and values, such as 24GiB, 24GB or 512MiB: prints the largest batch
    #[arg(long, value_name = "SIZE", value_parser = size::parse_size)]
    memory: Option<u64>,
    /// Size of the weights [default: that of the files, or counted from a config.json alone]
    #[arg(long, value_name = "SIZE", value_parser = size::parse_size)]
    weights: Option<u64>,
    /// Probability that a draft is accepted once those before it were: prints what drafting earns
    #[arg(long, value_name = "α", requires = "draft_cost")]
    acceptance: Option<f64>,
    /// Time to draft one token, in plain steps of the model: 0 if drafting is free
    #[arg(long, value_name = "c", requires = "acceptance")]
    draft_cost: Option<f64>,
    /// Time of a step that checks drafts, in plain steps: one number, or ROWS:COST,... with the rows and relative times
    /// of `bench kernels` (K drafts are K+1 rows) [default: 1]
    #[arg(long, value_name = "COSTS", requires = "acceptance", value_parser = parse_verify_cost)]
    verify_cost: Option<VerifyCost>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kv {
    F32,
    F16,
    Bf16,
    Fp8,
    Int8,
    Int4,
}

impl From<Kv> for Number {
    fn from(kv: Kv) -> Number {
        match kv {
            Kv::F32 => Number::F32,
            Kv::F16 => Number::F16,
            Kv::Bf16 => Number::Bf16,
            Kv::Fp8 => Number::Fp8,
            Kv::Int8 => Number::Int8,
            Kv::Int4 => Number::Int4,
        }
    }
}

/// What checking drafts costs, in plain steps.
#[derive(Debug, Clone)]
enum VerifyCost {
    Flat(f64),
    ByRows(CostCurve),
}

impl VerifyCost {
    fn of(&self, drafts: usize) -> f64 {
        match self {
            VerifyCost::Flat(cost) => *cost,
            VerifyCost::ByRows(curve) => curve.seconds(drafts + 1, 0) / curve.seconds(1, 0),
        }
    }
}

fn parse_verify_cost(text: &str) -> Result<VerifyCost, String> {
    if let Ok(cost) = text.parse() {
        return Ok(VerifyCost::Flat(cost));
    }
    let point = |point: &str| {
        let (rows, cost) = point.split_once(':')?;
        Some((rows.trim().parse::<usize>().ok()?, cost.trim().parse::<f64>().ok()?))
    };
    let wrong = || format!("{text:?} is neither a number nor ROWS:COST,... such as 2:1.1,8:2.4");
    let mut points = text.split(',').map(point).collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
    if points.iter().all(|(rows, _)| *rows != 1) {
        points.push((1, 1.0));
    }
    points.sort_by_key(|(rows, _)| *rows);
    let (rows, costs): (Vec<usize>, Vec<f64>) = points.into_iter().unzip();
    CostCurve::new(&rows, &[0], &costs).map(VerifyCost::ByRows).map_err(|error| error.to_string())
}

/// All figures of a plan.
struct Plan {
    name: String,
    shape: Shape,
    context: u64,
    kv: Number,
    /// Bytes of a token in each part of the shape.
    part_bytes: Vec<u64>,
    bytes_per_token: u64,
    /// What a request needs if tokens outside windows are given up.
    bytes_per_request: u64,
    /// What it needs if all tokens are kept, as this engine does; differs only where a window is shorter than the context.
    bytes_kept_whole: u64,
    batch: Option<Batch>,
    earning: Option<Earning>,
}

struct Batch {
    memory: u64,
    weights: Weights,
    requests: u64,
    requests_kept_whole: u64,
}

struct Weights {
    bytes: u64,
    /// Where the number comes from.
    source: String,
}

struct Earning {
    acceptance: f64,
    draft_cost: f64,
    /// For 1 draft and more.
    rows: Vec<Row>,
    best: (usize, f64),
}

struct Row {
    drafts: usize,
    verify_cost: f64,
    tokens: f64,
    speedup: f64,
}

pub(crate) fn run(args: &PlanArgs) -> Result<()> {
    // Before a model is fetched, since it needs none.
    let earning = earning(args)?;
    let source = Source::open(args.model.as_deref())?;
    let plan = Plan::new(args, source, earning)?;
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &plan.to_json()).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        table::print(&plan, &mut out)?;
    }
    Ok(())
}

/// A model as far as a plan needs it.
struct Source {
    name: String,
    shape: Shape,
    /// Of the files, if there are some.
    weights: Option<Weights>,
}

impl Source {
    fn open(model: Option<&str>) -> Result<Source> {
        if let Some(path) = model.map(Path::new).filter(|path| path.extension().is_some_and(|end| end == "json")) {
            return Ok(Source { name: path.display().to_string(), shape: Shape::read(path)?, weights: None });
        }
        let located = locate(model)?;
        let (shape, weights) = match &located.kind {
            Kind::Directory(dir) => (Shape::read(&dir.join("config.json"))?, files(dir)?),
            Kind::Gguf(path) => {
                let gguf = Gguf::open(path)?;
                let shape = Shape::of(&model::config::Config::from_gguf(&gguf)?);
                let bytes = Files::from_gguf(gguf).bytes_on_disk();
                (shape, Some(Weights { bytes, source: "size of the GGUF file".into() }))
            }
        };
        Ok(Source { name: located.name, shape, weights })
    }
}

/// Size of the weights of a directory; `None` if it has a config alone.
fn files(dir: &Path) -> Result<Option<Weights>> {
    if !Files::are_in(dir) {
        return Ok(None);
    }
    let bytes = Files::open_dir(dir)?.bytes_on_disk();
    Ok(Some(Weights { bytes, source: "size of the weight files".into() }))
}

impl Plan {
    fn new(args: &PlanArgs, source: Source, earning: Option<Earning>) -> Result<Plan> {
        let Source { name, shape, weights } = source;
        let context = args.context.or(shape.context);
        let context = context.with_context(|| format!("{name}: max_position_embeddings is missing: give --context"))?;
        let kv = Number::from(args.kv);
        let sum = |bytes: &dyn Fn(&Part) -> Result<u64, spec::CapacityError>| {
            let add = |sum: u64, part| sum.checked_add(bytes(part)?).ok_or(spec::CapacityError::TooLarge);
            shape.parts.iter().try_fold(0, add).with_context(|| name.clone())
        };
        let part_bytes = shape.parts.iter().map(|part| part.kv.bytes_per_token(kv.into())).collect::<Result<_, _>>()?;
        let bytes_per_token = sum(&|part| part.kv.bytes_per_token(kv.into()))?;
        let bytes_per_request = sum(&|part| part.kv.bytes_per_request(kv.into(), part.seen(context), 1))?;
        let bytes_kept_whole = sum(&|part| part.kv.bytes_per_request(kv.into(), context, 1))?;
        let batch = match args.memory {
            Some(memory) => {
                let weights = choose_weights(args.weights, weights, &shape).with_context(|| name.clone())?;
                let requests = largest_batch(memory, weights.bytes, bytes_per_request)?;
                let requests_kept_whole = largest_batch(memory, weights.bytes, bytes_kept_whole)?;
                Some(Batch { memory, weights, requests, requests_kept_whole })
            }
            None => None,
        };
        Ok(Plan {
            name,
            shape,
            context,
            kv,
            part_bytes,
            bytes_per_token,
            bytes_per_request,
            bytes_kept_whole,
            batch,
            earning,
        })
    }

    fn to_json(&self) -> Value {
        let Plan { shape, batch, earning, .. } = self;
        let batch = batch.as_ref().map(|batch| {
            json!({
                "memory_bytes": batch.memory,
                "weights_bytes": batch.weights.bytes,
                "weights_from": batch.weights.source,
                "largest_batch": batch.requests,
                "largest_batch_all_tokens_kept": batch.requests_kept_whole,
                "formula": table::BATCH,
            })
        });
        json!({
            "model": self.name,
            "attention": shape.attention,
            "context": self.context,
            "model_context": shape.context,
            "kv_bits": self.kv.bits(),
            "kv_bytes_per_token": self.bytes_per_token,
            "kv_bytes_per_token_formula": shape.parts.first().map(|part| table::per_token(&part.kv)),
            "kv_bytes_per_request": self.bytes_per_request,
            "kv_bytes_per_request_formula": table::per_request(self),
            "kv_bytes_per_request_all_tokens_kept": self.bytes_kept_whole,
            "batch": batch,
            "speculation": earning.as_ref().map(Earning::to_json),
        })
    }

    /// Whether some layers see less than the context.
    fn slides(&self) -> bool {
        self.bytes_kept_whole != self.bytes_per_request
    }
}

impl Part {
    /// Tokens of a request that these layers can still see at its end.
    fn seen(&self, context: u64) -> u64 {
        self.window.map_or(context, |window| window.min(context))
    }
}

fn choose_weights(given: Option<u64>, files: Option<Weights>, shape: &Shape) -> Result<Weights> {
    if let Some(bytes) = given {
        return Ok(Weights { bytes, source: "--weights".into() });
    }
    if let Some(files) = files {
        return Ok(files);
    }
    let parameters = match &shape.parameters {
        Ok(parameters) => parameters,
        Err(why) => bail!("{why}: give the size of the weights with --weights"),
    };
    let bytes = parameters.count.checked_mul(parameters.bits / 8);
    let bytes =
        bytes.ok_or_else(|| anyhow!("the weights have more than 2^64 bytes: check the fields of the config"))?;
    let format = if parameters.stated { "" } else { " (assumed)" };
    let count = size::grouped(parameters.count);
    let source = format!("{count} parameters counted from the config, {} bits{format}", parameters.bits);
    Ok(Weights { bytes, source })
}

/// What drafting earns, if it was asked for.
fn earning(args: &PlanArgs) -> Result<Option<Earning>> {
    let (Some(acceptance), Some(draft_cost)) = (args.acceptance, args.draft_cost) else { return Ok(None) };
    let verify = args.verify_cost.clone().unwrap_or(VerifyCost::Flat(1.0));
    let row = |drafts| {
        let verify_cost = verify.of(drafts);
        let tokens = expected_tokens(acceptance, drafts)?;
        let speedup = speedup(acceptance, drafts, draft_cost, verify_cost)?;
        Ok(Row { drafts, verify_cost, tokens, speedup })
    };
    let rows = (1..=MOST_DRAFTS).map(row).collect::<Result<_>>()?;
    let best = best_draft_length(acceptance, draft_cost, MOST_DRAFTS, |drafts| verify.of(drafts))?;
    Ok(Some(Earning { acceptance, draft_cost, rows, best }))
}

impl Earning {
    fn to_json(&self) -> Value {
        let row = |row: &Row| {
            json!({
                "drafts": row.drafts,
                "verify_cost": row.verify_cost,
                "expected_tokens": row.tokens,
                "speedup": row.speedup,
            })
        };
        json!({
            "acceptance": self.acceptance,
            "draft_cost": self.draft_cost,
            "by_drafts": self.rows.iter().map(row).collect::<Vec<_>>(),
            "best_drafts": self.best.0,
            "best_speedup": self.best.1,
            "expected_tokens_formula": table::TOKENS,
            "speedup_formula": table::SPEEDUP,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verify_costs_are_one_number_or_a_curve() {
        assert!((1..=MOST_DRAFTS).all(|drafts| parse_verify_cost("1.5").unwrap().of(drafts) == 1.5));
        // Rows are drafts and one; the curve is relative to its first point, given or not.
        let curve = parse_verify_cost("9:3.0, 3:1.5").unwrap();
        assert_eq!([1, 2, 8].map(|drafts| curve.of(drafts)), [1.25, 1.5, 3.0]);
        let curve = parse_verify_cost("1:2,3:3").unwrap();
        assert_eq!(curve.of(2), 1.5);
        for text in ["", "x", "2:", ":2", "2:1,,3:2", "0:1", "2:-1", "2:1,2:2", "2:nan"] {
            assert!(parse_verify_cost(text).is_err(), "{text}");
        }
    }
}
