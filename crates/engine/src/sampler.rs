//! From a row of logits to a token.

use draft::Words;
use spec::{Distribution, Expansion};

use crate::grammar::{GrammarState, GrammarStop};
use crate::history::History;
use crate::math::{exp, ln, sum_exp};
use crate::noise::{BLOCK, BlockNoise, MAX_GUMBEL, NoiseKey};
use crate::params::SamplingParams;
use crate::process::{self, Scratch};

/// Logits that no token can be sampled from; they end the request.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// A logit is NaN or +∞.
    #[error("the logit of token {token} is {value}: the forward went wrong, or the weights hold values out of range")]
    NotFinite {
        /// The first such token.
        token: usize,
        /// Its logit.
        value: f32,
    },
    /// Every logit is −∞.
    #[error("none of the {vocab} tokens is allowed: every logit is -inf, or min_tokens and stop_tokens ban them all")]
    NoToken {
        /// Length of the row.
        vocab: usize,
    },
    /// The grammar is not at its end, and no token with a finite logit continues it.
    #[error("the grammar allows none of the model's tokens here")]
    NoGrammarToken,
    /// What the grammar allows takes too much to find out.
    #[error("the grammar has become too complex to follow: simplify the schema or the expression")]
    GrammarTooComplex,
    /// The grammar's parser failed.
    #[error("the grammar's parser failed")]
    GrammarFailed,
}

impl From<GrammarStop> for SampleError {
    fn from(stop: GrammarStop) -> Self {
        match stop {
            GrammarStop::DeadEnd => Self::NoGrammarToken,
            GrammarStop::TooComplex => Self::GrammarTooComplex,
            GrammarStop::Failed => Self::GrammarFailed,
        }
    }
}

/// A token, as the target chose it.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: u32,
    /// Its log-probability in the model's own distribution; `None` unless asked for.
    pub logprob: Option<f32>,
    /// The likeliest tokens and their log-probabilities, best first; empty unless asked for.
    pub top: Vec<(u32, f32)>,
}

/// Chooses the tokens of one request.
///
/// The same logits, history and position give the same token, bit for bit, whatever else happens in the engine.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplingParams,
    end_tokens: Vec<u32>,
    key: NoiseKey,
}

impl Sampler {
    /// The sampler of choice number `choice` of a request with validated `params`, for a model that ends its output
    /// with one of `eos`.
    pub fn new(params: SamplingParams, eos: &[u32], choice: u32) -> Self {
        let mut end_tokens = params.stop_tokens.clone();
        if !params.ignore_eos {
            end_tokens.extend_from_slice(eos);
        }
        let key = NoiseKey { seed: params.seed, choice };
        Self { params, end_tokens, key }
    }

    /// What the client asked for.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Key of the noise that tokens are drawn with; a drafter that drafts with it is coupled to the target.
    pub fn noise_key(&self) -> NoiseKey {
        self.key
    }

    /// Whether this token ends the output, by itself.
    pub fn is_end(&self, token: u32) -> bool {
        self.end_tokens.contains(&token)
    }

    /// Samples the token at absolute `position` from the raw `logits` `[vocab]` of the row before it, given the
    /// `history` of all tokens before it.
    ///
    /// At temperature 0 the greatest processed logit wins, the lower id if equal; otherwise the greatest sum of
    /// processed logit and keyed noise. Log-probabilities are those of the model itself, log-softmax of the logits as
    /// given, before penalties, bias, temperature and truncation (what vLLM calls raw logprobs).
    ///
    /// # Errors
    /// [`SampleError`] if a logit is NaN or +∞ or none is finite; the request is to end with it.
    pub fn sample(
        &self,
        logits: &[f32],
        history: &History,
        position: u32,
        scratch: &mut Scratch,
    ) -> Result<Sampled, SampleError> {
        self.sample_within(None, logits, history, position, scratch)
    }

    /// As [`Sampler::sample`], among the tokens that a grammar allows.
    pub(crate) fn sample_within(
        &self,
        grammar: Option<&mut GrammarState>,
        logits: &[f32],
        history: &History,
        position: u32,
        scratch: &mut Scratch,
    ) -> Result<Sampled, SampleError> {
        let token = match grammar {
            None => self.choose(logits, history, position, scratch)?,
            Some(grammar) => self.choose_within(grammar, logits, history, position, scratch)?,
        };
        self.report(token, logits, scratch)
    }

