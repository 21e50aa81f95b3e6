//! The exact law of the small model's answers, added up over all of them.
//!
//! The model's probabilities come from the engine one token at a time, without drafts; what sampling makes of them is
//! worked out here anew, from the definitions, so that a fault of the engine's own is not repeated.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use anyhow::{Result, ensure};
use engine::{Drafting, Engine, SamplingParams};

use super::chi_square::Outcome;
use crate::audit::letters::LETTERS;

/// Letters of an answer.
pub(super) const LENGTH: usize = 4;

/// How letters are drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sampling {
    pub(super) temperature: f32,
    /// 0: all.
    pub(super) top_k: usize,
    pub(super) presence_penalty: f32,
}

impl Sampling {
    /// The same as parameters of a request.
    pub(super) fn params(&self, seed: u64) -> SamplingParams {
        let Sampling { temperature, top_k, presence_penalty } = *self;
        let max_tokens = Some(LENGTH);
        SamplingParams { temperature, top_k, presence_penalty, seed, max_tokens, ..SamplingParams::default() }
    }

    /// The law of the letter after `before`, from the model's own log-probabilities `[LETTERS]`.
    fn law(&self, log_probabilities: &[f64], before: &[u32]) -> Vec<f64> {
        let score = |(letter, log_p): (usize, &f64)| {
            let said = before.contains(&(letter as u32));
            (log_p - if said { f64::from(self.presence_penalty) } else { 0.0 }) / f64::from(self.temperature)
        };
        let scores: Vec<f64> = log_probabilities.iter().enumerate().map(score).collect();
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        let kept = if self.top_k == 0 { scores.len() } else { self.top_k };
        let mut law = vec![0.0; scores.len()];
        order[..kept].iter().for_each(|&letter| law[letter] = (scores[letter] - scores[order[0]]).exp());
        let sum: f64 = law.iter().sum();
        law.iter_mut().for_each(|p| *p /= sum);
        law
    }
}

impl std::fmt::Display for Sampling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "T={}", self.temperature)?;
        if self.top_k > 0 {
            write!(f, ", top_k {}", self.top_k)?;
        }
        if self.presence_penalty != 0.0 {
            write!(f, ", presence {}", self.presence_penalty)?;
        }
        Ok(())
    }
}

/// What the model says after every beginning of an answer.
pub(super) struct Exact {
    log_probabilities: BTreeMap<Vec<u32>, Vec<f64>>,
}

impl Exact {
    /// Asks the model, which `engine` runs, about every answer to `prompt` that is shorter than [`LENGTH`].
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(super) fn new(engine: &mut Engine, prompt: &[u32]) -> Result<Exact> {
        let mut log_probabilities = BTreeMap::new();
        let mut beginnings = vec![Vec::new()];
        for _ in 0..LENGTH {
            let mut longer = Vec::new();
            for beginning in beginnings {
                let letters = (0..LETTERS as u32).map(|letter| [&beginning[..], &[letter]].concat());
                longer.extend(letters);
                let row = ask(engine, &[prompt, &beginning].concat())?;
                log_probabilities.insert(beginning, row);
            }
            beginnings = longer;
        }
        Ok(Exact { log_probabilities })
    }

    /// The model's log-probabilities after a beginning `[LETTERS]`; none for one that is not an answer's.
    pub(super) fn after(&self, beginning: &[u32]) -> Option<&[f64]> {
        self.log_probabilities.get(beginning).map(Vec::as_slice)
    }

    /// The law of the letter after a beginning; nothing can follow a whole answer.
    pub(super) fn next(&self, sampling: &Sampling, beginning: &[u32]) -> Vec<f64> {
        self.after(beginning).map_or(Vec::new(), |row| sampling.law(row, beginning))
    }

    /// The law of whole answers.
    pub(super) fn answers(&self, sampling: &Sampling) -> BTreeMap<Outcome, f64> {
        let mut answers = BTreeMap::from([(Vec::new(), 1.0)]);
        for _ in 0..LENGTH {
            let mut longer = BTreeMap::new();
            for (beginning, probability) in answers {
                for (letter, p) in (0..).zip(self.next(sampling, &beginning)) {
                    if p > 0.0 {
                        longer.insert([&beginning[..], &[letter]].concat(), probability * p);
                    }
                }
            }
            answers = longer;
        }
        answers
    }
}

/// The log-probabilities of all letters after `text`.
fn ask(engine: &mut Engine, text: &[u32]) -> Result<Vec<f64>> {
    let params = SamplingParams { max_tokens: Some(1), logprobs: Some(LETTERS), ..SamplingParams::default() };
    let mut row = vec![f64::NAN; LETTERS];
    engine.generate(text, params, &Drafting::default(), |delta| {
        delta.top.iter().for_each(|&(letter, log_p)| row[letter as usize] = f64::from(log_p));
        ControlFlow::Continue(())
    })?;
    ensure!(row.iter().all(|p| p.is_finite()), "the engine gave no log-probability for some token of {LETTERS}");
    Ok(row)
}
