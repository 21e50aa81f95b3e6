//! One measured point: what the answers to one load come to. Tokens are counted by the server's usage, times are the
//! client's, and a percentile is always one of the measured values.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::drive::{Load, Outcome};
use super::stream::Answer;
use crate::stats::Samples;

/// A load and what came of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Point {
    /// Clients of a closed loop.
    pub(crate) concurrency: Option<usize>,
    /// Requests a second of an open one.
    pub(crate) rate: Option<f64>,
    /// Requests sent, warm-up left out.
    pub(crate) requests: usize,
    pub(crate) answered: usize,
    /// The others, by kind.
    pub(crate) errors: BTreeMap<String, usize>,
    /// A message of each kind.
    pub(crate) error_examples: BTreeMap<String, String>,
    /// From the first sending to the end of the last answer.
    pub(crate) seconds: f64,
    pub(crate) prompt_tokens: u64,
    pub(crate) prompt_tokens_min: u64,
    pub(crate) prompt_tokens_max: u64,
    /// Prompt tokens that the server had computed before.
    pub(crate) cached_tokens: u64,
    pub(crate) output_tokens: u64,
    pub(crate) output_tokens_min: u64,
    pub(crate) output_tokens_max: u64,
    /// Events with text: fewer than tokens where an event has several.
    pub(crate) events: usize,
    /// Answers by why they ended.
    pub(crate) finish_reasons: BTreeMap<String, usize>,
    pub(crate) requests_per_s: f64,
    /// Output tokens of all answers by `seconds`: the time of prompts is in it.
    pub(crate) output_tokens_per_s: f64,
    /// Time to first text.
    pub(crate) ttft_ms: Summary,
    /// Time per output token after the first: from first text to last, by tokens.
    pub(crate) tpot_ms: Summary,
    /// Between one event with text and the next, over all answers.
    pub(crate) gap_ms: Summary,
    /// From sending to the end of the stream.
    pub(crate) e2e_ms: Summary,
    /// Of each answer while it decodes: 1 / time per output token.
    pub(crate) stream_tokens_per_s: Summary,
}

/// How measured values are spread. All but the count are null where there is none.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub(crate) count: usize,
    pub(crate) p50: Option<f64>,
    pub(crate) p90: Option<f64>,
    pub(crate) p99: Option<f64>,
    pub(crate) max: Option<f64>,
}

impl Summary {
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let samples: Samples = values.into_iter().collect();
        let at = |percent| Some(samples.percentile(percent)).filter(|value| value.is_finite());
        Self { count: samples.len(), p50: at(50.0), p90: at(90.0), p99: at(99.0), max: at(100.0) }
    }
}

impl Point {
    pub(crate) fn of(load: Load, outcome: Outcome) -> Self {
        let Outcome { results, seconds } = outcome;
        let requests = results.len();
        let (mut errors, mut error_examples) = (BTreeMap::new(), BTreeMap::new());
        let mut answers: Vec<Answer> = Vec::with_capacity(requests);
        for result in results {
            match result {
                Ok(answer) => answers.push(answer),
                Err(failure) => {
                    *errors.entry(failure.kind.clone()).or_insert(0) += 1;
                    error_examples.entry(failure.kind).or_insert(failure.message);
                }
            }
        }
        let mut finish_reasons = BTreeMap::new();
        for answer in &answers {
            *finish_reasons.entry(answer.finish.clone()).or_insert(0) += 1;
        }
        let outputs = || answers.iter().map(|answer| answer.usage.output);
        let prompts = || answers.iter().map(|answer| answer.usage.prompt);
        let output_tokens: u64 = outputs().sum();
        let ms = |seconds: f64| seconds * 1e3;
        Self {
            concurrency: match load {
                Load::Closed(clients) => Some(clients),
                Load::Open(_) => None,
            },
            rate: match load {
                Load::Closed(_) => None,
                Load::Open(rate) => Some(rate),
            },
            requests,
            answered: answers.len(),
            errors,
            error_examples,
            seconds,
            prompt_tokens: prompts().sum(),
            prompt_tokens_min: prompts().min().unwrap_or(0),
            prompt_tokens_max: prompts().max().unwrap_or(0),
            cached_tokens: answers.iter().map(|answer| answer.usage.cached).sum(),
            output_tokens,
            output_tokens_min: outputs().min().unwrap_or(0),
            output_tokens_max: outputs().max().unwrap_or(0),
            events: answers.iter().map(|answer| answer.events.len()).sum(),
            finish_reasons,
            requests_per_s: answers.len() as f64 / seconds,
            output_tokens_per_s: output_tokens as f64 / seconds,
            ttft_ms: Summary::of(answers.iter().filter_map(Answer::first).map(ms)),
            tpot_ms: Summary::of(answers.iter().filter_map(Answer::per_token).map(ms)),
            gap_ms: Summary::of(answers.iter().flat_map(Answer::gaps).map(ms)),
            e2e_ms: Summary::of(answers.iter().map(Answer::whole).map(ms)),
            stream_tokens_per_s: Summary::of(answers.iter().filter_map(Answer::per_token).map(f64::recip)),
        }
    }

