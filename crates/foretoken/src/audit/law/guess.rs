//! Drafters of the small model: honest ones of every kind, and some that lie about how they drew.

use std::sync::Arc;

use draft::{Ask, DraftError, Drafter, Key, Round, Silence};
use spec::{Distribution, Drawn, Proposal, ProposalError};

use super::exact::Exact;
use crate::audit::letters::{LETTERS, normal};
use crate::bench::random::Random;

/// How a drafter makes its drafts of what it believes the model says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    /// Draws them, as a draft model does.
    Drawn,
    /// Takes the likeliest.
    Likeliest,
    /// Draws one, and sets the two likeliest beside it.
    Tree,
    /// Takes the likeliest, and hands it in as drawn. A lie.
    LikeliestAsDrawn,
    /// Draws among the four likeliest, and hands in the law of all. A lie.
    TruncatedAsWhole,
    /// Draws, and is as confident as the drawn token is likely. A lie where admission looks at it.
    TellingConfidence,
}

/// A drafter that knows the model and misremembers it.
pub(super) struct Guess {
    exact: Arc<Exact>,
    manner: Manner,
    random: Random,
}

impl Guess {
    pub(super) fn new(exact: Arc<Exact>, manner: Manner) -> Guess {
        Guess { exact, manner, random: Random::new(2) }
    }

    /// The logits that it believes in: the model's, flattened and blurred, `[LETTERS]`.
    fn logits(&self, beginning: &[u32]) -> Option<Vec<f32>> {
        let seed = beginning.iter().fold(3, |seed, &letter| seed * LETTERS as u64 + u64::from(letter));
        let mut blur = Random::new(seed);
        let row = self.exact.after(beginning)?;
        Some(row.iter().map(|log_p| (0.6 * log_p + 0.8 * normal(&mut blur)) as f32).collect())
    }

    fn draft(&mut self, ask: &Ask<'_>) -> Result<Proposal, Silence> {
        let mut proposal = Proposal::new(ask.anchor());
        let answered = ask.tokens.get(ask.prompt..).unwrap_or_default();
        let (mut parent, mut drafts) = (0, Vec::new());
        for _ in 0..ask.max_drafts {
            let Some(logits) = self.logits(&[answered, &drafts].concat()) else { break };
            let Ok(Some((node, token))) = self.add(&mut proposal, parent, ask, &drafts, &logits) else { break };
            drafts.push(token);
            parent = node;
        }
        if proposal.tree().drafts() == 0 { Err(Silence::NoMatch) } else { Ok(proposal) }
    }

    /// Adds what comes after `drafts`, and says with which of it to go on.
    fn add(
        &mut self,
        proposal: &mut Proposal,
        parent: usize,
        ask: &Ask<'_>,
        drafts: &[u32],
        logits: &[f32],
    ) -> Result<Option<(usize, u32)>, ProposalError> {
        let Some(chosen) = ask.choose.choose(drafts, logits) else { return Ok(None) };
        let (mut token, mut confidence) = (chosen.token, chosen.confidence);
        let Some(law) = chosen.law.filter(|_| self.manner != Manner::Likeliest) else {
            let best = if ask.choose.draws() { argmax(logits) } else { token };
            return Ok(Some((proposal.add_point(parent, best, confidence)?, best)));
        };
        match self.manner {
            Manner::LikeliestAsDrawn => token = law.most_probable(),
            Manner::TruncatedAsWhole => token = self.draw_of_best(&law, 4),
            Manner::TellingConfidence => confidence = law.probability(token),
            Manner::Drawn | Manner::Likeliest | Manner::Tree => {}
        }
        let node = proposal.add_drawn(parent, law, Drawn::Independently, &[token], &[confidence])?[0];
        if self.manner == Manner::Tree {
            for beside in best(logits.iter().copied().map(f64::from).zip(0..).map(|(x, t)| (t, x)), 2) {
                proposal.add_point(parent, beside.0, confidence / 2.0)?;
            }
        }
        Ok(Some((node, token)))
    }

    fn draw_of_best(&mut self, law: &Distribution, count: usize) -> u32 {
        let best = best(law.support(), count);
        let mut left = self.random.unit() * best.iter().map(|(_, p)| p).sum::<f64>();
        let drawn = best.iter().find(|(_, p)| {
            left -= p;
            left < 0.0
        });
        drawn.or(best.last()).map_or(0, |&(token, _)| token)
    }
}

impl Drafter for Guess {
    fn name(&self) -> &'static str {
        "guess"
    }

    fn propose(&mut self, _: &mut Round<'_>, asks: &[Ask<'_>]) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
        Ok(asks.iter().map(|ask| self.draft(ask)).collect())
    }

    fn finished(&mut self, _: Key, _: &[u32], _: usize) {}
}

fn argmax(logits: &[f32]) -> u32 {
    best(logits.iter().map(|&x| f64::from(x)).zip(0..).map(|(x, token)| (token, x)), 1)[0].0
}

/// The tokens of greatest weight, the greatest first.
fn best(weights: impl Iterator<Item = (u32, f64)>, count: usize) -> Vec<(u32, f64)> {
    let mut best: Vec<(u32, f64)> = weights.collect();
    best.sort_by(|a, b| b.1.total_cmp(&a.1));
    best.truncate(count);
    best
}
