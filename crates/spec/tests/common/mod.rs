//! Exact laws: a function that takes coins is run once for every branch that its coins can take, and the probabilities
//! of its outputs are added up.

#![allow(dead_code)] // each test file uses what it needs

use std::collections::BTreeMap;

use spec::{Accepted, Coins, Distribution};

/// Tokens, and the probability of putting them out.
pub(crate) type Law = BTreeMap<Vec<u32>, f64>;

/// Coins that follow one branch and know its probability.
#[derive(Default)]
pub(crate) struct Script {
    /// The branch taken at each toss, and how many there were.
    tosses: Vec<(usize, usize)>,
    at: usize,
    probability: f64,
}

impl Script {
    fn toss(&mut self, branches: &[f64]) -> usize {
        assert!(!branches.is_empty());
        if self.at == self.tosses.len() {
            self.tosses.push((0, branches.len()));
        }
        let (branch, of) = self.tosses[self.at];
        assert_eq!(of, branches.len(), "what is enumerated must depend on its coins alone");
        self.at += 1;
        self.probability *= branches[branch];
        branch
    }

    /// The next branch that was not taken yet.
    fn advance(&mut self) -> bool {
        while let Some((branch, of)) = self.tosses.pop() {
            if branch + 1 < of {
                self.tosses.push((branch + 1, of));
                return true;
            }
        }
        false
    }
}

impl Coins for Script {
    fn accept(&mut self, probability: f64) -> bool {
        assert!((0.0..=1.0).contains(&probability), "{probability}");
        if probability == 0.0 || probability == 1.0 {
            return probability == 1.0;
        }
        self.toss(&[probability, 1.0 - probability]) == 0
    }

    fn draw(&mut self, distribution: &Distribution) -> u32 {
        let (tokens, probabilities): (Vec<u32>, Vec<f64>) = distribution.support().unzip();
        tokens[self.toss(&probabilities)]
    }
}

/// The exact law of what `run` puts out.
pub(crate) fn law(mut run: impl FnMut(&mut Script) -> Vec<u32>) -> Law {
    let mut law = Law::new();
    let mut script = Script::default();
    loop {
        script.at = 0;
        script.probability = 1.0;
        let output = run(&mut script);
        *law.entry(output).or_default() += script.probability;
        if !script.advance() {
            return law;
        }
    }
}

/// Half the sum of the differences of two laws.
pub(crate) fn total_variation(a: &Law, b: &Law) -> f64 {
    let missing = b.iter().filter(|(output, _)| !a.contains_key(*output)).map(|(_, p)| p);
    let shared = a.iter().map(|(output, p)| (p - b.get(output).copied().unwrap_or(0.0)).abs());
    0.5 * (shared.sum::<f64>() + missing.sum::<f64>())
}

/// A made-up model: to each context a distribution over a small vocabulary, some of whose tokens are impossible.
#[derive(Clone, Copy)]
pub(crate) struct Model {
    pub(crate) seed: u64,
    pub(crate) vocabulary: u32,
}

impl Model {
    pub(crate) fn after(&self, context: &[u32]) -> Distribution {
        let mut state = self.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03;
        let mut next = |word: u64| {
            state = (state ^ word).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            state ^= state >> 29;
            state
        };
        context.iter().for_each(|&token| _ = next(u64::from(token) + 1));
        let weights: Vec<u64> = (0..self.vocabulary).map(|_| (next(7) >> 20) % 7).collect();
        Distribution::dense(weights.into_iter().map(|weight| weight as f64))
            .unwrap_or_else(|_| Distribution::dense((0..self.vocabulary).map(|_| 1.0)).unwrap())
    }
}

/// The law of the target's next `length` tokens.
pub(crate) fn plain(target: &Model, length: usize) -> Law {
    law(|script| extend(target, Vec::new(), length, script))
}

/// `output` up to `length` tokens, which the target draws.
pub(crate) fn extend(target: &Model, mut output: Vec<u32>, length: usize, script: &mut Script) -> Vec<u32> {
    while output.len() < length {
        output.push(script.draw(&target.after(&output)));
    }
    output.truncate(length);
    output
}

/// The tokens that a step commits.
pub(crate) fn committed(tree: &spec::Tree, accepted: &Accepted) -> Vec<u32> {
    accepted.path.iter().map(|&node| tree.tokens()[node]).chain(accepted.next).collect()
}

/// The tokens of the drafts down to a node.
pub(crate) fn context(tree: &spec::Tree, node: usize) -> Vec<u32> {
    tree.path(node).into_iter().map(|node| tree.tokens()[node]).collect()
}

/// Fails unless the laws agree to 10⁻¹².
#[track_caller]
pub(crate) fn assert_same(found: &Law, expected: &Law) {
    for output in found.keys().chain(expected.keys()) {
        let [found, expected] = [found, expected].map(|law| law.get(output).copied().unwrap_or(0.0));
        assert!((found - expected).abs() < 1e-12, "{output:?} comes with {found}, not {expected}");
    }
}

/// The law of one token as a list, `[vocabulary]`.
pub(crate) fn marginal(law: &Law, vocabulary: usize) -> Vec<f64> {
    let mut marginal = vec![0.0; vocabulary];
    law.iter().for_each(|(output, p)| marginal[output[0] as usize] += p);
    marginal
}

/// Fails unless the lists agree to 10⁻¹².
#[track_caller]
pub(crate) fn assert_close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    let close = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12);
    assert!(close, "{found:?} is not {expected:?}");
}
