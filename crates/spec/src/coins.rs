//! Where chance comes from.

use crate::Distribution;

/// The two kinds of chance that acceptance needs.
///
/// They are two methods and not one stream of numbers for two reasons. A test can follow every branch with its exact
/// probability. And an implementation can keep the coins that accept apart from the draws, and both from the drafter's:
/// a number that serves twice biases what comes out.
pub trait Coins {
    /// True with this probability, which is in [0, 1].
    fn accept(&mut self, probability: f64) -> bool;

    /// A token drawn from `distribution`.
    fn draw(&mut self, distribution: &Distribution) -> u32;
}

/// Coins out of uniform numbers.
///
/// The closure gives a fresh number of [0, 1) each time, independent of all that the drafter drew with.
#[derive(Debug)]
pub struct UniformCoins<F>(pub F);

impl<F: FnMut() -> f64> Coins for UniformCoins<F> {
    fn accept(&mut self, probability: f64) -> bool {
        (self.0)() < probability
    }

    fn draw(&mut self, distribution: &Distribution) -> u32 {
        let u = (self.0)();
        let mut below = 0.0;
        let mut last = 0;
        for (token, p) in distribution.support() {
            below += p;
            last = token;
            if u < below {
                return token;
            }
        }
        // Rounding left the sum a little under 1, and u above it: the last token that can be drawn.
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BELOW_1: f64 = 1.0 - f64::EPSILON / 2.0;

    #[test]
    fn certain_coins_are_certain() {
        assert!(UniformCoins(|| BELOW_1).accept(1.0));
        assert!(!UniformCoins(|| 0.0).accept(0.0));
    }

    #[test]
    fn draws_invert_the_cumulative_distribution() {
        let law = Distribution::dense([0.0, 0.25, 0.0, 0.5, 0.25, 0.0]).unwrap();
        for (u, token) in [(0.0, 1), (0.2499, 1), (0.25, 3), (0.7499, 3), (0.75, 4), (BELOW_1, 4)] {
            assert_eq!(UniformCoins(|| u).draw(&law), token, "u = {u}");
        }
    }

    #[test]
    fn rounding_never_draws_what_cannot_be_drawn() {
        // Ten tenths add up to less than 1 in f64.
        let law = Distribution::dense([0.1; 10].into_iter().chain([0.0])).unwrap();
        assert_eq!(UniformCoins(|| BELOW_1).draw(&law), 9);
    }
}
