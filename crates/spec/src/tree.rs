//! Trees of draft tokens, laid out as the rows of one forward.

/// A tree of drafts below the anchor.
///
/// Node 0 is the anchor, the newest committed token, which the target has not been fed yet; every other node is a draft,
/// and its parent is an earlier node. So a node's index is its row in the forward that checks the tree, and
/// [`parents`](Tree::parents) and [`tokens`](Tree::tokens) are the rows. A chain is a tree of which each node has one
/// child. Siblings have different tokens: equal beginnings are one path, as in SpecInfer's merged token tree (Miao et al.
/// 2023, section 3).
///
/// A draft has a *confidence*: the probability that it is accepted once its parent was. The product of the confidences
/// along its path is its *survival* (DSpark, section 3.2).
#[derive(Debug, Clone, PartialEq)]
pub struct Tree {
    tokens: Vec<u32>,
    parents: Vec<Option<u32>>,
    depths: Vec<u32>,
    confidences: Vec<f64>,
    first_child: Vec<Option<u32>>,
    last_child: Vec<Option<u32>>,
    next_sibling: Vec<Option<u32>>,
}

/// Nodes that are no tree.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub enum TreeError {
    #[error("node {node} has the parent {parent}, which is not an earlier node")]
    Parent { node: usize, parent: usize },
    #[error("token {token} is twice below node {parent}: siblings have different tokens")]
    Sibling { parent: usize, token: u32 },
    #[error("the confidence {confidence} of node {node} is not in [0, 1]")]
    Confidence { node: usize, confidence: f64 },
    #[error("{tokens} drafts come with {others} parents or confidences: each has one")]
    Lengths { tokens: usize, others: usize },
    #[error("{flags} flags say what is kept of {nodes} nodes")]
    Flags { flags: usize, nodes: usize },
    #[error("node {node} is kept without its parent")]
    Orphan { node: usize },
}

impl Tree {
    /// A tree without drafts.
    pub fn new(anchor: u32) -> Tree {
        Tree {
            tokens: vec![anchor],
            parents: vec![None],
            depths: vec![0],
            confidences: vec![1.0],
            first_child: vec![None],
            last_child: vec![None],
            next_sibling: vec![None],
        }
    }

    /// The tree whose node i + 1 has token `tokens[i]`, is below node `parents[i]` and has `confidences[i]`.
    ///
    /// # Errors
    ///
    /// A parent that is not an earlier node, siblings of one token, a confidence outside [0, 1], different lengths.
    pub fn from_parents(
        anchor: u32,
        parents: &[usize],
        tokens: &[u32],
        confidences: &[f64],
    ) -> Result<Tree, TreeError> {
        for others in [parents.len(), confidences.len()] {
            if others != tokens.len() {
                return Err(TreeError::Lengths { tokens: tokens.len(), others });
            }
        }
        let mut tree = Tree::new(anchor);
        for ((&parent, &token), &confidence) in parents.iter().zip(tokens).zip(confidences) {
            let nodes = tree.len();
            if tree.add(parent, token, confidence)? != nodes {
                return Err(TreeError::Sibling { parent, token });
            }
        }
        Ok(tree)
    }

    /// The tree of one path.
    ///
    /// # Errors
    ///
    /// A confidence outside [0, 1], or more or fewer of them than tokens.
    pub fn chain(anchor: u32, tokens: &[u32], confidences: &[f64]) -> Result<Tree, TreeError> {
        let parents: Vec<usize> = (0..tokens.len()).collect();
        Tree::from_parents(anchor, &parents, tokens, confidences)
    }

    /// The same drafts with other confidences.
    pub(crate) fn with_confidences(&self, confidence: impl Fn(usize) -> f64) -> Tree {
        let drafts = (1..self.len()).map(|node| confidence(node).clamp(0.0, 1.0).max(0.0));
        Tree { confidences: std::iter::once(1.0).chain(drafts).collect(), ..self.clone() }
    }

    /// The child of `parent` that has `token`, which is added if there is none. One that was there keeps the greater of
    /// the two confidences: two drafters agree on it.
    ///
    /// # Errors
    ///
    /// A parent that is no node, or a confidence outside [0, 1].
    pub fn add(&mut self, parent: usize, token: u32, confidence: f64) -> Result<usize, TreeError> {
        let node = self.len();
        if parent >= node {
            return Err(TreeError::Parent { node, parent });
        }
        if !(0.0..=1.0).contains(&confidence) {
            return Err(TreeError::Confidence { node, confidence });
        }
        Ok(self.join(parent, token, confidence))
    }

