//! Whether confidences are true, and temperatures that make them so.

/// Confidences or outcomes that cannot be.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub enum CalibrationError {
    #[error("the prediction {prediction} is not in [0, 1]")]
    Prediction { prediction: f64 },
    #[error("a block of {drafts} checked drafts cannot have {accepted} accepted")]
    Accepted { drafts: usize, accepted: usize },
    #[error("the temperature {temperature} is not a finite number above 0")]
    Temperature { temperature: f64 },
    #[error("the shift {shift} is not a finite number")]
    Shift { shift: f64 },
    #[error("there are {shifts} shifts for {temperatures} temperatures")]
    Lengths { temperatures: usize, shifts: usize },
    #[error("there is nothing to measure: no prediction was given")]
    Empty,
    #[error("there must be at least one bin")]
    NoBins,
}

/// Predictions of about the same size, and what came of them.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Bin {
    /// Predictions in the bin.
    pub count: usize,
    /// Their mean; 0 in an empty bin.
    pub predicted: f64,
    /// The share of them that came true; 0 in an empty bin.
    pub observed: f64,
}

/// The reliability diagram: `bins` bins of equal width over [0, 1], of predictions and whether they came true (Naeini et
/// al. 2015; Guo et al. 2017, section 2).
///
/// # Errors
///
/// No predictions or bins, or a prediction outside [0, 1].
pub fn reliability(predictions: &[(f64, bool)], bins: usize) -> Result<Vec<Bin>, CalibrationError> {
    check(predictions)?;
    if bins == 0 {
        return Err(CalibrationError::NoBins);
    }
    let mut diagram = vec![Bin::default(); bins];
    for &(prediction, came_true) in predictions {
        let bin = &mut diagram[((prediction * bins as f64) as usize).min(bins - 1)];
        bin.count += 1;
        bin.predicted += prediction;
        bin.observed += f64::from(u8::from(came_true));
    }
    for bin in diagram.iter_mut().filter(|bin| bin.count > 0) {
        bin.predicted /= bin.count as f64;
        bin.observed /= bin.count as f64;
    }
    Ok(diagram)
}

/// The expected calibration error: the mean distance of what was predicted and what came true, over the bins of
/// [`reliability`] by their counts (Naeini et al. 2015; DSpark, section 3.2.1).
///
/// # Errors
///
/// As [`reliability`].
pub fn expected_calibration_error(predictions: &[(f64, bool)], bins: usize) -> Result<f64, CalibrationError> {
    let distance = |bin: &Bin| bin.count as f64 * (bin.predicted - bin.observed).abs();
    Ok(reliability(predictions, bins)?.iter().map(distance).sum::<f64>() / predictions.len() as f64)
}

/// The mean squared error of predictions (Brier 1950).
///
/// # Errors
///
/// No predictions, or one outside [0, 1].
pub fn brier_score(predictions: &[(f64, bool)]) -> Result<f64, CalibrationError> {
    check(predictions)?;
    let errors = predictions.iter().map(|&(p, came_true)| (p - f64::from(u8::from(came_true))).powi(2));
    Ok(errors.sum::<f64>() / predictions.len() as f64)
}

/// The area under the ROC curve: the probability that a prediction that came true is above one that didn't, ties counting
/// half (Hanley and McNeil 1982). None if all came true or none did.
///
/// # Errors
///
/// No predictions, or one outside [0, 1].
pub fn auc(predictions: &[(f64, bool)]) -> Result<Option<f64>, CalibrationError> {
    check(predictions)?;
    let mut sorted = predictions.to_vec();
    sorted.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let (mut pairs_won, mut negatives) = (0.0, 0.0);
    // -0.0 and 0.0 are one prediction, which `==` knows.
    for tied in sorted.chunk_by(|a, b| a.0 == b.0) {
        let here = tied.iter().filter(|(_, came_true)| *came_true).count() as f64;
        let misses = tied.len() as f64 - here;
        pairs_won += here * (negatives + 0.5 * misses);
        negatives += misses;
    }
    let pairs = negatives * (predictions.len() as f64 - negatives);
    Ok((pairs > 0.0).then(|| pairs_won / pairs))
}

fn check(predictions: &[(f64, bool)]) -> Result<(), CalibrationError> {
    if predictions.is_empty() {
        return Err(CalibrationError::Empty);
    }
    match predictions.iter().find(|(prediction, _)| !(0.0..=1.0).contains(prediction)) {
        Some(&(prediction, _)) => Err(CalibrationError::Prediction { prediction }),
        None => Ok(()),
    }
}

