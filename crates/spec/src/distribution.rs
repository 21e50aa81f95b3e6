//! A probability distribution over tokens, and what a rejection leaves of it.

/// A normalised distribution over tokens.
///
/// Built from weights, which are normalised here: a drafter that drew among its 50 best tokens hands in these 50 and has
/// the distribution that it really drew from. Kept in f64, because residuals are differences.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    probabilities: Probabilities,
}

#[derive(Debug, Clone, PartialEq)]
enum Probabilities {
    /// By token id.
    Dense(Vec<f64>),
    /// Token and probability, by ascending token.
    Sparse(Vec<(u32, f64)>),
}

/// Weights that are no distribution.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub enum DistributionError {
    #[error("the weight {weight} of token {token} is not a finite number of at least 0")]
    Weight { token: u32, weight: f64 },
    #[error("all weights are 0: there is no token to draw")]
    Empty,
    #[error("token {token} has more than one weight")]
    Twice { token: u32 },
}

impl Distribution {
    /// The distribution with these weights, `[vocabulary]`, by token id.
    ///
    /// # Errors
    ///
    /// A weight that is NaN, infinite or negative, or nothing but zeros.
    pub fn dense(weights: impl IntoIterator<Item = f64>) -> Result<Distribution, DistributionError> {
        let mut probabilities: Vec<f64> = weights.into_iter().collect();
        for (token, &weight) in probabilities.iter().enumerate() {
            check(token as u32, weight)?;
        }
        let (largest, sum) = divisors(probabilities.iter().copied())?;
        probabilities.iter_mut().for_each(|p| *p = *p / largest / sum);
        Ok(Distribution { probabilities: Probabilities::Dense(probabilities) })
    }

    /// The distribution with weights for these tokens only, in any order; every other token has probability 0.
    ///
    /// # Errors
    ///
    /// As [`dense`](Distribution::dense), and a token that comes twice.
    pub fn sparse(weights: impl IntoIterator<Item = (u32, f64)>) -> Result<Distribution, DistributionError> {
        let mut probabilities: Vec<(u32, f64)> = weights.into_iter().collect();
        for &(token, weight) in &probabilities {
            check(token, weight)?;
        }
        probabilities.sort_unstable_by_key(|&(token, _)| token);
        if let Some(pair) = probabilities.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(DistributionError::Twice { token: pair[0].0 });
        }
        let (largest, sum) = divisors(probabilities.iter().map(|&(_, p)| p))?;
        probabilities.iter_mut().for_each(|(_, p)| *p = *p / largest / sum);
        Ok(Distribution { probabilities: Probabilities::Sparse(probabilities) })
    }

    /// All probability on `token`: what greedy decoding draws from.
    pub fn point(token: u32) -> Distribution {
        Distribution { probabilities: Probabilities::Sparse(vec![(token, 1.0)]) }
    }

    /// The probability of `token`; 0 for one that the distribution does not know.
    pub fn probability(&self, token: u32) -> f64 {
        match &self.probabilities {
            Probabilities::Dense(all) => all.get(token as usize).copied().unwrap_or(0.0),
            Probabilities::Sparse(some) => match some.binary_search_by_key(&token, |&(token, _)| token) {
                Ok(at) => some[at].1,
                Err(_) => 0.0,
            },
        }
    }

    /// The tokens that can be drawn, by ascending id, each with its probability.
    pub fn support(&self) -> impl Iterator<Item = (u32, f64)> {
        let (dense, sparse): (&[f64], &[(u32, f64)]) = match &self.probabilities {
            Probabilities::Dense(all) => (all, &[]),
            Probabilities::Sparse(some) => (&[], some),
        };
        let dense = dense.iter().enumerate().map(|(token, &p)| (token as u32, p));
        dense.chain(sparse.iter().copied()).filter(|&(_, p)| p > 0.0)
    }

    /// The most probable token, the lowest id of equals.
    pub fn most_probable(&self) -> u32 {
        let best = self.support().fold((0, 0.0), |best, next| if next.1 > best.1 { next } else { best });
        best.0
    }

    /// The entropy −Σ p ln p, in nats.
    pub fn entropy(&self) -> f64 {
        -self.support().map(|(_, p)| p * p.ln()).sum::<f64>()
    }

    /// The probability 1 − ½ ‖p − q‖₁ = Σ min(p, q) that a draft drawn from `draft` is accepted by this distribution
    /// (Leviathan et al. 2023, theorem 3.5; DSpark, equation 8).
    pub fn overlap(&self, draft: &Distribution) -> f64 {
        draft.support().map(|(token, q)| q.min(self.probability(token))).sum()
    }

    /// What is left to draw from once a draft from `draft` was rejected: norm(max(0, p − q)) (Leviathan et al. 2023,
    /// algorithm 1).
    ///
    /// Where nothing is left, p and q are equal up to rounding, and so is the probability of ever asking: p stays.
    pub(crate) fn become_residual(&mut self, draft: &Distribution) {
        let left = |token, p: f64| (p - draft.probability(token)).max(0.0);
        let mass: f64 = self.support().map(|(token, p)| left(token, p)).sum();
        if mass <= 0.0 {
            return;
        }
        self.update(|token, p| left(token, p) / mass);
    }

    /// The distribution without `token`, renormalised: what the next draw without replacement is from. False if nothing
    /// would be left; the distribution is then as it was.
    pub(crate) fn exclude(&mut self, token: u32) -> bool {
        let mass: f64 = self.support().filter(|&(other, _)| other != token).map(|(_, p)| p).sum();
        if mass <= 0.0 {
            return false;
        }
        self.update(|other, p| if other == token { 0.0 } else { p / mass });
        true
    }

    fn update(&mut self, new: impl Fn(u32, f64) -> f64) {
        match &mut self.probabilities {
            Probabilities::Dense(all) => all.iter_mut().enumerate().for_each(|(token, p)| *p = new(token as u32, *p)),
            Probabilities::Sparse(some) => some.iter_mut().for_each(|(token, p)| *p = new(*token, *p)),
        }
    }
}

