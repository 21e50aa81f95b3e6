//! Trees grown under a budget, against goldens and against the search of everything.

use proptest::prelude::*;
use spec::{Expansion, Tree, TreeError, best_first_tree, eagle_tree, expected_tokens_of_tree, product_tree};

/// A drafter over 5 tokens whose next token depends on the last one and, from the third draft on, on that; it has the
/// scores of the golden tree to 4 digits.
fn toy(path: &[u32]) -> Expansion {
    let row = match path {
        [] => [0.112, 0.4805, 0.06, 0.0125, 0.335],
        [_, _, _, ..] => [0.038, 0.6582, 0.073, 0.119, 0.1118],
        [.., 0] => [0.07, 0.182, 0.501, 0.171, 0.076],
        [.., 1] => [0.4081, 0.024, 0.0848, 0.3551, 0.128],
        [.., 2] => [0.038, 0.073, 0.6582, 0.119, 0.1118],
        [.., 3] => [0.084, 0.186, 0.344, 0.368, 0.018],
        _ => [0.024, 0.065, 0.7433, 0.092, 0.0757],
    };
    (0..).zip(row).collect()
}

fn path(tree: &Tree, node: usize) -> Vec<u32> {
    tree.path(node).into_iter().map(|node| tree.tokens()[node]).collect()
}

fn parents(tree: &Tree) -> Vec<u32> {
    tree.parents().iter().copied().flatten().collect()
}

/// EAGLE-2's tree with a drafter, and how many candidates there were.
fn eagle(top_k: usize, rounds: usize, drafts: usize, drafter: impl Fn(&[u32]) -> Expansion) -> (Tree, usize) {
    let mut candidates = 0;
    let grown = eagle_tree::<TreeError>(9, top_k, rounds, drafts, |tree, nodes, expansions| {
        for (&node, expansion) in nodes.iter().zip(expansions) {
            *expansion = drafter(&path(tree, node));
            candidates += expansion.len().min(top_k);
        }
        Ok(())
    });
    (grown.unwrap(), candidates)
}

#[test]
fn eagles_trees_are_the_golden_ones() {
    let (tree, candidates) = eagle(2, 2, 6, toy);
    assert_eq!(candidates, 10);
    assert_eq!(tree.tokens()[1..], [1, 4, 0, 3, 2, 2]);
    assert_eq!(parents(&tree), [0, 0, 1, 1, 2, 5]);
    assert_eq!(tree.depths(), [0, 1, 1, 2, 2, 2, 3]);
    let scores = [-0.73287304, -1.09352981, -1.62916758, -1.76825058, -1.39027635, -1.80843313];
    for (survival, score) in tree.survivals()[1..].iter().zip(scores) {
        assert!((survival.ln() - score).abs() < 5e-4, "{} {score}", survival.ln());
    }
    let (tree, candidates) = eagle(3, 3, 12, toy);
    assert_eq!(candidates, 30);
    assert_eq!(tree.tokens()[1..], [1, 4, 0, 0, 3, 4, 2, 2, 2, 3, 1, 1]);
    assert_eq!(parents(&tree), [0, 0, 0, 1, 1, 1, 2, 7, 4, 5, 8, 9]);
    assert_eq!(tree.depths()[1..], [1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 4]);
}

#[test]
fn eagles_defaults_have_as_many_candidates_as_there() {
    let flat = |_: &[u32]| (0..10).map(|token| (token, 0.1)).collect();
    assert_eq!(eagle(10, 7, 60, flat).1, 710);
    assert_eq!(eagle(10, 5, 60, flat).1, 510);
}

#[test]
fn certain_drafts_keep_their_parents() {
    // A child of probability 1 has its parent's survival; taken without the parent it would hang below another node.
    let certain = |_: &[u32]| vec![(3, 1.0)];
    for drafts in 0..=4 {
        let (tree, _) = eagle(4, 3, drafts, certain);
        assert_eq!(tree.drafts(), drafts);
        assert_eq!(parents(&tree), (0..drafts as u32).collect::<Vec<_>>());
        let tree = product_tree(9, &[vec![(3, 1.0)], vec![(3, 1.0)], vec![(3, 1.0)], vec![(3, 1.0)]], drafts).unwrap();
        assert_eq!(parents(&tree), (0..drafts as u32).collect::<Vec<_>>());
    }
}

