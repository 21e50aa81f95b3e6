//! Medians and percentiles: the ways in which this program condenses repeated measurements.

use serde_json::{Value, json};

/// Seconds of repeated measurements of one thing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples {
    seconds: Vec<f64>,
}

impl Samples {
    pub(crate) fn push(&mut self, seconds: f64) {
        let at = self.seconds.partition_point(|&other| other < seconds);
        self.seconds.insert(at, seconds);
    }

    /// The middle sample (the mean of the two middle ones); NaN when there is none.
    pub(crate) fn median(&self) -> f64 {
        let n = self.seconds.len();
        match n {
            0 => f64::NAN,
            _ => (self.seconds[(n - 1) / 2] + self.seconds[n / 2]) / 2.0,
        }
    }

    pub(crate) fn min(&self) -> f64 {
        self.seconds.first().copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn max(&self) -> f64 {
        self.seconds.last().copied().unwrap_or(f64::NAN)
    }

    /// The smallest sample that at least `percent` of a hundred samples do not exceed: always one that was measured.
    /// NaN when there is none.
    pub(crate) fn percentile(&self, percent: f64) -> f64 {
        let rank = (percent / 100.0 * self.seconds.len() as f64).ceil() as usize;
        self.seconds.get(rank.max(1) - 1).copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn len(&self) -> usize {
        self.seconds.len()
    }

    /// Median, extremes (milliseconds) and count.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "median_ms": self.median() * 1e3,
            "min_ms": self.min() * 1e3,
            "max_ms": self.max() * 1e3,
            "samples": self.seconds.len(),
        })
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(samples: I) -> Self {
        let mut seconds: Vec<f64> = samples.into_iter().collect();
        seconds.sort_by(f64::total_cmp);
        Self { seconds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_sample() {
        let samples: Samples = (1..=10).rev().map(f64::from).collect();
        let at = [0.0, 10.0, 50.0, 51.0, 90.0, 99.0, 100.0].map(|percent| samples.percentile(percent));
        assert_eq!(at, [1.0, 1.0, 5.0, 6.0, 9.0, 10.0, 10.0]);
        assert!(Samples::default().percentile(50.0).is_nan());
        assert_eq!(Samples::from_iter([7.0]).percentile(99.0), 7.0);
    }

    #[test]
    fn median_and_extremes_of_unsorted_samples() {
        let mut samples = Samples::default();
        assert!(samples.median().is_nan());
        for second in [3.0, 1.0, 2.0] {
            samples.push(second);
        }
        assert_eq!((samples.min(), samples.median(), samples.max()), (1.0, 2.0, 3.0));
        samples.push(10.0);
        assert_eq!(samples.median(), 2.5);
    }
}
