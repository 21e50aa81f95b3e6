//! `foretoken bench kernels`: the machine's ceilings and the verify cost curve.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use kernels::{Compute, KvFormat, PAGE};
use kv::{KvCache, Sequence};
use model::{Logits, Segment, Visibility, Workspace};
use serde_json::json;

use super::curve::Curve;
use super::paging::Paging;
use super::probes::{self, Ceilings};
use crate::report::{self, Report};
use crate::stats::Samples;
use cli::load::{Loaded, ModelArgs};
use cli::machine;

/// Single-token steps of one decoding measurement.
const DECODE_STEPS: usize = 32;
/// Timed runs of what is measured outside the passes.
const RUNS: usize = 5;

#[derive(Debug, Args)]
pub(crate) struct KernelsArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Row counts of the curve
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 64])]
    rows: Vec<usize>,
    /// Tokens in the K/V cache before each forward of the curve, and before decoding
    #[arg(long, value_name = "N", default_value_t = 128)]
    context: usize,
    /// Tokens of the prompt whose processing is timed
    #[arg(long, value_name = "N", default_value_t = 512)]
    prompt: usize,
    /// Passes over the curve; all row counts take turns in each
    #[arg(long, value_name = "N", default_value_t = 7)]
    passes: usize,
    /// Leave out the machine's ceilings
    #[arg(long)]
    no_probes: bool,
    /// Write all results to a file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What was measured.
struct Results {
    /// Bytes, when the model was loaded.
    peak_memory: Option<u64>,
    ceilings: Vec<Ceilings>,
    /// Seconds a token.
    decode: Samples,
    curve: Curve,
    /// Seconds a prompt.
    prompt: Samples,
    paging: Paging,
}

pub(crate) fn run(args: &KernelsArgs) -> Result<()> {
    if args.rows.contains(&0) || args.context == 0 || args.prompt == 0 || args.passes == 0 {
        bail!("--rows, --context, --prompt and --passes must be at least 1");
    }
    let report = Report::new("kernels");
    let loaded = args.model.load(false)?;
    let longest = args.rows.iter().copied().chain([DECODE_STEPS]).max().unwrap_or(DECODE_STEPS);
    let positions = args.prompt.max(args.context + longest);
    if positions > loaded.model.config().context {
        let context = loaded.model.config().context;
        bail!("the measurement needs {positions} positions, but the context of {} is {context}", loaded.name);
    }
    let mut out = io::stdout().lock();
    print_conditions(&mut out, &loaded)?;
    // Before the probes, whose buffers are larger than the model.
    let peak_memory = machine::peak_memory();
    let weight_bytes = loaded.model.bytes_per_row();
    let ceilings = match args.no_probes {
        true => Vec::new(),
        false => probes::measure(loaded.isa, loaded.pool.threads(), weight_bytes),
    };
    if !ceilings.is_empty() {
        probes::print(&mut out, &ceilings, weight_bytes)?;
    }
    let mut bench = Bench::new(&loaded, positions);
    let results = Results {
        peak_memory,
        ceilings,
        decode: bench.decode(args.context)?,
        curve: bench.curve(args)?,
        prompt: bench.prompt(args.prompt)?,
        paging: Paging::measure(&loaded, positions),
    };
    print_results(&mut out, args, &loaded, &results)?;
    fill(report, args, &loaded, &results).write(args.json.as_deref())
}

/// One sequence of a loaded model, fed with tokens that mean nothing: their values do not change the time.
struct Bench<'a> {
    loaded: &'a Loaded,
    workspace: Workspace,
    cache: KvCache,
    sequence: Sequence,
}

impl<'a> Bench<'a> {
    fn new(loaded: &'a Loaded, positions: usize) -> Self {
        let cache = KvCache::new(loaded.model.kv_layout(loaded.kv_format), positions.div_ceil(PAGE));
        Self { loaded, workspace: Workspace::new(), cache, sequence: Sequence::new() }
    }

    /// One forward of `rows` rows from position `start` on; whatever stood there is overwritten.
    fn forward(&mut self, start: usize, rows: usize, logits: Logits<'_>) -> Result<()> {
        let Self { loaded, workspace, cache, sequence } = self;
        let vocab = loaded.model.config().vocab;
        let tokens: Vec<u32> = (start..start + rows).map(|position| ((7919 * position + 101) % vocab) as u32).collect();
        cache.truncate(sequence, start);
        cache.reserve(sequence, start + rows)?;
        let segment = Segment { sequence, start, tokens: &tokens, visibility: Visibility::Causal, logits };
        loaded.model.forward(workspace, &loaded.pool, cache, &[segment], &[])?;
        Ok(())
    }

    fn decode(&mut self, context: usize) -> Result<Samples> {
        self.forward(0, context, Logits::None)?;
        let mut samples = Samples::default();
        for run in 0..=RUNS {
            let start = Instant::now();
            for step in 0..DECODE_STEPS {
                self.forward(context + step, 1, Logits::All)?;
            }
            // The first run warms up.
            if run > 0 {
                samples.push(start.elapsed().as_secs_f64() / DECODE_STEPS as f64);
            }
        }
        Ok(samples)
    }