#[test]
fn a_drafter_that_has_no_more_gives_a_smaller_tree() {
    let ends = |path: &[u32]| if path.len() < 2 { vec![(1, 0.5), (2, 0.0)] } else { Vec::new() };
    assert_eq!(eagle(3, 9, 60, ends).0.drafts(), 2);
    assert_eq!(product_tree(9, &[vec![(1, 0.5)], vec![]], 60).unwrap().drafts(), 1);
    assert_eq!(product_tree(9, &[], 60).unwrap().drafts(), 0);
}

#[test]
fn what_is_no_distribution_is_refused() {
    for bad in [vec![(1, f64::NAN)], vec![(1, 1.5)], vec![(1, 0.5), (1, 0.5)]] {
        assert!(product_tree(9, std::slice::from_ref(&bad), 9).is_err(), "{bad:?}");
        let grown = eagle_tree::<TreeError>(9, 2, 1, 9, |_, _, expansions| {
            expansions[0] = bad.clone();
            Ok(())
        });
        assert!(grown.is_err(), "{bad:?}");
    }
}

#[test]
fn a_node_outside_the_tree_is_not_asked_about() {
    let mut asked = Vec::new();
    let grown = best_first_tree::<TreeError>(9, 3, |tree, node| {
        asked.push(path(tree, node));
        Ok(vec![(0, 0.6), (1, 0.4)])
    });
    // 0.6, 0.4 and 0.36; the last one's children aren't needed.
    assert_eq!(grown.unwrap().drafts(), 3);
    assert_eq!(asked, [vec![], vec![0], vec![1]]);
}

/// All beginnings of a block, with their probabilities, the likeliest first.
fn beginnings(positions: &[Expansion]) -> Vec<f64> {
    let mut all = Vec::new();
    let mut level = vec![1.0];
    for position in positions {
        level = level.iter().flat_map(|p| position.iter().map(move |(_, q)| p * q)).collect();
        all.extend_from_slice(&level);
    }
    all.sort_unstable_by(|a: &f64, b| b.total_cmp(a));
    all
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn the_product_tree_has_the_likeliest_beginnings(
        weights in proptest::collection::vec(proptest::collection::vec(1u32..20, 6), 4),
        drafts in 0usize..80,
    ) {
        let positions: Vec<Expansion> = weights
            .iter()
            .map(|row| {
                let sum: u32 = row.iter().sum();
                (0..).zip(row.iter().map(|&weight| f64::from(weight) / f64::from(sum))).collect()
            })
            .collect();
        let tree = product_tree(9, &positions, drafts).unwrap();
        prop_assert_eq!(tree.drafts(), drafts);
        let best: f64 = beginnings(&positions).iter().take(drafts).sum();
        prop_assert!((expected_tokens_of_tree(&tree) - 1.0 - best).abs() < 1e-9);
    }

    #[test]
    fn eagles_tree_is_the_best_of_its_candidates(seed: u64, top_k in 1usize..4, rounds in 0usize..4, drafts in 0usize..20) {
        let drafter = |path: &[u32]| -> Expansion {
            let mut state = seed;
            (0..5).map(|token| {
                for &step in path.iter().chain([&token]) {
                    state = (state ^ u64::from(step + 1)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
                }
                (token, (state >> 40) as f64 / (1u64 << 24) as f64 * 0.2)
            }).collect()
        };
        // The same by the paper's words: paths and their scores, nothing else.
        let mut all: Vec<(Vec<u32>, f64)> = Vec::new();
        let mut level = vec![(Vec::new(), 1.0)];
        for _ in 0..=rounds {
            let mut next = Vec::new();
            for (path, score) in &level {
                let mut children = drafter(path);
                children.sort_by(|a, b| b.1.total_cmp(&a.1));
                next.extend(children.into_iter().take(top_k).map(|(token, p)| ([path.as_slice(), &[token]].concat(), score * p)));
            }
            all.extend_from_slice(&next);
            next.sort_by(|a: &(Vec<u32>, f64), b| b.1.total_cmp(&a.1));
            next.truncate(top_k);
            level = next;
        }
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all.truncate(drafts);
        let mut expected: Vec<Vec<u32>> = all.into_iter().map(|(path, _)| path).collect();
        expected.sort();
        let (tree, _) = eagle(top_k, rounds, drafts, drafter);
        let mut found: Vec<Vec<u32>> = (1..tree.len()).map(|node| path(&tree, node)).collect();
        found.sort();
        prop_assert_eq!(found, expected);
    }
}