/// A block of drafts that were checked: what the drafter said of each, and how many were accepted.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// The confidences c_1, c_2, ... of the drafts that were checked.
    pub confidences: Vec<f64>,
    /// How many of them were accepted, from the first.
    pub accepted: usize,
}

/// A temperature and a shift for each position of a block, which make survivals true: c becomes σ(logit(c) / T + s).
///
/// Sequential Temperature Scaling (DSpark, section 3.2.1): from left to right, each position takes the temperature of a grid
/// that minimises the expected calibration error of the product of confidences so far, those before it being calibrated
/// already. The shift beside it is Platt's (1999): a confidence that was taught how often drafts stand at temperature 1 is
/// off by a constant where the target is greedy, which no temperature moves. Greater confidences stay greater.
#[derive(Debug, Clone, PartialEq)]
pub struct SequentialTemperature {
    temperatures: Vec<f64>,
    shifts: Vec<f64>,
}

/// Grids of temperatures' logarithms and of shifts, the second around what the first finds: distances of their points, and
/// how many there are on each side.
const GRIDS: [[(f64, i32); 2]; 2] = [[(1.0 / 4.0, 12), (1.0 / 4.0, 16)], [(1.0 / 16.0, 4), (1.0 / 16.0, 4)]];

impl SequentialTemperature {
    /// These temperatures, by position, without shifts.
    ///
    /// # Errors
    ///
    /// One that is not a finite number above 0.
    pub fn new(temperatures: Vec<f64>) -> Result<SequentialTemperature, CalibrationError> {
        let shifts = vec![0.0; temperatures.len()];
        SequentialTemperature::with_shifts(temperatures, shifts)
    }

    /// These temperatures and shifts, by position.
    ///
    /// # Errors
    ///
    /// A temperature that is not a finite number above 0, a shift that is not finite, or not as many of one as of the other.
    pub fn with_shifts(temperatures: Vec<f64>, shifts: Vec<f64>) -> Result<SequentialTemperature, CalibrationError> {
        if let Some(&temperature) = temperatures.iter().find(|t| !(t.is_finite() && **t > 0.0)) {
            return Err(CalibrationError::Temperature { temperature });
        }
        if let Some(&shift) = shifts.iter().find(|shift| !shift.is_finite()) {
            return Err(CalibrationError::Shift { shift });
        }
        if temperatures.len() != shifts.len() {
            return Err(CalibrationError::Lengths { temperatures: temperatures.len(), shifts: shifts.len() });
        }
        Ok(SequentialTemperature { temperatures, shifts })
    }

    /// The temperatures and shifts that fit `blocks`, one of each for each position of the longest. Each position is fitted
    /// on the blocks of which it was checked, by the error over `bins` bins, on grids of temperatures from 1/8 to 8 and shifts
    /// from -4 to 4; of equally good ones those nearest to 1 and 0 are taken.
    ///
    /// # Errors
    ///
    /// No blocks or bins, a confidence outside [0, 1], more accepted drafts than drafts.
    pub fn fit(blocks: &[Block], bins: usize) -> Result<SequentialTemperature, CalibrationError> {
        for Block { confidences, accepted } in blocks {
            if *accepted > confidences.len() {
                return Err(CalibrationError::Accepted { drafts: confidences.len(), accepted: *accepted });
            }
        }
        let positions = blocks.iter().map(|block| block.confidences.len()).max().ok_or(CalibrationError::Empty)?;
        let mut survivals = vec![1.0; blocks.len()];
        let (mut temperatures, mut shifts) = (Vec::with_capacity(positions), Vec::with_capacity(positions));
        for position in 0..positions {
            let [mut power, mut shift] = [0.0, 0.0];
            for grid in GRIDS {
                let mut best = (f64::INFINITY, [power, shift]);
                for (power, shift) in points(grid, [power, shift]) {
                    let error = error_at(blocks, &survivals, position, (power.exp2(), shift), bins)?;
                    if error < best.0 {
                        best = (error, [power, shift]);
                    }
                }
                [power, shift] = best.1;
            }
            let temperature = power.exp2();
            for (block, survival) in blocks.iter().zip(&mut survivals) {
                *survival *= block.confidences.get(position).map_or(1.0, |&c| scale(c, temperature, shift));
            }
            temperatures.push(temperature);
            shifts.push(shift);
        }
        Ok(SequentialTemperature { temperatures, shifts })
    }