    /// The load in a word or two.
    pub(crate) fn name(&self) -> String {
        match (self.concurrency, self.rate) {
            (Some(clients), _) => clients.to_string(),
            (None, Some(rate)) => format!("{rate}/s"),
            (None, None) => "-".to_owned(),
        }
    }

    /// What a reader must know beside the figures: failures, caches, prompts of other lengths.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for (kind, count) in &self.errors {
            let example = self.error_examples.get(kind).map_or("", String::as_str);
            let example: String = example.chars().take(160).map(|c| if c == '\n' { ' ' } else { c }).collect();
            notes.push(format!("{count} of {} requests failed ({kind}: {example})", self.requests));
        }
        if self.cached_tokens > 0 {
            let (cached, prompt) = (self.cached_tokens, self.prompt_tokens);
            notes.push(format!("{cached} of {prompt} prompt tokens came from the server's cache"));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::client::Failure;
    use super::super::stream::Usage;
    use super::*;

    fn answer(events_ms: &[u64], output: u64) -> Answer {
        let sent = Instant::now();
        let at = |ms: u64| sent + Duration::from_millis(ms);
        let ended = at(events_ms.last().unwrap() + 5);
        let usage = Usage { prompt: 10, cached: 4, output };
        Answer { sent, events: events_ms.iter().map(|&ms| at(ms)).collect(), ended, usage, finish: "length".into() }
    }

    #[test]
    fn figures_come_from_the_answers() {
        let results = vec![
            Ok(answer(&[100, 110, 130], 3)),
            Ok(answer(&[200, 240], 5)),
            Err(Failure::new("status 429", "full")),
            Err(Failure::new("status 429", "still full")),
        ];
        let point = Point::of(Load::Closed(2), Outcome { results, seconds: 0.5 });
        assert_eq!((point.requests, point.answered, point.errors["status 429"]), (4, 2, 2));
        assert_eq!((point.prompt_tokens, point.cached_tokens, point.output_tokens), (20, 8, 8));
        assert_eq!((point.output_tokens_min, point.output_tokens_max, point.events), (3, 5, 5));
        assert_eq!((point.requests_per_s, point.output_tokens_per_s), (4.0, 16.0));
        assert_eq!((point.ttft_ms.p50, point.ttft_ms.max), (Some(100.0), Some(200.0)));
        // 30 ms for two tokens, 40 ms for four.
        assert_eq!((point.tpot_ms.p50, point.tpot_ms.max), (Some(10.0), Some(15.0)));
        assert_eq!((point.gap_ms.count, point.gap_ms.p50, point.gap_ms.max), (3, Some(20.0), Some(40.0)));
        assert_eq!((point.e2e_ms.p50, point.e2e_ms.max), (Some(135.0), Some(245.0)));
        assert_eq!(point.stream_tokens_per_s.max, Some(100.0));
        assert_eq!(point.finish_reasons["length"], 2);
        let notes = point.notes();
        assert!(notes[0].contains("2 of 4 requests failed (status 429: full)"), "{notes:?}");
        assert!(notes[1].contains("8 of 20 prompt tokens"), "{notes:?}");
    }

    #[test]
    fn nothing_answered_is_nothing_measured() {
        let results = vec![Err(Failure::new("timeout", "late"))];
        let point = Point::of(Load::Open(1.5), Outcome { results, seconds: 1.0 });
        assert_eq!((point.name().as_str(), point.answered, point.ttft_ms.p50), ("1.5/s", 0, None));
        let text = serde_json::to_string(&point).unwrap();
        let again: Point = serde_json::from_str(&text).unwrap();
        assert_eq!(again.ttft_ms, point.ttft_ms);
    }
}
