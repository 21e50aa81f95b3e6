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
        match checked.as_ref().map(|checked| &checked.proposal) {
            None => drop(choice.next(logits(0), scratch, |_| false, outcomes)),
            Some(proposal) => {
                *accepted = choice.verify(proposal, &logits, scratch, outcomes);
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

impl Choice {
    /// Commits the drafts that stand by the request's rule, and the token after them.
    fn verify<'l>(
        &mut self,
        proposal: &Proposal,
        logits: &impl Fn(usize) -> &'l [f32],
        scratch: &mut Scratch,
        outcomes: &mut Outcomes,
    ) -> Accepted {
        let tree = proposal.tree();
        match self.request.drafting().rule {
            Rule::Keyed => {
                let next = |node| {
                    let is_draft = |token| tree.child(node, token).is_some();
                    Ok::<_, Infallible>(self.next(logits(node), scratch, is_draft, outcomes))
                };
                let Ok(accepted) = spec::keyed(tree, next);
                accepted
            }
            Rule::Ratio => self.verify_ratio(proposal, logits, scratch, outcomes),
            Rule::Typical(thresholds) => {
                let mut ahead = Ahead::new(&self.request, tree);
                let law = |node| Ok::<_, Infallible>(ahead.law(node, logits, scratch));
                let Ok(accepted) = spec::typical(tree, &thresholds, law);
                self.take_all(tree, accepted, logits, scratch, outcomes)
            }
        }
    }

    /// Drafts are committed as the walk comes to them: what the law of the next token is depends on them.
    fn verify_ratio<'l>(
        &mut self,
        proposal: &Proposal,
        logits: &impl Fn(usize) -> &'l [f32],
        scratch: &mut Scratch,
        outcomes: &mut Outcomes,
    ) -> Accepted {
        let tree = proposal.tree();
        let noise = self.request.round_noise(Purpose::Verify);
        let mut numbers = 0..;
        let mut coins = UniformCoins(|| noise.uniform(numbers.next().unwrap_or_default()));
        let law = |node: usize| {
            let stands = match tree.parent(node) {
                None => true,
                Some(parent) => self.take(tree.tokens()[node], true, logits(parent), scratch, outcomes),
            };
            Ok::<_, Infallible>(stands.then(|| self.law(logits(node), scratch, outcomes)).flatten())
        };
        let Ok(accepted) = spec::ratio(proposal, law, &mut coins);
        if let Some(token) = accepted.next {
            self.take(token, false, logits(accepted.last_node()), scratch, outcomes);
        }
        accepted
    }

    /// Commits what was accepted before anything was committed, as far as the request goes on.
    fn take_all<'l>(
        &mut self,
        tree: &Tree,
        accepted: Accepted,
        logits: &impl Fn(usize) -> &'l [f32],
        scratch: &mut Scratch,
        outcomes: &mut Outcomes,
    ) -> Accepted {
        let mut taken = Accepted { path: Vec::new(), next: None };
        for node in accepted.path {
            let parent = taken.last_node();
            let goes_on = self.take(tree.tokens()[node], true, logits(parent), scratch, outcomes);
            taken.path.push(node);
            if !goes_on {
                return taken;
            }
        }
        if let Some(token) = accepted.next {
            self.take(token, false, logits(taken.last_node()), scratch, outcomes);
        }
        Accepted { next: accepted.next, ..taken }
    }

    /// The law of the next token; where there is none, the choice fails.
    fn law(&mut self, logits: &[f32], scratch: &mut Scratch, outcomes: &mut Outcomes) -> Option<spec::Distribution> {
        let outputs = self.request.outputs().len();
        match self.request.law(logits, scratch) {
            Ok(law) => Some(law),
            Err(source) => {
                outcomes.push((self.index, Outcome::Failed(GenerateError::Sample { outputs, source })));
                None
            }
        }
    }

    /// Samples the next token from `logits` `[vocab]`, commits it and notes what came of it. Answers the token, or `None`
    /// if the choice had ended or ends without one. `is_draft` says whether a token was drafted.
    fn next(
        &mut self,
        logits: &[f32],
        scratch: &mut Scratch,
        is_draft: impl Fn(u32) -> bool,
        outcomes: &mut Outcomes,
    ) -> Option<u32> {
        if self.request.finish().is_some() {
            return None;
        }
        let outputs = self.request.outputs().len();
        let sampled = self.request.sample(logits, scratch);
        let sampled = sampled.map_err(|source| GenerateError::Sample { outputs, source });
        self.commit(sampled, is_draft, outcomes)
    }

    /// Commits a token that a rule has chosen from `logits`. Answers whether the choice goes on after it.
    fn take(
        &mut self,
        token: u32,
        drafted: bool,
        logits: &[f32],
        scratch: &mut Scratch,
        outcomes: &mut Outcomes,
    ) -> bool {
        let outputs = self.request.outputs().len();
        let sampled = self.request.chosen(token, logits, scratch);
        let sampled = sampled.map_err(|source| GenerateError::Sample { outputs, source });
        self.commit(sampled, |_| drafted, outcomes).is_some() && self.request.finish().is_none()
    }

    fn commit(
        &mut self,
        sampled: Result<Sampled, GenerateError>,
        is_draft: impl Fn(u32) -> bool,
        outcomes: &mut Outcomes,
    ) -> Option<u32> {
        match sampled.and_then(|sampled| Ok(self.request.commit(sampled)?)) {
            Ok(Committed { mut delta, .. }) => {
                let token = delta.token;
                delta.drafted = is_draft(token);
                outcomes.push((self.index, Outcome::Token(delta)));
                Some(token)
            }
            Err(error) => {
                outcomes.push((self.index, Outcome::Failed(error)));
                None
            }
        }
    }

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

    /// The law of the token after `node`, or `None` if the request ends there. Parents come before their children.
    fn law<'l>(
        &mut self,
        node: usize,
        logits: &impl Fn(usize) -> &'l [f32],
        scratch: &mut Scratch,
    ) -> Option<spec::Distribution> {
        if let Some(parent) = self.tree.parent(node) {
            let mut request = self.after[parent].clone()?;
            let sampled = Sampled { token: self.tree.tokens()[node], logprob: None, top: Vec::new() };
            self.after[node] =
                request.commit(sampled).is_ok_and(|committed| committed.finish.is_none()).then_some(request);
        }
        self.after[node].as_mut()?.law(logits(node), scratch).ok()
    }
}
