//! What the engine counts, as metrics.
//!
//! Figures that need no counting here: they are the engine's own and are read when they are asked for. Those about drafts
//! are there when anything drafts, from the beginning, so that nobody has to tell "none yet" from "not known".

use std::fmt;

use engine::batch::{DraftCounts, Handle, Reason, STEP_ROWS, STEP_SECONDS, Stats};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Name, help and value.
type Figure = (&'static str, &'static str, f64);

/// Name and help of a counter with a label, the label's name, and its values with the counter's.
type Labelled<'a> = (&'static str, &'static str, &'static str, &'a [(String, u64)]);

/// The engine's own figures.
pub(super) struct EngineFigures(pub(super) Handle);

impl fmt::Debug for EngineFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineFigures")
    }
}

impl Collector for EngineFigures {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let stats = self.0.stats();
        gauges(&stats).into_iter().try_for_each(|figure| gauge(&mut encoder, figure))?;
        counters(&stats).into_iter().try_for_each(|figure| counter(&mut encoder, figure))?;
        histograms(&mut encoder, &stats)?;
        if !self.0.drafts() {
            return Ok(());
        }
        draft_gauges(&stats).into_iter().try_for_each(|figure| gauge(&mut encoder, figure))?;
        draft_counters(&stats).into_iter().try_for_each(|figure| counter(&mut encoder, figure))?;
        let DraftCounts { checked_at, accepted_at, silent, .. } = &stats.drafts;
        let at = |first: usize, counts: &[u64]| -> Vec<(String, u64)> {
            counts.iter().enumerate().map(|(index, &count)| ((first + index).to_string(), count)).collect()
        };
        let reasons: Vec<(String, u64)> =
            Reason::ALL.iter().zip(silent).map(|(reason, &count)| (reason.name().to_owned(), count)).collect();
        let (checked, accepted, accepted_from_0) = (at(1, checked_at), at(1, accepted_at), at(0, accepted_at));
        let all: [Labelled<'_>; 4] = [
            ("foretoken_drafted_tokens_by_position", CHECKED_AT, "position", &checked),
            ("foretoken_accepted_tokens_by_position", ACCEPTED_AT, "position", &accepted),
            ("foretoken_undrafted", UNDRAFTED, "reason", &reasons),
            ("vllm:spec_decode_num_accepted_tokens_per_pos", OF_VLLM, "position", &accepted_from_0),
        ];
        all.into_iter().try_for_each(|figure| labelled(&mut encoder, figure))
    }
}

const CHECKED_AT: &str =
    "Steps of a request with a draft so far ahead, from 1; the last position has all beyond it too";
const ACCEPTED_AT: &str = "Of these, those in which one was accepted";
const UNDRAFTED: &str = "Steps of a request that decoded without drafts, by the reason";
const OF_VLLM: &str = "As foretoken_accepted_tokens_by_position, from 0";

fn gauge(encoder: &mut DescriptorEncoder<'_>, (name, help, value): Figure) -> fmt::Result {
    let gauge = ConstGauge::new(value);
    gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
}

fn counter(encoder: &mut DescriptorEncoder<'_>, (name, help, value): Figure) -> fmt::Result {
    let counter = ConstCounter::new(value);
    counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)
}

fn labelled(encoder: &mut DescriptorEncoder<'_>, (name, help, label, values): Labelled<'_>) -> fmt::Result {
    let metric_type = ConstCounter::new(0_u64).metric_type();
    let mut family = encoder.encode_descriptor(name, help, None, metric_type)?;
    values.iter().try_for_each(|(value, count)| {
        ConstCounter::new(*count).encode(family.encode_family(&[(label, value.as_str())])?)
    })
}

/// The engine's steps by their time and their rows.
fn histograms(encoder: &mut DescriptorEncoder<'_>, stats: &Stats) -> fmt::Result {
    let mut histogram = |(name, help, sum): Figure, bounds: &[f64], counts: &[u64]| {
        let bounds = bounds.iter().copied().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(counts.iter().copied()).collect();
        let mut encoder = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        encoder.encode_histogram::<NoLabelSet>(sum, stats.steps, &buckets, None)
    };
    let seconds = ("foretoken_step_seconds", "Time of a step: a forward of the target and all that is done around it");
    let rows = ("foretoken_step_rows", "Rows of a step: tokens that its forward computed");
    let counts = &stats.step_counts;
    histogram((seconds.0, seconds.1, stats.step_seconds), &STEP_SECONDS, &counts.by_seconds)?;
    histogram((rows.0, rows.1, stats.rows as f64), &STEP_ROWS, &counts.by_rows)
}

