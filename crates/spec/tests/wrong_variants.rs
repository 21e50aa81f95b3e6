//! Ways to accept that look right and are not. Each is written out and must be caught by the enumeration that the right
//! ones pass: a test that accepts everything would prove nothing.

mod common;

use std::convert::Infallible;

use common::{Law, Script, assert_close, committed, law, marginal, total_variation};
use spec::{Coins, Distribution, Drawn, Proposal, ratio};

const P: [f64; 4] = [0.5, 0.25, 0.15, 0.1];
const Q: [f64; 4] = [0.2, 0.5, 0.2, 0.1];

fn dense(weights: &[f64]) -> Distribution {
    Distribution::dense(weights.iter().copied()).unwrap()
}

/// The first token that `ratio` commits of a proposal.
fn first(proposal: &Proposal, script: &mut Script) -> Vec<u32> {
    first_with(&P, proposal, script)
}

fn first_with(target: &[f64], proposal: &Proposal, script: &mut Script) -> Vec<u32> {
    let Ok(accepted) = ratio(proposal, |node| Ok::<_, Infallible>((node == 0).then(|| dense(target))), script);
    committed(proposal.tree(), &accepted)
}

/// Fails unless the law is visibly not the target's.
#[track_caller]
fn assert_caught(found: &Law) {
    let right = law(|script| vec![script.draw(&dense(&P))]);
    let distance = total_variation(found, &right);
    assert!(distance > 1e-3, "a wrong variant is within {distance} of the target");
}

#[test]
fn the_best_two_handed_in_as_drawn() {
    let found = law(|script| {
        let mut proposal = Proposal::new(0);
        proposal.add_drawn(0, dense(&Q), Drawn::Independently, &[1, 0], &[0.5; 2]).unwrap();
        first(&proposal, script)
    });
    assert_caught(&found);
    assert_close(&marginal(&found, 4), &[0.5, 0.5, 0.0, 0.0]);
}

#[test]
fn an_argmax_draft_with_its_softmax() {
    let found = law(|script| {
        let mut proposal = Proposal::new(0);
        proposal.add_drawn(0, dense(&Q), Drawn::Independently, &[1], &[0.5]).unwrap();
        first(&proposal, script)
    });
    assert_caught(&found);
}

#[test]
fn a_sample_for_each_path_and_a_fresh_one_after() {
    let found = law(|script| {
        for child in [1, 0] {
            if script.draw(&dense(&P)) == child {
                return vec![child];
            }
        }
        vec![script.draw(&dense(&P))]
    });
    assert_caught(&found);
    assert_close(&marginal(&found, 4), &[0.5625, 0.34375, 0.05625, 0.0375]);
}

#[test]
fn a_rejection_that_draws_from_the_target_and_not_from_the_residual() {
    let found = law(|script| {
        let draft = script.draw(&dense(&Q));
        let accepted = script.accept((P[draft as usize] / Q[draft as usize]).min(1.0));
        vec![if accepted { draft } else { script.draw(&dense(&P)) }]
    });
    assert_caught(&found);
    assert_close(&marginal(&found, 4), &[0.35, 0.325, 0.195, 0.13]);
}

#[test]
fn raw_probabilities_of_a_truncated_draw() {
    // The drafter drew among its best two, and hands in its whole softmax.
    let found = law(|script| {
        let token = script.draw(&Distribution::sparse([(0, Q[0]), (1, Q[1])]).unwrap());
        let mut proposal = Proposal::new(0);
        proposal.add_drawn(0, dense(&Q), Drawn::Independently, &[token], &[0.5]).unwrap();
        first(&proposal, script)
    });
    assert_caught(&found);
}

#[test]
fn siblings_without_replacement_handed_in_as_independent() {
    // More than one token must be left by the first rejection, or there is nothing to bias.
    let (p, q) = ([0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.2, 0.5]);
    let law_as = |drawn| {
        law(|script| {
            let one = script.draw(&dense(&q));
            let left = dense(&q);
            let two = script.draw(&Distribution::sparse(left.support().filter(|&(token, _)| token != one)).unwrap());
            let mut proposal = Proposal::new(0);
            proposal.add_drawn(0, left, drawn, &[one, two], &[0.5; 2]).unwrap();
            first_with(&p, &proposal, script)
        })
    };
    assert_close(&marginal(&law_as(Drawn::WithoutReplacement), 4), &p);
    let right = law(|script| vec![script.draw(&dense(&p))]);
    assert!(total_variation(&law_as(Drawn::Independently), &right) > 1e-3);
}

#[test]
fn one_of_two_drafters_forgotten_where_they_agree() {
    const Q2: [f64; 4] = [0.1, 0.1, 0.3, 0.5];
    let found = law(|script| {
        let (one, two) = (script.draw(&dense(&Q)), script.draw(&dense(&Q2)));
        let mut proposal = Proposal::new(0);
        if one != two {
            proposal.add_drawn(0, dense(&Q), Drawn::Independently, &[one], &[0.5]).unwrap();
        }
        proposal.add_drawn(0, dense(&Q2), Drawn::Independently, &[two], &[0.5]).unwrap();
        first(&proposal, script)
    });
    assert_caught(&found);
}

#[test]
fn a_bonus_after_a_rejection() {
    // After a rejection the residual's token ends the step. To go on below it with a draft's row is another law: that row's
    // logits follow the rejected draft. Here the second token copies what was drafted.
    let found = law(|script| {
        let draft = script.draw(&dense(&Q));
        let accepted = script.accept((P[draft as usize] / Q[draft as usize]).min(1.0));
        let mut residual = dense(&P);
        if !accepted {
            residual = Distribution::dense((0..4).map(|token| (P[token] - Q[token]).max(0.0))).unwrap();
        }
        let token = if accepted { draft } else { script.draw(&residual) };
        vec![token, draft]
    });
    let right = law(|script| {
        let token = script.draw(&dense(&P));
        vec![token, token]
    });
    assert!(total_variation(&found, &right) > 1e-3);
}

#[test]
fn one_random_number_for_the_draft_and_its_acceptance() {
    // All thresholds are multiples of 1/20, so the midpoints of 20 equal intervals integrate exactly. Only token 1 is
    // left by a rejection.
    let (p, q) = ([0.1, 0.6, 0.3], [0.4, 0.3, 0.3]);
    let midpoints = || (0..20).map(|i| (f64::from(i) + 0.5) / 20.0);
    let step = |drafting: f64, accepting: f64| {
        let draft = usize::from(drafting >= 0.4) + usize::from(drafting >= 0.7);
        if accepting < p[draft] / q[draft] { draft } else { 1 }
    };
    let mut right = [0.0; 3];
    midpoints().for_each(|u| midpoints().for_each(|v| right[step(u, v)] += 1.0 / 400.0));
    assert_close(&right, &p);
    let mut wrong = [0.0; 3];
    midpoints().for_each(|u| wrong[step(u, u)] += 1.0 / 20.0);
    assert!((wrong[0] - p[0]).abs() > 0.1, "{wrong:?}");
}
