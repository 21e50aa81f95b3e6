//! The verify cost curve: what one forward of N rows costs, for several N, against a forward of one.

use std::io::{self, Write};
use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};

use crate::stats::Samples;

/// Times of forwards by their number of rows, in the order asked for.
pub(crate) struct Curve {
    points: Vec<(usize, Samples)>,
}

impl Curve {
    /// Times `forward(rows)` for each count in `rows`, in `passes` passes over all of them.
    ///
    /// The counts take turns, forwards and then backwards, so that a machine that slows down slows all of them. A point
    /// begins with one untimed forward: the caches then hold what that point leaves there, as in a run of such steps.
    ///
    /// # Errors
    /// The first error of `forward`.
    pub(crate) fn measure(rows: &[usize], passes: usize, mut forward: impl FnMut(usize) -> Result<()>) -> Result<Self> {
        let mut points: Vec<(usize, Samples)> = rows.iter().map(|&rows| (rows, Samples::default())).collect();
        for pass in 0..passes {
            for at in 0..points.len() {
                let last = points.len() - 1;
                let (rows, samples) = &mut points[if pass % 2 == 0 { at } else { last - at }];
                forward(*rows)?;
                for _ in 0..repeats(*rows) {
                    let start = Instant::now();
                    forward(*rows)?;
                    samples.push(start.elapsed().as_secs_f64());
                }
            }
        }
        Ok(Self { points })
    }

    /// Median seconds of a forward of `rows` rows, if that was measured.
    pub(crate) fn median(&self, rows: usize) -> Option<f64> {
        self.points.iter().find(|(n, _)| *n == rows).map(|(_, samples)| samples.median())
    }

    pub(crate) fn to_json(&self) -> Value {
        let base = self.median(1);
        let point = |(rows, samples): &(usize, Samples)| {
            let mut value = samples.to_json();
            value["rows"] = json!(rows);
            value["relative"] = json!(base.map(|base| samples.median() / base));
            value["rows_per_s"] = json!(*rows as f64 / samples.median());
            value
        };
        self.points.iter().map(point).collect()
    }

    /// Prints a line for each number of rows.
    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{:>5}{:>11}{:>21}{:>11}{:>11}", "rows", "ms", "[min-max]", "relative", "rows/s")?;
        for (rows, samples) in &self.points {
            let spread = format!("[{:.2}-{:.2}]", samples.min() * 1e3, samples.max() * 1e3);
            let relative = self.median(1).map_or("-".to_owned(), |base| format!("{:.2}", samples.median() / base));
            let rate = *rows as f64 / samples.median();
            writeln!(out, "{rows:>5}{:>11.2}{spread:>21}{relative:>11}{rate:>11.1}", samples.median() * 1e3)?;
        }
        Ok(())
    }
}

/// Timed forwards of `rows` rows in one pass: more of the short ones, which are noisier and cheaper.
fn repeats(rows: usize) -> usize {
    (16 / rows).clamp(1, 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_is_measured_in_every_pass_and_in_turns() {
        let mut order = Vec::new();
        let curve = Curve::measure(&[1, 16], 2, |rows| {
            order.push(rows);
            Ok(())
        });
        let curve = curve.unwrap();
        let ones = [1; 9];
        let expected: Vec<usize> = [&ones[..], &[16, 16], &[16, 16], &ones[..]].concat();
        assert_eq!(order, expected);
        assert_eq!(curve.to_json()[0]["samples"], 16);
        assert_eq!(curve.to_json()[1]["samples"], 2);
        assert!(curve.median(1).is_some() && curve.median(2).is_none());
    }

    #[test]
    fn the_first_error_ends_the_measurement() {
        let mut calls = 0;
        let curve = Curve::measure(&[1, 2], 5, |_| {
            calls += 1;
            anyhow::bail!("out of pages")
        });
        assert_eq!((curve.err().map(|error| error.to_string()), calls), (Some("out of pages".to_owned()), 1));
    }
}
