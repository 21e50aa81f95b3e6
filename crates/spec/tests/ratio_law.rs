//! The rule `ratio`: the joint law of what it commits is the target's, for every way of choosing drafts.
//!
//! Not by sampling: every branch of drafting, accepting and drawing is taken once, with its probability.

mod common;

use std::convert::Infallible;

use common::{Law, Model, Script, assert_close, assert_same, committed, context, extend, law, marginal, plain};
use spec::{Coins, Distribution, Drawn, Proposal, ratio};

const P: [f64; 4] = [0.5, 0.25, 0.15, 0.1];
const Q: [f64; 4] = [0.2, 0.5, 0.2, 0.1];
const Q2: [f64; 4] = [0.1, 0.1, 0.3, 0.5];

fn dense(weights: &[f64]) -> Distribution {
    Distribution::dense(weights.iter().copied()).unwrap()
}

/// What the target commits of a proposal, continued to `length` tokens by plain decoding.
fn step(target: &Model, proposal: &Proposal, length: usize, script: &mut Script) -> Vec<u32> {
    let tree = proposal.tree();
    let law = |node| Ok::<_, Infallible>(Some(target.after(&context(tree, node))));
    let Ok(accepted) = ratio(proposal, law, script);
    extend(target, committed(tree, &accepted), length, script)
}

fn models(seed: u64, vocabulary: u32) -> [Model; 3] {
    [seed, seed + 1000, seed + 2000].map(|seed| Model { seed, vocabulary })
}

