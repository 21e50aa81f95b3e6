//! How a request chooses tokens, for drafters that have logits.

use spec::{Distribution, Drawn, Proposal};

/// A token that was drafted from logits.
#[derive(Debug, Clone, PartialEq)]
pub struct Chosen {
    /// The token.
    pub token: u32,
    /// How likely it is to stand, from 0 to 1, as far as the logits tell.
    pub confidence: f64,
    /// What it was drawn from, under the rule `ratio`: it then has to go into the proposal as drawn. `None`: a rule chose
    /// it, or noise that the target has as well.
    pub law: Option<Distribution>,
}

impl Chosen {
    /// Adds the token below `parent` to a proposal, with a `confidence` that need not be its own: as drawn from its law, if
    /// it has one. Answers the token; `None`: the proposal does not take it.
    pub(crate) fn add_to(self, proposal: &mut Proposal, parent: usize, confidence: f64) -> Option<u32> {
        match self.law {
            Some(law) => {
                proposal.add_drawn(parent, law, Drawn::Independently, &[self.token], &[confidence]).ok()?;
            }
            None => {
                proposal.add_point(parent, self.token, confidence).ok()?;
            }
        }
        Some(self.token)
    }
}

/// How a request chooses tokens.
///
/// A drafter with logits draws with the request's own temperature, truncation, penalties and noise: what it then says is
/// what the target would say if it had these logits, which is what acceptance asks for.
pub trait Choose: Sync {
    /// The draft after the committed tokens and `drafts`, from a drafter's raw `logits` `[vocabulary of the target]`;
    /// `None` if there is no token to be had from them.
    fn choose(&self, drafts: &[u32], logits: &[f32]) -> Option<Chosen>;

    /// Whether drafts are drawn by chance of their own, under the rule `ratio`. Then the law of the output stands only if
    /// nothing that a drawn token has changed decides which proposal is taken or how much of it: [`Chosen::confidence`] is
    /// a function of the law and not of the token.
    fn draws(&self) -> bool;
}

/// Takes the likeliest token, the lowest of equals, as a request at temperature 0 does.
#[derive(Debug, Clone, Copy, Default)]
pub struct Greedy;

impl Choose for Greedy {
    fn choose(&self, _: &[u32], logits: &[f32]) -> Option<Chosen> {
        let better = |best: Option<(usize, f32)>, next: (usize, f32)| match best {
            Some(best) if best.1 >= next.1 => Some(best),
            _ => Some(next),
        };
        let finite = logits.iter().copied().enumerate().filter(|(_, logit)| logit.is_finite());
        let (token, greatest) = finite.clone().fold(None, better)?;
        let sum: f64 = finite.map(|(_, logit)| f64::from(logit - greatest).exp()).sum();
        Some(Chosen { token: token as u32, confidence: 1.0 / sum, law: None })
    }

    fn draws(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_token_is_taken_with_its_probability() {
        let ln = |p: f64| p.ln() as f32;
        let chosen = Greedy.choose(&[], &[ln(0.25), ln(0.5), f32::NEG_INFINITY, ln(0.25)]).unwrap();
        assert_eq!((chosen.token, chosen.law), (1, None));
        assert!((chosen.confidence - 0.5).abs() < 1e-6);
        assert_eq!(Greedy.choose(&[], &[1.0, 1.0]).unwrap().token, 0);
        assert_eq!(Greedy.choose(&[], &[f32::NEG_INFINITY, f32::NAN]), None);
    }
}
