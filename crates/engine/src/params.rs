//! What a client may ask of the sampler, and the one place where it is checked.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::hash::{BuildHasher, Hasher, RandomState};

use crate::grammar::Grammar;

/// How the tokens of one request are chosen and when it ends.
///
/// The default is greedy decoding with everything else off, and no limit but the context.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// 0 decodes greedily; otherwise the logits are divided by it. Finite, at least 0.
    pub temperature: f32,
    /// Keep the `top_k` likeliest tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the smallest set of likeliest tokens whose probability reaches this; 1 keeps all. In (0, 1].
    pub top_p: f32,
    /// Drop tokens less likely than this fraction of the likeliest; 0 drops none. In [0, 1].
    pub min_p: f32,
    /// Keep the tokens whose information content is nearest the entropy until their probability reaches this; 1 keeps
    /// all. In (0, 1].
    pub typical_p: f32,
    /// Logits of tokens in the prompt or the output are divided by it if positive, multiplied by it if negative; 1 is
    /// off. In [0.01, 100].
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of every token in the output; 0 is off. In [-2, 2].
    pub presence_penalty: f32,
    /// Subtracted from a token's logit once for each time it is in the output; 0 is off. In [-2, 2].
    pub frequency_penalty: f32,
    /// Added to the logit of a token. Values in [-100, 100].
    pub logit_bias: BTreeMap<u32, f32>,
    /// Seed of the request's noise: the same seed gives the same output.
    pub seed: u64,
    /// The text ends before the first of these that completes. None may be empty.
    pub stop: Vec<String>,
    /// Tokens that end the output, besides the model's own end-of-sequence tokens.
    pub stop_tokens: Vec<u32>,
    /// At most so many output tokens; `None` leaves the context as the only limit. At least 1.
    pub max_tokens: Option<usize>,
    /// No stop token, end of sequence or stop string ends the output within its first `min_tokens` tokens. A
    /// grammar that allows nothing more does.
    pub min_tokens: usize,
    /// The model's end-of-sequence tokens do not end the output. Under a grammar none is chosen while text may follow.
    pub ignore_eos: bool,
    /// Report the log-probability of each output token and of this many likeliest tokens (0: only its own).
    pub logprobs: Option<usize>,
    /// Leave special tokens out of the text.
    pub skip_special_tokens: bool,
    /// What the output must be a sentence of, or the beginning of one if something else ends it first.
    pub grammar: Option<Grammar>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: BTreeMap::new(),
            seed: 0,
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            max_tokens: None,
            min_tokens: 0,
            ignore_eos: false,
            logprobs: None,
            skip_special_tokens: true,
            grammar: None,
        }
    }
}

/// A seed that nobody can foresee, for a client that gave none.
///
/// It is drawn where the client's wishes become [`SamplingParams`], so that all that follows is a function of these and
/// the answer can be had again by the seed.
pub fn fresh_seed() -> u64 {
    // The standard library's way to the system's random numbers: every state has keys of its own.
    RandomState::new().build_hasher().finish()
}

/// A sampling parameter outside its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}; it must be {allowed}")]
pub struct ParamsError {
    /// Name of the field of [`SamplingParams`].
    pub field: &'static str,
    /// The value given.
    pub value: String,
    /// What is allowed.
    pub allowed: String,
}

impl SamplingParams {
    /// Checks every field against its range, for a model of `vocab` tokens.
    ///
    /// # Errors
    /// Names the first field out of range, its value and what is allowed. NaN is out of every range.
    pub fn validate(&self, vocab: usize) -> Result<(), ParamsError> {
        self.validate_shaping()?;
        let token_range = || format!("a token id below {vocab}");
        for (&token, &bias) in &self.logit_bias {
            ensure((token as usize) < vocab, "logit_bias", token, token_range)?;
            let named = format!("{bias} for token {token}");
            ensure((-100.0..=100.0).contains(&bias), "logit_bias", named, || "from -100 to 100".into())?;
        }
        for &token in &self.stop_tokens {
            ensure((token as usize) < vocab, "stop_tokens", token, token_range)?;
        }
        let empty = self.stop.iter().any(String::is_empty);
        ensure(!empty, "stop", "an empty string", || "a list of non-empty strings".into())?;
        if let Some(max) = self.max_tokens {
            ensure(max >= 1, "max_tokens", max, || "at least 1".into())?;
            ensure(self.min_tokens <= max, "min_tokens", self.min_tokens, || format!("at most max_tokens, {max}"))?;
        }
        if let Some(n) = self.logprobs {
            ensure(n <= vocab, "logprobs", n, || format!("at most the vocabulary, {vocab}"))?;
        }
        Ok(())
    }

