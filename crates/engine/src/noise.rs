//! Keyed noise: the Gumbel noise of a token, as a pure function of who asks for it.
//!
//! A token is drawn as `argmax(z + g)` over the processed logits z, with independent standard Gumbel noise g for every
//! token; that is a draw from softmax(z). Here g is a function of (request seed, choice, position, token) and of
//! nothing else, so that plain decoding, verification and a drafter see the same noise, in any batch and any order.
//!
//! # The least of a block first
//!
//! Only a few tokens of a vocabulary can win, so the noise is laid out for finding them without drawing the others'.
//! With E = e^(−g), which is exponentially distributed, tokens come in blocks of [`BLOCK`] consecutive ids. One draw
//! gives the *least* E of the block, which is Exp(1)/BLOCK, and another which of its tokens has it. By the lack of
//! memory of the exponential, every other token's E is that least value plus an Exp(1) of its own. This is exactly the
//! law of BLOCK independent exponentials, and no E of the block is below the first draw: one draw bounds the noise of
//! 64 tokens, and a token's own draw is made only if its logit could win with its block's best noise.
//!
//! # Precision
//!
//! Exp(1) is −ln u with u = (w + ½) / 2^52 and w 52 random bits: u lies in [2^−53, 1 − 2^−53], both exact in f64, so E
//! is never 0 or infinite and g lies in [[`MIN_GUMBEL`], [`MAX_GUMBEL`]]. Rare tokens win by an E near 0, that is by u
//! near 1, where E has steps of 2^−52 for a token's own draw and 2^−58 for that of a block: the probability of each
//! block is off by less than 2^−52 in absolute terms, that of a whole draw by less than 2^−42 for a vocabulary of
//! 65,536 (total variation). With 32 random bits that would have been 10^−5, and tokens rarer than 2^−32 would have
//! been either impossible or all alike.

use crate::math::ln;

/// Tokens that share one draw of their least exponential. A power of two.
pub const BLOCK: usize = 64;

/// No noise is above this: 59 ln 2, from the least E there can be, 2^−53 / [`BLOCK`].
pub const MAX_GUMBEL: f64 = 40.9;

/// No noise is below this: E is at most 53 ln 2 (1 + 1/[`BLOCK`]).
pub const MIN_GUMBEL: f64 = -3.63;

/// Whose noise it is. Two keys that differ give independent noise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NoiseKey {
    /// The request's seed.
    pub seed: u64,
    /// Which of the request's n choices.
    pub choice: u32,
}

/// What a counter of the generator is for; the last word of the counter, so that streams never meet.
#[derive(Clone, Copy)]
enum Stream {
    Block = 0,
    Token = 1,
    /// Words from which the keys of a round are made.
    Round = 2,
    Uniform = 3,
}

/// What the numbers of one round of drafting and verifying under the rule `ratio` are for. Numbers that served twice
/// would bias what comes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To draw drafts.
    Draft = 0,
    /// To accept them, and to draw what follows.
    Verify = 1,
}

impl NoiseKey {
    /// Noise of its own for the round whose anchor stands at this position. Rounds have different anchors: a draft that was
    /// thrown away is not drawn with the same numbers again.
    pub(crate) fn of_round(&self, purpose: Purpose, anchor: u32) -> NoiseKey {
        let words = self.words(Stream::Round, anchor, purpose as u32);
        NoiseKey { seed: u64::from(words[0]) << 32 | u64::from(words[1]), choice: words[2] }
    }

    /// Number `index` of a stream of uniform numbers in [0, 1).
    pub(crate) fn uniform(&self, index: u32) -> f64 {
        let words = self.words(Stream::Uniform, 0, index);
        let bits = (u64::from(words[0]) << 21) | u64::from(words[1] >> 11);
        bits as f64 * (f64::EPSILON / 2.0)
    }

    fn words(&self, stream: Stream, position: u32, index: u32) -> [u32; 4] {
        philox4x32_10([index, position, self.choice, stream as u32], [self.seed as u32, (self.seed >> 32) as u32])
    }
}

/// Gumbel noise of `token` as the token at absolute `position`.
///
/// Independent standard Gumbel over tokens, positions and keys; in [[`MIN_GUMBEL`], [`MAX_GUMBEL`]].
pub fn gumbel(key: &NoiseKey, position: u32, token: u32) -> f64 {
    BlockNoise::draw(key, position, token / BLOCK as u32).token(key, position, token)
}

/// The noise that the tokens of one block share, from which each token's own follows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockNoise {
    /// e^(−g) of the block's greatest noise.
    least: f64,
    /// The token of the block, 0..BLOCK, that has it.
    owner: u32,
    /// The greatest noise of the block.
    pub(crate) greatest: f64,
}

impl BlockNoise {
    /// The noise of the tokens `block * BLOCK ..` at `position`.
    #[inline]
    pub(crate) fn draw(key: &NoiseKey, position: u32, block: u32) -> Self {
        let words = key.words(Stream::Block, position, block);
        let least = exponential(words) / BLOCK as f64;
        Self { least, owner: words[2] % BLOCK as u32, greatest: -ln(least) }
    }

    /// The noise of one `token` of the block; at most `greatest`.
    #[inline]
    pub(crate) fn token(&self, key: &NoiseKey, position: u32, token: u32) -> f64 {
        if token % BLOCK as u32 == self.owner {
            return self.greatest;
        }
        let own = exponential(key.words(Stream::Token, position, token));
        // `ln` rounds: without this, a sum a hair above `least` could be given a noise a hair above the greatest.
        (-ln(self.least + own)).min(self.greatest)
    }
}

