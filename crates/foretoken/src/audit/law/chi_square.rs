//! Pearson's chi-square: whether counts are what a law gives.

use std::collections::BTreeMap;

/// Outcomes that a law expects fewer of than this are counted together: the statistic of rarer ones has heavier tails
/// than chi-square's, and would be found guilty too easily.
const LEAST_EXPECTED: f64 = 25.0;

/// Tokens that came out, at the positions in question.
pub(super) type Outcome = Vec<u32>;

/// The cell that is furthest off.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cell {
    /// Its outcome; empty for all rare ones together.
    pub(super) outcome: Outcome,
    pub(super) observed: u64,
    pub(super) expected: f64,
}

/// What a test came to.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Verdict {
    /// The probability of counts that are off as far or further, if the law is right.
    pub(super) p: f64,
    pub(super) worst: Cell,
}

/// Tests `counts` of outcomes against their `law`, whose probabilities add up to 1.
pub(super) fn test(counts: &BTreeMap<Outcome, u64>, law: &BTreeMap<Outcome, f64>) -> Verdict {
    let total = counts.values().sum::<u64>() as f64;
    let impossible = counts.iter().find(|(outcome, _)| law.get(*outcome).is_none_or(|&p| p <= 0.0));
    if let Some((outcome, &observed)) = impossible {
        return Verdict { p: 0.0, worst: Cell { outcome: outcome.clone(), observed, expected: 0.0 } };
    }
    let mut rare = Cell { outcome: Vec::new(), observed: 0, expected: 0.0 };
    let mut cells = Vec::new();
    for (outcome, &p) in law {
        let (observed, expected) = (counts.get(outcome).copied().unwrap_or(0), p * total);
        if expected < LEAST_EXPECTED {
            (rare.observed, rare.expected) = (rare.observed + observed, rare.expected + expected);
        } else {
            cells.push(Cell { outcome: outcome.clone(), observed, expected });
        }
    }
    match cells.iter_mut().min_by(|a, b| a.expected.total_cmp(&b.expected)) {
        // Too few even together: they go with the rarest of the others.
        Some(least) if rare.expected < LEAST_EXPECTED => {
            least.observed += rare.observed;
            least.expected += rare.expected;
        }
        _ => cells.push(rare),
    }
    verdict(cells)
}

fn verdict(cells: Vec<Cell>) -> Verdict {
    let share = |cell: &Cell| (cell.observed as f64 - cell.expected).powi(2) / cell.expected;
    let statistic = cells.iter().map(share).sum();
    let p = tail(statistic, cells.len().saturating_sub(1));
    let nothing = Cell { outcome: Vec::new(), observed: 0, expected: 0.0 };
    let worst = cells.into_iter().max_by(|a, b| share(a).total_cmp(&share(b))).unwrap_or(nothing);
    Verdict { p, worst }
}

/// The probability that a chi-square variable of so many degrees of freedom exceeds `statistic`.
fn tail(statistic: f64, freedom: usize) -> f64 {
    if freedom == 0 || statistic <= 0.0 {
        return 1.0;
    }
    let (a, x) = (freedom as f64 / 2.0, statistic / 2.0);
    let scale = (a * x.ln() - x - ln_gamma(a)).exp();
    let p = if x < a + 1.0 { 1.0 - scale * lower_series(a, x) } else { scale * upper_fraction(a, x) };
    p.clamp(0.0, 1.0)
}

/// Σ x^n / (a (a + 1) … (a + n)): the lower incomplete gamma function without its factor.
fn lower_series(a: f64, x: f64) -> f64 {
    let mut term = 1.0 / a;
    let mut sum = term;
    let mut n = a;
    while term > sum * f64::EPSILON {
        n += 1.0;
        term *= x / n;
        sum += term;
    }
    sum
}

/// The upper incomplete gamma function without its factor, by its continued fraction (Lentz's method).
fn upper_fraction(a: f64, x: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let mut b = x + 1.0 - a;
    let mut c = 1.0 / TINY;
    let mut d = 1.0 / b;
    let mut value = d;
    for i in 1..10_000 {
        let i = f64::from(i);
        let numerator = -i * (i - a);
        b += 2.0;
        d = 1.0 / nonzero(numerator * d + b, TINY);
        c = nonzero(b + numerator / c, TINY);
        let change = c * d;
        value *= change;
        if (change - 1.0).abs() < 1e-14 {
            break;
        }
    }
    value
}

fn nonzero(x: f64, tiny: f64) -> f64 {
    if x.abs() < tiny { tiny } else { x }
}

/// ln Γ(x) for x > 0, by Stirling's series from 10 up and the recurrence below.
fn ln_gamma(x: f64) -> f64 {
    let mut below = 0.0;
    let mut x = x;
    while x < 10.0 {
        below += x.ln();
        x += 1.0;
    }
    let r = 1.0 / (x * x);
    let series = (1.0 / 12.0 - r * (1.0 / 360.0 - r * (1.0 / 1260.0 - r / 1680.0))) / x;
    (x - 0.5) * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI).ln() + series - below
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_are_those_of_the_tables() {
        for (statistic, freedom, p) in [
            (3.841_459, 1, 0.05),
            (10.827_566, 1, 0.001),
            (18.307_038, 10, 0.05),
            (103.442, 63, 0.001),
            (124.342_1, 100, 0.05),
            (9.342, 10, 0.5),
        ] {
            let got = tail(statistic, freedom);
            assert!((got / p - 1.0).abs() < 1e-3, "{statistic} of {freedom}: {got} and not {p}");
        }
        assert_eq!(tail(0.0, 5), 1.0);
        assert!(tail(1e5, 5) < 1e-300);
    }

    #[test]
    fn counts_of_the_law_pass_and_others_are_caught_with_the_worst_cell() {
        let law: BTreeMap<Outcome, f64> = [(vec![0], 0.5), (vec![1], 0.3), (vec![2], 0.1999), (vec![3], 0.0001)].into();
        let fair = BTreeMap::from([(vec![0], 5000), (vec![1], 3010), (vec![2], 1989), (vec![3], 1)]);
        assert!(test(&fair, &law).p > 0.5);
        let unfair = BTreeMap::from([(vec![0], 5000), (vec![1], 3500), (vec![2], 1500)]);
        let verdict = test(&unfair, &law);
        assert!(verdict.p < 1e-20);
        assert_eq!((verdict.worst.outcome, verdict.worst.observed), (vec![2], 1500));
    }

    #[test]
    fn what_the_law_cannot_give_is_caught_at_once() {
        let law = BTreeMap::from([(vec![0], 1.0), (vec![1], 0.0)]);
        let verdict = test(&BTreeMap::from([(vec![0], 99), (vec![1], 1)]), &law);
        assert_eq!((verdict.p, verdict.worst.outcome), (0.0, vec![1]));
    }
}
