//! Who is measured, in which order, and whether all of them say the same.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroUsize;

use anyhow::{Context, Result};
use draft::Drafter;
use engine::batch::{Check, Handle, Service, ServiceOptions, Speculation};
use indicatif::ProgressBar;
use kernels::Pool;
use serde_json::{Value, json};
use spec::CostCurve;

use super::drive::{self, Asking};
use super::oracle::{Oracle, Truths};
use super::questions::Question;
use crate::draft::{Allowance, Kind};
use cli::load::Loaded;

/// Tokens of the prompt and of the answer that a new engine warms up with: its buffers grow, and nobody learns from it.
const WARM_UP: usize = 8;

/// Something that drafts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Contestant {
    Drafter(Kind),
    /// Right with this probability.
    Synthetic(f64),
}

impl fmt::Display for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drafter(kind) => write!(f, "{kind}"),
            Self::Synthetic(acceptance) => write!(f, "synthetic {acceptance}"),
        }
    }
}

/// What all measurements of a run share.
pub(crate) struct Setup {
    pub(crate) loaded: Loaded,
    pub(crate) options: ServiceOptions,
    pub(crate) contestants: Vec<Contestant>,
    /// What drafters may take.
    pub(crate) allowance: Allowance,
    pub(crate) max_drafts: usize,
    /// What rows cost, measured before anything else. Every engine refines a copy of its own.
    pub(crate) curve: CostCurve,
    /// Decides the noise, and the luck of synthetic drafts.
    pub(crate) seed: u64,
}

impl Setup {
    /// An engine that nobody has asked anything, with such a drafter or none, for so many requests at a time.
    pub(crate) fn engine(&self, contestant: Option<&Contestant>, truths: &Truths, clients: usize) -> Result<Service> {
        let speculation = contestant.map(|contestant| self.speculation(contestant, truths)).transpose()?;
        let Loaded { model, tokenizer, pool, .. } = &self.loaded;
        let threads = NonZeroUsize::new(pool.threads()).unwrap_or(NonZeroUsize::MIN);
        let options = ServiceOptions { max_running: clients, max_waiting: clients, ..self.options };
        Ok(Service::start(model.clone(), tokenizer.clone(), Pool::new(threads), options, speculation))
    }

    fn speculation(&self, contestant: &Contestant, truths: &Truths) -> Result<Speculation> {
        let drafter: Box<dyn Drafter> = match contestant {
            Contestant::Drafter(kind) => {
                kind.drafter(&self.loaded, self.allowance)?.with_context(|| format!("{kind} drafts nothing"))?
            }
            Contestant::Synthetic(acceptance) => {
                let vocab = self.loaded.tokenizer.vocab_size() as u32;
                Box::new(Oracle::new(truths.clone(), *acceptance, self.seed, vocab))
            }
        };
        let check = match contestant {
            Contestant::Drafter(kind) => kind.check(),
            Contestant::Synthetic(_) => Check::Paying,
        };
        Ok(Speculation { check, ..Speculation::new(drafter, self.max_drafts, self.curve.clone()) })
    }

    /// Lets a new engine grow its buffers.
    pub(crate) fn warm_up(&self, handle: &Handle, question: &Question, asking: &Asking) -> Result<()> {
        let tokens = question.tokens[..question.tokens.len().min(WARM_UP)].to_vec();
        let question = Question { tokens, ..question.clone() };
        let asking = Asking { max_tokens: WARM_UP, ..*asking };
        drive::answer(handle, &[&question], &asking, 1, &ProgressBar::hidden()).context("the warm-up failed").map(drop)
    }
}

/// Who takes a turn in one round: nobody's drafts, every drafter's, and back, so that a machine that slows down slows
/// all of them. The flag is whether it is the way back.
pub(crate) fn turns(contestants: usize) -> Vec<(Option<usize>, bool)> {
    let there = std::iter::once(None).chain((0..contestants).map(Some));
    let mut turns: Vec<(Option<usize>, bool)> = there.map(|who| (who, false)).collect();
    let back: Vec<_> = turns.iter().rev().map(|&(who, _)| (who, true)).collect();
    turns.extend(back);
    turns
}

/// An answer that differs from what plain decoding said first.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Difference {
    pub(crate) temperature: f32,
    pub(crate) id: String,
    /// Who gave it.
    pub(crate) condition: String,
    /// Tokens that are the same.
    pub(crate) same: usize,
    /// What plain decoding said next; `None`: nothing more.
    pub(crate) expected: Option<u32>,
    pub(crate) found: Option<u32>,
}

impl Difference {
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "temperature": self.temperature, "id": self.id, "condition": self.condition,
            "output_position": self.same, "expected": self.expected, "found": self.found,
        })
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = |token: Option<u32>| token.map_or("the end".to_owned(), |token| format!("token {token}"));
        let Self { temperature, id, condition, same, expected, found } = self;
        let (expected, found) = (token(*expected), token(*found));
        write!(
            f,
            "prompt {id}, {condition}, temperature {temperature}: {found} instead of {expected} after {same} tokens"
        )
    }
}

/// Compares every answer with the first that plain decoding gave.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    /// By temperature (its bits) and line of the file.
    first: HashMap<(u32, u64), Vec<u32>>,
    /// Answers that were compared with an earlier one.
    pub(crate) compared: u64,
    pub(crate) differences: Vec<Difference>,
}

impl Checks {
    pub(crate) fn check(&mut self, temperature: f32, question: &Question, condition: &str, tokens: &[u32]) {
        let Some(first) = self.first.get(&(temperature.to_bits(), question.number)) else {
            self.first.insert((temperature.to_bits(), question.number), tokens.to_vec());
            return;
        };
        self.compared += 1;
        if first == tokens {
            return;
        }
        let same = first.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let (expected, found) = (first.get(same).copied(), tokens.get(same).copied());
        let (id, condition) = (question.id.clone(), condition.to_owned());
        self.differences.push(Difference { temperature, id, condition, same, expected, found });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_take_turns_there_and_back() {
        assert_eq!(turns(0), [(None, false), (None, true)]);
        let expected =
            [(None, false), (Some(0), false), (Some(1), false), (Some(1), true), (Some(0), true), (None, true)];
        assert_eq!(turns(2), expected);
    }

    #[test]
    fn an_answer_that_differs_is_told_with_its_place() {
        let question = Question { number: 3, id: "q".into(), category: "c".into(), tokens: vec![1] };
        let mut checks = Checks::default();
        checks.check(0.0, &question, "plain", &[5, 6, 7]);
        checks.check(0.0, &question, "ngram", &[5, 6, 7]);
        checks.check(1.0, &question, "ngram", &[9]);
        assert_eq!((checks.compared, checks.differences.len()), (1, 0));
        checks.check(0.0, &question, "ngram", &[5, 8]);
        checks.check(0.0, &question, "suffix", &[5, 6]);
        let told: Vec<String> = checks.differences.iter().map(Difference::to_string).collect();
        assert_eq!(told[0], "prompt q, ngram, temperature 0: token 8 instead of token 6 after 1 tokens");
        assert_eq!(told[1], "prompt q, suffix, temperature 0: the end instead of token 7 after 2 tokens");
        assert_eq!(checks.differences[1].to_json()["found"], Value::Null);
    }
}
