//! A drafter that knows the plain answers and spoils some of its drafts, so that at every temperature much is drafted,
//! accepted and rejected.

use draft::{Ask, DraftError, Drafter, Key, Round, Silence};
use spec::{Proposal, ProposalError};

/// One draft in so many is wrong.
const WRONG: u64 = 5;

/// Knows what requests will say.
pub(super) struct Foresight {
    /// Prompts with their answers.
    texts: Vec<Vec<u32>>,
    /// Tokens there are.
    vocab: u32,
    calls: u64,
}

impl Foresight {
    pub(super) fn new(texts: Vec<Vec<u32>>, vocab: usize) -> Foresight {
        Foresight { texts, vocab: vocab as u32, calls: 0 }
    }

    /// A number that looks random.
    fn roll(&mut self) -> u64 {
        self.calls += 1;
        let mixed = self.calls.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32
    }

    /// A path with the known continuation of the text, and a wrong sibling beside some of its drafts.
    fn draft(&mut self, ask: &Ask<'_>) -> Result<Proposal, Silence> {
        // Two requests may have the same text so far and go on differently: either will do.
        let known = self.texts.iter().find(|text| text.len() > ask.tokens.len() && text.starts_with(ask.tokens));
        let next = known.map(|text| text[ask.tokens.len()..].to_vec()).ok_or(Silence::NoMatch)?;
        let depth = 1 + self.roll() as usize % ask.max_drafts.max(1);
        let mut proposal = Proposal::new(ask.anchor());
        // A tree refuses only what cannot be here: a parent that it does not have, and confidences that are none.
        self.grow(&mut proposal, &next[..depth.min(next.len())]).map_err(|_| Silence::NoMatch)?;
        Ok(proposal)
    }

    fn grow(&mut self, proposal: &mut Proposal, next: &[u32]) -> Result<(), ProposalError> {
        let mut parent = 0;
        for &token in next {
            let wrong = (token + 1 + self.roll() as u32 % 7) % self.vocab;
            let spoilt = self.roll().is_multiple_of(WRONG);
            if self.roll().is_multiple_of(2) {
                proposal.add_point(parent, wrong, 0.5)?;
            }
            parent = proposal.add_point(parent, if spoilt { wrong } else { token }, 0.99)?;
        }
        Ok(())
    }
}

impl Drafter for Foresight {
    fn name(&self) -> &'static str {
        "foresight"
    }

    fn propose(&mut self, _: &mut Round<'_>, asks: &[Ask<'_>]) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
        Ok(asks.iter().map(|ask| self.draft(ask)).collect())
    }

    fn finished(&mut self, _: Key, _: &[u32], _: usize) {}
}
