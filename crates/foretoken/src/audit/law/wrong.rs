//! Acceptance played by hand, right and wrong: what the tests of the law must let pass and what they must catch.

use super::chi_square::Outcome;
use super::exact::{Exact, LENGTH, Sampling};
use crate::bench::random::Random;

/// How drafts are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Play {
    /// With min(1, p/q), and the residual after a rejection.
    Right,
    /// With min(1, p/q) + 0.05.
    TooKind,
    /// After a rejection from the model's whole law instead of the residual.
    NoResidual,
}

/// An answer in which every letter after the first had a draft.
pub(super) fn answer(play: Play, exact: &Exact, sampling: &Sampling, random: &mut Random) -> Outcome {
    let mut answer = vec![draw(&exact.next(sampling, &[]), random)];
    while answer.len() < LENGTH {
        let target = exact.next(sampling, &answer);
        let letter = step(play, &target, random);
        answer.push(letter);
    }
    answer
}

/// A letter of the law `target`, with a draft from a law of its own: the target's, squared, which overrates the likely.
fn step(play: Play, target: &[f64], random: &mut Random) -> u32 {
    let squares: f64 = target.iter().map(|p| p * p).sum();
    let drafter: Vec<f64> = target.iter().map(|p| p * p / squares).collect();
    let draft = draw(&drafter, random);
    let ratio = target[draft as usize] / drafter[draft as usize];
    let accept = if play == Play::TooKind { ratio + 0.05 } else { ratio };
    if random.unit() < accept {
        return draft;
    }
    if play == Play::NoResidual {
        return draw(target, random);
    }
    let left: Vec<f64> = target.iter().zip(&drafter).map(|(p, q)| (p - q).max(0.0)).collect();
    draw(&left, random)
}

/// A letter by its weight.
fn draw(weights: &[f64], random: &mut Random) -> u32 {
    let mut left = random.unit() * weights.iter().sum::<f64>();
    let drawn = weights.iter().position(|weight| {
        left -= weight;
        left < 0.0
    });
    let last = || weights.iter().rposition(|&weight| weight > 0.0).unwrap_or(0);
    drawn.unwrap_or_else(last) as u32
}
