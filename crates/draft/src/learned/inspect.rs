//! A look at a checkpoint's tensors before they are loaded: layers that nobody here computes, and drafts that nobody trained.

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

/// Whether every norm of the learned drafter in a directory is exactly as training begins with it: it then was published
/// before it was trained, and drafts badly.
///
/// # Errors
/// When its files cannot be read.
pub fn is_untrained(dir: &Path) -> Result<bool, LearnedError> {
    let Some(format) = Format::read(dir)? else { return Ok(false) };
    let (weights, own) = (Weights::open_dir(dir)?, format.own_layers());
    // Qwen3-Next's norms are stored less 1.
    let is_next = matches!(format, Format::Feature(FeatureFormat { kind: FeatureKind::Next { .. }, .. }));
    let untouched = if is_next { 0.0 } else { 1.0 };
    let is_norm = |name: &&str| name.ends_with("norm.weight") && own.iter().any(|own| name.starts_with(own.as_str()));
    let mut norms = 0;
    for name in weights.names().into_iter().filter(is_norm) {
        let shape = weights.shape(name).unwrap_or_default();
        let values = weights.tensor(name, shape).and_then(|tensor| tensor.to_f32())?;
        if values.iter().any(|&value| value != untouched) {
            return Ok(false);
        }
        norms += 1;
    }
    Ok(norms > 0)
}
