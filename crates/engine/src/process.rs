//! From a row of raw logits to the row that is sampled: penalties, bias, bans, temperature, truncation.
//!
//! The order is that of vLLM and transformers: repetition penalty, frequency and presence penalty, logit bias, the ban
//! on end tokens before `min_tokens`, the ban on what a grammar forbids, temperature, min-p, top-k, top-p, typical-p;
//! each truncation judges the renormalised survivors of those before it. Every choice between equal values goes to the
//! lower token id, so the result is a function of the row and the history and of nothing else.

use std::sync::{Mutex, PoisonError};

use crate::history::History;
use crate::math::{exp, sum_exp};
use crate::noise::BLOCK;
use crate::params::SamplingParams;
use crate::sampler::SampleError;

/// Buffers of the sampler, reused from row to row; one per thread that samples.
#[derive(Debug, Default)]
pub struct Scratch {
    /// The processed logits `[vocab]`.
    pub(crate) row: Vec<f32>,
    /// The greatest logit of each block of the row `[vocab / BLOCK, rounded up]`.
    pub(crate) block_max: Vec<f32>,
    /// A second copy of the block maxima, to select in.
    selection: Vec<f32>,
    /// Tokens that survive truncation.
    candidates: Vec<Candidate>,
}

impl Scratch {
    /// Empty buffers; they grow to the vocabulary at first use.
    pub fn new() -> Self {
        Self::default()
    }
}

/// Buffers for as many threads as sample at the same time.
#[derive(Debug, Default)]
pub(crate) struct SharedScratch(Mutex<Vec<Scratch>>);

impl SharedScratch {
    /// Lends buffers to `sample`.
    pub(crate) fn with<T>(&self, sample: impl FnOnce(&mut Scratch) -> T) -> T {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut scratch = lock().pop().unwrap_or_default();
        let sampled = sample(&mut scratch);
        lock().push(scratch);
        sampled
    }
}

/// A token in the running.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    /// What truncation prefers: the logit, or minus the distance from the entropy.
    rank: f32,
    /// The logit over the temperature, less that of the likeliest token.
    z: f32,
    token: u32,
}

impl Candidate {
    /// Best rank first, then lowest token: a total order, so that what is selected does not depend on how.
    fn order(a: &Self, b: &Self) -> std::cmp::Ordering {
        b.rank.total_cmp(&a.rank).then(a.token.cmp(&b.token))
    }
}

/// Applies penalties, bias and the ban on `end_tokens` to `row` `[vocab]`, in place. Tokens beyond the row are ignored.
pub(crate) fn adjust(row: &mut [f32], params: &SamplingParams, history: &History, end_tokens: &[u32]) {
    if params.has_penalties() {
        for (token, count) in history.counts() {
            let Some(logit) = row.get_mut(token as usize) else { continue };
            // Every counted token is in the prompt or the output: the repetition penalty is for both.
            *logit = if *logit > 0.0 { *logit / params.repetition_penalty } else { *logit * params.repetition_penalty };
            if count.outputs > 0 {
                *logit -= params.frequency_penalty * count.outputs as f32 + params.presence_penalty;
            }
        }
    }
    for (&token, &bias) in &params.logit_bias {
        if let Some(logit) = row.get_mut(token as usize) {
            *logit += bias;
        }
    }
    if history.outputs().len() < params.min_tokens {
        for &token in end_tokens {
            // A NaN must stay to be found.
            if let Some(logit) = row.get_mut(token as usize).filter(|logit| logit.is_finite()) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}

/// Fills `block_max` with the greatest logit of each block of `row` and returns the greatest of all.
///
/// # Errors
/// [`SampleError`] if a logit is NaN or +∞, or if none is finite.
pub(crate) fn scan(row: &[f32], block_max: &mut Vec<f32>) -> Result<f32, SampleError> {
    block_max.clear();
    let mut greatest = f32::NEG_INFINITY;
    let mut nan = false;
    for block in row.chunks(BLOCK) {
        let (max, block_nan) = max_of(block);
        nan |= block_nan;
        greatest = if max > greatest { max } else { greatest };
        block_max.push(max);
    }
    if nan || greatest == f32::INFINITY {
        let found = row.iter().enumerate().find(|(_, logit)| logit.is_nan() || **logit == f32::INFINITY);
        let (token, value) = found.map_or((0, f32::NAN), |(token, &value)| (token, value));
        return Err(SampleError::NotFinite { token, value });
    }
    if greatest == f32::NEG_INFINITY {
        return Err(SampleError::NoToken { vocab: row.len() });
    }
    Ok(greatest)
}

/// The greatest value of a block that is not NaN, and whether some value is NaN.
#[inline]
fn max_of(block: &[f32]) -> (f32, bool) {
    const LANES: usize = 16;
    let mut max = [f32::NEG_INFINITY; LANES];
    let mut nan = [0u32; LANES];
    let (chunks, tail) = block.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            max[lane] = if chunk[lane] > max[lane] { chunk[lane] } else { max[lane] };
            nan[lane] |= u32::from(chunk[lane].is_nan());
        }
    }
    let mut greatest = f32::NEG_INFINITY;
    for &x in max.iter().chain(tail) {
        greatest = if x > greatest { x } else { greatest };
    }
    (greatest, nan.iter().any(|&n| n != 0) || tail.iter().any(|x| x.is_nan()))
}

