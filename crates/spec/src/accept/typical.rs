//! Medusa's lossy rule.

use super::Accepted;
use crate::{Distribution, Tree};

/// The thresholds of [`typical`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Typical {
    /// ε: a draft of a probability above this is always accepted.
    pub epsilon: f64,
    /// δ: where the target's entropy is H, a draft of a probability above δ e^(−H) is accepted.
    pub delta: f64,
}

impl Default for Typical {
    /// The thresholds that Medusa's command line uses: ε = 0.09, δ = 0.3 = √ε (Cai et al. 2024, section 2.3.1).
    fn default() -> Typical {
        Typical { epsilon: 0.09, delta: 0.3 }
    }
}

impl Typical {
    /// Above which probability a token is accepted: min(ε, δ e^(−H)), with H = −Σ p ln(p + 10⁻⁵) as Medusa has it.
    pub fn threshold(&self, target: &Distribution) -> f64 {
        let entropy: f64 = -target.support().map(|(_, p)| p * (p + 1e-5).ln()).sum::<f64>();
        self.epsilon.min(self.delta * (-entropy).exp())
    }
}

/// Accepts the longest path of drafts that are typical of the target, of equally long ones the most probable and then the
/// first; the token after it is the target's most probable (Cai et al. 2024, section 2.3.1). **Not lossless**: the output
/// has another law than the target's. At temperature 0 it is plain greedy decoding.
///
/// `target(node)` is the law of the token after `node`, or None if the request ended with that node's token. It is asked
/// about the anchor and every node all of whose path is typical, parents first.
///
/// # Errors
///
/// What `target` fails with.
pub fn typical<E>(
    tree: &Tree,
    thresholds: &Typical,
    mut target: impl FnMut(usize) -> Result<Option<Distribution>, E>,
) -> Result<Accepted, E> {
    // The summed log-probability of each node whose path is typical.
    let mut reached: Vec<Option<f64>> = vec![None; tree.len()];
    reached[0] = Some(0.0);
    let mut best = (0, 0.0);
    let mut accepted = Accepted { path: Vec::new(), next: None };
    for node in 0..tree.len() {
        let Some(log_probability) = reached[node] else { continue };
        let law = target(node)?;
        let rank = (tree.depths()[node], log_probability);
        if node == 0 || rank > best {
            best = rank;
            accepted = Accepted { path: tree.path(node), next: law.as_ref().map(Distribution::most_probable) };
        }
        let Some(law) = law else { continue };
        let threshold = thresholds.threshold(&law);
        for child in tree.children(node) {
            let p = law.probability(tree.tokens()[child]);
            reached[child] = (p > threshold).then(|| log_probability + p.ln());
        }
    }
    Ok(accepted)
}
