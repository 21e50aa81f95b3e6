//! The acceptance rules: which drafts stand, and which token follows them.
//!
//! Each rule is one function. It walks from the anchor down and asks for a node's law only when the node was accepted, so
//! the caller samples no row in vain and can commit a node's token when it is asked about that node.

mod typical;

pub use typical::{Typical, typical};

use crate::coins::Coins;
use crate::{Distribution, Proposal, Search, Tree};

/// What a step commits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// The nodes of the accepted drafts, from below the anchor down.
    pub path: Vec<usize>,
    /// The token after them: the target's correction or its bonus. None if the request ended before.
    pub next: Option<u32>,
}

impl Accepted {
    /// Tokens that the step commits, τ.
    pub fn tokens(&self) -> usize {
        self.path.len() + usize::from(self.next.is_some())
    }

    /// The node whose row gave the token `next`: the last accepted draft, or the anchor.
    pub fn last_node(&self) -> usize {
        self.path.last().copied().unwrap_or(0)
    }

    /// All drafts of the `tree` that was checked of which the target's opinion is known: the children of the anchor and of
    /// every accepted draft, but not those below the token that ended the request.
    pub fn opinions<'a>(&'a self, tree: &'a Tree) -> impl Iterator<Item = Opinion> + 'a {
        let asked = self.path.len() + usize::from(self.next.is_some());
        let visited = std::iter::once(&0).chain(&self.path).take(asked);
        visited.flat_map(|&node| tree.children(node)).map(|node| {
            let depth = tree.depths()[node] as usize;
            Opinion { node, depth, stands: self.path.get(depth - 1) == Some(&node) }
        })
    }
}

/// What the target thinks of a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opinion {
    /// Its node.
    pub node: usize,
    /// Its distance from the anchor, from 1.
    pub depth: usize,
    /// Whether the target says the same.
    pub stands: bool,
}

/// An acceptance rule.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Rule {
    /// [`keyed`]: the same tokens as without drafts, bit for bit.
    #[default]
    Keyed,
    /// [`ratio`]: the same law as without drafts.
    Ratio,
    /// [`typical`]: another law, which accepts more. Lossy.
    Typical(Typical),
}

/// A name that is no acceptance rule.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[error("`{0}` is no acceptance rule: there are `keyed`, `ratio` and `typical`")]
pub struct UnknownRule(String);

impl Rule {
    /// The rule's name.
    pub fn name(&self) -> &'static str {
        match self {
            Rule::Keyed => "keyed",
            Rule::Ratio => "ratio",
            Rule::Typical(_) => "typical",
        }
    }

    /// Whether the output has the law that it would have without drafts.
    pub fn is_lossless(&self) -> bool {
        !matches!(self, Rule::Typical(_))
    }

    /// The widest search for a budget that the rule allows. Under `ratio` whether a draft is checked may not depend on
    /// what it is (DSpark, appendix A).
    pub fn search(&self) -> Search {
        match self {
            Rule::Ratio => Search::EarlyStop,
            Rule::Keyed | Rule::Typical(_) => Search::Global,
        }
    }
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Rule {
    type Err = UnknownRule;

    fn from_str(name: &str) -> Result<Rule, UnknownRule> {
        match name {
            "keyed" => Ok(Rule::Keyed),
            "ratio" => Ok(Rule::Ratio),
            "typical" => Ok(Rule::Typical(Typical::default())),
            other => Err(UnknownRule(other.to_owned())),
        }
    }
}

/// Accepts the drafts that are the target's own samples.
///
/// `sample(node)` is the token that plain decoding would draw after `node`; it is asked about the anchor and then about
/// each accepted draft, in order, and answers None if the request ended with that node's token. The output is what plain
/// decoding would give whatever the tree, so nothing needs to be known of how drafts were chosen. With noise that is
/// keyed by position, and a drafter that draws with the same noise, drafts are accepted with probability at least
/// (1 − TV) / (1 + TV) (Daliri, Musco and Suresh 2024, arXiv 2408.07978).
///
/// # Errors
///
/// What `sample` fails with.
pub fn keyed<E>(tree: &Tree, mut sample: impl FnMut(usize) -> Result<Option<u32>, E>) -> Result<Accepted, E> {
    let mut path = Vec::new();
    let mut node = 0;
    loop {
        let Some(token) = sample(node)? else { return Ok(Accepted { path, next: None }) };
        let Some(child) = tree.child(node, token) else { return Ok(Accepted { path, next: Some(token) }) };
        path.push(child);
        node = child;
    }
}

/// Accepts a draft with probability min(1, p/q), so that the output has the target's law (Leviathan et al. 2023 and Chen
/// et al. 2023 for chains; SpecInfer, algorithm 2, for trees).
///
/// `target(node)` is the law of the token after `node`, processed as plain decoding would; it is asked about the anchor
/// and then about each accepted draft, in order, and answers None if the request ended with that node's token.
///
/// Where all drafts that were drawn below a node are rejected, or there are none, one token is drawn from what is left of
/// the target's law: at a leaf this is the bonus token. If a draft has that token, the walk goes on there; this is how
/// point masses are accepted, with one draw for a node and never one for each path.
///
/// The law is exact if drafts, coins and other requests are independent, and if whether a draft is checked depends on
/// nothing that was known only once it was drawn.
///
/// # Errors
///
/// What `target` fails with.
pub fn ratio<E>(
    proposal: &Proposal,
    mut target: impl FnMut(usize) -> Result<Option<Distribution>, E>,
    coins: &mut impl Coins,
) -> Result<Accepted, E> {
    let mut path = Vec::new();
    let mut node = 0;
    loop {
        let Some(mut law) = target(node)? else { return Ok(Accepted { path, next: None }) };
        let child = match proposal.offer(node, &mut law, coins) {
            Some(child) => child,
            None => {
                let token = coins.draw(&law);
                match proposal.tree().child(node, token) {
                    Some(child) => child,
                    None => return Ok(Accepted { path, next: Some(token) }),
                }
            }
        };
        path.push(child);
        node = child;
    }
}
