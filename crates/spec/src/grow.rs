//! Growing a tree of drafts under a budget: the likeliest nodes first.
//!
//! The sum of a tree's survivals is the number of drafts that it is expected to have accepted, so the best tree of n
//! drafts has the n nodes of greatest survival. Equals are told apart by their place, never by chance: a certain child has
//! its parent's survival, and must not take its parent's place.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::{Tree, TreeError};

/// What may follow a node: tokens and their probabilities, in any order. Tokens of probability 0 are left out.
pub type Expansion = Vec<(u32, f64)>;

/// By descending probability, equals by token.
fn sort(expansion: &mut Expansion) {
    expansion.retain(|&(_, p)| p != 0.0);
    expansion.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
}

/// EAGLE-2's tree (Li et al. 2024, arXiv 2406.16858, section 4): levels of the `top_k` likeliest nodes, each with its
/// `top_k` likeliest children; of all of them the `drafts` likeliest are kept, level by level.
///
/// The first level is below the anchor and `rounds` follow, so that a path has up to `rounds` + 1 drafts, as in EAGLE's
/// code with depth = `rounds`. `expand(tree, nodes, expansions)` says what may follow each of `nodes`, all of one level;
/// it is called once for each level, and `expansions` is as long as `nodes` and empty. The tree that it sees has all
/// nodes so far; what it answered about nodes that are not kept in the end is lost.
///
/// # Errors
///
/// What `expand` fails with, a probability outside [0, 1] or a token twice below a node.
pub fn eagle_tree<E: From<TreeError>>(
    anchor: u32,
    top_k: usize,
    rounds: usize,
    drafts: usize,
    mut expand: impl FnMut(&Tree, &[usize], &mut [Expansion]) -> Result<(), E>,
) -> Result<Tree, E> {
    let mut growth = EagleGrowth::new(anchor, top_k, rounds);
    while !growth.level().is_empty() {
        let mut expansions = vec![Expansion::new(); growth.level().len()];
        expand(growth.tree(), growth.level(), &mut expansions)?;
        growth.grow(&mut expansions)?;
    }
    Ok(growth.finish(drafts)?)
}

/// An [`eagle_tree`] as it grows, for who expands several at a time.
#[derive(Debug, Clone)]
pub struct EagleGrowth {
    tree: Tree,
    survivals: Vec<f64>,
    level: Vec<usize>,
    top_k: usize,
    /// Levels that may still be expanded.
    levels: usize,
}

impl EagleGrowth {
    /// An anchor, to be expanded first.
    pub fn new(anchor: u32, top_k: usize, rounds: usize) -> EagleGrowth {
        let (tree, survivals) = (Tree::new(anchor), vec![1.0]);
        EagleGrowth { tree, survivals, level: vec![0], top_k, levels: rounds + 1 }
    }

    /// All nodes so far.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The nodes to be expanded next; none when the tree is grown.
    pub fn level(&self) -> &[usize] {
        &self.level
    }

    /// How likely a node is, all that leads to it included.
    pub fn survival(&self, node: usize) -> f64 {
        self.survivals.get(node).copied().unwrap_or(0.0)
    }

    /// Expands the nodes of the level, each by what may follow it.
    ///
    /// # Errors
    ///
    /// A probability outside [0, 1] or a token twice below a node.
    pub fn grow(&mut self, expansions: &mut [Expansion]) -> Result<(), TreeError> {
        let first = self.tree.len();
        for (&parent, expansion) in self.level.iter().zip(expansions) {
            sort(expansion);
            expansion.truncate(self.top_k);
            for &(token, p) in expansion.iter() {
                add(&mut self.tree, parent, token, p)?;
                self.survivals.push(self.survivals[parent] * p);
            }
        }
        self.levels -= 1;
        self.level = if self.levels > 0 { likeliest(&self.survivals, first, self.top_k) } else { Vec::new() };
        Ok(())
    }

