//! The search for layers to skip: take the layer away that is missed least, again and again; then try changes by chance.

use std::collections::{BTreeMap, HashSet};

use anyhow::Result;

use super::score::Score;
use crate::bench::random::Random;

/// Layers that are tried at each size, of those that are missed least when they alone are gone.
const WIDTH: usize = 4;

/// Share of agreement below which no more layers are taken away.
const LEAST_AGREEMENT: f64 = 0.05;

/// Changes in a row that lead to sets which were tried already, after which there is nothing left to try nearby.
const STALE: usize = 200;

/// A set of layers that was tried.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Candidate {
    /// The skipped layers, ascending.
    pub(crate) skipped: Vec<usize>,
    /// Share of the answers' tokens that the model without them says as well.
    pub(crate) agreement: f64,
    pub(crate) score: Score,
}

/// What a search came to.
#[derive(Debug)]
pub(crate) struct Found {
    /// The fastest set of each size.
    pub(crate) by_size: Vec<Candidate>,
    /// Sets that were tried.
    pub(crate) tried: usize,
}

impl Found {
    /// The fastest set of all.
    pub(crate) fn best(&self) -> Option<&Candidate> {
        self.by_size.iter().max_by(|a, b| a.score.speedup.total_cmp(&b.score.speedup))
    }
}

/// Looks for the layers of a model of `layers` that are best skipped, trying up to `most` sets by `evaluate`. The same
/// `seed` and the same evaluations come to the same sets.
///
/// # Errors
/// The first of `evaluate`.
pub(crate) fn search(
    layers: usize,
    most: usize,
    seed: u64,
    evaluate: impl FnMut(&[usize]) -> Result<Candidate>,
) -> Result<Found> {
    let mut search = Search { evaluate, left: most, seen: HashSet::new(), by_size: BTreeMap::new() };
    search.descend(layers)?;
    search.wander(layers, seed)?;
    Ok(Found { by_size: search.by_size.into_values().collect(), tried: search.seen.len() })
}

struct Search<F> {
    evaluate: F,
    left: usize,
    seen: HashSet<Vec<usize>>,
    by_size: BTreeMap<usize, Candidate>,
}

impl<F: FnMut(&[usize]) -> Result<Candidate>> Search<F> {
    /// Tries a set; `None` if it was tried before, or no more may be.
    fn attempt(&mut self, mut skipped: Vec<usize>) -> Result<Option<Candidate>> {
        skipped.sort_unstable();
        if self.left == 0 || !self.seen.insert(skipped.clone()) {
            return Ok(None);
        }
        self.left -= 1;
        let candidate = (self.evaluate)(&skipped)?;
        let best = self.by_size.get(&skipped.len());
        if best.is_none_or(|best| candidate.score.speedup > best.score.speedup) {
            self.by_size.insert(skipped.len(), candidate.clone());
        }
        Ok(Some(candidate))
    }

    /// Takes one layer away after the other.
    fn descend(&mut self, layers: usize) -> Result<()> {
        let mut single = Vec::new();
        for layer in 0..if layers > 1 { layers } else { 0 } {
            single.extend(self.attempt(vec![layer])?);
        }
        single.sort_by(|a, b| b.agreement.total_cmp(&a.agreement));
        let ranked: Vec<usize> = single.iter().map(|candidate| candidate.skipped[0]).collect();
        let mut current = single.into_iter().next();
        while let Some(reached) = current.take_if(|reached| reached.agreement >= LEAST_AGREEMENT) {
            if reached.skipped.len() + 1 >= layers {
                break;
            }
            let next = ranked.iter().filter(|layer| !reached.skipped.contains(layer)).take(WIDTH);
            for &layer in next {
                let tried = self.attempt([&reached.skipped[..], &[layer]].concat())?;
                if let Some(tried) = tried
                    && current.as_ref().is_none_or(|best| tried.agreement > best.agreement)
                {
                    current = Some(tried);
                }
            }
        }
        Ok(())
    }