/// Draws `count` drafts below `parent` from the drafter.
fn draw(
    drafter: &Model,
    proposal: &mut Proposal,
    parent: usize,
    count: usize,
    drawn: Drawn,
    script: &mut Script,
) -> Vec<usize> {
    let law = drafter.after(&context(proposal.tree(), parent));
    let mut tokens: Vec<u32> = Vec::new();
    for _ in 0..count {
        let left = match drawn {
            Drawn::Independently => Some(law.clone()),
            Drawn::WithoutReplacement => {
                Distribution::sparse(law.support().filter(|(token, _)| !tokens.contains(token))).ok()
            }
        };
        tokens.extend(left.map(|left| script.draw(&left)));
    }
    let confidences = vec![0.5; tokens.len()];
    let mut nodes = proposal.add_drawn(parent, law, drawn, &tokens, &confidences).unwrap();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

#[test]
fn chains_of_every_length_have_the_targets_joint_law() {
    for seed in 0..12 {
        let [target, drafter, _] = models(seed, 3);
        for length in 0..=3 {
            let found = law(|script| {
                let mut proposal = Proposal::new(0);
                (0..length)
                    .fold(0, |parent, _| draw(&drafter, &mut proposal, parent, 1, Drawn::Independently, script)[0]);
                step(&target, &proposal, length + 1, script)
            });
            assert_same(&found, &plain(&target, length + 1));
        }
    }
}

#[test]
fn trees_with_independent_drafts_have_the_targets_joint_law() {
    for seed in 0..3 {
        let [target, drafter, _] = models(seed, 3);
        let found = law(|script| {
            let mut proposal = Proposal::new(0);
            for node in draw(&drafter, &mut proposal, 0, 2, Drawn::Independently, script) {
                draw(&drafter, &mut proposal, node, 2, Drawn::Independently, script);
            }
            step(&target, &proposal, 3, script)
        });
        assert_same(&found, &plain(&target, 3));
    }
}

#[test]
fn trees_drawn_without_replacement_have_the_targets_joint_law() {
    for seed in 0..3 {
        let [target, drafter, _] = models(seed, 4);
        let found = law(|script| {
            let mut proposal = Proposal::new(0);
            for node in draw(&drafter, &mut proposal, 0, 3, Drawn::WithoutReplacement, script) {
                draw(&drafter, &mut proposal, node, 2, Drawn::WithoutReplacement, script);
            }
            step(&target, &proposal, 2, script)
        });
        assert_same(&found, &plain(&target, 2));
    }
}

#[test]
fn point_masses_have_the_targets_joint_law() {
    for seed in 0..12 {
        let [target, drafter, _] = models(seed, 4);
        let mut proposal = Proposal::new(0);
        for depth in 0..2 {
            for node in 0..proposal.tree().len() {
                if proposal.tree().depths()[node] == depth {
                    let some = drafter.after(&context(proposal.tree(), node));
                    some.support().take(2).for_each(|(token, p)| _ = proposal.add_point(node, token, p).unwrap());
                }
            }
        }
        let found = law(|script| step(&target, &proposal, 3, script));
        assert_same(&found, &plain(&target, 3));
    }
}

#[test]
fn merged_proposals_of_two_drafters_and_a_copy_have_the_targets_joint_law() {
    for seed in 0..3 {
        let [target, first, second] = models(seed, 3);
        let found = law(|script| {
            let mut proposal = Proposal::new(0);
            let node = draw(&first, &mut proposal, 0, 1, Drawn::Independently, script)[0];
            draw(&first, &mut proposal, node, 1, Drawn::Independently, script);
            let mut other = Proposal::new(0);
            let node = draw(&second, &mut other, 0, 1, Drawn::Independently, script)[0];
            draw(&second, &mut other, node, 2, Drawn::WithoutReplacement, script);
            let mut copy = Proposal::new(0);
            let node = copy.add_point(0, 1, 0.5).unwrap();
            copy.add_point(node, 2, 0.5).unwrap();
            proposal.merge(&other).unwrap();
            proposal.merge(&copy).unwrap();
            step(&target, &proposal, 3, script)
        });
        assert_same(&found, &plain(&target, 3));
    }
}

#[test]
fn a_proposal_that_is_checked_in_part_has_the_targets_joint_law() {
    // Which nodes are kept depends on their places and on no token.
    for seed in 0..3 {
        let [target, drafter, _] = models(seed, 4);
        for dropped in 1..=3 {
            let found = law(|script| {
                let mut proposal = Proposal::new(0);
                let nodes = draw(&drafter, &mut proposal, 0, 3, Drawn::WithoutReplacement, script);
                let kept: Vec<bool> = (0..=nodes.len()).map(|node| node != dropped).collect();
                step(&target, &proposal.keep(&kept).unwrap().0, 1, script)
            });
            assert_same(&found, &plain(&target, 1));
        }
    }
}

/// One node with target P; also the probability that a draft is accepted there.
fn one_node(draft: impl Fn(&mut Proposal, &mut Script)) -> (Vec<f64>, f64) {
    let found: Law = law(|script| {
        let mut proposal = Proposal::new(0);
        draft(&mut proposal, script);
        let Ok(accepted) = ratio(&proposal, |node| Ok::<_, Infallible>((node == 0).then(|| dense(&P))), script);
        let token = committed(proposal.tree(), &accepted)[0];
        vec![token, accepted.path.len() as u32]
    });
    let accepted = found.iter().filter(|(output, _)| output[1] == 1).map(|(_, p)| p).sum();
    (marginal(&found, 4), accepted)
}

fn drafts(laws: &'static [[f64; 4]], drawn: Drawn, count: usize) -> (Vec<f64>, f64) {
    one_node(|proposal, script| {
        for law in laws {
            let law = dense(law);
            let mut tokens: Vec<u32> = Vec::new();
            for _ in 0..count {
                let left = law.support().filter(|(token, _)| drawn == Drawn::Independently || !tokens.contains(token));
                let token = script.draw(&Distribution::sparse(left).unwrap());
                tokens.push(token);
            }
            proposal.add_drawn(0, law, drawn, &tokens, &vec![1.0; tokens.len()]).unwrap();
        }
    })
}

#[test]
fn acceptance_is_what_the_papers_say() {
    let goldens = [
        (drafts(&[Q], Drawn::Independently, 1), 0.70),
        (drafts(&[Q], Drawn::Independently, 2), 0.76),
        (drafts(&[Q], Drawn::WithoutReplacement, 2), 0.8125),
    ];
    for ((law, accepted), expected) in goldens {
        assert_close(&law, &P);
        assert_close(&[accepted], &[expected]);
    }
    assert_close(&drafts(&[Q, Q2], Drawn::Independently, 1).0, &P);
    let points = one_node(|proposal, _| {
        for token in [1, 0] {
            proposal.add_point(0, token, 0.5).unwrap();
        }
    });
    assert_close(&points.0, &P);
    assert_close(&[points.1], &[0.75]);
    assert_close(&[dense(&P).overlap(&dense(&Q))], &[0.7]);
}

#[test]
fn a_drafter_that_is_the_target_is_never_rejected() {
    let target = Model { seed: 3, vocabulary: 4 };
    law(|script| {
        let mut proposal = Proposal::new(0);
        let node = draw(&target, &mut proposal, 0, 1, Drawn::Independently, script)[0];
        draw(&target, &mut proposal, node, 1, Drawn::Independently, script);
        let tree = proposal.tree();
        let Ok(accepted) =
            ratio(&proposal, |node| Ok::<_, Infallible>(Some(target.after(&context(tree, node)))), script);
        assert_eq!(accepted.path, [1, 2]);
        assert_eq!(accepted.tokens(), 3);
        committed(tree, &accepted)
    });
}

#[test]
fn a_target_and_a_draft_without_a_token_in_common_reject_and_stay_exact() {
    // p(x) = 0 where q(x) > 0 and the other way round, tokens where both are 0, a draft vocabulary with padding.
    let target = dense(&[0.0, 0.5, 0.0, 0.5]);
    let found = law(|script| {
        let law = Distribution::dense([0.5, 0.0, 0.0, 0.0, 0.25, 0.25]).unwrap();
        let token = script.draw(&law);
        let mut proposal = Proposal::new(0);
        proposal.add_drawn(0, law, Drawn::Independently, &[token], &[0.1]).unwrap();
        let Ok(accepted) = ratio(&proposal, |_| Ok::<_, Infallible>(Some(target.clone())), script);
        assert_eq!(accepted.path, []);
        committed(proposal.tree(), &accepted)
    });
    assert_close(&marginal(&found, 4), &[0.0, 0.5, 0.0, 0.5]);
}

#[test]
fn at_temperature_zero_it_is_greedy_decoding() {
    // All probability on one token: accepted iff a child has it, in whatever order the children come (bug group A9).
    let greedy = [2, 0, 1];
    for order in [[2, 1, 0], [0, 1, 2], [1, 2, 0]] {
        let mut proposal = Proposal::new(0);
        let nodes = order.map(|token| proposal.add_point(0, token, 0.5).unwrap());
        let right = nodes[order.iter().position(|&token| token == 2).unwrap()];
        let wrong = proposal.add_point(right, 1, 0.5).unwrap();
        proposal.add_point(wrong, 1, 0.5).unwrap();
        let tree = proposal.tree();
        let found = law(|script| {
            let at = |node: usize| Ok::<_, Infallible>(Some(Distribution::point(greedy[tree.depths()[node] as usize])));
            let Ok(accepted) = ratio(&proposal, at, script);
            committed(tree, &accepted)
        });
        assert_eq!(found, Law::from([(vec![2, 0], 1.0)]));
    }
}

#[test]
fn a_request_that_ends_in_the_block_is_asked_for_nothing_more() {
    let proposal = Proposal::from(spec::Tree::chain(0, &[1, 2, 3], &[0.9; 3]).unwrap());
    let mut asked = Vec::new();
    let ends_at = |node: usize| {
        asked.push(node);
        Ok::<_, Infallible>((node < 2).then(|| Distribution::point(node as u32 + 1)))
    };
    let Ok(accepted) = ratio(&proposal, ends_at, &mut Script::default());
    assert_eq!((accepted.path, accepted.next), (vec![1, 2], None));
    assert_eq!(asked, [0, 1, 2]);
}

#[test]
fn logits_that_are_not_numbers_fail_the_request_and_accept_nothing() {
    let proposal = Proposal::from(spec::Tree::chain(0, &[1], &[0.9]).unwrap());
    let nan = |_| Distribution::dense([f64::NAN, 1.0]).map(Some);
    assert!(ratio(&proposal, nan, &mut Script::default()).is_err());
}
