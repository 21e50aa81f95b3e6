//! The law of the sampled token, and what it may depend on.

use engine::{History, NoiseKey, Sampled, Sampler, SamplingParams, Scratch, gumbel};
use proptest::prelude::*;

fn sample(params: &SamplingParams, row: &[f32], position: u32, scratch: &mut Scratch) -> Sampled {
    Sampler::new(params.clone(), &[], 0).sample(row, &History::default(), position, scratch).unwrap()
}

/// The definition: the greatest sum of processed logit and noise over all tokens, the lower id if equal.
fn naive_draw(processed: &[f32], key: &NoiseKey, position: u32) -> u32 {
    let mut best = (f64::NEG_INFINITY, 0);
    for (token, &z) in (0u32..).zip(processed) {
        let score = f64::from(z) + gumbel(key, position, token);
        if score > best.0 {
            best = (score, token);
        }
    }
    best.1
}

/// Chi-square of counts against probabilities, and its degrees of freedom; cells below 5 expected are merged.
fn chi_square(counts: &[u64], probabilities: &[f64]) -> (f64, f64) {
    let total = counts.iter().sum::<u64>() as f64;
    let (mut chi, mut cells, mut rest) = (0.0, 0.0, (0.0, 0.0));
    let mut add = |observed: f64, expected: f64| {
        chi += (observed - expected).powi(2) / expected;
        cells += 1.0;
    };
    for (&count, &p) in counts.iter().zip(probabilities) {
        if p * total < 5.0 {
            rest = (rest.0 + count as f64, rest.1 + p * total);
        } else {
            add(count as f64, p * total);
        }
    }
    if rest.1 > 1.0 {
        add(rest.0, rest.1);
    } else {
        assert!(rest.0 < 12.0, "tokens expected {} times came {} times", rest.1, rest.0);
    }
    (chi, cells - 1.0)
}

/// Whether a chi-square value is within 3.5 standard deviations (Wilson and Hilferty's cube root is nearly normal).
fn plausible((chi, freedom): (f64, f64)) -> bool {
    let spread = 2.0 / (9.0 * freedom);
    ((chi / freedom).cbrt() - (1.0 - spread)) / spread.sqrt() < 3.5
}

fn softmax(row: &[f32], temperature: f64) -> Vec<f64> {
    let weights: Vec<f64> = row.iter().map(|&x| (f64::from(x) / temperature).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|w| w / total).collect()
}

/// A row of several blocks with a few likely tokens, so that the block bound has work to do.
fn peaked_row(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + 13) % 101) as f32 * 0.06 + if i % 67 == 3 { 2.0 } else { 0.0 }).collect()
}

#[test]
fn tokens_follow_the_softmax_over_positions_and_over_seeds() {
    for (n, temperature) in [(2usize, 1.0f32), (7, 0.6), (64, 1.0), (150, 1.3), (1000, 0.8)] {
        let row = peaked_row(n);
        let probabilities = softmax(&row, f64::from(temperature));
        let mut scratch = Scratch::new();
        let mut over_positions = vec![0; n];
        let mut over_seeds = vec![0; n];
        for i in 0..20_000u32 {
            let params = SamplingParams { temperature, seed: 11, ..Default::default() };
            over_positions[sample(&params, &row, i, &mut scratch).token as usize] += 1;
            let params = SamplingParams { seed: u64::from(i) << 20, ..params };
            over_seeds[sample(&params, &row, 5, &mut scratch).token as usize] += 1;
        }
        for counts in [over_positions, over_seeds] {
            let chi = chi_square(&counts, &probabilities);
            assert!(plausible(chi), "{n} tokens at {temperature}: {chi:?}");
        }
    }
}

/// The test above must be able to fail: three ways of getting the noise wrong.
#[test]
fn wrong_noise_is_found_out() {
    let row = peaked_row(150);
    let probabilities = softmax(&row, 1.0);
    let key = NoiseKey { seed: 11, choice: 0 };
    let law_of = |noise: &dyn Fn(u32, u32) -> f64| {
        let mut counts = vec![0; row.len()];
        for position in 0..20_000 {
            let score = |token: usize| f64::from(row[token]) + noise(position, token as u32);
            let best = (0..row.len()).max_by(|&a, &b| score(a).total_cmp(&score(b)));
            counts[best.unwrap_or(0)] += 1;
        }
        chi_square(&counts, &probabilities)
    };
    assert!(plausible(law_of(&|position, token| gumbel(&key, position, token))));
    let shared_by_neighbours = law_of(&|position, token| gumbel(&key, position, token / 8));
    assert!(!plausible(shared_by_neighbours), "{shared_by_neighbours:?}");
    let the_same_for_all = law_of(&|position, _| gumbel(&key, position, 0));
    assert!(!plausible(the_same_for_all), "{the_same_for_all:?}");
    let too_narrow = law_of(&|position, token| 0.9 * gumbel(&key, position, token));
    assert!(!plausible(too_narrow), "{too_narrow:?}");
}

