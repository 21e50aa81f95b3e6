//! Figures for Prometheus: what the server has seen of its requests, and what the engine counts.

mod engine_figures;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use engine::FinishReason;
use engine::batch::{Event, Handle};
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use engine_figures::EngineFigures;

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
