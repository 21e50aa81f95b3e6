//! The processed row against references that follow the definitions in f64 and sort everything.

use std::collections::BTreeMap;

use engine::{History, SampleError, Sampler, SamplingParams, Scratch};
use proptest::prelude::*;

/// A row with many ties and a wide range, `[n]`.
fn rows() -> impl Strategy<Value = Vec<f32>> {
    let logit =
        prop_oneof![4 => -12.0f32..12.0, 3 => (-6i8..6).prop_map(|i| f32::from(i) * 0.5), 1 => Just(f32::NEG_INFINITY)];
    prop::collection::vec(logit, 1..400).prop_filter("some logit is finite", |row| row.iter().any(|x| x.is_finite()))
}

fn process(params: &SamplingParams, row: &[f32], history: &History) -> Vec<f32> {
    let sampler = Sampler::new(params.clone(), &[], 0);
    sampler.process(row, history, &mut Scratch::new()).unwrap().to_vec()
}

/// Tokens of the row that are not dropped, best first, lower id first if equal.
fn ranked(row: &[f32]) -> Vec<usize> {
    let mut tokens: Vec<usize> = (0..row.len()).filter(|&i| row[i] > f32::NEG_INFINITY).collect();
    tokens.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
    tokens
}

/// Probabilities in f64 of the kept tokens of a row of logits at a temperature.
fn softmax(row: &[f32], temperature: f32, kept: &[usize]) -> BTreeMap<usize, f64> {
    let greatest = kept.iter().map(|&i| row[i]).fold(f32::NEG_INFINITY, f32::max);
    let weight = |i: usize| ((f64::from(row[i]) - f64::from(greatest)) / f64::from(temperature)).exp();
    let total: f64 = kept.iter().map(|&i| weight(i)).sum();
    kept.iter().map(|&i| (i, weight(i) / total)).collect()
}

/// The definition of the shortest prefix of `order` that holds `p`. `None` if rounding could decide it either way.
fn prefix(order: &[usize], probability: &BTreeMap<usize, f64>, p: f32) -> Option<Vec<usize>> {
    let mut sum = 0.0;
    for (n, token) in order.iter().enumerate() {
        sum += probability[token];
        if (sum - f64::from(p)).abs() < 1e-6 {
            return None;
        }
        if sum > f64::from(p) {
            return Some(order[..=n].to_vec());
        }
    }
    Some(order.to_vec())
}

fn naive_truncation(params: &SamplingParams, row: &[f32]) -> Option<Vec<usize>> {
    let mut kept = ranked(row);
    let greatest = row[kept[0]];
    if params.min_p > 0.0 {
        let share = |i: usize| ((f64::from(row[i]) - f64::from(greatest)) / f64::from(params.temperature)).exp();
        if kept.iter().any(|&i| (share(i) / f64::from(params.min_p) - 1.0).abs() < 1e-5 && params.min_p < 1.0) {
            return None;
        }
        kept.retain(|&i| share(i) >= f64::from(params.min_p));
    }
    if params.top_k > 0 {
        kept.truncate(params.top_k);
    }
    if params.top_p < 1.0 {
        kept = prefix(&kept, &softmax(row, params.temperature, &kept), params.top_p)?;
    }
    if params.typical_p < 1.0 {
        let probability = softmax(row, params.temperature, &kept);
        let entropy: f64 = probability.values().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum();
        let distance = |i: &usize| (-probability[i].ln() - entropy).abs();
        kept.sort_by(|a, b| distance(a).total_cmp(&distance(b)).then(a.cmp(b)));
        // Distances that rounding could swap: equal logits are fine (their ids decide), near ones are not.
        let near =
            |pair: &[usize]| (distance(&pair[0]) - distance(&pair[1])).abs() < 1e-5 && row[pair[0]] != row[pair[1]];
        if kept.windows(2).any(near) {
            return None;
        }
        kept = prefix(&kept, &probability, params.typical_p)?;
    }
    kept.sort_unstable();
    Some(kept)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    #[test]
    fn truncation_keeps_what_the_definitions_keep(
        row in rows(),
        temperature in prop_oneof![Just(1.0f32), 0.2f32..3.0],
        top_k in prop_oneof![Just(0usize), 1usize..12, 1usize..500],
        top_p in prop_oneof![Just(1.0f32), 0.01f32..0.999],
        min_p in prop_oneof![2 => Just(0.0f32), 1 => 0.001f32..0.5, 1 => Just(1.0f32)],
        typical_p in prop_oneof![2 => Just(1.0f32), 1 => 0.05f32..0.99],
    ) {
        let params = SamplingParams { temperature, top_k, top_p, min_p, typical_p, ..Default::default() };
        if let Some(want) = naive_truncation(&params, &row) {
            let processed = process(&params, &row, &History::default());
            let kept: Vec<usize> = (0..row.len()).filter(|&i| processed[i] > f32::NEG_INFINITY).collect();
            prop_assert_eq!(&kept, &want);
            let greatest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            for i in kept {
                prop_assert_eq!(processed[i], (row[i] - greatest) / temperature);
            }
        }
    }

    #[test]
    fn penalties_and_bias_follow_their_formulas(
        row in prop::collection::vec(-8.0f32..8.0, 20),
        prompt in prop::collection::vec(0u32..25, 0..10),
        outputs in prop::collection::vec(0u32..25, 0..10),
        repetition in prop_oneof![Just(1.0f32), 0.5f32..2.0],
        presence in prop_oneof![Just(0.0f32), -2.0f32..2.0],
        frequency in prop_oneof![Just(0.0f32), -2.0f32..2.0],
        bias in prop::collection::btree_map(0u32..20, -5.0f32..5.0, 0..4),
    ) {
        let mut history = History::new(&prompt);
        outputs.iter().for_each(|&token| history.push(token));
        let params = SamplingParams {
            repetition_penalty: repetition,
            presence_penalty: presence,
            frequency_penalty: frequency,
            logit_bias: bias.clone(),
            ..Default::default()
        };
        let processed = process(&params, &row, &history);
        for token in 0..20u32 {
            let mut want = f64::from(row[token as usize]);
            let count = outputs.iter().filter(|&&t| t == token).count();
            if count > 0 || prompt.contains(&token) {
                let factor = f64::from(repetition);
                want = if want > 0.0 { want / factor } else { want * factor };
            }
            want -= f64::from(frequency) * count as f64;
            want -= if count > 0 { f64::from(presence) } else { 0.0 };
            want += f64::from(bias.get(&token).copied().unwrap_or(0.0));
            prop_assert!((f64::from(processed[token as usize]) - want).abs() < 1e-4);
        }
    }
}