    /// A token that was chosen from these raw `logits` by whatever rule, with the log-probabilities that were asked for.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub(crate) fn report(&self, token: u32, logits: &[f32], scratch: &mut Scratch) -> Result<Sampled, SampleError> {
        let Some(n) = self.params.logprobs else { return Ok(Sampled { token, logprob: None, top: Vec::new() }) };
        let log_softmax = LogSoftmax::of(logits, scratch)?;
        let top = process::top_tokens(scratch, logits, n);
        let top = top.into_iter().map(|(token, logit)| (token, log_softmax.at(logit))).collect();
        let logprob = logits.get(token as usize).map(|&logit| log_softmax.at(logit));
        Ok(Sampled { token, logprob, top })
    }

    /// The law that the next token is drawn from: what [`Sampler::sample`] draws from by its noise.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub(crate) fn law(
        &self,
        grammar: Option<&mut GrammarState>,
        logits: &[f32],
        history: &History,
        scratch: &mut Scratch,
    ) -> Result<Distribution, SampleError> {
        scratch.row.clear();
        scratch.row.extend_from_slice(logits);
        process::adjust(&mut scratch.row, &self.params, history, &self.end_tokens);
        if let Some(grammar) = grammar {
            grammar.mask(&mut scratch.row, &self.end_tokens)?;
            if scratch.row.iter().all(|&logit| logit == f32::NEG_INFINITY) {
                return last_resort(grammar).map(Distribution::point);
            }
        }
        let greatest = process::scan(&scratch.row, &mut scratch.block_max)?;
        if self.params.temperature == 0.0 {
            return Ok(Distribution::point(process::argmax(&scratch.row, &scratch.block_max, greatest)));
        }
        process::shape(scratch, &self.params, greatest);
        let weights = scratch.row.iter().map(|&z| f64::from(exp(z)));
        let law = match self.params.truncates(scratch.row.len()) {
            true => Distribution::sparse((0..).zip(weights).filter(|&(_, weight)| weight > 0.0)),
            false => Distribution::dense(weights),
        };
        // The greatest weight is 1, and none is above it.
        law.map_err(|_| SampleError::NoToken { vocab: logits.len() })
    }

    /// The token that would be sampled if a drafter's `logits` were the target's, and its probability by them.
    pub(crate) fn draft(
        &self,
        logits: &[f32],
        history: &History,
        position: u32,
        scratch: &mut Scratch,
    ) -> Option<(u32, f64)> {
        let token = self.choose(logits, history, position, scratch).ok()?;
        let probabilities = LogSoftmax::of(logits, scratch).ok()?;
        Some((token, f64::from(exp(probabilities.at(logits[token as usize]).min(0.0)))))
    }

    /// The `most` tokens that are likeliest to be sampled if a drafter's `words` were about the target's, best first: by their
    /// processed logits and the noise of this place. How likely each is, is told from how far it is from the others.
    pub(crate) fn choices(
        &self,
        words: Words<'_>,
        history: &History,
        position: u32,
        most: usize,
        scratch: &mut Scratch,
    ) -> Expansion {
        let greedy = self.params.temperature == 0.0;
        if greedy && !self.params.adjusts_logits() && history.outputs().len() >= self.params.min_tokens {
            return words.likeliest(most);
        }
        words.spread(&mut scratch.row);
        process::adjust(&mut scratch.row, &self.params, history, &self.end_tokens);
        if greedy {
            return Words::new(&scratch.row, None, scratch.row.len()).likeliest(most);
        }
        let Ok(greatest) = process::scan(&scratch.row, &mut scratch.block_max) else { return Expansion::new() };
        process::shape(scratch, &self.params, greatest);
        let mut found = draw_several(scratch, &self.key, position, most.max(RIVALS));
        let temperature = f64::from(self.params.temperature);
        let first = found.first().map_or(0.0, |best| best.1);
        // The scores that decided, in logits: as at temperature 0.
        found.iter_mut().for_each(|(_, score)| *score = ((*score - first) * temperature).exp());
        let all: f64 = found.iter().map(|(_, weight)| weight).sum();
        found.truncate(most);
        found.iter_mut().for_each(|(_, weight)| *weight /= all);
        found
    }

    /// The processed logits `[vocab]` that the token at the next position is drawn from: at temperature 0 the adjusted
    /// logits, otherwise log-probabilities up to a constant, with −∞ for tokens that truncation dropped.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub fn process<'s>(
        &self,
        logits: &[f32],
        history: &History,
        scratch: &'s mut Scratch,
    ) -> Result<&'s [f32], SampleError> {
        self.process_row(logits, history, scratch)?;
        Ok(&scratch.row)
    }

    fn process_row(&self, logits: &[f32], history: &History, scratch: &mut Scratch) -> Result<f32, SampleError> {
        scratch.row.clear();
        scratch.row.extend_from_slice(logits);
        process::adjust(&mut scratch.row, &self.params, history, &self.end_tokens);
        let greatest = process::scan(&scratch.row, &mut scratch.block_max)?;
        if self.params.temperature > 0.0 {
            process::shape(scratch, &self.params, greatest);
        }
        Ok(greatest)
    }

    fn choose(
        &self,
        logits: &[f32],
        history: &History,
        position: u32,
        scratch: &mut Scratch,
    ) -> Result<u32, SampleError> {
        let greedy = self.params.temperature == 0.0;
        if greedy && !self.params.adjusts_logits() && history.outputs().len() >= self.params.min_tokens {
            let greatest = process::scan(logits, &mut scratch.block_max)?;
            return Ok(process::argmax(logits, &scratch.block_max, greatest));
        }
        let greatest = self.process_row(logits, history, scratch)?;
        if greedy {
            return Ok(process::argmax(&scratch.row, &scratch.block_max, greatest));
        }
        Ok(draw(&scratch.row, &scratch.block_max, &self.key, position))
    }

    /// As [`Sampler::choose`] on the adjusted row in which what the grammar forbids is −∞.
    ///
    /// To find out about one token is much cheaper than about all. The likeliest token, if allowed, is also the
    /// likeliest allowed one, and whatever is counted from it stays the same; the winner over all tokens, if allowed,
    /// wins over the allowed ones. Only truncation must know its candidates, and so the whole mask.
    fn choose_within(
        &self,
        grammar: &mut GrammarState,
        logits: &[f32],
        history: &History,
        position: u32,
        scratch: &mut Scratch,
    ) -> Result<u32, SampleError> {
        scratch.row.clear();
        scratch.row.extend_from_slice(logits);
        process::adjust(&mut scratch.row, &self.params, history, &self.end_tokens);
        let greatest = match process::scan(&scratch.row, &mut scratch.block_max) {
            Err(SampleError::NoToken { .. }) => return last_resort(grammar),
            greatest => greatest?,
        };
        let greedy = self.params.temperature == 0.0;
        let favourite = process::argmax(&scratch.row, &scratch.block_max, greatest);
        let likeliest_is_allowed = grammar.allows(favourite, &self.end_tokens);
        if likeliest_is_allowed && greedy {
            return Ok(favourite);
        }
        if likeliest_is_allowed && !self.params.truncates(logits.len()) {
            process::shape(scratch, &self.params, greatest);
            let token = draw(&scratch.row, &scratch.block_max, &self.key, position);
            if token == favourite || grammar.allows(token, &self.end_tokens) {
                return Ok(token);
            }
            grammar.mask(&mut scratch.row, &self.end_tokens)?;
            process::scan(&scratch.row, &mut scratch.block_max)?;
            return Ok(draw(&scratch.row, &scratch.block_max, &self.key, position));
        }
        grammar.mask(&mut scratch.row, &self.end_tokens)?;
        let greatest = match process::scan(&scratch.row, &mut scratch.block_max) {
            Err(SampleError::NoToken { .. }) => return last_resort(grammar),
            greatest => greatest?,
        };
        if greedy {
            return Ok(process::argmax(&scratch.row, &scratch.block_max, greatest));
        }
        process::shape(scratch, &self.params, greatest);
        Ok(draw(&scratch.row, &scratch.block_max, &self.key, position))
    }
}