    fn validate_shaping(&self) -> Result<(), ParamsError> {
        let finite = self.temperature.is_finite() && self.temperature >= 0.0;
        ensure(finite, "temperature", self.temperature, || "0 (greedy) or more, and finite".into())?;
        let share = |value: f32| value > 0.0 && value <= 1.0;
        ensure(share(self.top_p), "top_p", self.top_p, || "above 0 and at most 1".into())?;
        ensure((0.0..=1.0).contains(&self.min_p), "min_p", self.min_p, || "from 0 to 1".into())?;
        ensure(share(self.typical_p), "typical_p", self.typical_p, || "above 0 and at most 1".into())?;
        let repetition = self.repetition_penalty;
        let in_range = (0.01..=100.0).contains(&repetition);
        ensure(in_range, "repetition_penalty", repetition, || "from 0.01 to 100".into())?;
        for (field, value) in
            [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)]
        {
            ensure((-2.0..=2.0).contains(&value), field, value, || "from -2 to 2".into())?;
        }
        Ok(())
    }

    /// Whether some logit may be changed by the tokens that came before or by a bias.
    pub(crate) fn adjusts_logits(&self) -> bool {
        self.has_penalties() || !self.logit_bias.is_empty()
    }

    /// Whether some tokens of a row of `vocab` may be dropped because of others.
    pub(crate) fn truncates(&self, vocab: usize) -> bool {
        let by_count = self.top_k > 0 && self.top_k < vocab;
        by_count || self.min_p > 0.0 || self.top_p < 1.0 || self.typical_p < 1.0
    }

    /// Whether a penalty looks at the tokens that came before.
    pub(crate) fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

fn ensure(
    holds: bool,
    field: &'static str,
    value: impl Display,
    allowed: impl FnOnce() -> String,
) -> Result<(), ParamsError> {
    if holds { Ok(()) } else { Err(ParamsError { field, value: value.to_string(), allowed: allowed() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOCAB: usize = 100;

    fn refused(change: impl FnOnce(&mut SamplingParams)) -> ParamsError {
        let mut params = SamplingParams::default();
        change(&mut params);
        params.validate(VOCAB).expect_err("out of range, yet accepted")
    }

    #[test]
    fn the_default_is_valid_and_greedy() {
        let params = SamplingParams::default();
        assert_eq!(params.validate(VOCAB), Ok(()));
        assert_eq!(params.temperature, 0.0);
        assert!(!params.adjusts_logits());
    }

    #[test]
    fn nan_is_refused_by_every_float_field() {
        assert_eq!(refused(|p| p.temperature = f32::NAN).field, "temperature");
        assert_eq!(refused(|p| p.top_p = f32::NAN).field, "top_p");
        assert_eq!(refused(|p| p.min_p = f32::NAN).field, "min_p");
        assert_eq!(refused(|p| p.typical_p = f32::NAN).field, "typical_p");
        assert_eq!(refused(|p| p.repetition_penalty = f32::NAN).field, "repetition_penalty");
        assert_eq!(refused(|p| p.presence_penalty = f32::NAN).field, "presence_penalty");
        assert_eq!(refused(|p| p.frequency_penalty = f32::NAN).field, "frequency_penalty");
        assert_eq!(refused(|p| p.logit_bias = BTreeMap::from([(1, f32::NAN)])).field, "logit_bias");
    }

    #[test]
    fn the_edges_of_the_ranges() {
        for change in [
            (|p: &mut SamplingParams| p.temperature = -0.1) as fn(&mut SamplingParams),
            |p| p.temperature = f32::INFINITY,
            |p| p.top_p = 0.0,
            |p| p.top_p = 1.01,
            |p| p.min_p = -0.01,
            |p| p.typical_p = 0.0,
            |p| p.repetition_penalty = 0.0,
            |p| p.presence_penalty = 2.1,
            |p| p.frequency_penalty = -2.1,
            |p| p.logit_bias = BTreeMap::from([(VOCAB as u32, 1.0)]),
            |p| p.logit_bias = BTreeMap::from([(0, 101.0)]),
            |p| p.stop_tokens = vec![VOCAB as u32],
            |p| p.stop = vec!["ok".into(), String::new()],
            |p| p.max_tokens = Some(0),
            |p| (p.max_tokens, p.min_tokens) = (Some(3), 4),
            |p| p.logprobs = Some(VOCAB + 1),
        ] {
            refused(change);
        }
    }

    #[test]
    fn an_error_names_field_value_and_range() {
        let error = refused(|p| p.top_p = 1.5);
        assert_eq!(error.to_string(), "top_p is 1.5; it must be above 0 and at most 1");
    }
}