    /// [`add`](Tree::add) for a parent that is a node and a confidence in range.
    fn join(&mut self, parent: usize, token: u32, confidence: f64) -> usize {
        let node = self.len();
        if let Some(child) = self.child(parent, token) {
            self.confidences[child] = self.confidences[child].max(confidence);
            return child;
        }
        match self.last_child[parent].replace(node as u32) {
            Some(sibling) => self.next_sibling[sibling as usize] = Some(node as u32),
            None => self.first_child[parent] = Some(node as u32),
        }
        self.tokens.push(token);
        self.parents.push(Some(parent as u32));
        self.depths.push(self.depths[parent] + 1);
        self.confidences.push(confidence);
        self.first_child.push(None);
        self.last_child.push(None);
        self.next_sibling.push(None);
        node
    }

    /// Adds the paths of `other`, which has the same anchor; equal beginnings become one (SpecInfer, section 3). Returns
    /// where each of its nodes is now, `[other.len()]`.
    pub fn merge(&mut self, other: &Tree) -> Vec<usize> {
        let mut now = vec![0];
        for node in 1..other.len() {
            let parent = other.parent(node).map_or(0, |parent| now[parent]);
            now.push(self.join(parent, other.tokens[node], other.confidences[node]));
        }
        now
    }

    /// The tree of the nodes that `kept` flags, `[len]`, in their order, and which node each of them was.
    ///
    /// # Errors
    ///
    /// A node that is kept without its parent, or a wrong number of flags. The anchor is always kept.
    pub fn keep(&self, kept: &[bool]) -> Result<(Tree, Vec<usize>), TreeError> {
        if kept.len() != self.len() {
            return Err(TreeError::Flags { flags: kept.len(), nodes: self.len() });
        }
        let mut tree = Tree::new(self.tokens[0]);
        let mut now: Vec<Option<usize>> = vec![None; self.len()];
        now[0] = Some(0);
        let mut was = vec![0];
        for node in (1..self.len()).filter(|&node| kept[node]) {
            let parent = self.parent(node).and_then(|parent| now[parent]).ok_or(TreeError::Orphan { node })?;
            now[node] = Some(tree.join(parent, self.tokens[node], self.confidences[node]));
            was.push(node);
        }
        Ok((tree, was))
    }

    /// Nodes, the anchor included: the rows of the forward that checks the tree. Never 0.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Drafts: nodes without the anchor.
    pub fn drafts(&self) -> usize {
        self.len() - 1
    }

    /// The tokens, `[len]`; the first is the anchor.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Each node's parent, `[len]`; the anchor has none.
    pub fn parents(&self) -> &[Option<u32>] {
        &self.parents
    }

    /// Each node's distance from the anchor, `[len]`. A row's position is the anchor's position and its depth.
    pub fn depths(&self) -> &[u32] {
        &self.depths
    }

    /// Each node's confidence, `[len]`; the anchor's is 1.
    pub fn confidences(&self) -> &[f64] {
        &self.confidences
    }

    /// A node's parent; none for the anchor, and for a number that is no node.
    pub fn parent(&self, node: usize) -> Option<usize> {
        self.parents.get(node).copied().flatten().map(|parent| parent as usize)
    }

    /// The children of a node, in the order in which they were added.
    pub fn children(&self, node: usize) -> impl Iterator<Item = usize> {
        let first = self.first_child.get(node).copied().flatten();
        std::iter::successors(first, |&child| self.next_sibling[child as usize]).map(|child| child as usize)
    }

    /// The child of a node that has `token`.
    pub fn child(&self, node: usize, token: u32) -> Option<usize> {
        self.children(node).find(|&child| self.tokens[child] == token)
    }

    /// The drafts from below the anchor down to `node`, which is the last; none for the anchor.
    pub fn path(&self, node: usize) -> Vec<usize> {
        let mut path: Vec<usize> =
            std::iter::successors(Some(node), |&node| self.parent(node)).filter(|&node| node != 0).collect();
        path.reverse();
        path
    }

    /// The nodes without children, in order.
    pub fn leaves(&self) -> impl Iterator<Item = usize> {
        (0..self.len()).filter(|&node| self.first_child[node].is_none())
    }

    /// Each node's survival, `[len]`: the product of the confidences along its path. No node's is above its parent's.
    pub fn survivals(&self) -> Vec<f64> {
        let mut survivals: Vec<f64> = Vec::with_capacity(self.len());
        for (node, &confidence) in self.confidences.iter().enumerate() {
            survivals.push(self.parent(node).map_or(1.0, |parent| survivals[parent]) * confidence);
        }
        survivals
    }

    /// What each row sees of the tree, `[len, words]` with `words = len.div_ceil(64)`: bit j of row i is set if j is i or
    /// one of its ancestors (SpecInfer's topology-aware causal mask, section 4.2).
    pub fn visibility(&self) -> Vec<u64> {
        let words = self.len().div_ceil(64);
        let mut rows = vec![0; self.len() * words];
        for node in 0..self.len() {
            if let Some(parent) = self.parent(node) {
                rows.copy_within(parent * words..(parent + 1) * words, node * words);
            }
            rows[node * words + node / 64] |= 1 << (node % 64);
        }
        rows
    }
}