/// Exp(1) from the first 52 bits of `words`.
#[inline]
fn exponential(words: [u32; 4]) -> f64 {
    let bits = (u64::from(words[0]) << 20) | u64::from(words[1] >> 12);
    -ln((bits as f64 + 0.5) * f64::EPSILON)
}

/// Philox 4x32 with 10 rounds (Salmon and others, "Parallel random numbers: as easy as 1, 2, 3", 2011): a bijection of
/// the 128-bit `counter` for each 64-bit `key`, whose outputs for successive counters pass for random.
#[inline]
fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut x0, mut x1, mut x2, mut x3] = counter;
    let [mut k0, mut k1] = key;
    for _ in 0..10 {
        let left = u64::from(x0) * 0xd251_1f53;
        let right = u64::from(x2) * 0xcd9e_8d57;
        (x0, x1, x2, x3) = ((right >> 32) as u32 ^ x1 ^ k0, right as u32, (left >> 32) as u32 ^ x3 ^ k1, left as u32);
        k0 = k0.wrapping_add(0x9e37_79b9);
        k1 = k1.wrapping_add(0xbb67_ae85);
    }
    [x0, x1, x2, x3]
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: NoiseKey = NoiseKey { seed: 0x0123_4567_89ab_cdef, choice: 0 };

    #[test]
    fn philox_answers_its_published_vectors() {
        let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        for (counter, key, want) in [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (pi, [0xa409_3822, 0x299f_31d0], [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]),
        ] {
            assert_eq!(philox4x32_10(counter, key), want);
        }
    }

    #[test]
    fn extreme_words_give_finite_noise_within_the_bounds() {
        let (least, greatest) = (exponential([u32::MAX; 4]), exponential([0; 4]));
        assert!(least > 0.0 && greatest.is_finite());
        assert!(-(least / BLOCK as f64).ln() <= MAX_GUMBEL && -(least / BLOCK as f64).ln() > MAX_GUMBEL - 0.01);
        assert!(-(greatest * (1.0 + 1.0 / BLOCK as f64)).ln() >= MIN_GUMBEL);
    }

    #[test]
    fn noise_is_a_function_of_all_four_parts_of_its_key() {
        let base = gumbel(&KEY, 7, 100);
        assert_eq!(base, gumbel(&KEY, 7, 100));
        let others = [
            gumbel(&NoiseKey { seed: KEY.seed ^ 1, ..KEY }, 7, 100),
            gumbel(&NoiseKey { seed: KEY.seed ^ (1 << 63), ..KEY }, 7, 100),
            gumbel(&NoiseKey { choice: 1, ..KEY }, 7, 100),
            gumbel(&KEY, 8, 100),
            gumbel(&KEY, 7, 101),
        ];
        assert!(others.iter().all(|&g| g != base));
    }

    /// Kolmogorov-Smirnov distance of `sample` from the standard Gumbel law, times √n (1.95 is exceeded once in 1000).
    fn ks_distance(mut sample: Vec<f64>) -> f64 {
        sample.sort_unstable_by(f64::total_cmp);
        let n = sample.len() as f64;
        let off = sample.iter().enumerate().map(|(i, g)| {
            let cdf = (-(-g).exp()).exp();
            (cdf - i as f64 / n).abs().max((cdf - (i + 1) as f64 / n).abs())
        });
        off.fold(0.0, f64::max) * n.sqrt()
    }

    #[test]
    fn the_noise_of_a_token_is_standard_gumbel() {
        for token in [0, 17, 63, 64, 1000, 49_151] {
            let distance = ks_distance((0..20_000).map(|position| gumbel(&KEY, position, token)).collect());
            assert!(distance < 1.95, "token {token}: {distance}");
        }
        let across_tokens = ks_distance((0..49_152).map(|token| gumbel(&KEY, 3, token)).collect());
        assert!(across_tokens < 1.95, "{across_tokens}");
    }

    #[test]
    fn noise_is_uncorrelated_between_neighbours_of_every_kind() {
        let n = 20_000u32;
        let uniform = |g: f64| (-(-g).exp()).exp() - 0.5;
        let other_choice = NoiseKey { choice: 1, ..KEY };
        let other_seed = NoiseKey { seed: KEY.seed + 1, ..KEY };
        // For each kind the neighbour's key, how many positions later it is, and its token. The positions are even ones,
        // so that no two pairs share a draw.
        let neighbours = [
            ("token of a block", KEY, 0, 6),
            ("token of the next block", KEY, 0, 69),
            ("position", KEY, 1, 5),
            ("choice", other_choice, 0, 5),
            ("seed", other_seed, 0, 5),
        ];
        for (name, key, later, token) in neighbours {
            let pair = |i| uniform(gumbel(&KEY, 2 * i, 5)) * uniform(gumbel(&key, 2 * i + later, token));
            let sum: f64 = (0..n).map(pair).sum();
            // Uniforms have variance 1/12 each: this is a standard normal if they are independent.
            let z = 12.0 * sum / f64::from(n).sqrt();
            assert!(z.abs() < 3.5, "next {name}: {z}");
        }
    }

    #[test]
    fn every_token_of_a_block_owns_its_greatest_noise_equally_often() {
        let mut owned = [0u32; BLOCK];
        let positions = 64_000;
        for position in 0..positions {
            let block = BlockNoise::draw(&KEY, position, 2);
            owned[block.owner as usize] += 1;
            let token = 2 * BLOCK as u32 + position % BLOCK as u32;
            assert!(block.token(&KEY, position, token) <= block.greatest);
        }
        let expected = f64::from(positions) / BLOCK as f64;
        let chi: f64 = owned.iter().map(|&n| (f64::from(n) - expected).powi(2) / expected).sum();
        assert!(chi < 103.4, "chi-square {chi} of 63 degrees of freedom (103.4 is exceeded once in 1000)");
    }
}
