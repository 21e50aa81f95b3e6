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
    probes: Vec<Probe>,
}

/// A node that is computed for what the target says there.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Probe {
    node: usize,
    worth: f64,
    /// Whether the drafter is told what the target says after it.
    heard: bool,
    /// Whether nobody expects the node to stand.
    alone: bool,
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
        Proposal { tree: self.tree.with_confidences(confidence), ..self.clone() }
    }

    /// Adds a draft that was not chosen by chance. Returns its node.
    ///
    /// # Errors
    ///
    /// As [`Tree::add`].
    pub fn add_point(&mut self, parent: usize, token: u32, confidence: f64) -> Result<usize, ProposalError> {
        Ok(self.tree.add(parent, token, confidence)?)
    }

    /// Adds a *probe*: a node that is to be computed not because it may stand, but because what the target says there helps
    /// to draft in later steps (the window of lookahead decoding). `worth` is what this one row is expected to bring, in
    /// drafts that stand. Returns its node, which may be that of a draft. With `heard` the drafter is told what the target
    /// says after it.
    ///
    /// # Errors
    ///
    /// As [`Tree::add`], and a worth outside [0, 1].
    pub fn add_probe(&mut self, parent: usize, token: u32, worth: f64, heard: bool) -> Result<usize, ProposalError> {
        let nodes = self.tree.len();
        if !(0.0..=1.0).contains(&worth) {
            return Err(TreeError::Confidence { node: nodes, confidence: worth }.into());
        }
        let node = self.tree.add(parent, token, 0.0)?;
        self.probes.push(Probe { node, worth, heard, alone: node == nodes });
        Ok(node)
    }

    /// What a node is worth as a probe, in drafts that stand; 0 if it is none.
    pub fn worth(&self, node: usize) -> f64 {
        self.probes_at(node).map(|probe| probe.worth).fold(0.0, f64::max)
    }

    /// Whether the drafter wants to hear what the target says after a node.
    pub fn is_heard(&self, node: usize) -> bool {
        self.probes_at(node).any(|probe| probe.heard)
    }

    /// Whether a node is a draft, which may stand, and not a probe and nothing else. What becomes of a mere probe says
    /// nothing about the drafter.
    pub fn is_draft(&self, node: usize) -> bool {
        let alone = self.probes_at(node).any(|probe| probe.alone);
        node > 0 && (!alone || self.tree.confidences()[node] > 0.0)
    }

    fn probes_at(&self, node: usize) -> impl Iterator<Item = &Probe> {
        self.probes.iter().filter(move |probe| probe.node == node)
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
        self.probes.extend(other.probes.iter().map(|probe| Probe { node: now[probe.node], ..*probe }));
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
        let probe = |probe: &Probe| Some(Probe { node: now[probe.node]?, ..*probe });
        let probes = self.probes.iter().filter_map(probe).collect();
        Ok((Proposal { tree, groups, probes }, was))
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
        Proposal { tree, groups: Vec::new(), probes: Vec::new() }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_no_draft_unless_one_is_there() {
        let mut proposal = Proposal::new(9);
        let draft = proposal.add_point(0, 1, 0.5).unwrap();
        let both = proposal.add_probe(0, 1, 0.25, true).unwrap();
        let mere = proposal.add_probe(both, 2, 0.25, false).unwrap();
        assert_eq!(
            (both, proposal.worth(draft), proposal.is_draft(draft), proposal.is_heard(draft)),
            (draft, 0.25, true, true)
        );
        assert_eq!((proposal.worth(mere), proposal.is_draft(mere), proposal.is_heard(mere)), (0.25, false, false));
        assert_eq!((proposal.worth(0), proposal.is_draft(0)), (0.0, false));
        assert!(proposal.add_probe(0, 3, 1.5, false).is_err() && proposal.tree().len() == 3);
        // A draft that comes to a probe makes it one.
        proposal.add_point(draft, 2, 0.5).unwrap();
        assert!(proposal.is_draft(mere));
    }

    #[test]
    fn probes_go_with_their_nodes() {
        let mut probes = Proposal::new(9);
        let first = probes.add_probe(0, 1, 0.5, false).unwrap();
        probes.add_probe(first, 2, 0.5, true).unwrap();
        let mut merged = Proposal::from(Tree::chain(9, &[3, 4], &[0.5, 0.5]).unwrap());
        assert_eq!(merged.merge(&probes).unwrap(), [0, 3, 4]);
        assert_eq!([1, 2, 3, 4].map(|node| merged.worth(node)), [0.0, 0.0, 0.5, 0.5]);
        let (kept, _) = merged.keep(&[true, false, false, true, true]).unwrap();
        assert_eq!(([1, 2].map(|node| kept.is_heard(node)), kept.is_draft(1)), ([false, true], false));
        let (kept, _) = merged.keep(&[true, true, true, false, false]).unwrap();
        assert!((1..3).all(|node| kept.is_draft(node) && kept.worth(node) == 0.0));
    }

    #[test]
    fn probes_compete_with_what_they_are_worth() {
        let mut proposal = Proposal::from(Tree::chain(9, &[1], &[0.3]).unwrap());
        let probe = proposal.add_probe(0, 2, 0.5, false).unwrap();
        proposal.add_probe(probe, 3, 0.5, true).unwrap();
        let kept = |budget| {
            let mut admission = crate::Admission::new();
            admission.add_proposal(&proposal, |node| proposal.tree().confidences()[node]).unwrap();
            let admitted =
                admission.admit(crate::Mandatory::requests(1), crate::Search::Budget(budget), |_| 1.0).unwrap();
            assert!((admitted.tokens - [1.0, 1.5, 2.0, 2.3][budget]).abs() < 1e-12);
            admission.kept(0).to_vec()
        };
        assert_eq!(kept(1), [true, false, true, false]);
        assert_eq!(kept(2), [true, false, true, true]);
        assert_eq!(kept(3), [true; 4]);
    }
}