    /// Changes the fastest set by a layer here and there, and goes on from what is faster.
    fn wander(&mut self, layers: usize, seed: u64) -> Result<()> {
        let fastest = self.by_size.values().max_by(|a, b| a.score.speedup.total_cmp(&b.score.speedup));
        let Some(mut current) = fastest.cloned() else { return Ok(()) };
        let (mut random, mut stale) = (Random::new(seed), 0);
        while self.left > 0 && stale < STALE {
            let changed = change(&current.skipped, layers, &mut random);
            let Some(tried) = changed.map(|changed| self.attempt(changed)).transpose()?.flatten() else {
                stale += 1;
                continue;
            };
            stale = 0;
            if tried.score.speedup > current.score.speedup {
                current = tried;
            }
        }
        Ok(())
    }
}

/// The set with one layer more, one less or another one; `None` if that cannot be.
fn change(skipped: &[usize], layers: usize, random: &mut Random) -> Option<Vec<usize>> {
    let mut changed = skipped.to_vec();
    let kept: Vec<usize> = (0..layers).filter(|layer| !skipped.contains(layer)).collect();
    let (add, remove) = [(true, true), (true, false), (false, true)][random.below(3)];
    if remove {
        changed.swap_remove(random.below(changed.len()));
    }
    if add {
        changed.push(kept[random.below(kept.len())]);
    }
    (!changed.is_empty() && changed.len() < layers).then_some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model in which each layer is missed by itself, and two pairs only together.
    fn evaluate(skipped: &[usize]) -> Candidate {
        let missed = [0.7, 0.1, 0.02, 0.3, 0.05, 0.4, 0.01, 0.6];
        let both = |a, b| if skipped.contains(&a) && skipped.contains(&b) { 0.5 } else { 1.0 };
        let alone: f64 = skipped.iter().map(|&layer: &usize| 1.0 - missed[layer]).product();
        let agreement = alone * both(2, 6) * both(1, 4);
        let cost = 1.0 - skipped.len() as f64 / 8.0;
        let speedup = (1.0 + agreement) / (1.0 + cost);
        let score = Score { drafts: 1, accepted: agreement, tokens_per_step: 1.0 + agreement, speedup };
        Candidate { skipped: skipped.to_vec(), agreement, score }
    }

    fn found(most: usize, seed: u64) -> (Found, Vec<Vec<usize>>) {
        let mut tried = Vec::new();
        let found = search(8, most, seed, |skipped| {
            tried.push(skipped.to_vec());
            Ok(evaluate(skipped))
        });
        (found.unwrap(), tried)
    }

    #[test]
    fn the_best_of_all_sets_is_found() {
        let all = (1..255_usize).map(|set| (0..8).filter(|layer| set >> layer & 1 == 1).collect::<Vec<_>>());
        let best = all.map(|set| evaluate(&set).score.speedup).fold(0.0, f64::max);
        let (found, tried) = found(120, 1);
        assert!((found.best().unwrap().score.speedup - best).abs() < 1e-12, "{:?} of {best}", found.best());
        assert!(tried.len() <= 120);
    }

    #[test]
    fn no_set_is_tried_twice_nor_more_than_allowed() {
        for most in [0, 1, 5, 8, 20, 60] {
            let (found, tried) = found(most, 7);
            assert!(tried.len() <= most);
            assert_eq!(found.tried, tried.len());
            let different: HashSet<_> = tried.iter().collect();
            assert_eq!(different.len(), tried.len());
            assert!(tried.iter().all(|set| !set.is_empty() && set.len() < 8 && set.is_sorted()));
        }
    }

    #[test]
    fn a_seed_decides_what_is_tried() {
        assert_eq!(found(60, 3).1, found(60, 3).1);
        assert_ne!(found(60, 3).1, found(60, 4).1);
    }

    #[test]
    fn a_model_of_one_layer_has_none_to_spare() {
        let found = search(1, 10, 0, |_| unreachable!()).unwrap();
        assert_eq!((found.best(), found.tried), (None, 0));
    }
}
