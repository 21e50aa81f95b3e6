//! The acceptance rules through the whole engine: `ratio` gives the target's law and `typical` and `ratio` give its greedy
//! text at temperature 0.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use draft::{Ask, DraftError, Drafter, Key, Round, Silence};
use engine::batch::{Check, Speculation};
use engine::{Drafting, Engine, EngineOptions, Generation, SamplingParams};
use spec::{CostCurve, Distribution, Drawn, Proposal, Rule, Typical};
use testkit::{byte_tokenizer, tiny_llama};

const PROMPT: [u32; 8] = [10, 200, 31, 7, 99, 150, 42, 5];

/// The only tokens that a biased request says.
const SAID: [u32; 4] = [65, 66, 67, 68];

/// Draws from logits of its own, which have little to do with the target's.
struct Sketchy {
    /// Siblings below the anchor, each the beginning of a path.
    siblings: usize,
    /// Hands in another law than the one that it draws from.
    lies: bool,
}

impl Sketchy {
    fn logits(depth: usize) -> Vec<f32> {
        let mut logits = vec![-5.0; 256];
        for (i, &token) in SAID.iter().enumerate() {
            logits[token as usize] = [1.5, 0.0, 1.0, -1.0][(i + depth) % 4];
        }
        logits
    }

    fn tree(&self, ask: &Ask<'_>) -> Proposal {
        let mut proposal = Proposal::new(ask.anchor());
        for _ in 0..self.siblings {
            let (mut parent, mut drafts) = (0, Vec::new());
            for depth in 0..ask.max_drafts.min(3) {
                let chosen = ask.choose.choose(&drafts, &Self::logits(depth)).unwrap();
                assert_eq!(chosen.law.is_some(), ask.choose.draws());
                parent = match chosen.law {
                    None => proposal.add_point(parent, chosen.token, 0.999).unwrap(),
                    Some(law) => {
                        let said = SAID.map(|token| (token, 1.0));
                        let law = if self.lies { Distribution::sparse(said).unwrap() } else { law };
                        let drawn = Drawn::Independently;
                        proposal.add_drawn(parent, law, drawn, &[chosen.token], &[0.999]).unwrap()[0]
                    }
                };
                drafts.push(chosen.token);
            }
        }
        proposal
    }
}

impl Drafter for Sketchy {
    fn name(&self) -> &'static str {
        "sketchy"
    }

    fn propose(&mut self, _: &mut Round<'_>, asks: &[Ask<'_>]) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
        Ok(asks.iter().map(|ask| Ok(self.tree(ask))).collect())
    }

    fn finished(&mut self, _: Key, _: &[u32], _: usize) {}
}

fn engine(drafter: Option<Sketchy>) -> Engine {
    let (model, pool) = tiny_llama(1);
    let speculation = drafter.map(|drafter| {
        let curve = CostCurve::new(&[1, 128], &[0], &[1.0, 1.0]).unwrap();
        Speculation { check: Check::All, ..Speculation::new(Box::new(drafter), 8, curve) }
    });
    Engine::new(model, byte_tokenizer(), pool, EngineOptions::default(), speculation)
}

fn generate(engine: &mut Engine, prompt: &[u32], params: SamplingParams, rule: Rule) -> (Vec<u32>, Generation) {
    let mut tokens = Vec::new();
    let drafting = Drafting { rule, ..Drafting::default() };
    let generation = engine.generate(prompt, params, &drafting, |delta| {
        tokens.push(delta.token);
        ControlFlow::Continue(())
    });
    (tokens, generation.unwrap())
}

fn biased(seed: u64, max_tokens: usize) -> SamplingParams {
    let logit_bias: BTreeMap<u32, f32> = SAID.iter().map(|&token| (token, 60.0)).collect();
    SamplingParams { temperature: 0.8, seed, max_tokens: Some(max_tokens), logit_bias, ..Default::default() }
}

/// Tokens of the texts whose law is compared.
const LENGTH: usize = 4;

/// The probability of every text, from the log-probabilities that plain decoding reports.
fn exact_law(engine: &mut Engine) -> BTreeMap<Vec<u32>, f64> {
    let mut law = BTreeMap::from([(Vec::new(), 1.0)]);
    for _ in 0..LENGTH {
        let mut longer = BTreeMap::new();
        for (text, p) in law {
            let prompt = [&PROMPT[..], &text].concat();
            let params = SamplingParams { logprobs: Some(256), max_tokens: Some(1), ..Default::default() };
            let mut weights = [0.0; SAID.len()];
            let report = |delta: &engine::Delta| {
                for &(token, logprob) in &delta.top {
                    if let Some(place) = SAID.iter().position(|&said| said == token) {
                        weights[place] = (f64::from(logprob) / 0.8).exp();
                    }
                }
                ControlFlow::Continue(())
            };
            engine.generate(&prompt, params, &Drafting::default(), report).unwrap();
            let sum: f64 = weights.iter().sum();
            for (&token, weight) in SAID.iter().zip(weights) {
                longer.insert([&text[..], &[token]].concat(), p * weight / sum);
            }
        }
        law = longer;
    }
    law
}

