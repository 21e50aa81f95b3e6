//! A look at a checkpoint's tensors before they are loaded: layers that nobody here computes.

use std::path::Path;

use model::weights::Weights;

use super::LearnedError;
use super::format::{FeatureFormat, FeatureKind, Format};

impl Format {
    /// What the names of the draft's own layers begin with, where they lie among those of its target.
    fn own_layers(&self) -> Vec<String> {
        match self {
            Format::Feature(FeatureFormat { kind: FeatureKind::Modules { first, modules }, .. }) => {
                (*first..first + modules).map(|layer| format!("model.layers.{layer}.")).collect()
            }
            Format::Feature(FeatureFormat { kind: FeatureKind::Next { .. }, .. }) => vec!["mtp.".into()],
            _ => vec![String::new()],
        }
    }

    /// Refuses layers of other kinds than Llama's by what they are, before their tensors are missed one by one.
    pub(super) fn check_layers(&self, dir: &Path, weights: &Weights) -> Result<(), LearnedError> {
        let own = self.own_layers();
        for name in weights.names().into_iter().filter(|name| own.iter().any(|own| name.starts_with(own.as_str()))) {
            let what = match name {
                _ if name.contains(".mlp.experts.") || name.contains(".mlp.gate.") => "a mixture of experts",
                _ if name.contains(".kv_a_proj_with_mqa.") || name.contains(".kv_b_proj.") => "latent attention (MLA)",
                _ if is_gated(weights, name) => "gated attention",
                _ => continue,
            };
            let (dir, tensor) = (dir.display().to_string(), name.to_owned());
            return Err(LearnedError::Unsupported { dir, what, tensor });
        }
        Ok(())
    }
}

/// Whether a tensor makes queries with a gate beside each: twice as many numbers as the output projection takes.
fn is_gated(weights: &Weights, name: &str) -> bool {
    let Some(attention) = name.strip_suffix("q_proj.weight") else { return false };
    match (weights.shape(name), weights.shape(&format!("{attention}o_proj.weight"))) {
        (Some([queries, _]), Some([_, inputs])) => *queries == 2 * inputs,
        _ => false,
    }
}