    /// The temperatures, by position.
    pub fn temperatures(&self) -> &[f64] {
        &self.temperatures
    }

    /// The shifts, by position.
    pub fn shifts(&self) -> &[f64] {
        &self.shifts
    }

    /// The calibrated confidence of the draft at `position`, from 0. Positions past the fitted ones are calibrated as the
    /// last.
    pub fn confidence(&self, position: usize, confidence: f64) -> f64 {
        let at = |values: &[f64], none: f64| values.get(position).or(values.last()).copied().unwrap_or(none);
        scale(confidence, at(&self.temperatures, 1.0), at(&self.shifts, 0.0))
    }
}

/// Numbers from 0 outwards, `count` on each side.
fn around(distance: f64, count: i32) -> impl Iterator<Item = f64> {
    let both = move |i: i32| [f64::from(i) * distance, f64::from(-i) * distance];
    [0.0].into_iter().chain((1..=count).flat_map(both))
}

/// The points of a grid around a middle, nearer ones of each line first.
fn points([first, second]: [(f64, i32); 2], middle: [f64; 2]) -> impl Iterator<Item = (f64, f64)> {
    let line = move || around(second.0, second.1).map(move |y| middle[1] + y);
    around(first.0, first.1).flat_map(move |x| line().map(move |y| (middle[0] + x, y)))
}

/// The calibration error of the survivals up to `position` if it has this temperature and shift.
fn error_at(
    blocks: &[Block],
    survivals: &[f64],
    position: usize,
    (temperature, shift): (f64, f64),
    bins: usize,
) -> Result<f64, CalibrationError> {
    let checked = blocks.iter().zip(survivals).filter_map(|(block, survival)| {
        let confidence = block.confidences.get(position)?;
        Some((survival * scale(*confidence, temperature, shift), block.accepted > position))
    });
    expected_calibration_error(&checked.collect::<Vec<_>>(), bins)
}