    /// The `drafts` likeliest nodes.
    ///
    /// # Errors
    ///
    /// None that a tree grown here has.
    pub fn finish(self, drafts: usize) -> Result<Tree, TreeError> {
        let mut kept = vec![false; self.tree.len()];
        likeliest(&self.survivals, 1, drafts).into_iter().for_each(|node| kept[node] = true);
        Ok(self.tree.keep(&kept)?.0)
    }
}

/// Adds a node that must not be there yet.
fn add(tree: &mut Tree, parent: usize, token: u32, p: f64) -> Result<usize, TreeError> {
    let node = tree.len();
    if tree.add(parent, token, p)? == node { Ok(node) } else { Err(TreeError::Sibling { parent, token }) }
}

/// The `count` nodes of greatest survival from `first` on, equals by their number. Where a node is among them, so is its
/// parent if it is from `first` on.
fn likeliest(survivals: &[f64], first: usize, count: usize) -> Vec<usize> {
    let mut nodes: Vec<usize> = (first..survivals.len()).collect();
    nodes.sort_unstable_by(|&a, &b| survivals[b].total_cmp(&survivals[a]).then(a.cmp(&b)));
    nodes.truncate(count);
    nodes
}

/// The `drafts` likeliest nodes of the tree that `expand` unfolds, found best first: exactly those, and `expand(tree,
/// node)` is asked only about nodes that are among them.
///
/// # Errors
///
/// What `expand` fails with, a probability outside [0, 1] or a token twice below a node.
pub fn best_first_tree<E: From<TreeError>>(
    anchor: u32,
    drafts: usize,
    mut expand: impl FnMut(&Tree, usize) -> Result<Expansion, E>,
) -> Result<Tree, E> {
    let mut tree = Tree::new(anchor);
    let mut grown: Vec<Grown> = Vec::new();
    let mut open = BinaryHeap::new();
    let (mut survival, mut ranks) = (1.0, Vec::new());
    while tree.drafts() < drafts {
        let node = tree.len() - 1;
        let mut expansion = expand(&tree, node)?;
        sort(&mut expansion);
        grown.push(Grown { survival, ranks, expansion });
        open.extend(grown[node].child(node, 0));
        let Some(next) = open.pop() else { break };
        open.extend(grown[next.parent].child(next.parent, next.rank + 1));
        add(&mut tree, next.parent, next.token, next.confidence)?;
        (survival, ranks) = (next.survival, next.ranks);
    }
    Ok(tree)
}

/// A node of the growing tree.
struct Grown {
    survival: f64,
    /// Along its path, which of its parent's children each node is.
    ranks: Vec<usize>,
    expansion: Expansion,
}

impl Grown {
    /// The candidate that is child `rank` of this node, which is `parent`.
    fn child(&self, parent: usize, rank: usize) -> Option<Open> {
        let &(token, confidence) = self.expansion.get(rank)?;
        let ranks = self.ranks.iter().copied().chain([rank]).collect();
        Some(Open { survival: self.survival * confidence, ranks, parent, rank, token, confidence })
    }
}

/// A candidate whose parent, and every sibling before it, is in the tree.
struct Open {
    survival: f64,
    ranks: Vec<usize>,
    parent: usize,
    rank: usize,
    token: u32,
    confidence: f64,
}

impl Ord for Open {
    /// The greatest is the likeliest; of equals, the first by ranks.
    fn cmp(&self, other: &Open) -> Ordering {
        self.survival.total_cmp(&other.survival).then_with(|| other.ranks.cmp(&self.ranks))
    }
}

impl PartialOrd for Open {
    fn partial_cmp(&self, other: &Open) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Open {
    fn eq(&self, other: &Open) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Open {}

/// DDTree's tree (Ringel and Romano 2026, arXiv 2604.12989): the `drafts` likeliest beginnings of a block whose tokens are
/// independent, `positions[k]` being the distribution of the block's token k.
///
/// # Errors
///
/// A probability outside [0, 1] or a token twice at a position.
pub fn product_tree(anchor: u32, positions: &[Expansion], drafts: usize) -> Result<Tree, TreeError> {
    best_first_tree(anchor, drafts, |tree, node| {
        Ok(positions.get(tree.depths()[node] as usize).cloned().unwrap_or_default())
    })
}
