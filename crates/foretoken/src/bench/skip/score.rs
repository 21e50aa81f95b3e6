//! What a draft model would earn, worked out from where it agrees with the target and from what steps cost.

/// Seconds of steps.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Costs {
    /// The target's, of a row and 0, 1, ... drafts.
    pub(crate) target: Vec<f64>,
    /// The draft model's, of a row.
    pub(crate) draft: f64,
}

/// What drafts would do for answers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Score {
    /// Drafts in a step at most: the number that earns most.
    pub(crate) drafts: usize,
    /// Share of the drafts that stand.
    pub(crate) accepted: f64,
    /// Tokens committed in a step of the target.
    pub(crate) tokens_per_step: f64,
    /// Speed of decoding, plain decoding being 1.
    pub(crate) speedup: f64,
}

/// The best that greedy chains of drafts would do, by their number from 1 to what `costs` has. `agreements` says for each
/// answer where the draft model, given everything before, says what the target says, `[tokens after the first]`.
///
/// This is exact but for the costs: a chain goes on from drafts that stand, which are the answer's own tokens.
pub(crate) fn score(agreements: &[Vec<bool>], costs: &Costs) -> Score {
    let plain: f64 = agreements.iter().map(|tokens| tokens.len() as f64 * costs.target[0]).sum();
    let with = |drafts: usize| {
        let mut total = Decoded::default();
        agreements.iter().for_each(|tokens| total.add(tokens, drafts, costs));
        Score {
            drafts,
            accepted: total.accepted as f64 / (total.made as f64).max(1.0),
            tokens_per_step: (total.accepted + total.steps) as f64 / (total.steps as f64).max(1.0),
            speedup: if total.seconds > 0.0 { plain / total.seconds } else { 1.0 },
        }
    };
    let scores = (2..costs.target.len()).map(with);
    scores.fold(with(1), |best, score| if score.speedup > best.speedup { score } else { best })
}

/// Share of the tokens that the draft model agrees on.
pub(crate) fn agreement(agreements: &[Vec<bool>]) -> f64 {
    let all = agreements.iter().map(Vec::len).sum::<usize>();
    let agreed = agreements.iter().flatten().filter(|agrees| **agrees).count();
    agreed as f64 / (all as f64).max(1.0)
}

#[derive(Default)]
struct Decoded {
    steps: usize,
    made: usize,
    accepted: usize,
    seconds: f64,
}

impl Decoded {
    /// Decodes an answer with so many drafts in each step.
    fn add(&mut self, agreements: &[bool], drafts: usize, costs: &Costs) {
        let mut rest = agreements;
        while !rest.is_empty() {
            // The last token needs no draft: it is sampled anyway.
            let made = drafts.min(rest.len() - 1);
            let accepted = rest[..made].iter().take_while(|agrees| **agrees).count();
            self.steps += 1;
            self.made += made;
            self.accepted += accepted;
            self.seconds += made as f64 * costs.draft + costs.target[made];
            rest = &rest[accepted + 1..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(draft: f64, drafts: usize) -> Costs {
        Costs { target: vec![1.0; drafts + 1], draft }
    }

    #[test]
    fn one_who_always_agrees_and_costs_nothing_saves_all_steps_but_one_in_five() {
        let score = score(&[vec![true; 20]], &costs(0.0, 4));
        assert_eq!(score, Score { drafts: 4, accepted: 1.0, tokens_per_step: 5.0, speedup: 5.0 });
    }

    #[test]
    fn one_who_never_agrees_costs_what_drafting_costs() {
        // 10 tokens in 10 steps; the last needs no draft.
        let score = score(&[vec![false; 10]], &costs(0.5, 4));
        assert_eq!((score.drafts, score.accepted, score.tokens_per_step), (1, 0.0, 1.0));
        assert!((score.speedup - 10.0 / 14.5).abs() < 1e-12);
    }

    #[test]
    fn a_chain_ends_where_they_differ() {
        // Steps: 2 stand and a third comes, nothing stands and one comes, one is left.
        let score = score(&[vec![true, true, false, false, true]], &costs(0.1, 2));
        assert_eq!((score.drafts, score.tokens_per_step), (2, 5.0 / 3.0));
        assert!((score.speedup - 5.0 / (3.0 + 0.3)).abs() < 1e-12);
        assert!((agreement(&[vec![true, true, false], vec![false]]) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn nothing_said_is_as_fast_as_plain_decoding() {
        assert_eq!(score(&[vec![]], &costs(0.1, 2)).speedup, 1.0);
    }
}
