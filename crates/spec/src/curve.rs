//! How long a step takes, by its rows and their context.

/// Step times measured over rows and context, and what they say of times between.
///
/// Between measured points time is linear. Over rows it never falls: where measured times do, neighbours are pooled (least
/// squares under order, Ayer et al. 1955), so that noise does not make a row look cheaper than free. Beyond the last
/// point it rises on, as steeply as at the end and no less than on the whole, because a plateau that was measured says
/// nothing of the next.
///
/// Real step times refine the points by moving medians: a time above the prediction moves it up by a fixed share, one
/// below it down, so that a step during which the machine did something else counts as one step and no more. A common
/// *pace* moves fast and the points slowly: when the machine as a whole gets slower, the sizes that happen to be in use
/// must not come to look worse than those that aren't.
#[derive(Debug, Clone, PartialEq)]
pub struct CostCurve {
    rows: Vec<usize>,
    contexts: Vec<usize>,
    /// Seconds at each point, `[contexts, rows]`.
    points: Vec<f64>,
    /// The points, not falling over rows, `[contexts, rows]`.
    fitted: Vec<f64>,
    pace: f64,
}

/// The share by which one step moves the pace.
const PACE_SHARE: f64 = 0.02;

/// The share by which one step moves a point that it lies on.
const POINT_SHARE: f64 = 0.002;

/// Times that are no curve.
#[derive(Debug, thiserror::Error, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum CurveError {
    #[error("the {axis} of a cost curve must be at least one number, ascending without repetition; they are {found:?}")]
    Axis { axis: &'static str, found: Vec<usize> },
    #[error("a cost curve of {rows} row counts and {contexts} contexts has {seconds} times, not one for each pair")]
    Points { rows: usize, contexts: usize, seconds: usize },
    #[error("a step of {seconds} seconds cannot be: it must be finite and above 0")]
    Seconds { seconds: f64 },
}

impl CostCurve {
    /// The curve through measured times: `seconds`, `[contexts, rows]`, for steps of `rows[i]` rows whose requests have
    /// `contexts[j]` tokens before them on average. Both ascend; no number of rows is 0.
    ///
    /// # Errors
    ///
    /// An axis that is empty or does not ascend, a wrong number of times, a time that is not finite and above 0.
    pub fn new(rows: &[usize], contexts: &[usize], seconds: &[f64]) -> Result<CostCurve, CurveError> {
        for (axis, found, least) in [("rows", rows, 1), ("contexts", contexts, 0)] {
            let ascending = found.windows(2).all(|pair| pair[0] < pair[1]);
            if !ascending || found.first().is_none_or(|&first| first < least) {
                return Err(CurveError::Axis { axis, found: found.to_vec() });
            }
        }
        if seconds.len() != rows.len() * contexts.len() {
            let (rows, contexts) = (rows.len(), contexts.len());
            return Err(CurveError::Points { rows, contexts, seconds: seconds.len() });
        }
        seconds.iter().try_for_each(|&seconds| check(seconds))?;
        let points = seconds.to_vec();
        let mut curve =
            CostCurve { rows: rows.to_vec(), contexts: contexts.to_vec(), fitted: points.clone(), points, pace: 1.0 };
        curve.fit();
        Ok(curve)
    }

    /// The seconds that a step of `rows` rows takes, whose requests have `context` tokens before them on average.
    pub fn seconds(&self, rows: usize, context: usize) -> f64 {
        let (row, right) = place(&self.rows, rows);
        let (column, below) = place(&self.contexts, context);
        let along = |column: usize| {
            let times = &self.fitted[column * self.rows.len()..(column + 1) * self.rows.len()];
            interpolate(&self.rows, times, row, right)
        };
        let over = if below > 0.0 && column + 1 < self.contexts.len() {
            // Beyond the last context the difference of the last two goes on, if it is one.
            let (near, far) = (along(column), along(column + 1));
            if below > 1.0 { far + (far - near).max(0.0) * (below - 1.0) } else { near + (far - near) * below }
        } else {
            along(column)
        };
        over * self.pace
    }

    /// SPS(B): steps of `rows` rows in a second (DSpark, section 3.2.2).
    pub fn steps_per_second(&self, rows: usize, context: usize) -> f64 {
        1.0 / self.seconds(rows, context)
    }