/// Where bans and the grammar leave no token: the end, if the grammar is at one.
fn last_resort(grammar: &mut GrammarState) -> Result<u32, SampleError> {
    let end = grammar.eos().filter(|_| grammar.is_accepting());
    end.ok_or(SampleError::NoGrammarToken)
}

/// The token with the greatest `row[token] + gumbel(key, position, token)`, the lower id if equal.
///
/// `row` `[vocab]` has its greatest value at 0 or near it; `block_max` are its block maxima. Blocks and tokens that
/// cannot win whatever their noise are left out, which changes nothing but the time.
fn draw(row: &[f32], block_max: &[f32], key: &NoiseKey, position: u32) -> u32 {
    winner(row, block_max, key, position).token
}

/// Tokens that the likelihood of a drawn one is told from, at least.
const RIVALS: usize = 4;

/// The `count` tokens with the greatest scores in [`draw`], best first, with their scores. Leaves the row of `scratch`
/// without them.
fn draw_several(scratch: &mut Scratch, key: &NoiseKey, position: u32, count: usize) -> Vec<(u32, f64)> {
    let Scratch { row, block_max, .. } = scratch;
    let mut found = Vec::with_capacity(count);
    while found.len() < count {
        let Best { score, token } = winner(row, block_max, key, position);
        if score == f64::NEG_INFINITY {
            break;
        }
        found.push((token, score));
        row[token as usize] = f32::NEG_INFINITY;
        let block = token as usize / BLOCK;
        let rest = row[block * BLOCK..].iter().take(BLOCK);
        block_max[block] = rest.copied().fold(f32::NEG_INFINITY, f32::max);
    }
    found
}

