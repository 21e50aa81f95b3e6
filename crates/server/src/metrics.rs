//! Figures for Prometheus: what the server has seen of its requests, and what the engine counts.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use engine::FinishReason;
use engine::batch::{Event, Handle, Stats};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// Route and status.
type Answered = [(&'static str, String); 2];

/// One label of few values.
type Label = [(&'static str, &'static str); 1];

/// All that `/metrics` shows.
pub(crate) struct Metrics {
    registry: Registry,
    answered: Family<Answered, Counter>,
    rejected: Family<Label, Counter>,
    ended: Family<Label, Counter>,
    connections: Gauge,
    first_token: Histogram,
    output_token: Histogram,
    latency: Histogram,
}

impl Metrics {
    pub(crate) fn new(handle: Handle) -> Self {
        let mut registry = Registry::default();
        let (answered, rejected, ended) = (Family::default(), Family::default(), Family::default());
        registry.register("foretoken_http_requests", "Requests answered, by route and status", answered.clone());
        registry.register("foretoken_rejected", "Requests answered with an error, by its kind", rejected.clone());
        registry.register("foretoken_choices", "Choices that have ended, by why", ended.clone());
        let connections = Gauge::default();
        registry.register("foretoken_connections", "Connections that are open", connections.clone());
        let mut histogram = |name: &str, help: &str, from: f64, buckets: u16| {
            let histogram = Histogram::new(exponential_buckets(from, 2.0, buckets));
            registry.register(name, help, histogram.clone());
            histogram
        };
        let first_token = histogram(
            "foretoken_time_to_first_token_seconds",
            "From a request's submission to the first token of its first choice",
            0.001,
            18,
        );
        let output_token = histogram(
            "foretoken_time_per_output_token_seconds",
            "Mean time between the tokens of a choice after its first",
            0.000_5,
            14,
        );
        let latency =
            histogram("foretoken_request_seconds", "From a request's submission to the end of a choice", 0.001, 20);
        registry.register_collector(Box::new(EngineFigures(handle)));
        Self { registry, answered, rejected, ended, connections, first_token, output_token, latency }
    }

    /// A request was answered, or a stream begun.
    pub(crate) fn answered(&self, route: &str, status: u16) {
        let labels = [("route", route.to_owned()), ("status", status.to_string())];
        self.answered.get_or_create(&labels).inc();
    }

    /// A request was answered with an error of this kind.
    pub(crate) fn rejected(&self, kind: &'static str) {
        self.rejected.get_or_create(&[("kind", kind)]).inc();
    }

    /// Counts a connection as open until the answer is dropped.
    pub(crate) fn connection(&self) -> Open {
        self.connections.inc();
        Open(self.connections.clone())
    }

    /// Everything in OpenMetrics' text form.
    pub(crate) fn text(&self) -> Result<String, fmt::Error> {
        let mut out = String::new();
        text::encode(&mut out, &self.registry)?;
        Ok(out)
    }
}

/// An open connection.
pub(crate) struct Open(Gauge);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Takes the times of one submission, where the engine hands its events out.
pub(crate) struct Watch {
    metrics: Arc<Metrics>,
    start: Instant,
    /// When the first token of each choice came.
    first: Vec<Option<Instant>>,
}

impl Watch {
    pub(crate) fn start(metrics: Arc<Metrics>, n: u32) -> Self {
        Self { metrics, start: Instant::now(), first: vec![None; n as usize] }
    }

    pub(crate) fn see(&mut self, event: &Event) {
        match event {
            Event::Delta { choice, .. } => self.token(*choice as usize),
            Event::Finished { choice, usage, reason } => {
                self.ended(reason_label(*reason));
                if matches!(reason, FinishReason::Cancelled | FinishReason::Error) {
                    return;
                }
                let now = Instant::now();
                self.metrics.latency.observe((now - self.start).as_secs_f64());
                let first = self.first.get(*choice as usize).copied().flatten();
                if let (Some(first), more @ 1..) = (first, usage.output_tokens.saturating_sub(1)) {
                    self.metrics.output_token.observe((now - first).as_secs_f64() / more as f64);
                }
            }
            Event::Failed { .. } => self.ended("error"),
        }
    }

    fn ended(&self, reason: &'static str) {
        self.metrics.ended.get_or_create(&[("reason", reason)]).inc();
    }

    fn token(&mut self, choice: usize) {
        let is_first = self.first.iter().all(Option::is_none);
        let Some(first @ None) = self.first.get_mut(choice) else { return };
        let now = Instant::now();
        *first = Some(now);
        if is_first {
            self.metrics.first_token.observe((now - self.start).as_secs_f64());
        }
    }
}

fn reason_label(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop | FinishReason::StopString => "stop",
        FinishReason::Length => "length",
        FinishReason::Cancelled => "cancelled",
        FinishReason::Error => "error",
    }
}

/// The engine's own figures, read when they are asked for.
struct EngineFigures(Handle);

impl fmt::Debug for EngineFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineFigures")
    }
}

impl Collector for EngineFigures {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let stats = self.0.stats();
        for (name, help, value) in gauges(&stats) {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        for (name, help, value) in counters(&stats) {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        Ok(())
    }
}

/// Name, help and value. The `vllm:` names are what gateways and load balancers look for.
fn gauges(stats: &Stats) -> [(&'static str, &'static str, f64); 8] {
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

fn counters(stats: &Stats) -> [(&'static str, &'static str, f64); 7] {
    [
        ("foretoken_prompt_tokens", "Tokens of the prompts taken in", stats.prompt_tokens as f64),
        ("foretoken_cached_prompt_tokens", "Of these, found in the prefix cache", stats.cached_prompt_tokens as f64),
        ("foretoken_generation_tokens", "Tokens committed", stats.generated_tokens as f64),
        ("foretoken_preemptions", "Times that a request gave its pages up", stats.preemptions as f64),
        ("foretoken_steps", "Forwards of the target", stats.steps as f64),
        ("foretoken_rows", "Rows of these forwards", stats.rows as f64),
        ("foretoken_step_seconds", "Time that the steps took", stats.step_seconds),
    ]
}
