//! From the logits of a lane's rows to committed tokens: which drafts stand, and what follows them.
//!
//! Whatever the acceptance rule, tokens are committed one by one through [`Request::commit`](crate::Request::commit), and
//! each row is judged as if the drafts before it were committed, because they are.

use std::convert::Infallible;

use spec::{Accepted, Proposal, Rule, Tree, UniformCoins};

use super::Outcome;
use super::lane::{Choice, Lane};
use crate::engine::GenerateError;
use crate::noise::Purpose;
use crate::process::Scratch;
use crate::request::{Committed, FinishReason, Request};
use crate::sampler::Sampled;

/// What came of the choices of a lane.
type Outcomes = Vec<(u32, Outcome)>;

/// Samples the next token of every choice from the `logits` of row 0, `[vocab]`, and commits it. Where there are drafts,
/// goes on from each that stands, with the logits of its row.
pub(super) fn commit<'l>(lane: &mut Lane, logits: impl Fn(usize) -> &'l [f32], scratch: &mut Scratch) {
    let Lane { choices, outcomes, checked, accepted, heard, .. } = lane;
    for choice in choices {
        let mut commit = Commit { choice, logits: &logits, scratch, outcomes };
        match checked.as_ref().map(|checked| &checked.proposal) {
            None => drop(commit.sample(0, |_| false)),
            Some(proposal) => {
                *accepted = commit.verify(proposal);
                let nodes = (0..proposal.tree().len()).filter(|&node| proposal.is_heard(node));
                *heard = nodes.filter_map(|node| Some((node, likeliest(logits(node))?))).collect();
                let ended = choice.request.finish().is_some();
                choice.request.count_drafts(counted(proposal.tree(), accepted, ended).count(), accepted.path.len());
            }
        }
        choice.close(outcomes);
    }
}

/// The token of the greatest of `logits`, the lowest of equals; none if there is no greatest.
fn likeliest(logits: &[f32]) -> Option<u32> {
    let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter().position(|&logit| logit == greatest && greatest.is_finite()).map(|token| token as u32)
}

/// The drafts of a tree that count: where the request has ended, none beyond its end.
pub(super) fn counted(tree: &Tree, accepted: &Accepted, ended: bool) -> impl Iterator<Item = usize> {
    let deepest = if ended { accepted.tokens() } else { usize::MAX };
    (1..tree.len()).filter(move |&node| tree.depths()[node] as usize <= deepest)
}

/// A choice whose next tokens are committed, and what that takes.
struct Commit<'c, F> {
    choice: &'c mut Choice,
    /// Of the row of each node, `[vocab]`.
    logits: &'c F,
    scratch: &'c mut Scratch,
    outcomes: &'c mut Outcomes,
}