/// The lowest token with the greatest logit, given the block maxima of the row.
pub(crate) fn argmax(row: &[f32], block_max: &[f32], greatest: f32) -> u32 {
    let block = block_max.iter().position(|&max| max == greatest).unwrap_or(0);
    let start = block * BLOCK;
    let within = row[start..].iter().position(|&logit| logit == greatest).unwrap_or(0);
    (start + within) as u32
}

/// Turns the adjusted row of `scratch`, already scanned, into log-probabilities up to a constant: each logit less the
/// greatest, over the temperature, and −∞ for what truncation drops. `params.temperature` is above 0.
pub(crate) fn shape(scratch: &mut Scratch, params: &SamplingParams, greatest: f32) {
    // Less the greatest first: then no temperature, however small, overflows upwards.
    let temper = |logit: &mut f32| *logit = (*logit - greatest) / params.temperature;
    scratch.row.iter_mut().for_each(temper);
    // Rounding keeps order, so the maxima of the tempered row are the tempered maxima.
    scratch.block_max.iter_mut().for_each(temper);
    let Scratch { row, block_max, selection, candidates } = scratch;
    if !params.truncates(row.len()) {
        return;
    }
    let truncates_by_count = params.top_k > 0 && params.top_k < row.len();
    candidates.clear();
    let min_p_floor = if params.min_p > 0.0 { crate::math::ln(f64::from(params.min_p)) as f32 } else { f32::MIN };
    if truncates_by_count {
        gather_top(row, block_max, params.top_k, min_p_floor, selection, candidates);
    } else if params.min_p > 0.0 {
        gather(row, block_max, min_p_floor, candidates);
    }
    if params.top_p < 1.0 {
        top_p(row, block_max, params.top_p, candidates);
    }
    if params.typical_p < 1.0 {
        if candidates.is_empty() {
            gather(row, block_max, f32::MIN, candidates);
        }
        typical(candidates, params.typical_p);
    }
    keep_only(row, block_max, candidates);
}

/// Sets the row to −∞ but for the candidates.
fn keep_only(row: &mut [f32], block_max: &mut [f32], candidates: &[Candidate]) {
    row.fill(f32::NEG_INFINITY);
    block_max.fill(f32::NEG_INFINITY);
    for candidate in candidates {
        let token = candidate.token as usize;
        row[token] = candidate.z;
        block_max[token / BLOCK] = block_max[token / BLOCK].max(candidate.z);
    }
}

/// Appends every token whose logit is at least `floor`, in order of id. −∞ is below every floor.
fn gather(row: &[f32], block_max: &[f32], floor: f32, candidates: &mut Vec<Candidate>) {
    for (block, _) in block_max.iter().enumerate().filter(|(_, max)| **max >= floor) {
        let start = block * BLOCK;
        let end = row.len().min(start + BLOCK);
        for (i, &z) in row[start..end].iter().enumerate().filter(|(_, z)| **z >= floor) {
            candidates.push(Candidate { rank: z, z, token: (start + i) as u32 });
        }
    }
}

/// Appends the best `k` tokens at or above `floor`, in order of id.
fn gather_top(
    row: &[f32],
    block_max: &[f32],
    k: usize,
    floor: f32,
    selection: &mut Vec<f32>,
    candidates: &mut Vec<Candidate>,
) {
    gather(row, block_max, floor.max(kth_block_max(block_max, k, selection)), candidates);
    if candidates.len() > k {
        let (_, &mut last, _) = candidates.select_nth_unstable_by(k - 1, Candidate::order);
        // Selecting shuffled them: gather again, to leave them in order of id.
        candidates.clear();
        gather(row, block_max, last.rank, candidates);
        candidates.retain(|candidate| Candidate::order(candidate, &last).is_le());
    }
}

