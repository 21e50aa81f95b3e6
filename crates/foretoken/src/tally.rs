//! What answers took, summed, and the figures that follow from the sums.

use std::ops::{Add, AddAssign, Sub};

use engine::batch::{DRAFT_POSITIONS, DraftCounts, Reason, Stats};
use serde_json::{Value, json};

/// What an engine did between two moments.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Work {
    pub(crate) drafts: DraftCounts,
    /// Steps of the engine: those that requests share count once.
    pub(crate) steps: u64,
    pub(crate) rows: u64,
    pub(crate) seconds: f64,
    /// Of these, proposing and deciding what is checked.
    pub(crate) propose: f64,
    /// Of these, in the target's forward.
    pub(crate) forward: f64,
    /// What the forwards should have taken by the curve of costs; 0 without drafts.
    pub(crate) predicted: f64,
}

impl From<Stats> for Work {
    fn from(stats: Stats) -> Self {
        Self {
            drafts: stats.drafts,
            steps: stats.steps,
            rows: stats.rows,
            seconds: stats.step_seconds,
            propose: stats.propose_seconds,
            forward: stats.forward_seconds,
            predicted: stats.predicted_seconds,
        }
    }
}

/// Both, number by number.
fn both<const N: usize>(a: [u64; N], b: [u64; N], join: impl Fn(u64, u64) -> u64) -> [u64; N] {
    std::array::from_fn(|at| join(a[at], b[at]))
}

impl Work {
    fn join(self, other: Self, count: fn(u64, u64) -> u64, sum: fn(f64, f64) -> f64) -> Self {
        let (a, b) = (self.drafts, other.drafts);
        Self {
            drafts: DraftCounts {
                proposals: count(a.proposals, b.proposals),
                checked: count(a.checked, b.checked),
                accepted: count(a.accepted, b.accepted),
                checked_at: both(a.checked_at, b.checked_at, count),
                accepted_at: both(a.accepted_at, b.accepted_at, count),
                silent: both(a.silent, b.silent, count),
                judged: count(a.judged, b.judged),
                expected: sum(a.expected, b.expected),
                squared_error: sum(a.squared_error, b.squared_error),
            },
            steps: count(self.steps, other.steps),
            rows: count(self.rows, other.rows),
            seconds: sum(self.seconds, other.seconds),
            propose: sum(self.propose, other.propose),
            forward: sum(self.forward, other.forward),
            predicted: sum(self.predicted, other.predicted),
        }
    }

    /// Share of the steps' time that went into proposing, into the forward, and into the rest.
    pub(crate) fn shares(&self) -> [Option<f64>; 3] {
        let rest = (self.seconds - self.propose - self.forward).max(0.0);
        [self.propose, self.forward, rest].map(|part| ratio(part, self.seconds))
    }

    /// Of the steps of a request in which a draft at that distance from the anchor (from 1) was checked, the share in
    /// which one was committed; `None` where none was checked.
    pub(crate) fn acceptance_at(&self, distance: usize) -> Option<f64> {
        let at = distance.checked_sub(1).filter(|&at| at < DRAFT_POSITIONS)?;
        ratio(self.drafts.accepted_at[at] as f64, self.drafts.checked_at[at] as f64)
    }

    pub(crate) fn rows_per_step(&self) -> Option<f64> {
        ratio(self.rows as f64, self.steps as f64)
    }

    /// How sure drafts were on average, how many of them stood, the Brier score, and seconds of forwards by those that the
    /// curve of costs predicted.
    pub(crate) fn calibration(&self) -> [Option<f64>; 4] {
        let DraftCounts { judged, expected, accepted, squared_error, .. } = self.drafts;
        let [confidence, stood, brier] =
            [expected, accepted as f64, squared_error].map(|sum| ratio(sum, judged as f64));
        [confidence, stood, brier, ratio(self.forward, self.predicted)]
    }

    fn to_json(self) -> Value {
        let [propose, forward, rest] = self.shares();
        let [confidence, stood, brier, by_predicted] = self.calibration();
        let silent: Value = Reason::ALL.iter().map(|&reason| json!(self.drafts.silent[reason as usize])).collect();
        let reasons: Value = Reason::ALL.iter().map(|reason| reason.name()).collect();
        json!({
            "steps": self.steps,
            "rows": self.rows,
            "seconds": self.seconds,
            "propose_share": propose,
            "forward_share": forward,
            "rest_share": rest,
            "forward_by_predicted": by_predicted,
            "request_steps_with_drafts": self.drafts.proposals,
            "request_steps_without_drafts": silent,
            "reasons_without_drafts": reasons,
            "checked_at": self.drafts.checked_at,
            "accepted_at": self.drafts.accepted_at,
            "judged": self.drafts.judged,
            "mean_confidence": confidence,
            "judged_that_stood": stood,
            "brier_score": brier,
        })
    }
}

impl Sub for Work {
    type Output = Self;

    /// What was done since `before`.
    fn sub(self, before: Self) -> Self {
        self.join(before, u64::saturating_sub, |a, b| a - b)
    }
}

impl Add for Work {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.join(other, |a, b| a + b, |a, b| a + b)
    }
}

