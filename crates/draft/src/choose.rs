//! How a request chooses tokens, for drafters that have logits.

use spec::{Distribution, Drawn, Expansion, Proposal};

/// What a drafter says of a next token: logits of tokens. Those of which it says nothing are impossible.
#[derive(Debug, Clone, Copy)]
pub struct Words<'a> {
    logits: &'a [f32],
    ids: Option<&'a [u32]>,
    vocab: usize,
}

/// What is so much less likely than the likeliest adds nothing to a sum that anybody could see: e^-30.
const NOTHING: f32 = -30.0;

impl<'a> Words<'a> {
    /// `logits` of the tokens `ids`, each once, or else of the tokens 0, 1, 2, ..., for a target that knows the tokens below
    /// `vocab`. What is said of others is left out.
    pub fn new(logits: &'a [f32], ids: Option<&'a [u32]>, vocab: usize) -> Words<'a> {
        let logits = if ids.is_some() { logits } else { &logits[..vocab.min(logits.len())] };
        Words { logits, ids, vocab }
    }

    /// Tokens and their logits, in the order in which they were given.
    pub fn iter(&self) -> impl Iterator<Item = (u32, f32)> + use<'a> {
        let Words { logits, ids, vocab } = *self;
        let token = move |at: usize| ids.map_or(at as u32, |ids| ids.get(at).copied().unwrap_or(u32::MAX));
        let said = logits.iter().enumerate().map(move |(at, &logit)| (token(at), logit));
        said.filter(move |&(token, _)| (token as usize) < vocab)
    }

    /// The logits of all tokens, `[vocab]`, -inf for those of which nothing is said.
    pub fn spread(&self, out: &mut Vec<f32>) {
        out.clear();
        if self.ids.is_none() {
            out.extend_from_slice(self.logits);
        }
        out.resize(self.vocab, f32::NEG_INFINITY);
        for (token, logit) in self.iter().filter(|_| self.ids.is_some()) {
            out[token as usize] = logit;
        }
    }

    /// The `most` likeliest tokens and their probabilities, best first, equals by token.
    pub fn likeliest(&self, most: usize) -> Expansion {
        let greatest = self.logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if !greatest.is_finite() || most == 0 {
            return Expansion::new();
        }
        let mut best: Vec<(u32, f32)> = Vec::with_capacity(most + 1);
        let (mut all, mut least) = (0.0, f32::NEG_INFINITY);
        for (token, logit) in self.iter().filter(|(_, logit)| logit - greatest > NOTHING) {
            all += f64::from((logit - greatest).exp());
            if logit < least {
                continue;
            }
            let place = best.partition_point(|&(other, than)| than > logit || than == logit && other < token);
            best.insert(place, (token, logit));
            best.truncate(most);
            least = if best.len() == most { best[most - 1].1 } else { f32::NEG_INFINITY };
        }
        best.into_iter().map(|(token, logit)| (token, f64::from((logit - greatest).exp()) / all)).collect()
    }
}

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

    /// The `most` tokens that are likeliest to be what the request says after the committed tokens and `drafts`, best first,
    /// with how likely each is, as far as a drafter's `words` tell: what [`choose`](Choose::choose) would choose, and what
    /// comes next to it. For requests that do not [draw](Choose::draws).
    fn choices(&self, drafts: &[u32], words: Words<'_>, most: usize) -> Expansion {
        let _ = drafts;
        words.likeliest(most)
    }

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
    fn the_likeliest_words_are_those_of_a_plain_sort() {
        let logits: Vec<f32> = (0..300).map(|i| ((i * 7919 + 13) % 101) as f32 / 9.0).collect();
        let ids: Vec<u32> = (0..300).map(|i| (i * 37) % 300).collect();
        for (ids, vocab) in [(None, 300), (None, 250), (Some(&ids[..]), 300), (Some(&ids[..]), 100)] {
            let words = Words::new(&logits, ids, vocab);
            let mut all: Vec<(u32, f32)> = words.iter().collect();
            all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            assert_eq!(all.len(), vocab);
            let sum: f64 = all.iter().map(|&(_, logit)| f64::from(logit).exp()).sum();
            for most in [1, 2, 7, 300] {
                let found = words.likeliest(most);
                assert_eq!(found.len(), most.min(vocab));
                for (&(token, p), &(expected, logit)) in found.iter().zip(&all) {
                    assert_eq!(token, expected);
                    assert!((p - f64::from(logit).exp() / sum).abs() < 1e-6);
                }
            }
            let mut spread = Vec::new();
            words.spread(&mut spread);
            assert!(all.iter().all(|&(token, logit)| spread[token as usize] == logit) && spread.len() == vocab);
        }
        assert!(Words::new(&[f32::NEG_INFINITY; 3], None, 3).likeliest(2).is_empty());
    }

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
