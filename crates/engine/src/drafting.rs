//! What a request says about drafts, and what it says to drafters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use draft::{Choose, Chosen, Words};
use spec::{Coins, Expansion, Rule, UniformCoins};

use crate::noise::{NoiseKey, Purpose};
use crate::process::SharedScratch;
use crate::request::Request;

/// What a client says about drafts for its request. Under the rule `keyed` nothing of it changes the answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Drafting {
    /// Whether drafts are checked at all.
    pub enabled: bool,
    /// Drafts on a path that are checked in one step at most; `None`: as many as the engine allows. Never more than that.
    pub max_drafts: Option<usize>,
    /// Which drafts stand.
    pub rule: Rule,
    /// What the output will probably be. Empty: nobody knows.
    pub predicted: Arc<[u32]>,
}

impl Default for Drafting {
    fn default() -> Self {
        Self { enabled: true, max_drafts: None, rule: Rule::Keyed, predicted: Arc::default() }
    }
}

/// A request as drafters see it.
pub(crate) struct Chooser<'a> {
    request: &'a Request,
    scratch: &'a SharedScratch,
    /// Where the drafts of this round are drawn from, under `ratio`: one number for each draft, whoever drafts.
    noise: NoiseKey,
    drawn: AtomicU32,
}

impl<'a> Chooser<'a> {
    pub(crate) fn new(request: &'a Request, scratch: &'a SharedScratch) -> Self {
        Self { request, scratch, noise: request.round_noise(Purpose::Draft), drawn: AtomicU32::new(0) }
    }
}

impl Choose for Chooser<'_> {
    fn choose(&self, drafts: &[u32], logits: &[f32]) -> Option<Chosen> {
        self.scratch.with(|scratch| {
            if !self.draws() {
                let (token, confidence) = self.request.draft(drafts, logits, scratch)?;
                return Some(Chosen { token, confidence, law: None });
            }
            let law = self.request.draft_law(drafts, logits, scratch)?;
            let number = self.drawn.fetch_add(1, Ordering::Relaxed);
            let token = UniformCoins(|| self.noise.uniform(number)).draw(&law);
            let confidence = law.probability(law.most_probable());
            Some(Chosen { token, confidence, law: Some(law) })
        })
    }

    fn choices(&self, drafts: &[u32], words: Words<'_>, most: usize) -> Expansion {
        self.scratch.with(|scratch| self.request.choices(drafts, words, most, scratch))
    }

    fn draws(&self) -> bool {
        self.request.drafting().rule == Rule::Ratio && self.request.sampler().params().temperature > 0.0
    }
}