/// σ(logit(c) / T + s).
fn scale(confidence: f64, temperature: f64, shift: f64) -> f64 {
    let [yes, no] = [confidence, 1.0 - confidence].map(|p| p.powf(1.0 / temperature));
    yes / (yes + no * (-shift).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reliability_and_its_error_by_hand() {
        let predictions = [(0.05, false), (0.15, true), (0.9, true), (0.95, true), (1.0, false), (0.5, true)];
        let diagram = reliability(&predictions, 2).unwrap();
        assert_eq!(diagram[0].count, 2);
        assert!((diagram[0].predicted - 0.1).abs() < 1e-15 && diagram[0].observed == 0.5);
        assert_eq!((diagram[1].count, diagram[1].observed), (4, 0.75));
        // 2/6 · |0.1 − 0.5| + 4/6 · |0.8375 − 0.75|
        let error = expected_calibration_error(&predictions, 2).unwrap();
        assert!((error - (2.0 * 0.4 + 4.0 * 0.0875) / 6.0).abs() < 1e-12);
        assert_eq!(reliability(&predictions, 100).unwrap()[99].count, 1, "1 is in the last bin");
    }

    #[test]
    fn brier_score_by_hand() {
        let score = brier_score(&[(0.75, true), (0.5, false)]).unwrap();
        assert_eq!(score, (0.0625 + 0.25) / 2.0);
    }

    #[test]
    fn auc_counts_pairs_and_ties_half() {
        let mut state = 1u64;
        for n in 2..60 {
            let predictions: Vec<(f64, bool)> = (0..n)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (((state >> 40) % 5) as f64 / 4.0, (state >> 60) & 1 == 1)
                })
                .collect();
            let [positives, negatives] =
                [true, false].map(|side| predictions.iter().filter(|p| p.1 == side).map(|p| p.0).collect::<Vec<_>>());
            let won: f64 = positives
                .iter()
                .flat_map(|p| {
                    negatives.iter().map(move |n| {
                        if p > n {
                            1.0
                        } else if p == n {
                            0.5
                        } else {
                            0.0
                        }
                    })
                })
                .sum();
            let pairs = (positives.len() * negatives.len()) as f64;
            let expected = (pairs > 0.0).then(|| won / pairs);
            assert_eq!(auc(&predictions).unwrap(), expected);
        }
        assert_eq!(auc(&[(0.5, true)]), Ok(None));
    }

    /// Blocks whose draft k is accepted with probability σ(logit(c) / temperatures[k]) once those before it were: all
    /// outcomes of a fixed set of confidences, as often as they are likely.
    fn blocks(temperatures: &[f64]) -> Vec<Block> {
        let mut blocks = Vec::new();
        for i in 0..20u32 {
            let confidences: Vec<f64> =
                (0..temperatures.len() as u32).map(|k| 0.03 + 0.94 * f64::from((i * 7 + k * 11) % 20) / 19.0).collect();
            let mut survivals = vec![1.0];
            for (&c, &t) in confidences.iter().zip(temperatures) {
                survivals.push(survivals[survivals.len() - 1] * scale(c, t, 0.0));
            }
            survivals.push(0.0);
            for accepted in 0..=temperatures.len() {
                let copies = ((survivals[accepted] - survivals[accepted + 1]) * 400.0).round() as usize;
                blocks.extend(std::iter::repeat_n(Block { confidences: confidences.clone(), accepted }, copies));
            }
        }
        blocks
    }

    #[test]
    fn temperatures_are_found_again_from_left_to_right() {
        let truth = [2.0, 0.5, 1.0];
        let fitted = SequentialTemperature::fit(&blocks(&truth), 20).unwrap();
        for (found, expected) in fitted.temperatures().iter().zip(truth) {
            assert!((found / expected).log2().abs() <= 2.0 / 16.0, "{:?}", fitted.temperatures());
        }
    }

    #[test]
    fn what_is_off_by_a_constant_is_shifted() {
        // The same confidences, said a shift lower than they are.
        let lower = |block: Block| Block {
            confidences: block.confidences.into_iter().map(|c| scale(c, 1.0, -1.5)).collect(),
            ..block
        };
        let blocks: Vec<Block> = blocks(&[1.0, 1.0]).into_iter().map(lower).collect();
        let fitted = SequentialTemperature::fit(&blocks, 20).unwrap();
        for (position, c) in [(0, 0.1), (0, 0.5), (1, 0.3), (5, 0.4)] {
            let (found, expected) = (fitted.confidence(position, c), scale(c, 1.0, 1.5));
            assert!((found - expected).abs() < 0.05, "{found} {expected} {fitted:?}");
        }
    }

    #[test]
    fn calibration_lowers_the_error_and_keeps_the_order() {
        let blocks = blocks(&[3.0, 3.0]);
        let fitted = SequentialTemperature::fit(&blocks, 10).unwrap();
        let error = |calibrate: &dyn Fn(usize, f64) -> f64| {
            let survivals = |block: &Block| -> f64 {
                block.confidences.iter().enumerate().map(|(position, &c)| calibrate(position, c)).product()
            };
            let predictions: Vec<_> = blocks.iter().map(|block| (survivals(block), block.accepted >= 2)).collect();
            (expected_calibration_error(&predictions, 10).unwrap(), auc(&predictions).unwrap().unwrap())
        };
        let (raw, calibrated) = (error(&|_, c| c), error(&|position, c| fitted.confidence(position, c)));
        assert!(calibrated.0 < 0.01 && raw.0 > 0.05, "{raw:?} {calibrated:?}");
        let confidences: Vec<f64> = (0..=100).map(|c| fitted.confidence(0, f64::from(c) / 100.0)).collect();
        assert!(confidences.is_sorted() && confidences[0] == 0.0 && confidences[100] == 1.0);
    }

    #[test]
    fn confidences_that_are_true_stay_as_they_are() {
        assert_eq!(SequentialTemperature::new(vec![1.0]).unwrap().confidence(4, 0.3), 0.3);
        let perfect = [Block { confidences: vec![1.0, 0.0], accepted: 1 }];
        assert_eq!(SequentialTemperature::fit(&perfect, 10).unwrap().temperatures(), [1.0, 1.0]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert_eq!(brier_score(&[]), Err(CalibrationError::Empty));
        assert!(auc(&[(f64::NAN, true)]).is_err());
        assert_eq!(expected_calibration_error(&[(0.5, true)], 0), Err(CalibrationError::NoBins));
        let block = |confidences: &[f64], accepted| Block { confidences: confidences.to_vec(), accepted };
        assert!(SequentialTemperature::fit(&[block(&[0.5], 2)], 10).is_err());
        assert!(SequentialTemperature::fit(&[block(&[1.5], 1)], 10).is_err());
        assert!(SequentialTemperature::fit(&[], 10).is_err());
        assert!(SequentialTemperature::with_shifts(vec![1.0], vec![f64::NAN]).is_err());
        assert!(SequentialTemperature::with_shifts(vec![1.0], vec![]).is_err());
        assert!(SequentialTemperature::new(vec![0.0]).is_err());
    }
}