fn winner(row: &[f32], block_max: &[f32], key: &NoiseKey, position: u32) -> Best {
    let mut best = Best { score: f64::NEG_INFINITY, token: 0 };
    let favourite = block_max.iter().enumerate().fold((0, f32::NEG_INFINITY), |likeliest, (block, &max)| {
        if max > likeliest.1 { (block, max) } else { likeliest }
    });
    // The block of the likeliest token first: what it reaches rules out most of the others.
    best.visit(row, f64::from(favourite.1), favourite.0, key, position);
    for (block, &max) in block_max.iter().enumerate().filter(|(block, _)| *block != favourite.0) {
        best.visit(row, f64::from(max), block, key, position);
    }
    best
}

/// The winner so far.
struct Best {
    score: f64,
    token: u32,
}

impl Best {
    #[inline]
    fn visit(&mut self, row: &[f32], max: f64, block: usize, key: &NoiseKey, position: u32) {
        if max + MAX_GUMBEL < self.score || max == f64::NEG_INFINITY {
            return;
        }
        let noise = BlockNoise::draw(key, position, block as u32);
        if max + noise.greatest < self.score {
            return;
        }
        let start = block * BLOCK;
        let end = row.len().min(start + BLOCK);
        for (i, &z) in row[start..end].iter().enumerate() {
            let z = f64::from(z);
            if z + noise.greatest < self.score || z == f64::NEG_INFINITY {
                continue;
            }
            let token = (start + i) as u32;
            let score = z + noise.token(key, position, token);
            if score > self.score || (score == self.score && token < self.token) {
                *self = Self { score, token };
            }
        }
    }
}

/// Log-softmax of a row, by its greatest logit and the logarithm of Σ e^(logit − greatest).
#[derive(Clone, Copy)]
struct LogSoftmax {
    greatest: f32,
    log_sum: f64,
}

impl LogSoftmax {
    /// Leaves the block maxima of the row in `scratch`.
    fn of(logits: &[f32], scratch: &mut Scratch) -> Result<Self, SampleError> {
        let greatest = process::scan(logits, &mut scratch.block_max)?;
        Ok(Self { greatest, log_sum: ln(sum_exp(logits, greatest)) })
    }

    /// Log-probability of a token with this logit.
    fn at(&self, logit: f32) -> f32 {
        (f64::from(logit) - f64::from(self.greatest) - self.log_sum) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::gumbel;

    #[test]
    fn a_drafters_choices_are_what_would_be_sampled_and_what_comes_next_to_it() {
        let logits: Vec<f32> = (0..300).map(|i| ((i * 7919 + 13) % 101) as f32 / 20.0).collect();
        let ids: Vec<u32> = (0..150).map(|i| i * 2).collect();
        for (temperature, top_k) in [(0.0, 0), (0.7, 0), (1.0, 40), (2.0, 3)] {
            let params = SamplingParams { temperature, top_k, seed: 5, ..SamplingParams::default() };
            let (sampler, mut scratch) = (Sampler::new(params, &[], 0), Scratch::new());
            let history = History::new(&[1, 2, 3]);
            for position in 3..40 {
                let sampled = sampler.sample(&logits, &history, position, &mut scratch).unwrap().token;
                let words = Words::new(&logits, None, 300);
                let choices = sampler.choices(words, &history, position, 5, &mut scratch);
                assert_eq!(choices[0].0, sampled, "temperature {temperature}, position {position}");
                assert!(choices.iter().all(|&(_, p)| p > 0.0 && p <= 1.0));
                let row = sampler.process(&logits, &history, &mut scratch).unwrap();
                let score = |&token: &u32| {
                    let noise = if temperature == 0.0 { 0.0 } else { gumbel(&sampler.key, position, token) };
                    f64::from(row[token as usize]) + noise
                };
                let mut all: Vec<u32> = (0..300).filter(|token| score(token).is_finite()).collect();
                all.sort_by(|a, b| score(b).total_cmp(&score(a)).then(a.cmp(b)));
                all.truncate(5);
                assert_eq!(choices.iter().map(|choice| choice.0).collect::<Vec<_>>(), all);
            }
            // Of words about some tokens only these come.
            let few = sampler.choices(Words::new(&logits[..150], Some(&ids), 300), &history, 9, 5, &mut scratch);
            assert!(!few.is_empty() && few.iter().all(|(token, _)| token % 2 == 0));
        }
    }
}
