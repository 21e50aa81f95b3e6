//! Confidences that learn from what is accepted while serving.

/// A correction of confidences for each position of a block, which follows what is accepted.
///
/// The estimator, for each position by itself: a confidence c becomes σ(logit(c) + b). After each draft whose parent was
/// accepted and that was checked, b takes a step towards what came of it, b += (y − c′) / (I + 4), where y is 1 if the draft
/// was accepted, c′ what had been predicted with b, and I the exponentially forgotten sum of c′(1 − c′). This is Newton's
/// method for the likeliest b, one observation at a time: where it rests, predictions are right on average over the last
/// `memory` drafts. The 4 stands for 16 coins that nobody tossed and keeps first steps small.
///
/// * *Monotone*: b is one number for a position, so greater confidences stay greater.
/// * *Bounded*: |b| ≤ 6, and a confidence is taken to be in [0.001, 0.999] first; so no drafter is written off for good, nor
///   believed for good.
/// * *Non-anticipating*: a step's confidences are read before the step and learnt from after it. What is checked then
///   depends on earlier steps' drafts and never on the drafts in question, which leaves the law of `ratio` as it is.
///
/// A drafter without confidences hands in a constant, and learns its acceptance by position.
#[derive(Debug, Clone, PartialEq)]
pub struct OnlineCalibration {
    positions: Vec<Position>,
    /// What is kept of the past at each observation.
    keep: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Position {
    shift: f64,
    information: f64,
}

const PRIOR: f64 = 4.0;
const MAX_SHIFT: f64 = 6.0;
const LEAST: f64 = 0.001;

impl OnlineCalibration {
    /// Nothing learnt, for blocks of `positions` drafts; about `memory` observations count. At least one of each.
    pub fn new(positions: usize, memory: usize) -> OnlineCalibration {
        let keep = 1.0 - 1.0 / memory.max(1) as f64;
        OnlineCalibration { positions: vec![Position::default(); positions.max(1)], keep }
    }

    /// The calibrated confidence of a draft at `position`, from 0, of which the drafter says `confidence`. Positions past
    /// the last share the last's correction. NaN counts as no confidence at all.
    pub fn confidence(&self, position: usize, confidence: f64) -> f64 {
        calibrated(confidence, self.positions[self.index(position)].shift)
    }

    /// The survivals of a chain of which the drafter says `confidences`.
    pub fn survivals(&self, confidences: &[f64]) -> Vec<f64> {
        let calibrated = confidences.iter().enumerate().map(|(position, &c)| self.confidence(position, c));
        calibrated.scan(1.0, |survival, c| Some(*survival * c).inspect(|next| *survival = *next)).collect()
    }

    /// Learns from a draft that was checked and whose parent was accepted; `confidence` is what the drafter had said.
    pub fn observe(&mut self, position: usize, confidence: f64, accepted: bool) {
        let index = self.index(position);
        let keep = self.keep;
        let Position { shift, information } = &mut self.positions[index];
        let predicted = calibrated(confidence, *shift);
        *information = *information * keep + predicted * (1.0 - predicted);
        let error = f64::from(u8::from(accepted)) - predicted;
        *shift = (*shift + error / (*information + PRIOR)).clamp(-MAX_SHIFT, MAX_SHIFT);
    }

    fn index(&self, position: usize) -> usize {
        position.min(self.positions.len() - 1)
    }
}

fn calibrated(confidence: f64, shift: f64) -> f64 {
    let confidence = if confidence.is_nan() { LEAST } else { confidence.clamp(LEAST, 1.0 - LEAST) };
    let logit = (confidence / (1.0 - confidence)).ln() + shift;
    1.0 / (1.0 + (-logit).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Observes drafts of this confidence of which `accepted` in five are accepted.
    fn serve(online: &mut OnlineCalibration, position: usize, confidence: f64, accepted: u32, rounds: u32) {
        for i in 0..rounds {
            online.observe(position, confidence, (i * 2) % 5 < accepted);
        }
    }

    #[test]
    fn predictions_come_true_by_position() {
        let mut online = OnlineCalibration::new(2, 200);
        serve(&mut online, 0, 0.95, 3, 1000);
        serve(&mut online, 1, 0.3, 4, 1000);
        assert!((online.confidence(0, 0.95) - 0.6).abs() < 0.02);
        assert!((online.confidence(1, 0.3) - 0.8).abs() < 0.02);
        assert_eq!(online.confidence(9, 0.3), online.confidence(1, 0.3));
        let survivals = online.survivals(&[0.95, 0.3]);
        assert!((survivals[1] - 0.48).abs() < 0.03);
    }

    #[test]
    fn mixed_confidences_are_right_on_average() {
        // Half the drafts say 0.9 and half 0.5; odds are a quarter of what is said.
        let truth = |c: f64| calibrated(c, -(4f64.ln()));
        let mut online = OnlineCalibration::new(1, 400);
        let mut owed = [0.0, 0.0];
        for i in 0..8000 {
            let confidence = [0.9, 0.5][i % 2];
            owed[i % 2] += truth(confidence);
            let accepted = owed[i % 2] >= 1.0;
            owed[i % 2] -= f64::from(u8::from(accepted));
            online.observe(0, confidence, accepted);
        }
        for confidence in [0.9, 0.5] {
            assert!((online.confidence(0, confidence) - truth(confidence)).abs() < 0.02);
        }
    }

    #[test]
    fn the_past_is_forgotten() {
        let mut online = OnlineCalibration::new(1, 50);
        serve(&mut online, 0, 0.5, 5, 5000);
        assert!(online.confidence(0, 0.5) > 0.95);
        serve(&mut online, 0, 0.5, 1, 1000);
        assert!((online.confidence(0, 0.5) - 0.2).abs() < 0.04);
    }

    #[test]
    fn it_is_monotone_and_bounded_whatever_it_saw() {
        for accepted in [0, 5] {
            let mut online = OnlineCalibration::new(1, 1000);
            serve(&mut online, 0, 0.999, accepted, 100_000);
            serve(&mut online, 0, 0.001, accepted, 100_000);
            let all: Vec<f64> = (0..=1000).map(|c| online.confidence(0, f64::from(c) / 1000.0)).collect();
            assert!(all.is_sorted());
            assert!(all.iter().all(|&c| c > 0.0 && c < 1.0));
        }
    }

    #[test]
    fn before_anything_was_seen_confidences_are_the_drafters() {
        let online = OnlineCalibration::new(0, 0);
        assert!((online.confidence(0, 0.3) - 0.3).abs() < 1e-12);
        assert_eq!(online.confidence(0, f64::NAN), online.confidence(0, 0.0));
    }
}