/// Pearson's chi-square of texts of many seeds against their law. 255 degrees of freedom at most.
fn chi_square(drafter: Sketchy, law: &BTreeMap<Vec<u32>, f64>) -> f64 {
    let mut engine = engine(Some(drafter));
    let seeds = 8_000;
    let mut seen: BTreeMap<Vec<u32>, f64> = BTreeMap::new();
    let mut drafted = 0;
    for seed in 0..seeds {
        let (text, generation) = generate(&mut engine, &PROMPT, biased(seed, LENGTH), Rule::Ratio);
        drafted += generation.usage.accepted_tokens;
        *seen.entry(text).or_default() += 1.0;
    }
    assert!(drafted > seeds as usize / 4, "{drafted} drafts accepted: too few to prove anything");
    assert!(seen.keys().all(|text| law.contains_key(text)));
    let counts = law.iter().map(|(text, p)| (p * seeds as f64, seen.get(text).copied().unwrap_or(0.0)));
    // Rare texts are counted together, as the approximation asks for.
    let (common, rare): (Vec<_>, Vec<_>) = counts.partition(|&(expected, _)| expected >= 5.0);
    let rare = rare.into_iter().fold((0.0, 0.0), |sum, next| (sum.0 + next.0, sum.1 + next.1));
    let off = |(expected, seen): (f64, f64)| (seen - expected).powi(2) / expected;
    common.into_iter().chain([rare].into_iter().filter(|rare| rare.0 > 0.0)).map(off).sum()
}

/// Exceeded once in a million times by 255 degrees of freedom.
const BOUND: f64 = 378.0;

#[test]
fn ratio_gives_the_law_of_the_target_for_chains_and_trees_and_a_liar_is_caught() {
    let law = exact_law(&mut engine(None));
    assert!((law.values().sum::<f64>() - 1.0).abs() < 1e-9);
    for siblings in [1, 2] {
        let off = chi_square(Sketchy { siblings, lies: false }, &law);
        assert!(off < BOUND, "{siblings} siblings: chi-square {off}");
    }
    let off = chi_square(Sketchy { siblings: 1, lies: true }, &law);
    assert!(off > BOUND, "a drafter that draws from another law than it says: chi-square {off}");
}

#[test]
fn at_temperature_0_every_rule_gives_the_greedy_text() {
    let params = SamplingParams { temperature: 0.0, ..biased(0, 40) };
    let (want, _) = generate(&mut engine(None), &PROMPT, params.clone(), Rule::Keyed);
    for rule in [Rule::Keyed, Rule::Ratio, Rule::Typical(Typical::default())] {
        let mut engine = engine(Some(Sketchy { siblings: 2, lies: false }));
        let (got, generation) = generate(&mut engine, &PROMPT, params.clone(), rule);
        assert_eq!(got, want, "{rule}");
        assert!(generation.usage.drafted_tokens > 0, "{rule}");
    }
}

#[test]
fn penalties_stops_and_limits_hold_inside_a_block_under_every_rule() {
    for rule in [Rule::Keyed, Rule::Ratio, Rule::Typical(Typical::default())] {
        for max_tokens in 1..8 {
            let mut engine = engine(Some(Sketchy { siblings: 1, lies: false }));
            let params = SamplingParams { presence_penalty: 1.5, logprobs: Some(2), ..biased(3, max_tokens) };
            let (tokens, Generation { usage, .. }) = generate(&mut engine, &PROMPT, params, rule);
            assert_eq!((tokens.len(), usage.output_tokens), (max_tokens, max_tokens), "{rule}");
            assert!(usage.accepted_tokens <= usage.drafted_tokens && usage.drafted_tokens < max_tokens.max(1) * 3);
            let stats = engine.stats();
            assert_eq!(stats.drafts.accepted, usage.accepted_tokens as u64, "{rule}");
            assert_eq!(stats.drafts.checked, usage.drafted_tokens as u64, "{rule}");
            assert_eq!((stats.running, stats.kv_pages_used), (0, 0));
        }
        let mut engine = engine(Some(Sketchy { siblings: 1, lies: false }));
        let params = SamplingParams { stop_tokens: SAID.to_vec(), ..biased(9, 20) };
        let (tokens, generation) = generate(&mut engine, &PROMPT, params, rule);
        assert_eq!((tokens.len(), generation.usage.accepted_tokens), (1, 0), "{rule}: the first token ends it");
    }
}

#[test]
fn under_ratio_the_same_request_is_answered_alike() {
    let answers = [0, 1].map(|_| {
        let mut engine = engine(Some(Sketchy { siblings: 1, lies: false }));
        generate(&mut engine, &PROMPT, biased(11, 60), Rule::Ratio).0
    });
    assert_eq!(answers[0], answers[1]);
}