#[test]
fn a_reused_scratch_gives_the_bits_of_a_fresh_one() {
    let mut scratch = Scratch::new();
    for n in [700usize, 3, 130, 64, 1] {
        let row: Vec<f32> = (0..n).map(|i| ((i * 7919) % 97) as f32 * 0.11).collect();
        for (top_k, top_p) in [(0, 1.0), (5, 1.0), (0, 0.8), (40, 0.9)] {
            let params = SamplingParams { temperature: 0.7, top_k, top_p, ..Default::default() };
            let fresh = process(&params, &row, &History::default());
            let sampler = Sampler::new(params, &[], 0);
            assert_eq!(sampler.process(&row, &History::default(), &mut scratch).unwrap(), fresh);
        }
    }
}

#[test]
fn ties_at_the_edge_of_top_k_go_to_the_lower_ids() {
    let params = SamplingParams { temperature: 1.0, top_k: 3, ..Default::default() };
    let processed = process(&params, &[1.0, 5.0, 1.0, 1.0, 1.0], &History::default());
    let kept: Vec<bool> = processed.iter().map(|z| z.is_finite()).collect();
    assert_eq!(kept, [true, true, true, false, false]);
}

#[test]
fn top_p_that_is_reached_exactly_stops_there() {
    let params = SamplingParams { temperature: 1.0, top_p: 0.5, ..Default::default() };
    let processed = process(&params, &[2.0; 4], &History::default());
    assert_eq!(processed, [0.0, 0.0, f32::NEG_INFINITY, f32::NEG_INFINITY]);
}

#[test]
fn top_p_over_a_large_flat_vocabulary_keeps_its_share() {
    let row = vec![0.0; 49_152];
    let params = SamplingParams { temperature: 1.0, top_p: 0.75, ..Default::default() };
    let kept = process(&params, &row, &History::default()).iter().filter(|z| z.is_finite()).count();
    assert_eq!(kept, 36_864);
}

#[test]
fn end_tokens_are_banned_until_min_tokens_are_out() {
    let params = SamplingParams { min_tokens: 2, stop_tokens: vec![1], ..Default::default() };
    let sampler = Sampler::new(params.clone(), &[3], 0);
    let row = [0.0, 9.0, 1.0, 8.0];
    let (mut history, mut scratch) = (History::default(), Scratch::new());
    for expected in [2, 2, 1] {
        let token = sampler.sample(&row, &history, history.outputs().len() as u32, &mut scratch).unwrap().token;
        assert_eq!(token, expected);
        history.push(token);
    }
    // A token that does not end the request need not be banned.
    let ignoring = Sampler::new(SamplingParams { ignore_eos: true, ..params }, &[3], 0);
    assert_eq!(ignoring.sample(&row, &History::default(), 0, &mut scratch).unwrap().token, 3);
}

#[test]
fn a_row_without_a_usable_logit_is_an_error_for_every_sampler() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let mut long = vec![0.0; 200];
    long[130] = nan;
    for (row, token) in [(vec![0.0, nan, 1.0], 1), (vec![0.0, 2.0, inf], 2), (long, 130)] {
        for temperature in [0.0, 1.0] {
            for (min_tokens, logprobs) in [(0, None), (1, None), (0, Some(1))] {
                let params = SamplingParams { temperature, min_tokens, logprobs, ..Default::default() };
                let sampler = Sampler::new(params, &[1, 2, 130], 0);
                match sampler.sample(&row, &History::default(), 0, &mut Scratch::new()) {
                    Err(SampleError::NotFinite { token: found, .. }) => {
                        // The first of them; a banned +∞ or NaN is found too.
                        assert_eq!(found, token);
                    }
                    other => panic!("{row:?}: {other:?}"),
                }
            }
        }
    }
    let banned = Sampler::new(SamplingParams { min_tokens: 1, ..Default::default() }, &[0, 1], 0);
    for (sampler, row) in [
        (&banned, vec![0.0, 1.0]),
        (&Sampler::new(SamplingParams::default(), &[], 0), vec![f32::NEG_INFINITY; 70]),
        (&Sampler::new(SamplingParams::default(), &[], 0), vec![]),
    ] {
        let sampled = sampler.sample(&row, &History::default(), 0, &mut Scratch::new());
        assert_eq!(sampled, Err(SampleError::NoToken { vocab: row.len() }));
    }
}