    /// Learns from a step that took `seconds`.
    ///
    /// # Errors
    ///
    /// A time that is not finite and above 0: nothing was learnt.
    pub fn observe(&mut self, rows: usize, context: usize, seconds: f64) -> Result<(), CurveError> {
        check(seconds)?;
        let predicted = self.seconds(rows, context);
        let direction = if seconds > predicted {
            1.0
        } else if seconds < predicted {
            -1.0
        } else {
            return Ok(());
        };
        self.pace = (self.pace * (PACE_SHARE * direction).exp()).clamp(1e-6, 1e6);
        let (row, right) = place(&self.rows, rows);
        let (column, below) = place(&self.contexts, context);
        let [right, below] = [right, below].map(|share| share.min(1.0));
        for (column, share) in [(column, 1.0 - below), (column + 1, below)] {
            for (row, share) in [(row, share * (1.0 - right)), (row + 1, share * right)] {
                if share > 0.0 && row < self.rows.len() && column < self.contexts.len() {
                    let point = &mut self.points[column * self.rows.len() + row];
                    *point = (*point * (POINT_SHARE * share * direction).exp()).clamp(1e-9, 1e9);
                }
            }
        }
        self.fit();
        Ok(())
    }

    /// The row counts that were measured.
    pub fn rows(&self) -> &[usize] {
        &self.rows
    }

    /// The contexts that were measured.
    pub fn contexts(&self) -> &[usize] {
        &self.contexts
    }

    /// What is now known of the measured points, in seconds, `[contexts, rows]`: with rows and contexts, what
    /// [`new`](CostCurve::new) makes this curve of again.
    pub fn points(&self) -> Vec<f64> {
        self.points.iter().map(|seconds| seconds * self.pace).collect()
    }

    fn fit(&mut self) {
        let rows = self.rows.len();
        for (fitted, points) in self.fitted.chunks_exact_mut(rows).zip(self.points.chunks_exact(rows)) {
            pool(points, fitted);
        }
    }
}

fn check(seconds: f64) -> Result<(), CurveError> {
    if seconds.is_finite() && seconds > 0.0 { Ok(()) } else { Err(CurveError::Seconds { seconds }) }
}

/// The index of the point at or before `at`, and how far `at` is on the way to the next: 0 on the point, above 1 beyond the
/// last. Before the first point it is on it. The last interval has the points beyond.
fn place(axis: &[usize], at: usize) -> (usize, f64) {
    let last = axis.len().saturating_sub(2);
    let index = axis.partition_point(|&point| point <= at).saturating_sub(1).min(last);
    let Some(next) = axis.get(index + 1) else { return (index, 0.0) };
    let share = at.saturating_sub(axis[index]) as f64 / (next - axis[index]) as f64;
    (index, share)
}

/// The time at `share` of the way from point `index` to the next; times do not fall.
fn interpolate(axis: &[usize], times: &[f64], index: usize, share: f64) -> f64 {
    let Some(next) = times.get(index + 1) else { return times[index] };
    let rise = next - times[index];
    if share <= 1.0 {
        return times[index] + rise * share;
    }
    let [first, last] = [0, axis.len() - 1];
    let width = |from: usize, to: usize| (axis[to] - axis[from]) as f64;
    let overall = (times[last] - times[first]) / width(first, last) * width(index, index + 1);
    next + rise.max(overall) * (share - 1.0)
}