impl<'l, F: Fn(usize) -> &'l [f32]> Commit<'_, F> {
    /// Commits the drafts that stand by the request's rule, and the token after them.
    fn verify(&mut self, proposal: &Proposal) -> Accepted {
        let tree = proposal.tree();
        match self.choice.request.drafting().rule {
            Rule::Keyed => {
                let next = |node| {
                    let is_draft = |token| tree.child(node, token).is_some();
                    Ok::<_, Infallible>(self.sample(node, is_draft))
                };
                let Ok(accepted) = spec::keyed(tree, next);
                accepted
            }
            Rule::Ratio => self.verify_ratio(proposal),
            Rule::Typical(thresholds) => {
                let mut ahead = Ahead::new(&self.choice.request, tree);
                let law = |node| Ok::<_, Infallible>(ahead.law(node, (self.logits)(node), self.scratch));
                let Ok(accepted) = spec::typical(tree, &thresholds, law);
                self.take_all(tree, accepted)
            }
        }
    }

    /// Drafts are committed as the walk comes to them: what the law of the next token is depends on them.
    fn verify_ratio(&mut self, proposal: &Proposal) -> Accepted {
        let tree = proposal.tree();
        let noise = self.choice.request.round_noise(Purpose::Verify);
        let mut numbers = 0..;
        let mut coins = UniformCoins(|| noise.uniform(numbers.next().unwrap_or_default()));
        let law = |node: usize| {
            let stands = match tree.parent(node) {
                None => true,
                Some(parent) => self.take(tree.tokens()[node], true, parent),
            };
            Ok::<_, Infallible>(stands.then(|| self.law(node)).flatten())
        };
        let Ok(accepted) = spec::ratio(proposal, law, &mut coins);
        if let Some(token) = accepted.next {
            self.take(token, false, accepted.last_node());
        }
        accepted
    }

    /// Commits what was accepted before anything was committed, as far as the request goes on.
    fn take_all(&mut self, tree: &Tree, accepted: Accepted) -> Accepted {
        let mut taken = Accepted { path: Vec::new(), next: None };
        for node in accepted.path {
            let goes_on = self.take(tree.tokens()[node], true, taken.last_node());
            taken.path.push(node);
            if !goes_on {
                return taken;
            }
        }
        if let Some(token) = accepted.next {
            self.take(token, false, taken.last_node());
        }
        Accepted { next: accepted.next, ..taken }
    }

    /// The law of the token after `node`; where there is none, the choice fails.
    fn law(&mut self, node: usize) -> Option<spec::Distribution> {
        let outputs = self.choice.request.outputs().len();
        match self.choice.request.law((self.logits)(node), self.scratch) {
            Ok(law) => Some(law),
            Err(source) => {
                let outcome = Outcome::Failed(GenerateError::Sample { outputs, source });
                self.outcomes.push((self.choice.index, outcome));
                None
            }
        }
    }

    /// Samples the token after `node`, commits it and notes what came of it. Answers the token, or `None` if the choice had
    /// ended or ends without one. `is_draft` says whether a token was drafted.
    fn sample(&mut self, node: usize, is_draft: impl Fn(u32) -> bool) -> Option<u32> {
        let request = &mut self.choice.request;
        if request.finish().is_some() {
            return None;
        }
        let outputs = request.outputs().len();
        let sampled = request.sample((self.logits)(node), self.scratch);
        self.commit(sampled.map_err(|source| GenerateError::Sample { outputs, source }), is_draft)
    }

    /// Commits a token that a rule has chosen to come after `node`. Answers whether the choice goes on after it.
    fn take(&mut self, token: u32, drafted: bool, node: usize) -> bool {
        let request = &mut self.choice.request;
        let outputs = request.outputs().len();
        let sampled = request.chosen(token, (self.logits)(node), self.scratch);
        let sampled = sampled.map_err(|source| GenerateError::Sample { outputs, source });
        self.commit(sampled, |_| drafted).is_some() && self.choice.request.finish().is_none()
    }

    fn commit(&mut self, sampled: Result<Sampled, GenerateError>, is_draft: impl Fn(u32) -> bool) -> Option<u32> {
        match sampled.and_then(|sampled| Ok(self.choice.request.commit(sampled)?)) {
            Ok(Committed { mut delta, .. }) => {
                let token = delta.token;
                delta.drafted = is_draft(token);
                self.outcomes.push((self.choice.index, Outcome::Token(delta)));
                Some(token)
            }
            Err(error) => {
                self.outcomes.push((self.choice.index, Outcome::Failed(error)));
                None
            }
        }
    }
}

impl Choice {
    /// Says that the choice has ended, if it has; one that failed has said so.
    fn close(&self, outcomes: &mut Outcomes) {
        if let Some(reason) = self.request.finish().filter(|&reason| reason != FinishReason::Error) {
            outcomes.push((self.index, Outcome::Finished(reason, self.request.usage())));
        }
    }
}

/// The request as it would be after each node of a tree, for a rule that looks at paths before it takes one.
struct Ahead<'t> {
    tree: &'t Tree,
    /// By node; `None` where no path has been followed to.
    after: Vec<Option<Request>>,
}

impl<'t> Ahead<'t> {
    fn new(request: &Request, tree: &'t Tree) -> Self {
        let mut after = vec![None; tree.len()];
        after[0] = Some(request.clone());
        Self { tree, after }
    }

    /// The law of the token after `node`, whose row has these logits, or `None` if the request ends there. Parents come before their children.
    fn law(&mut self, node: usize, logits: &[f32], scratch: &mut Scratch) -> Option<spec::Distribution> {
        if let Some(parent) = self.tree.parent(node) {
            let mut request = self.after[parent].clone()?;
            let sampled = Sampled { token: self.tree.tokens()[node], logprob: None, top: Vec::new() };
            self.after[node] =
                request.commit(sampled).is_ok_and(|committed| committed.finish.is_none()).then_some(request);
        }
        self.after[node].as_mut()?.law(logits, scratch).ok()
    }
}
