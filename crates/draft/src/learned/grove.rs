//! The trees of a feature-level drafter: several ways to go on at each place, the likeliest kept (EAGLE-2, Li et al. 2024,
//! arXiv 2406.16858). The trees of all requests grow together, a forward for each level of all of them.

use kernels::Pool;
use kv::{Attached, KvCache};
use model::{Eagle, ForwardError, Logits, Segment, Visibility, Workspace};
use spec::{EagleGrowth, Expansion, Proposal};

use crate::{Ask, Words};

/// How large trees are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TreeShape {
    /// Words that may follow a node, and nodes of a level that are expanded.
    pub(super) top_k: usize,
    /// Levels beyond the first.
    pub(super) rounds: usize,
    /// Drafts of a tree.
    pub(super) drafts: usize,
}

impl TreeShape {
    /// Slots that a tree's computed nodes take.
    pub(super) fn slots(self) -> usize {
        1 + self.rounds * self.top_k
    }
}

/// The tree of one request.
pub(super) struct Tree<'a> {
    /// Which of the round's asks.
    pub(super) index: usize,
    ask: &'a Ask<'a>,
    growth: EagleGrowth,
    /// For each node that was computed, the slots of its ancestors past the prefix and its own, and what stands for its
    /// feature.
    nodes: Vec<Option<(Vec<u32>, Vec<f32>)>>,
    /// Nodes that were computed.
    computed: usize,
    /// The level that is being computed.
    tokens: Vec<u32>,
    paths: Vec<Vec<u32>>,
}

impl<'a> Tree<'a> {
    pub(super) fn new(index: usize, ask: &'a Ask<'a>, shape: TreeShape) -> Self {
        let levels = ask.max_drafts.min(shape.rounds + 1);
        let growth = EagleGrowth::new(ask.anchor(), shape.top_k, levels.saturating_sub(1));
        Tree { index, ask, growth, nodes: Vec::new(), computed: 0, tokens: Vec::new(), paths: Vec::new() }
    }

    /// Takes up the next level, and adds to `features` those that its rows begin with: `first` for the anchor.
    fn next(&mut self, first: &[f32], features: &mut Vec<f32>) {
        let (start, tree) = (self.ask.tokens.len() - 1, self.growth.tree());
        let parent = |node: usize| tree.parent(node).and_then(|parent| self.nodes.get(parent)?.as_ref());
        self.tokens = self.growth.level().iter().map(|&node| tree.tokens()[node]).collect();
        let own = |at: usize| (start + self.computed + at) as u32;
        let path = |(at, &node): (usize, &usize)| {
            let above = parent(node).map_or(&[][..], |(path, _)| path);
            above.iter().copied().chain([own(at)]).collect()
        };
        self.paths = self.growth.level().iter().enumerate().map(path).collect();
        for &node in self.growth.level() {
            features.extend_from_slice(parent(node).map_or(first, |(_, feature)| feature));
        }
    }

    /// What may follow a row of the level, by a drafter's words.
    fn choices(&self, row: usize, words: Words<'_>, most: usize) -> Expansion {
        let tree = self.growth.tree();
        let up = |&node: &usize| tree.parent(node).filter(|&parent| parent != 0);
        let node = Some(self.growth.level()[row]).filter(|&node| node != 0);
        let mut path: Vec<u32> = std::iter::successors(node, up).map(|node| tree.tokens()[node]).collect();
        path.reverse();
        self.ask.choose.choices(&path, words, most)
    }

    fn segment(&self) -> Segment<'_> {
        let prefix = self.ask.tokens.len() - 1;
        let visibility = Visibility::Paths { prefix, paths: &self.paths };
        let (sequence, start) = (self.ask.sequence, prefix + self.computed);
        Segment { sequence, start, tokens: &self.tokens, visibility, logits: Logits::All }
    }

    /// Takes in what came of the level: what stands for the features of its rows, and what may follow them.
    fn grow(&mut self, features: &[f32], mut expansions: Vec<Expansion>) -> bool {
        let level = self.growth.level().to_vec();
        let width = features.len() / level.len();
        self.nodes.resize(self.growth.tree().len(), None);
        let paths = std::mem::take(&mut self.paths);
        for ((&node, path), feature) in level.iter().zip(paths).zip(features.chunks_exact(width)) {
            self.nodes[node] = Some((path, feature.to_vec()));
        }
        self.computed += level.len();
        // Probabilities are in range, and a token has one: the tree cannot refuse.
        self.growth.grow(&mut expansions).is_ok() && !self.growth.level().is_empty()
    }

    pub(super) fn finish(self, drafts: usize) -> Option<Proposal> {
        self.growth.finish(drafts).ok().map(Proposal::from)
    }
}

/// What all trees of a round are computed with.
pub(super) struct Grove<'a> {
    pub(super) eagle: &'a Eagle,
    pub(super) own: &'a Attached,
    pub(super) pool: &'a Pool,
    pub(super) ids: Option<&'a [u32]>,
    /// Tokens that the target knows.
    pub(super) vocab: usize,
    pub(super) top_k: usize,
}

impl Grove<'_> {
    /// Grows all trees, of which `first` are the features before the anchors, `[trees, hidden]`.
    pub(super) fn grow(
        &self,
        workspace: &mut Workspace,
        cache: &mut KvCache,
        trees: &mut [Tree<'_>],
        first: &[f32],
    ) -> Result<(), ForwardError> {
        let width = self.eagle.config().hidden;
        let mut open: Vec<(&mut Tree<'_>, &[f32])> = trees.iter_mut().zip(first.chunks_exact(width)).collect();
        while !open.is_empty() {
            let mut features = Vec::new();
            open.iter_mut().for_each(|(tree, first)| tree.next(first, &mut features));
            let segments: Vec<Segment<'_>> = open.iter().map(|(tree, _)| tree.segment()).collect();
            let output = self.eagle.forward(workspace, self.pool, cache.attached(self.own), &segments, &features)?;
            drop(segments);
            let known = self.eagle.known();
            let rows: Vec<(usize, usize)> = (open.iter().enumerate())
                .flat_map(|(at, (tree, _))| (0..tree.tokens.len()).map(move |row| (at, row)))
                .collect();
            let mut words = vec![Expansion::new(); rows.len()];
            let trees: &[(&mut Tree<'_>, &[f32])] = &open;
            self.pool.for_each_mut(&mut words, |at, words| {
                let (tree, row) = rows[at];
                let said = Words::new(&output.logits[at * known..(at + 1) * known], self.ids, self.vocab);
                *words = trees[tree].0.choices(row, said, self.top_k);
            });
            let (mut row, mut words) = (0, words.into_iter());
            open.retain_mut(|(tree, _)| {
                let rows = tree.tokens.len();
                let features = &output.taps[0][row * width..(row + rows) * width];
                row += rows;
                tree.grow(features, words.by_ref().take(rows).collect())
            });
        }
        Ok(())
    }
}
