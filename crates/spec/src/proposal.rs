//! What a drafter hands over: a tree of drafts, and how they were chosen.

use std::borrow::Cow;

use crate::coins::Coins;
use crate::{Distribution, Tree, TreeError};

/// How the drafts of one group were drawn from its distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drawn {
    /// Each on its own, so that one token may come more than once (SpecInfer, section 4.3).
    Independently,
    /// One after the other without replacement: each from what its earlier siblings left, renormalised (EAGLE-1's
    /// sampled trees).
    WithoutReplacement,
}

/// Drafts below the anchor, and how each was chosen.
///
/// A draft that was added by itself is a *point mass*: chosen by a rule, as a copy from the prompt or the best k tokens of
/// a distribution are. A draft that chance chose belongs to a *group*, which has the distribution that it was drawn from
/// and the order of drawing. Only the rule `ratio` looks at groups. To hand in tokens that a rule chose as if they had
/// been drawn makes `ratio` give a wrong law, and nothing can find that out from one proposal.
#[derive(Debug, Clone, PartialEq)]
pub struct Proposal {
    tree: Tree,
    groups: Vec<Group>,
}

/// Drafts drawn from one distribution below one node.
#[derive(Debug, Clone, PartialEq)]
struct Group {
    parent: usize,
    law: Distribution,
    drawn: Drawn,
    draws: Vec<Draw>,
}

/// A token that was drawn, and its node unless the node was not kept.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Draw {
    token: u32,
    node: Option<usize>,
}

/// A proposal that cannot be.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub enum ProposalError {
    #[error(transparent)]
    Tree(#[from] TreeError),
    #[error(
        "token {token} below node {parent} cannot have been drawn: its probability there is 0; the distribution must be \
         the one that the draft was drawn from, after temperature and truncation"
    )]
    Impossible { parent: usize, token: u32 },
    #[error("{tokens} drawn tokens come with {confidences} confidences: each has one")]
    Lengths { tokens: usize, confidences: usize },
    #[error("a proposal below token {other} cannot be merged into one below token {anchor}")]
    Anchor { anchor: u32, other: u32 },
}

impl Proposal {
    /// A proposal of nothing.
    pub fn new(anchor: u32) -> Proposal {
        Proposal::from(Tree::new(anchor))
    }

    /// The drafts.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The same drafts with other confidences; what is not in [0, 1] counts as the nearer end, NaN as 0.
    pub fn with_confidences(&self, confidence: impl Fn(usize) -> f64) -> Proposal {
        Proposal { tree: self.tree.with_confidences(confidence), groups: self.groups.clone() }
    }

    /// Adds a draft that was not chosen by chance. Returns its node.
    ///
    /// # Errors
    ///
    /// As [`Tree::add`].
    pub fn add_point(&mut self, parent: usize, token: u32, confidence: f64) -> Result<usize, ProposalError> {
        Ok(self.tree.add(parent, token, confidence)?)
    }

    /// Adds drafts that were drawn from `law` below `parent`, in the order of drawing. Returns the node of each; equal
    /// tokens have the same node and count as the draws that they are.
    ///
    /// # Errors
    ///
    /// A token that `law` cannot give at its place in the order, and as [`Tree::add`]. Nothing was added then.
    pub fn add_drawn(
        &mut self,
        parent: usize,
        law: Distribution,
        drawn: Drawn,
        tokens: &[u32],
        confidences: &[f64],
    ) -> Result<Vec<usize>, ProposalError> {
        self.check(parent, &law, drawn, tokens, confidences)?;
        let mut nodes = Vec::with_capacity(tokens.len());
        for (&token, &confidence) in tokens.iter().zip(confidences) {
            nodes.push(self.tree.add(parent, token, confidence)?);
        }
        let draws = tokens.iter().zip(&nodes).map(|(&token, &node)| Draw { token, node: Some(node) }).collect();
        self.groups.push(Group { parent, law, drawn, draws });
        Ok(nodes)
    }

