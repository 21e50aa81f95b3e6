//! Token trees: their layout, what they refuse, merging and cutting.

use proptest::prelude::*;
use spec::{Distribution, Drawn, Proposal, ProposalError, Tree, TreeError};

#[test]
fn the_eagle_golden_is_laid_out_as_there() {
    // EAGLE-2's worked tree: parents, positions and mask.
    let tree = Tree::from_parents(7, &[0, 0, 1, 1, 2, 5], &[1, 4, 0, 3, 2, 2], &[0.5; 6]).unwrap();
    assert_eq!(tree.depths(), [0, 1, 1, 2, 2, 2, 3]);
    let rows = [0b1, 0b11, 0b101, 0b1011, 0b10011, 0b10_0101, 0b110_0101];
    assert_eq!(tree.visibility(), rows);
    assert_eq!(tree.leaves().collect::<Vec<_>>(), [3, 4, 6]);
    assert_eq!(tree.path(6), [2, 5, 6]);
    assert_eq!(tree.path(0), []);
    assert_eq!(tree.children(1).collect::<Vec<_>>(), [3, 4]);
    assert_eq!(tree.child(2, 2), Some(5));
    assert_eq!(tree.child(2, 3), None);
    assert_eq!(tree.tokens(), [7, 1, 4, 0, 3, 2, 2]);
    assert_eq!(tree.parents()[6], Some(5));
    assert_eq!(tree.survivals()[6], 0.125);
}

#[test]
fn what_is_no_tree_is_refused() {
    let build =
        |parents: &[usize], tokens: &[u32], confidences: &[f64]| Tree::from_parents(0, parents, tokens, confidences);
    assert_eq!(build(&[0, 2], &[1, 1], &[0.5; 2]), Err(TreeError::Parent { node: 2, parent: 2 }));
    assert_eq!(build(&[1], &[1], &[0.5]), Err(TreeError::Parent { node: 1, parent: 1 }));
    assert_eq!(build(&[0, 0], &[1, 1], &[0.5; 2]), Err(TreeError::Sibling { parent: 0, token: 1 }));
    assert_eq!(build(&[0], &[1], &[]), Err(TreeError::Lengths { tokens: 1, others: 0 }));
    for bad in [-0.1, 1.1, f64::NAN] {
        assert!(matches!(build(&[0], &[1], &[bad]), Err(TreeError::Confidence { node: 1, .. })));
    }
    let chain = Tree::chain(0, &[1, 2], &[0.5; 2]).unwrap();
    assert_eq!(chain.keep(&[true, false, true]), Err(TreeError::Orphan { node: 2 }));
    assert_eq!(chain.keep(&[true]), Err(TreeError::Flags { flags: 1, nodes: 3 }));
    assert_eq!(chain.parent(17), None);
    assert_eq!(chain.children(17).count(), 0);
}

#[test]
fn a_draft_that_cannot_have_been_drawn_is_refused() {
    // A target that accepts a draft of q = 0 < p with certainty is a real bug (group B3).
    let mut proposal = Proposal::new(0);
    let law = || Distribution::sparse([(3, 0.5), (4, 0.5)]).unwrap();
    let refused = proposal.add_drawn(0, law(), Drawn::Independently, &[5], &[0.5]);
    assert_eq!(refused, Err(ProposalError::Impossible { parent: 0, token: 5 }));
    let twice = proposal.add_drawn(0, law(), Drawn::WithoutReplacement, &[3, 3], &[0.5; 2]);
    assert_eq!(twice, Err(ProposalError::Impossible { parent: 0, token: 3 }));
    assert!(proposal.add_drawn(1, law(), Drawn::Independently, &[3], &[0.5]).is_err());
    assert!(proposal.add_drawn(0, law(), Drawn::Independently, &[3, 4], &[0.5, 2.0]).is_err());
    assert!(proposal.add_drawn(0, law(), Drawn::Independently, &[3], &[]).is_err());
    assert_eq!(proposal, Proposal::new(0), "a refusal adds nothing");
    assert_eq!(proposal.add_drawn(0, law(), Drawn::Independently, &[3, 3], &[0.5; 2]), Ok(vec![1, 1]));
    assert!(proposal.merge(&Proposal::new(1)).is_err());
}

/// The token paths of all nodes.
fn paths(tree: &Tree) -> Vec<Vec<u32>> {
    let mut paths: Vec<Vec<u32>> =
        (0..tree.len()).map(|node| tree.path(node).into_iter().map(|node| tree.tokens()[node]).collect()).collect();
    paths.sort();
    paths
}

fn tree() -> impl Strategy<Value = Tree> {
    let nodes = proptest::collection::vec((any::<proptest::sample::Index>(), 0u32..4, 0.0..=1.0f64), 0..90);
    nodes.prop_map(|nodes| {
        let mut tree = Tree::new(0);
        for (parent, token, confidence) in nodes {
            let parent = parent.index(tree.len());
            tree.add(parent, token, confidence).unwrap();
        }
        tree
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    #[test]
    fn a_row_sees_its_ancestors_and_itself(tree in tree()) {
        let rows = tree.visibility();
        let words = tree.len().div_ceil(64);
        for i in 0..tree.len() {
            let seen: Vec<usize> =
                (0..tree.len()).filter(|j| rows[i * words + j / 64] >> (j % 64) & 1 == 1).collect();
            let mut path = vec![0];
            path.extend(tree.path(i));
            prop_assert_eq!(seen.len(), tree.depths()[i] as usize + 1);
            prop_assert_eq!(seen, path);
        }
    }

    #[test]
    fn merging_is_the_union_of_paths(one in tree(), two in tree()) {
        let mut merged = one.clone();
        let now = merged.merge(&two);
        let mut union = [paths(&one), paths(&two)].concat();
        union.sort();
        union.dedup();
        prop_assert_eq!(paths(&merged), union);
        for (node, &there) in now.iter().enumerate() {
            prop_assert_eq!(two.tokens()[node], merged.tokens()[there]);
            prop_assert_eq!(two.depths()[node], merged.depths()[there]);
            prop_assert!(merged.survivals()[there] >= two.survivals()[node] - 1e-15);
        }
    }

    #[test]
    fn survival_never_rises_along_a_path(tree in tree()) {
        let survivals = tree.survivals();
        for node in 1..tree.len() {
            prop_assert!(survivals[node] <= survivals[tree.parent(node).unwrap()]);
        }
    }

    #[test]
    fn cutting_keeps_the_rest(tree in tree(), seed: u64) {
        let mut kept: Vec<bool> = (0..tree.len()).map(|node| node == 0 || (seed >> (node % 64)) & 1 == 1).collect();
        for node in 1..tree.len() {
            kept[node] &= kept[tree.parent(node).unwrap()];
        }
        let (cut, was) = tree.keep(&kept).unwrap();
        prop_assert_eq!(cut.len(), kept.iter().filter(|&&kept| kept).count());
        for (node, &old) in was.iter().enumerate() {
            prop_assert_eq!(cut.tokens()[node], tree.tokens()[old]);
            prop_assert_eq!(cut.survivals()[node], tree.survivals()[old]);
            prop_assert_eq!(cut.parent(node).map(|parent| was[parent]), tree.parent(old));
        }
    }
}