/// The sequence without falls that is nearest to `values` (pool adjacent violators).
fn pool(values: &[f64], fitted: &mut [f64]) {
    // Blocks of equal values: their mean, and where they begin.
    let mut blocks: Vec<(f64, usize)> = Vec::with_capacity(values.len());
    for (i, &value) in values.iter().enumerate() {
        let mut block = (value, i);
        while let Some(&(mean, start)) = blocks.last().filter(|(mean, _)| *mean > block.0) {
            let [before, here] = [block.1 - start, i + 1 - block.1].map(|n| n as f64);
            block = ((mean * before + block.0 * here) / (before + here), start);
            blocks.pop();
        }
        blocks.push(block);
    }
    let ends = blocks.iter().skip(1).map(|&(_, start)| start).chain([values.len()]);
    for (&(mean, start), end) in blocks.iter().zip(ends) {
        fitted[start..end].fill(mean);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_go_through_the_points_and_straight_between() {
        let curve = CostCurve::new(&[1, 2, 4], &[0, 100], &[1.0, 2.0, 3.0, 2.0, 3.0, 7.0]).unwrap();
        for (rows, context, seconds) in
            [(1, 0, 1.0), (2, 0, 2.0), (3, 0, 2.5), (4, 0, 3.0), (4, 100, 7.0), (1, 50, 1.5), (3, 50, 3.75)]
        {
            assert_eq!(curve.seconds(rows, context), seconds, "{rows} {context}");
        }
        assert_eq!(curve.steps_per_second(2, 0), 0.5);
    }

    #[test]
    fn beyond_the_points_times_rise_on() {
        let curve = CostCurve::new(&[1, 2, 4], &[100, 200], &[1.0, 2.0, 2.0, 3.0, 4.0, 4.0]).unwrap();
        // A plateau at the end: the slope of the whole, 1/3 for each row.
        assert!((curve.seconds(7, 100) - 3.0).abs() < 1e-12);
        assert!((curve.seconds(1, 300) - 5.0).abs() < 1e-12);
        assert_eq!(curve.seconds(1, 0), 1.0);
        assert_eq!(curve.seconds(0, 0), 1.0);
        let single = CostCurve::new(&[2], &[0], &[1.0]).unwrap();
        assert_eq!(single.seconds(9, 9), 1.0);
    }

    #[test]
    fn times_do_not_fall_over_rows() {
        let curve = CostCurve::new(&[1, 2, 3, 4], &[0], &[1.0, 3.0, 2.0, 2.2]).unwrap();
        let seconds: Vec<f64> = (1..=4).map(|rows| curve.seconds(rows, 0)).collect();
        for (found, expected) in seconds.iter().zip([1.0, 2.4, 2.4, 2.4]) {
            assert!((found - expected).abs() < 1e-12, "{seconds:?}");
        }
        assert_eq!(curve.points(), [1.0, 3.0, 2.0, 2.2], "what was measured is kept");
    }

    #[test]
    fn refinement_finds_the_median_and_not_the_mean() {
        let mut curve = CostCurve::new(&[1, 8], &[0], &[1.0, 4.0]).unwrap();
        for i in 0..3000 {
            // One step in five meets something that takes a hundred times as long.
            let outlier = if i % 5 == 0 { 100.0 } else { 1.0 };
            let noise = 0.95 + 0.1 * f64::from(i % 7) / 6.0;
            curve.observe(1, 0, 2.0 * noise * outlier).unwrap();
            curve.observe(8, 0, 3.0 * noise * outlier).unwrap();
        }
        for (rows, expected) in [(1, 2.0), (8, 3.0)] {
            let found = curve.seconds(rows, 0);
            assert!((found / expected - 1.0).abs() < 0.06, "{rows} rows: {found}");
        }
    }

    #[test]
    fn a_slower_machine_is_slower_at_all_sizes() {
        let mut curve = CostCurve::new(&[1, 8, 16], &[0, 1000], &[1.0, 2.0, 3.0, 2.0, 3.0, 4.0]).unwrap();
        for _ in 0..200 {
            curve.observe(8, 0, 4.0).unwrap();
        }
        assert!((curve.seconds(8, 0) / 4.0 - 1.0).abs() < 0.05);
        assert!(curve.seconds(1, 0) > 1.7 && curve.seconds(16, 1000) > 7.0);
    }

    #[test]
    fn points_make_the_curve_again() {
        let mut curve = CostCurve::new(&[1, 8], &[0], &[1.0, 4.0]).unwrap();
        curve.observe(3, 7, 9.0).unwrap();
        let again = CostCurve::new(curve.rows(), curve.contexts(), &curve.points()).unwrap();
        assert!((again.seconds(5, 0) - curve.seconds(5, 0)).abs() < 1e-12);
    }

    #[test]
    fn what_is_no_curve_is_refused() {
        for (rows, contexts, seconds) in [
            (&[][..], &[0][..], &[][..]),
            (&[0], &[0], &[1.0]),
            (&[2, 2], &[0], &[1.0, 1.0]),
            (&[1], &[5, 4], &[1.0, 1.0]),
            (&[1, 2], &[0], &[1.0]),
            (&[1], &[0], &[0.0]),
            (&[1], &[0], &[f64::NAN]),
        ] {
            assert!(CostCurve::new(rows, contexts, seconds).is_err(), "{rows:?} {contexts:?} {seconds:?}");
        }
        let mut curve = CostCurve::new(&[1], &[0], &[1.0]).unwrap();
        let before = curve.clone();
        assert!(curve.observe(1, 0, f64::INFINITY).is_err());
        assert_eq!(curve, before);
    }
}