    fn check(
        &self,
        parent: usize,
        law: &Distribution,
        drawn: Drawn,
        tokens: &[u32],
        confidences: &[f64],
    ) -> Result<(), ProposalError> {
        if tokens.len() != confidences.len() {
            return Err(ProposalError::Lengths { tokens: tokens.len(), confidences: confidences.len() });
        }
        let node = self.tree.len();
        if parent >= node {
            return Err(TreeError::Parent { node, parent }.into());
        }
        for (i, (&token, &confidence)) in tokens.iter().zip(confidences).enumerate() {
            let gone = drawn == Drawn::WithoutReplacement && tokens[..i].contains(&token);
            if gone || law.probability(token) <= 0.0 {
                return Err(ProposalError::Impossible { parent, token });
            }
            if !(0.0..=1.0).contains(&confidence) {
                return Err(TreeError::Confidence { node: node + i, confidence }.into());
            }
        }
        Ok(())
    }

    /// Adds the drafts of another drafter below the same anchor (SpecInfer, section 3). A node that both have is one row;
    /// its draws stay two, because to forget one of their distributions would bias the law. Returns where each node of
    /// `other` is now.
    ///
    /// # Errors
    ///
    /// Another anchor.
    pub fn merge(&mut self, other: &Proposal) -> Result<Vec<usize>, ProposalError> {
        let (anchor, theirs) = (self.tree.tokens()[0], other.tree.tokens()[0]);
        if anchor != theirs {
            return Err(ProposalError::Anchor { anchor, other: theirs });
        }
        let now = self.tree.merge(&other.tree);
        self.groups.extend(other.groups.iter().filter_map(|group| group.moved(|node| Some(now[node]))));
        Ok(now)
    }

    /// What is left of the proposal when only the flagged nodes are checked, `[tree.len()]`, and which node each of them
    /// was.
    ///
    /// # Errors
    ///
    /// As [`Tree::keep`].
    pub fn keep(&self, kept: &[bool]) -> Result<(Proposal, Vec<usize>), ProposalError> {
        let (tree, was) = self.tree.keep(kept)?;
        let mut now = vec![None; self.tree.len()];
        was.iter().enumerate().for_each(|(new, &old)| now[old] = Some(new));
        let groups = self.groups.iter().filter_map(|group| group.moved(|node| now[node])).collect();
        Ok((Proposal { tree, groups }, was))
    }

    /// Offers the drafts that were drawn below `node` to the target, in the order of drawing: the accepted child, or none
    /// and what is then left of `target` to draw from.
    ///
    /// Multi-step speculative sampling (SpecInfer, algorithm 2): a draft from q is accepted with min(1, p/q), else p becomes
    /// norm(max(0, p − q)).
    pub(crate) fn offer(&self, node: usize, target: &mut Distribution, coins: &mut impl Coins) -> Option<usize> {
        for group in self.groups.iter().filter(|group| group.parent == node) {
            let mut law = Cow::Borrowed(&group.law);
            for (i, draw) in group.draws.iter().enumerate() {
                if i > 0 && group.drawn == Drawn::WithoutReplacement && !law.to_mut().exclude(group.draws[i - 1].token)
                {
                    break;
                }
                let Some(child) = draw.node else { continue };
                if coins.accept((target.probability(draw.token) / law.probability(draw.token)).min(1.0)) {
                    return Some(child);
                }
                target.become_residual(&law);
            }
        }
        None
    }
}

impl From<Tree> for Proposal {
    /// A proposal of point masses.
    fn from(tree: Tree) -> Proposal {
        Proposal { tree, groups: Vec::new() }
    }
}

impl Group {
    /// The group among nodes that have moved; none without its parent. A draft that has no node any more stays drawn:
    /// without replacement, later drafts were drawn from what it left.
    fn moved(&self, now: impl Fn(usize) -> Option<usize>) -> Option<Group> {
        let draws = self.draws.iter().map(|draw| Draw { token: draw.token, node: draw.node.and_then(&now) });
        let draws = draws.collect();
        Some(Group { parent: now(self.parent)?, law: self.law.clone(), drawn: self.drawn, draws })
    }
}