    fn curve(&mut self, args: &KernelsArgs) -> Result<Curve> {
        Curve::measure(&args.rows, args.passes, |rows| self.forward(args.context, rows, Logits::All))
    }

    fn prompt(&mut self, tokens: usize) -> Result<Samples> {
        let mut samples = Samples::default();
        for run in 0..=RUNS {
            let start = Instant::now();
            self.forward(0, tokens, Logits::Last)?;
            if run > 0 {
                samples.push(start.elapsed().as_secs_f64());
            }
        }
        Ok(samples)
    }
}

impl Results {
    /// Seconds of a forward of one row: from the curve, or where one row is not in it from decoding.
    fn one_row(&self) -> f64 {
        self.curve.median(1).unwrap_or_else(|| self.decode.median())
    }

    /// Share of the measured read bandwidth that a forward of one row reaches by reading its weights once: of the
    /// bandwidth from a buffer as large as the weights, and from one that no cache holds a part of.
    fn roofline_shares(&self, loaded: &Loaded) -> Option<[f64; 2]> {
        let ceilings = self.ceilings.last()?;
        let reached = loaded.model.bytes_per_row() as f64 / self.one_row();
        Some([reached / ceilings.read_weights, reached / ceilings.read_big])
    }
}

fn print_conditions(out: &mut impl Write, loaded: &Loaded) -> io::Result<()> {
    writeln!(out, "{}", machine::one_line())?;
    writeln!(
        out,
        "foretoken {} ({}), {}, {}, {}, {} threads",
        env!("CARGO_PKG_VERSION"),
        report::commit(),
        loaded.name,
        loaded.isa,
        compute_name(loaded.compute),
        loaded.pool.threads(),
    )?;
    writeln!(
        out,
        "one row reads {:.1} MB of weights and takes {:.1} M multiply-adds\n",
        loaded.model.bytes_per_row() as f64 / 1e6,
        loaded.model.multiply_adds_per_row() as f64 / 1e6,
    )
}

fn print_results(out: &mut impl Write, args: &KernelsArgs, loaded: &Loaded, results: &Results) -> io::Result<()> {
    let rate = |tokens: usize, samples: &Samples| {
        let per_second = |seconds: f64| tokens as f64 / seconds;
        let (low, high) = (per_second(samples.max()), per_second(samples.min()));
        format!("{:.1} tokens/s [{low:.1}-{high:.1}]", per_second(samples.median()))
    };
    writeln!(out, "one forward of N rows at context {}, logits of all rows, medians", args.context)?;
    results.curve.print(out)?;
    if let Some([weights, big]) = results.roofline_shares(loaded) {
        let [weights, big] = [weights * 100.0, big * 100.0];
        writeln!(out, "one row reaches {weights:.0} % of the memory roofline ({big:.0} % of the 1 GiB rate)")?;
    }
    writeln!(out, "decoding from context {}: {}", args.context, rate(1, &results.decode))?;
    writeln!(out, "prompt of {} tokens: {}", args.prompt, rate(args.prompt, &results.prompt))?;
    results.paging.print(out)?;
    if let Some(bytes) = results.peak_memory {
        let [peak, disk] = [bytes, loaded.bytes_on_disk].map(|bytes| bytes as f64 / 1e6);
        writeln!(out, "peak memory of loading {peak:.1} MB, weights on disk {disk:.1} MB")?;
    }
    Ok(())
}

fn fill(mut report: Report, args: &KernelsArgs, loaded: &Loaded, results: &Results) -> Report {
    report.set("model", loaded.name.as_str());
    report.set("weight_bytes_on_disk", loaded.bytes_on_disk);
    report.set("weight_bytes_per_row", loaded.model.bytes_per_row());
    report.set("multiply_adds_per_row", loaded.model.multiply_adds_per_row());
    report.set("threads", loaded.pool.threads());
    report.set("isa", loaded.isa.to_string());
    report.set("compute", compute_name(loaded.compute));
    report.set("kv_format", if loaded.kv_format == KvFormat::F16 { "f16" } else { "f32" });
    report.set("context", args.context);
    report.set("ceilings", results.ceilings.iter().map(|one| one.to_json()).collect::<Vec<_>>());
    report.set("curve", results.curve.to_json());
    let shares = results.roofline_shares(loaded);
    report.set("roofline_share", json!(shares.map(|[weights, _]| weights)));
    report.set("roofline_share_of_1gib_rate", json!(shares.map(|[_, big]| big)));
    report.set("decode", results.decode.to_json());
    report.set("decode_tokens_per_s", 1.0 / results.decode.median());
    report.set("prompt_tokens", args.prompt);
    report.set("prompt", results.prompt.to_json());
    report.set("prompt_tokens_per_s", args.prompt as f64 / results.prompt.median());
    report.set("paged_attention", results.paging.to_json());
    report.set("peak_memory_of_loading_bytes", json!(results.peak_memory));
    report
}

pub(super) fn compute_name(compute: Compute) -> &'static str {
    match compute {
        Compute::Stored => "quantised",
        Compute::F32 => "f32",
    }
}