/// Answers, summed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Tally {
    pub(crate) answers: u64,
    pub(crate) prompt_tokens: u64,
    pub(crate) output_tokens: u64,
    /// Tokens after the first of each answer: what the steps below committed.
    pub(crate) decode_tokens: u64,
    /// Steps of a request after the one that gave its first token.
    pub(crate) request_steps: u64,
    /// Drafts that were checked.
    pub(crate) drafted: u64,
    /// Drafts that were committed.
    pub(crate) accepted: u64,
    /// From handing in a request to its last token, summed over requests.
    pub(crate) seconds: f64,
    /// From the first token to the last, summed over requests.
    pub(crate) decode_seconds: f64,
    /// What the engine did meanwhile.
    pub(crate) work: Work,
}

impl Tally {
    /// Tokens per step of a request, its bonus token included.
    pub(crate) fn tau(&self) -> Option<f64> {
        ratio(self.decode_tokens as f64, self.request_steps as f64)
    }

    /// Drafts that were committed, of those that were checked.
    pub(crate) fn acceptance(&self) -> Option<f64> {
        ratio(self.accepted as f64, self.drafted as f64)
    }

    /// Drafts that were checked per step of a request.
    pub(crate) fn budget(&self) -> Option<f64> {
        ratio(self.drafted as f64, self.request_steps as f64)
    }

    /// Tokens a second after the first token.
    pub(crate) fn decode_rate(&self) -> Option<f64> {
        ratio(self.decode_tokens as f64, self.decode_seconds)
    }

    /// Tokens a second of whole requests.
    pub(crate) fn rate(&self) -> Option<f64> {
        ratio(self.output_tokens as f64, self.seconds)
    }

    /// All sums and figures but the engine's.
    pub(crate) fn to_json(self) -> Value {
        json!({
            "answers": self.answers,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "decode_tokens": self.decode_tokens,
            "request_steps": self.request_steps,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "seconds": self.seconds,
            "decode_seconds": self.decode_seconds,
            "tau": self.tau(),
            "acceptance": self.acceptance(),
            "drafts_per_request_step": self.budget(),
            "decode_tokens_per_s": self.decode_rate(),
            "tokens_per_s": self.rate(),
        })
    }

    /// All sums and figures.
    pub(crate) fn to_json_with_work(self) -> Value {
        let mut value = self.to_json();
        value["engine"] = self.work.to_json();
        value
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.answers += other.answers;
        self.prompt_tokens += other.prompt_tokens;
        self.output_tokens += other.output_tokens;
        self.decode_tokens += other.decode_tokens;
        self.request_steps += other.request_steps;
        self.drafted += other.drafted;
        self.accepted += other.accepted;
        self.seconds += other.seconds;
        self.decode_seconds += other.decode_seconds;
        self.work = self.work + other.work;
    }
}

impl std::iter::Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(tallies: I) -> Self {
        let mut sum = Self::default();
        tallies.for_each(|tally| sum += tally);
        sum
    }
}

/// `None` where there is nothing to divide by.
pub(crate) fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally() -> Tally {
        let mut drafts = DraftCounts { proposals: 3, checked: 8, accepted: 5, ..DraftCounts::default() };
        drafts.checked_at[..2].copy_from_slice(&[3, 2]);
        drafts.accepted_at[..2].copy_from_slice(&[3, 1]);
        let work = Work { drafts, steps: 4, rows: 12, seconds: 2.0, propose: 0.2, forward: 1.5, predicted: 1.2 };
        Tally {
            answers: 1,
            prompt_tokens: 10,
            output_tokens: 11,
            decode_tokens: 10,
            request_steps: 5,
            drafted: 8,
            accepted: 5,
            seconds: 4.0,
            decode_seconds: 2.5,
            work,
        }
    }

    #[test]
    fn figures_follow_from_the_sums() {
        let tally = tally();
        assert_eq!((tally.tau(), tally.acceptance(), tally.budget()), (Some(2.0), Some(0.625), Some(1.6)));
        assert_eq!((tally.decode_rate(), tally.rate()), (Some(4.0), Some(2.75)));
        let shares = tally.work.shares().map(Option::unwrap);
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-12 && (shares[0] - 0.1).abs() < 1e-12);
        let at = [0, 1, 2, 3, 17].map(|distance| tally.work.acceptance_at(distance));
        assert_eq!(at, [None, Some(1.0), Some(0.5), None, None]);
    }

    #[test]
    fn sums_add_up_and_the_work_between_is_a_difference() {
        let twice: Tally = [tally(), tally()].into_iter().sum();
        assert_eq!((twice.answers, twice.decode_tokens, twice.work.drafts.checked_at[1]), (2, 20, 4));
        assert_eq!((twice.tau(), twice.work.shares()), (tally().tau(), tally().work.shares()));
        assert_eq!(twice.work - tally().work, tally().work);
    }

    #[test]
    fn nothing_measured_gives_no_figure() {
        let none = Tally::default();
        let figures = [none.tau(), none.acceptance(), none.budget(), none.decode_rate(), none.rate()];
        assert!(figures.iter().chain(&none.work.shares()).all(Option::is_none));
        assert_eq!(none.to_json()["tau"], Value::Null);
    }
}