#[test]
fn two_positions_draw_independently() {
    let row = [0.3, 0.0, -0.5];
    let p = softmax(&row, 1.0);
    let joint: Vec<f64> = p.iter().flat_map(|a| p.iter().map(move |b| a * b)).collect();
    let mut counts = vec![0; 9];
    let mut scratch = Scratch::new();
    for seed in 0..30_000 {
        let params = SamplingParams { temperature: 1.0, seed, ..Default::default() };
        let first = sample(&params, &row, 8, &mut scratch).token;
        let second = sample(&params, &row, 9, &mut scratch).token;
        counts[(first * 3 + second) as usize] += 1;
    }
    let chi = chi_square(&counts, &joint);
    assert!(plausible(chi), "{chi:?}");
}

#[test]
fn choices_of_one_request_draw_independently() {
    let row = peaked_row(10);
    let params = SamplingParams { temperature: 1.0, seed: 3, ..Default::default() };
    let (first, second) = (Sampler::new(params.clone(), &[], 0), Sampler::new(params, &[], 1));
    let p = softmax(&row, 1.0);
    let joint: Vec<f64> = p.iter().flat_map(|a| p.iter().map(move |b| a * b)).collect();
    let mut counts = vec![0; 100];
    let (mut scratch, history) = (Scratch::new(), History::default());
    for position in 0..30_000 {
        let a = first.sample(&row, &history, position, &mut scratch).unwrap().token;
        let b = second.sample(&row, &history, position, &mut scratch).unwrap().token;
        counts[(a * 10 + b) as usize] += 1;
    }
    let chi = chi_square(&counts, &joint);
    assert!(plausible(chi), "{chi:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn leaving_out_tokens_that_cannot_win_changes_nothing(
        row in prop::collection::vec(prop_oneof![3 => -20.0f32..20.0, 1 => Just(0.0f32), 1 => Just(f32::NEG_INFINITY)], 1..400),
        temperature in 0.05f32..2.0,
        top_k in prop_oneof![Just(0usize), 1usize..50],
        top_p in prop_oneof![Just(1.0f32), 0.2f32..1.0],
        seed: u64,
        choice in 0u32..3,
        position: u32,
    ) {
        prop_assume!(row.iter().any(|x| x.is_finite()));
        let params = SamplingParams { temperature, top_k, top_p, seed, ..Default::default() };
        let sampler = Sampler::new(params, &[], choice);
        let (history, mut scratch) = (History::default(), Scratch::new());
        let processed = sampler.process(&row, &history, &mut scratch).unwrap().to_vec();
        let want = naive_draw(&processed, &sampler.noise_key(), position);
        prop_assert_eq!(sampler.sample(&row, &history, position, &mut scratch).unwrap().token, want);
    }

    #[test]
    fn greedy_is_the_lowest_of_the_greatest(row in prop::collection::vec((-4i8..4).prop_map(f32::from), 1..300)) {
        let greatest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let want = row.iter().position(|&x| x == greatest).unwrap() as u32;
        let mut scratch = Scratch::new();
        prop_assert_eq!(sample(&SamplingParams::default(), &row, 0, &mut scratch).token, want);
        // Whatever the seed, and by the long way round as well.
        let biased = SamplingParams { seed: 9, logit_bias: [(0, 0.0)].into(), ..Default::default() };
        prop_assert_eq!(sample(&biased, &row, 7, &mut scratch).token, want);
    }

    #[test]
    fn logprobs_are_those_of_the_raw_row(
        row in prop::collection::vec(prop_oneof![-30.0f32..30.0, (-3i8..3).prop_map(f32::from)], 1..300),
        n in 0usize..8,
        temperature in prop_oneof![Just(0.0f32), 0.3f32..2.0],
        seed: u64,
    ) {
        let params = SamplingParams {
            temperature,
            seed,
            top_k: 10,
            logit_bias: [(0, 3.0)].into(),
            logprobs: Some(n),
            ..Default::default()
        };
        let sampled = sample(&params, &row, 0, &mut Scratch::new());
        let greatest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|&x| (f64::from(x) - f64::from(greatest)).exp()).sum();
        let logprob = |token: u32| f64::from(row[token as usize]) - f64::from(greatest) - sum.ln();
        prop_assert!((f64::from(sampled.logprob.unwrap()) - logprob(sampled.token)).abs() < 1e-5);
        let mut order: Vec<u32> = (0..row.len() as u32).collect();
        order.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]).then(a.cmp(&b)));
        order.truncate(n);
        prop_assert_eq!(sampled.top.iter().map(|&(token, _)| token).collect::<Vec<_>>(), order);
        for &(token, reported) in &sampled.top {
            prop_assert!((f64::from(reported) - logprob(token)).abs() < 1e-5);
        }
    }
}

#[test]
fn every_positive_temperature_works() {
    let row = [1.0, 3.0, 2.0];
    let mut scratch = Scratch::new();
    for temperature in [f32::from_bits(1), f32::MIN_POSITIVE, 1e-6, 1e6, f32::MAX] {
        let params = SamplingParams { temperature, ..Default::default() };
        params.validate(3).unwrap();
        let token = sample(&params, &row, 0, &mut scratch).token;
        assert!(temperature > 1.0 || token == 1);
    }
}

#[test]
fn only_asked_for_logprobs_are_reported() {
    let sampled = sample(&SamplingParams::default(), &[0.0, 1.0], 0, &mut Scratch::new());
    assert_eq!(sampled, Sampled { token: 1, logprob: None, top: vec![] });
}
