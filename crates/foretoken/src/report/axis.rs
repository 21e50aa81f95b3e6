//! Axes: from values to places on the drawing, and the round numbers beside them.

/// How values become places.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Scale {
    /// Evenly, with zero in sight.
    Linear,
    /// Evenly by factor, for values above zero; others are not drawn.
    Log,
    /// Evenly by factor, with ticks at these values and nowhere else: for what was set, not measured.
    LogAt(Vec<f64>),
    /// One place for each name, from the left or from the top; value n is the n-th.
    Names(Vec<String>),
}

/// A scale with the values it must hold, laid out over a length.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    low: f64,
    high: f64,
    log: bool,
    /// Value and text.
    pub(crate) ticks: Vec<(f64, String)>,
}

impl Layout {
    /// Lays `scale` out so that it holds all `values` that it can show.
    pub(crate) fn new(scale: &Scale, values: impl Iterator<Item = f64>) -> Self {
        let log = matches!(scale, Scale::Log | Scale::LogAt(_));
        let shown = values.filter(|value| value.is_finite() && (!log || *value > 0.0));
        let (low, high) = shown.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        let (low, high) = if low <= high { (low, high) } else { (1.0, 1.0) };
        match scale {
            Scale::Linear => Self::linear(low.min(0.0), high.max(0.0)),
            Scale::Log => Self::log(low, high),
            Scale::LogAt(at) => {
                let ticks = at.iter().map(|&value| (value, number(value))).collect();
                Self { low: low / 1.15, high: high * 1.15, log, ticks }
            }
            Scale::Names(names) => {
                let ticks = names.iter().enumerate().map(|(at, name)| (at as f64, name.clone())).collect();
                Self { low: -0.5, high: names.len().max(1) as f64 - 0.5, log, ticks }
            }
        }
    }

    fn linear(low: f64, high: f64) -> Self {
        let high = if high > low { high } else { low + 1.0 };
        let step = nice_step((high - low) / 5.0);
        let (first, last) = ((low / step).floor() as i64, (high / step).ceil() as i64);
        let ticks = (first..=last).map(|n| n as f64 * step).map(|value| (value, number(value))).collect();
        Self { low: first as f64 * step, high: last as f64 * step, log: false, ticks }
    }

    fn log(low: f64, high: f64) -> Self {
        let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
        let factors: &[f64] = if high / low <= 1000.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let all: Vec<f64> =
            decades.flat_map(|decade| factors.iter().map(move |factor| factor * 10f64.powi(decade))).collect();
        let first = all.iter().rposition(|&tick| tick <= low).unwrap_or(0);
        let last = all.iter().position(|&tick| tick >= high && tick > all[first]).unwrap_or(all.len() - 1);
        let ticks = all[first..=last].iter().map(|&value| (value, number(value))).collect();
        Self { low: all[first], high: all[last], log: true, ticks }
    }

    /// Where `value` lies between the ends (0 and 1); `None` where it cannot be shown.
    pub(crate) fn place(&self, value: f64) -> Option<f64> {
        let by = |value: f64| if self.log { value.ln() } else { value };
        let place = (by(value) - by(self.low)) / (by(self.high) - by(self.low));
        (value.is_finite() && place.is_finite()).then_some(place)
    }
}

/// The smallest of 1, 2, 2.5 and 5 times a power of ten that is not below `least`.
fn nice_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 2.5, 5.0].into_iter().find(|factor| factor * power >= least * (1.0 - 1e-9));
    factor.unwrap_or(10.0) * power
}

/// A number for people: three digits that count, thousands set apart, no zeros at the end.
pub(crate) fn number(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let digits = match value.abs() {
        0.0 => 0,
        size => (2 - size.log10().floor() as i32).clamp(0, 6) as usize,
    };
    let text = format!("{value:.digits$}");
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let fraction = fraction.trim_end_matches('0');
    let whole = thousands(whole);
    if fraction.is_empty() { whole } else { format!("{whole}.{fraction}") }
}

fn thousands(whole: &str) -> String {
    let (sign, digits) = whole.strip_prefix('-').map_or(("", whole), |digits| ("-", digits));
    let mut text = sign.to_owned();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(layout: &Layout) -> Vec<&str> {
        layout.ticks.iter().map(|(_, text)| text.as_str()).collect()
    }

    #[test]
    fn linear_ticks_are_round_hold_all_values_and_zero() {
        let layout = Layout::new(&Scale::Linear, [37.0, 461.0].into_iter());
        assert_eq!(texts(&layout), ["0", "100", "200", "300", "400", "500"]);
        assert_eq!((layout.place(0.0), layout.place(250.0), layout.place(500.0)), (Some(0.0), Some(0.5), Some(1.0)));
        let layout = Layout::new(&Scale::Linear, [-0.3, 1.0].into_iter());
        assert_eq!(texts(&layout), ["-0.5", "0", "0.5", "1"]);
        assert_eq!(layout.place(f64::NAN), None);
        // Nothing to show, and all zero: still an axis.
        for values in [vec![], vec![0.0], vec![f64::NAN]] {
            assert!(Layout::new(&Scale::Linear, values.into_iter()).ticks.len() > 1);
        }
    }

    #[test]
    fn log_ticks_are_round_and_leave_out_what_is_not_above_zero() {
        let layout = Layout::new(&Scale::Log, [3.0, 0.0, 40.0].into_iter());
        assert_eq!(texts(&layout), ["2", "5", "10", "20", "50"]);
        assert_eq!(layout.place(0.0), None);
        let layout = Layout::new(&Scale::Log, [1.5, 80_000.0].into_iter());
        assert_eq!(texts(&layout), ["1", "10", "100", "1,000", "10,000", "100,000"]);
        assert!(Layout::new(&Scale::Log, [10.0].into_iter()).ticks.len() > 1);
    }

    #[test]
    fn what_was_set_has_its_own_ticks() {
        let layout = Layout::new(&Scale::LogAt(vec![1.0, 4.0, 16.0]), [1.0, 4.0, 16.0].into_iter());
        assert_eq!(texts(&layout), ["1", "4", "16"]);
        assert!((layout.place(4.0).unwrap() - 0.5).abs() < 1e-9);
        let layout = Layout::new(&Scale::Names(vec!["a".into(), "b".into()]), [0.0, 1.0].into_iter());
        assert_eq!((layout.place(0.0), layout.place(1.0)), (Some(0.25), Some(0.75)));
    }

    #[test]
    fn numbers_have_three_digits_that_count() {
        let cases = [(0.0, "0"), (1234567.0, "1,234,567"), (12.345, "12.3"), (0.01234, "0.0123"), (2.5, "2.5")];
        for (value, text) in cases.into_iter().chain([(-1500.0, "-1,500"), (999.0, "999"), (f64::NAN, "-")]) {
            assert_eq!(number(value), text);
        }
    }
}
