//! What speculation is expected to earn.
//!
//! τ counts the tokens that a step commits for a request, the correction or bonus token included, so it is at least 1.

use crate::Tree;

/// A number that a formula cannot take.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub enum CostError {
    #[error("the acceptance {acceptance} is not in [0, 1]")]
    Acceptance { acceptance: f64 },
    #[error("the cost {cost} of drafting a token is not a finite number of at least 0")]
    DraftCost { cost: f64 },
    #[error("the cost {cost} of a step that checks drafts is not a finite number above 0")]
    VerifyCost { cost: f64 },
}

/// `E[τ]` of a chain of `drafts` each accepted with probability `acceptance` once those before it were:
/// (1 − α^(K+1)) / (1 − α) (Leviathan et al. 2023, equation 1).
///
/// # Errors
///
/// An acceptance outside [0, 1].
pub fn expected_tokens(acceptance: f64, drafts: usize) -> Result<f64, CostError> {
    expected_tokens_by_position(std::iter::repeat_n(acceptance, drafts))
}

/// `E[τ]` of a chain whose draft k is accepted with probability `acceptances[k]` once those before it were:
/// 1 + α₁ + α₁α₂ + ... (DSpark, section 3.2.2).
///
/// # Errors
///
/// An acceptance outside [0, 1].
pub fn expected_tokens_by_position(acceptances: impl IntoIterator<Item = f64>) -> Result<f64, CostError> {
    let (mut tokens, mut survival) = (1.0, 1.0);
    for acceptance in acceptances {
        if !(0.0..=1.0).contains(&acceptance) {
            return Err(CostError::Acceptance { acceptance });
        }
        survival *= acceptance;
        tokens += survival;
    }
    Ok(tokens)
}

/// `E[τ]` of a tree: 1 + the sum of its drafts' survivals (EAGLE-2, section 4.1; DDTree, proposition 1). Right if the
/// confidences are, and no two siblings can both be accepted.
pub fn expected_tokens_of_tree(tree: &Tree) -> f64 {
    tree.survivals().iter().sum()
}

/// By what factor speculation speeds decoding up: `E[τ]` / (V + K c), where a step that checks K drafts takes V times as
/// long as one that checks none, and drafting one token takes c times as long (Leviathan et al. 2023, theorem 3.8, which
/// has V = 1: checking costs nothing more).
///
/// # Errors
///
/// An acceptance outside [0, 1]; a draft cost that is negative or not finite; a verify cost that is not finite and above 0.
pub fn speedup(acceptance: f64, drafts: usize, draft_cost: f64, verify_cost: f64) -> Result<f64, CostError> {
    let tokens = expected_tokens(acceptance, drafts)?;
    if !(draft_cost.is_finite() && draft_cost >= 0.0) {
        return Err(CostError::DraftCost { cost: draft_cost });
    }
    if !(verify_cost.is_finite() && verify_cost > 0.0) {
        return Err(CostError::VerifyCost { cost: verify_cost });
    }
    Ok(tokens / (verify_cost + drafts as f64 * draft_cost))
}

/// The number of drafts, at most `most`, with the greatest [`speedup`], the least of equals, and that speed-up; 0 drafts
/// have the speed-up 1. `verify_cost(K)` is how many times as long as a plain step one takes that checks K drafts; the
/// textbook has 1.
///
/// # Errors
///
/// As [`speedup`].
pub fn best_draft_length(
    acceptance: f64,
    draft_cost: f64,
    most: usize,
    verify_cost: impl Fn(usize) -> f64,
) -> Result<(usize, f64), CostError> {
    let mut best = (0, 1.0);
    for drafts in 1..=most {
        let speedup = speedup(acceptance, drafts, draft_cost, verify_cost(drafts))?;
        if speedup > best.1 {
            best = (drafts, speedup);
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expected_tokens_are_the_tables() {
        let table = [
            (0.6, [1.6, 2.3056, 2.458]),
            (0.7, [1.7, 2.7731, 3.1412]),
            (0.8, [1.8, 3.3616, 4.1611]),
            (0.9, [1.9, 4.0951, 5.6953]),
        ];
        for (acceptance, row) in table {
            for (drafts, expected) in [1, 4, 7].into_iter().zip(row) {
                let found = expected_tokens(acceptance, drafts).unwrap();
                assert!((found - expected).abs() < 5e-5, "{acceptance} {drafts}: {found}");
                let closed = (1.0 - acceptance.powi(drafts as i32 + 1)) / (1.0 - acceptance);
                assert!((found - closed).abs() < 1e-12);
            }
        }
        assert_eq!(expected_tokens(1.0, 5), Ok(6.0));
        assert_eq!(expected_tokens(0.0, 5), Ok(1.0));
    }

    #[test]
    fn positions_and_trees_count_each_survival_once() {
        let found = expected_tokens_by_position([0.95, 0.92, 0.85]).unwrap();
        assert!((found - 3.56690).abs() < 1e-12);
        let chain = Tree::chain(0, &[1, 2, 3], &[0.95, 0.92, 0.85]).unwrap();
        assert!((expected_tokens_of_tree(&chain) - found).abs() < 1e-12);
        let tree = Tree::from_parents(0, &[0, 0, 1], &[1, 2, 3], &[0.5, 0.25, 0.5]).unwrap();
        assert_eq!(expected_tokens_of_tree(&tree), 2.0);
    }

    #[test]
    fn a_draft_that_costs_more_than_it_earns_is_not_worth_it() {
        assert_eq!(speedup(0.8, 4, 0.1, 1.0), Ok(expected_tokens(0.8, 4).unwrap() / 1.4));
        assert_eq!(speedup(0.0, 4, 0.1, 1.0), Ok(1.0 / 1.4));
        assert_eq!(best_draft_length(0.1, 0.2, 16, |_| 1.0), Ok((0, 1.0)));
        // Free drafts are worth it for ever, unless checking them costs.
        assert_eq!(best_draft_length(0.9, 0.0, 16, |_| 1.0).unwrap().0, 16);
        assert_eq!(best_draft_length(0.9, 0.0, 16, |drafts| if drafts > 3 { 9.0 } else { 1.0 }).unwrap().0, 3);
    }

    #[test]
    fn the_best_length_is_where_the_next_draft_no_longer_pays() {
        for (acceptance, cost) in [(0.6, 0.05), (0.7, 0.1), (0.8, 0.1), (0.9, 0.02), (0.95, 0.01)] {
            let (drafts, best) = best_draft_length(acceptance, cost, 200, |_| 1.0).unwrap();
            assert!((0..200).all(|other| speedup(acceptance, other, cost, 1.0).unwrap() <= best));
            // There is a gain at all if acceptance is above cost (corollary 3.9).
            assert_eq!(drafts > 0, acceptance > cost);
        }
    }

    #[test]
    fn what_a_formula_cannot_take_is_refused() {
        for bad in [-0.1, 1.1, f64::NAN] {
            assert!(expected_tokens(bad, 1).is_err());
        }
        for bad in [-0.1, f64::NAN, f64::INFINITY] {
            assert!(speedup(0.5, 1, bad, 1.0).is_err());
            assert!(speedup(0.5, 1, 0.1, bad).is_err());
        }
        assert!(speedup(0.5, 1, 0.1, 0.0).is_err());
    }
}