fn check(token: u32, weight: f64) -> Result<(), DistributionError> {
    if weight.is_finite() && weight >= 0.0 { Ok(()) } else { Err(DistributionError::Weight { token, weight }) }
}

/// What to divide the weights by: the largest, and the sum of what that gives. So no sum of finite weights overflows.
fn divisors(weights: impl Iterator<Item = f64> + Clone) -> Result<(f64, f64), DistributionError> {
    let largest = weights.clone().fold(0.0, f64::max);
    if largest <= 0.0 {
        return Err(DistributionError::Empty);
    }
    Ok((largest, weights.map(|weight| weight / largest).sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_distribution_is_refused() {
        for bad in [f64::NAN, f64::INFINITY, -0.5] {
            let refused = Distribution::dense([0.5, bad]);
            assert!(matches!(refused, Err(DistributionError::Weight { token: 1, .. })), "{refused:?}");
            assert!(Distribution::sparse([(7, bad)]).is_err());
        }
        assert_eq!(Distribution::dense([]), Err(DistributionError::Empty));
        assert_eq!(Distribution::dense([0.0, 0.0]), Err(DistributionError::Empty));
        assert_eq!(Distribution::sparse([(3, 1.0), (3, 1.0)]), Err(DistributionError::Twice { token: 3 }));
    }

    #[test]
    fn weights_are_normalised() {
        let truncated = Distribution::sparse([(9, 0.375), (2, 0.125)]).unwrap();
        assert_eq!(truncated.support().collect::<Vec<_>>(), [(2, 0.25), (9, 0.75)]);
        let huge = Distribution::dense([f64::MAX, f64::MAX]).unwrap();
        assert_eq!(huge.probability(1), 0.5);
        let tiny = Distribution::dense([f64::MIN_POSITIVE, f64::MIN_POSITIVE / 4.0]).unwrap();
        assert_eq!(tiny.probability(0), 0.8);
    }

    #[test]
    fn tokens_beyond_the_vocabulary_have_no_probability() {
        assert_eq!(Distribution::dense([1.0]).unwrap().probability(5), 0.0);
        assert_eq!(Distribution::point(4).probability(5), 0.0);
    }

    #[test]
    fn the_most_probable_token_is_the_lowest_of_equals() {
        assert_eq!(Distribution::dense([0.1, 0.45, 0.45]).unwrap().most_probable(), 1);
    }

    #[test]
    fn a_residual_without_mass_leaves_the_target_as_it_was() {
        let target = Distribution::dense([0.25, 0.75]).unwrap();
        let mut residual = target.clone();
        residual.become_residual(&target);
        assert_eq!(residual, target);
    }

    #[test]
    fn a_residual_ignores_drafts_that_the_target_does_not_know() {
        let mut residual = Distribution::dense([0.5, 0.5]).unwrap();
        residual.become_residual(&Distribution::sparse([(0, 1.0), (17, 1.0)]).unwrap());
        assert_eq!(residual.support().collect::<Vec<_>>(), [(1, 1.0)]);
    }

    #[test]
    fn the_last_token_cannot_be_excluded() {
        let mut law = Distribution::dense([0.5, 0.5]).unwrap();
        assert!(law.exclude(0));
        assert_eq!(law.probability(1), 1.0);
        assert!(!law.exclude(1));
        assert_eq!(law.probability(1), 1.0);
    }
}
