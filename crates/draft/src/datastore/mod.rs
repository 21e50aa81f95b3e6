//! Retrieval: what followed the last few tokens in a large collection of texts (REST, He et al. 2023, arXiv 2311.08252).

mod build;
mod file;

use spec::{Expansion, Proposal, Tree, TreeError, best_first_tree};

pub use self::build::{DatastoreBuilder, DocumentError};
use self::file::END;
pub use self::file::{DatastoreError, Header, ORDER, Store};
use crate::ngram::confidence;
use crate::{Ask, DraftError, Drafter, Key, Round, Silence};

/// How far retrieval looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatastoreOptions {
    /// Tokens that must match at least. At least 1.
    pub min: usize,
    /// Tokens that are compared at most, [`ORDER`] at most.
    pub max: usize,
    /// Places of the longest match that are looked at, at most: where there are more, as many evenly among them.
    pub places: usize,
    /// Tokens on a path at most.
    pub depth: usize,
    /// Drafts of a proposal at most, over all paths.
    pub drafts: usize,
}

impl Default for DatastoreOptions {
    fn default() -> Self {
        Self { min: 2, max: ORDER, places: 1000, depth: 10, drafts: 64 }
    }
}

/// Drafts the tree of what most often followed the longest match in a datastore. Keeps nothing of requests.
#[derive(Debug)]
pub struct Datastore {
    store: Store,
    options: DatastoreOptions,
}

impl Datastore {
    /// Drafts from `store`, whose tokenizer has been [checked](Store::check_tokenizer).
    pub fn new(store: Store, options: DatastoreOptions) -> Self {
        Self { store, options }
    }

    fn draft(&self, ask: &Ask<'_>) -> Result<Proposal, Silence> {
        let DatastoreOptions { min, max, depth, .. } = self.options;
        let longest = max.min(ORDER).min(ask.tokens.len());
        for len in (min.max(1)..=longest).rev() {
            let places = self.places(&ask.tokens[ask.tokens.len() - len..]);
            if places.is_empty() {
                continue;
            }
            // Counts are in [0, all], and one token has one count: the tree cannot refuse.
            let tree = self.grow(ask.anchor(), places, depth.min(ask.max_drafts)).map_err(|_| Silence::NoMatch)?;
            if tree.drafts() > 0 {
                let proposal = Proposal::from(tree);
                let (counted, depths) = (proposal.tree().confidences(), proposal.tree().depths());
                // A draft at a depth is taken to match as many tokens more, its parents.
                let sure = |node: usize| confidence(len + (depths[node] as usize).saturating_sub(1));
                return Ok(proposal.with_confidences(|node| counted[node] * sure(node)));
            }
        }
        Err(Silence::NoMatch)
    }

    /// Where what follows the pattern begins.
    fn places(&self, pattern: &[u32]) -> Vec<u64> {
        let ranks = self.store.find(pattern);
        let (all, some) = (ranks.len() as u64, ranks.len().min(self.options.places) as u64);
        let rank = |i: u64| ranks.start + (i * all / some) as usize;
        (0..some).map(|i| self.store.place(rank(i)) + pattern.len() as u64).collect()
    }

    /// The commonest beginnings of what follows at `places`: those of the greatest counts, so that with one its own
    /// beginnings are there. Confidences are shares of the places that agree so far.
    fn grow(&self, anchor: u32, places: Vec<u64>, depth: usize) -> Result<Tree, TreeError> {
        let mut here: Vec<Vec<u64>> = vec![places];
        best_first_tree(anchor, self.options.drafts, |tree, node| {
            if let Some(parent) = tree.parent(node) {
                let token = tree.tokens()[node];
                let agree = here[parent].iter().filter(|&&place| self.store.token(place) == token);
                here.push(agree.map(|place| place + 1).collect());
            }
            let deeper = (tree.depths()[node] as usize) < depth;
            Ok(if deeper { self.next(&here[node]) } else { Expansion::new() })
        })
    }

    /// The tokens at `places`, and which share of the places each has.
    fn next(&self, places: &[u64]) -> Expansion {
        let mut tokens: Vec<u32> = places.iter().map(|&place| self.store.token(place)).collect();
        tokens.sort_unstable();
        let equals = tokens.chunk_by(|a, b| a == b).filter(|equals| equals[0] != END);
        equals.map(|equals| (equals[0], equals.len() as f64 / places.len() as f64)).collect()
    }
}

impl Drafter for Datastore {
    fn name(&self) -> &'static str {
        "datastore"
    }

    fn propose(&mut self, _: &mut Round<'_>, asks: &[Ask<'_>]) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
        Ok(asks.iter().map(|ask| self.draft(ask)).collect())
    }

    fn finished(&mut self, _: Key, _: &[u32], _: usize) {}
}

#[cfg(test)]
mod tests;