/// A lower bound of the k-th greatest logit: the k-th greatest block maximum, as each block holds its own.
fn kth_block_max(block_max: &[f32], k: usize, selection: &mut Vec<f32>) -> f32 {
    if k == 0 || k > block_max.len() {
        return f32::MIN;
    }
    selection.clear();
    selection.extend_from_slice(block_max);
    let (_, &mut kth, _) = selection.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
    kth.max(f32::MIN)
}

/// The `k` tokens of the row with the greatest logits, best first; fewer if fewer are above −∞.
pub(crate) fn top_tokens(scratch: &mut Scratch, row: &[f32], k: usize) -> Vec<(u32, f32)> {
    let Scratch { block_max, selection, candidates, .. } = scratch;
    candidates.clear();
    if k > 0 {
        gather_top(row, block_max, k, f32::MIN, selection, candidates);
    }
    candidates.sort_unstable_by(Candidate::order);
    candidates.iter().map(|candidate| (candidate.token, candidate.z)).collect()
}

/// Keeps the smallest set of best candidates that holds `p` of their probability; no candidates stand for the whole
/// row.
fn top_p(row: &[f32], block_max: &[f32], p: f32, candidates: &mut Vec<Candidate>) {
    if candidates.is_empty() {
        let total = sum_exp(row, 0.0);
        // Tokens less likely than (1 − p) / vocab hold less than 1 − p between them, so the set is full before it comes
        // to them. Half of that, for rounding.
        let floor = crate::math::ln(total * (1.0 - f64::from(p)) / row.len() as f64 / 2.0) as f32;
        gather(row, block_max, floor.min(0.0), candidates);
        keep_mass(candidates, f64::from(p) * total * UNIT_MASS);
    } else {
        keep_mass(candidates, f64::from(p) * mass(candidates) as f64);
    }
}

/// Keeps the candidates whose information content is nearest the entropy, until they hold `p` of the probability.
fn typical(candidates: &mut Vec<Candidate>, p: f32) {
    // The entropy is a sum in f64, whose bits depend on the order.
    candidates.sort_unstable_by_key(|candidate| candidate.token);
    let total = mass(candidates) as f64;
    let log_total = crate::math::ln(total / UNIT_MASS);
    // Entropy: Σ p (log total − z). A term with p = 0 is 0 even where z is hugely negative.
    let weighted: f64 = candidates.iter().map(|c| f64::from(exp(c.z)) * f64::from(c.z)).sum();
    let entropy = log_total - weighted * UNIT_MASS / total;
    for candidate in candidates.iter_mut() {
        let information = log_total - f64::from(candidate.z);
        candidate.rank = -((information - entropy).abs() as f32);
    }
    keep_mass(candidates, f64::from(p) * total);
}

/// The mass e^z = 1 in the units that masses are summed in: as whole numbers, whose sum does not depend on the order.
/// 2^20 tokens of this mass fit a u64; what is lost of a token is at most 2^−45 of the likeliest.
const UNIT_MASS: f64 = (1u64 << 44) as f64;

/// Σ e^z of the candidates, in units of 1 / [`UNIT_MASS`].
fn mass(candidates: &[Candidate]) -> u64 {
    candidates.iter().map(|candidate| (f64::from(exp(candidate.z)) * UNIT_MASS + 0.5) as u64).sum()
}

/// Keeps the best candidates up to and with the one that brings their mass to `target`, in no particular order.
///
/// Looks at the best 64, then at the next 256 and so on until the target lies among those looked at, and halves those
/// until few enough are left to sort: the time is in proportion to the candidates.
fn keep_mass(candidates: &mut Vec<Candidate>, target: f64) {
    let (mut kept, mut sum, mut step) = (0, 0, FEW);
    let mut end = candidates.len();
    while kept < end {
        let rest = &mut candidates[kept..end];
        if rest.len() <= FEW {
            rest.sort_unstable_by(Candidate::order);
            let reached = rest.iter().position(|candidate| {
                sum += mass(std::slice::from_ref(candidate));
                sum as f64 >= target
            });
            kept += reached.map_or(rest.len(), |i| i + 1);
            break;
        }
        let n = step.min(rest.len() / 2);
        rest.select_nth_unstable_by(n - 1, Candidate::order);
        let best = mass(&rest[..n]);
        if (sum + best) as f64 >= target {
            end = kept + n;
        } else {
            (kept, sum, step) = (kept + n, sum + best, 4 * step);
        }
    }
    candidates.truncate(kept);
}

/// So many candidates are sorted rather than halved.
const FEW: usize = 64;
