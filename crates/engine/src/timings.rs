//! How long a generation took, and what of it.

use std::time::{Duration, Instant};

use crate::request::Usage;

/// Times of one generation, all measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timings {
    /// From the call to the first committed token: the whole prompt and one sample.
    pub first_token: Duration,
    /// From the first committed token to the last, the receiver's own time included.
    pub decode: Duration,
    /// Tokens computed within `first_token`.
    pub prompt_tokens: usize,
    /// Tokens committed within `decode`: all but the first.
    pub decode_tokens: usize,
}

impl Timings {
    /// Prompt tokens a second until the first token; `None` if no time passed.
    pub fn prompt_rate(&self) -> Option<f64> {
        rate(self.prompt_tokens, self.first_token)
    }

    /// Tokens a second after the first token; `None` if there were none.
    pub fn decode_rate(&self) -> Option<f64> {
        rate(self.decode_tokens, self.decode)
    }
}

fn rate(tokens: usize, time: Duration) -> Option<f64> {
    (tokens > 0 && !time.is_zero()).then(|| tokens as f64 / time.as_secs_f64())
}

/// Takes the times of one generation. The caller reads the clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopwatch {
    start: Instant,
    first: Option<Instant>,
    last: Instant,
}

impl Stopwatch {
    pub(crate) fn start(now: Instant) -> Self {
        Self { start: now, first: None, last: now }
    }

    /// A token was committed.
    pub(crate) fn token(&mut self, now: Instant) {
        self.first.get_or_insert(now);
        self.last = now;
    }

    pub(crate) fn timings(&self, usage: Usage) -> Timings {
        let first = self.first.unwrap_or(self.last);
        Timings {
            first_token: first - self.start,
            decode: self.last - first,
            prompt_tokens: usage.prompt_tokens,
            decode_tokens: usage.output_tokens.saturating_sub(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_token_belongs_to_the_prompt_and_the_others_to_decoding() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut stopwatch = Stopwatch::start(start);
        [50, 60, 80].into_iter().for_each(|ms| stopwatch.token(at(ms)));
        let timings =
            stopwatch.timings(Usage { prompt_tokens: 100, output_tokens: 3, cached_tokens: 0, ..Usage::default() });
        assert_eq!((timings.first_token, timings.decode), (Duration::from_millis(50), Duration::from_millis(30)));
        assert_eq!(timings.prompt_rate(), Some(2000.0));
        assert!((timings.decode_rate().unwrap() - 2.0 / 0.03).abs() < 1e-9);
    }

    #[test]
    fn one_token_has_no_decode_rate() {
        let start = Instant::now();
        let mut stopwatch = Stopwatch::start(start);
        stopwatch.token(start + Duration::from_millis(5));
        let timings =
            stopwatch.timings(Usage { prompt_tokens: 1, output_tokens: 1, cached_tokens: 0, ..Usage::default() });
        assert_eq!(timings.decode_rate(), None);
    }
}
