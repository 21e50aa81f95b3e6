//! Medusa's rule: its thresholds, the longest path, and that it is lossy.

mod common;

use std::convert::Infallible;

use common::assert_close;
use spec::{Distribution, Rule, Tree, Typical, typical};

fn dense(weights: &[f64]) -> Distribution {
    Distribution::dense(weights.iter().copied()).unwrap()
}

#[test]
fn thresholds_are_medusas() {
    let table: [(&[f64], f64, &[u32]); 3] = [
        (&[0.9, 0.05, 0.03, 0.02], 0.09, &[0]),
        (&[0.4, 0.3, 0.2, 0.1], 0.083_426_69, &[0, 1, 2, 3]),
        (&[0.25; 4], 0.075_003, &[0, 1, 2, 3]),
    ];
    for (p, threshold, accepted) in table {
        let law = dense(p);
        assert!((Typical::default().threshold(&law) - threshold).abs() < 5e-9);
        for token in 0..4 {
            let tree = Tree::chain(0, &[token], &[0.5]).unwrap();
            let Ok(step) = typical(&tree, &Typical::default(), |_| Ok::<_, Infallible>(Some(law.clone())));
            assert_eq!(step.path.len() == 1, accepted.contains(&token), "{p:?} {token}");
        }
    }
    let flat = dense(&[1.0; 1000]);
    let threshold = Typical::default().threshold(&flat);
    assert!((threshold - 3.03e-4).abs() < 1e-9 && flat.probability(0) > threshold);
}

#[test]
fn a_probability_at_the_threshold_is_not_above_it() {
    let tree = Tree::chain(0, &[1], &[0.5]).unwrap();
    let strict = Typical { epsilon: 0.25, delta: 9.0 };
    let Ok(step) = typical(&tree, &strict, |_| Ok::<_, Infallible>(Some(dense(&[0.75, 0.25]))));
    assert_eq!((step.path, step.next), (vec![], Some(0)));
}

#[test]
fn the_longest_path_wins_then_the_likelier_then_the_first() {
    let law = dense(&[0.4, 0.3, 0.3]);
    let at = |_| Ok::<_, Infallible>(Some(law.clone()));
    let thresholds = Typical::default();
    let tree = Tree::from_parents(9, &[0, 0, 2], &[0, 1, 2], &[0.5; 3]).unwrap();
    let Ok(longest) = typical(&tree, &thresholds, at);
    assert_eq!((longest.path, longest.next), (vec![2, 3], Some(0)));
    let tree = Tree::from_parents(9, &[0, 0, 0], &[2, 1, 0], &[0.5; 3]).unwrap();
    let Ok(likelier) = typical(&tree, &thresholds, at);
    assert_eq!(likelier.path, [3]);
    let tree = Tree::from_parents(9, &[0, 0], &[2, 1], &[0.5; 2]).unwrap();
    let Ok(first) = typical(&tree, &thresholds, at);
    assert_eq!(first.path, [1]);
}

#[test]
fn at_temperature_zero_it_is_greedy_decoding() {
    let tree = Tree::from_parents(9, &[0, 0, 2, 3], &[5, 4, 4, 5], &[0.5; 4]).unwrap();
    let Ok(step) = typical(&tree, &Typical::default(), |_| Ok::<_, Infallible>(Some(Distribution::point(4))));
    assert_eq!((step.path, step.next), (vec![2, 3], Some(4)));
}

#[test]
fn a_request_that_ends_in_the_block_has_no_next_token() {
    let tree = Tree::chain(9, &[1, 2], &[0.5; 2]).unwrap();
    let at = |node: usize| Ok::<_, Infallible>((node == 0).then(|| Distribution::point(1)));
    let Ok(step) = typical(&tree, &Typical::default(), at);
    assert_eq!((step.path, step.next), (vec![1], None));
}

#[test]
fn it_is_lossy_and_says_so() {
    // Two tokens of which both are typical: whichever was drafted is accepted.
    let law = dense(&[0.5, 0.5]);
    let tree = Tree::chain(9, &[1], &[0.5]).unwrap();
    let Ok(step) = typical(&tree, &Typical::default(), |_| Ok::<_, Infallible>(Some(law.clone())));
    assert_eq!(step.path, [1]);
    assert_close(&[law.entropy()], &[2f64.ln()]);
    assert!(!Rule::Typical(Typical::default()).is_lossless());
    assert!(Rule::Keyed.is_lossless() && Rule::Ratio.is_lossless());
}

#[test]
fn rules_have_names() {
    for name in ["keyed", "ratio", "typical"] {
        assert_eq!(name.parse::<Rule>().unwrap().to_string(), name);
    }
    assert_eq!(Rule::default(), Rule::Keyed);
    assert!("greedy".parse::<Rule>().unwrap_err().to_string().contains("greedy"));
}