/// The `vllm:` names are what gateways and load balancers look for.
fn gauges(stats: &Stats) -> [Figure; 8] {
    let (running, waiting) = (stats.running as f64, stats.waiting as f64);
    let (used, total) = (stats.kv_pages_used as f64, stats.kv_pages_total as f64);
    [
        ("foretoken_requests_running", "Requests that are in the batch", running),
        ("foretoken_requests_waiting", "Requests that wait for a place in the batch", waiting),
        ("foretoken_kv_pages_used", "KV pages that requests hold", used),
        ("foretoken_kv_pages", "KV pages in all", total),
        ("foretoken_kv_pages_cached", "KV pages of prefixes that no request holds", stats.cached_pages as f64),
        ("vllm:num_requests_running", "As foretoken_requests_running", running),
        ("vllm:num_requests_waiting", "As foretoken_requests_waiting", waiting),
        ("vllm:kv_cache_usage_perc", "Share of the KV pages that requests hold, from 0 to 1", used / total.max(1.0)),
    ]
}

fn counters(stats: &Stats) -> [Figure; 6] {
    [
        ("foretoken_prompt_tokens", "Tokens of the prompts taken in", stats.prompt_tokens as f64),
        ("foretoken_cached_prompt_tokens", "Of these, found in the prefix cache", stats.cached_prompt_tokens as f64),
        ("foretoken_generation_tokens", "Tokens committed", stats.generated_tokens as f64),
        ("foretoken_preemptions", "Times that a request gave its pages up", stats.preemptions as f64),
        ("foretoken_forward_seconds", "Of foretoken_step_seconds, in forwards of the target", stats.forward_seconds),
        (
            "foretoken_commit_seconds",
            "Of foretoken_step_seconds, choosing, accepting and committing tokens",
            stats.commit_seconds,
        ),
    ]
}

fn draft_gauges(stats: &Stats) -> [Figure; 3] {
    let DraftCounts { accepted, judged, expected, squared_error, .. } = stats.drafts;
    let judged = (judged as f64).max(1.0);
    let budget = "Drafts checked for a request that decodes, in the mean of the last steps (those before the last 32 \
        weigh a third)";
    let calibration =
        "Of the drafts that were judged, expected share of accepted ones less their share, without its sign";
    let brier = "Mean square of a judged draft's expected acceptance less what came (1 or 0)";
    [
        ("foretoken_draft_budget", budget, stats.draft_budget),
        ("foretoken_draft_calibration_error", calibration, (expected - accepted as f64).abs() / judged),
        ("foretoken_draft_brier", brier, squared_error / judged),
    ]
}

fn draft_counters(stats: &Stats) -> [Figure; 13] {
    let DraftCounts { proposals, checked, accepted, judged, expected, squared_error, .. } = stats.drafts;
    let [proposals, checked, accepted, judged] = [proposals, checked, accepted, judged].map(|count| count as f64);
    [
        ("foretoken_decodes", "Steps of a request that decodes, with drafts or without", stats.drafts.decodes() as f64),
        ("foretoken_drafts", "Of these, those with drafts", proposals),
        ("foretoken_drafted_tokens", "Drafts that were checked, but for those beyond the end of an answer", checked),
        ("foretoken_accepted_tokens", "Of these, those that became part of an answer", accepted),
        ("foretoken_rejected_tokens", "Of these, those that did not", checked - accepted),
        ("foretoken_judged_tokens", "Drafts of which it is known whether the target agrees", judged),
        ("foretoken_expected_tokens", "As many of these were expected to be accepted", expected),
        ("foretoken_draft_squared_error", "Sum over these, of foretoken_draft_brier", squared_error),
        (
            "foretoken_propose_seconds",
            "Of foretoken_step_seconds, drafting and deciding what is checked",
            stats.propose_seconds,
        ),
        (
            "foretoken_step_predicted_seconds",
            "What the curve of costs said of the forwards that foretoken_forward_seconds timed",
            stats.predicted_seconds,
        ),
        ("vllm:spec_decode_num_drafts", "As foretoken_drafts", proposals),
        ("vllm:spec_decode_num_draft_tokens", "As foretoken_drafted_tokens", checked),
        ("vllm:spec_decode_num_accepted_tokens", "As foretoken_accepted_tokens", accepted),
    ]
}
