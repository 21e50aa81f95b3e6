//! Models that draft for the model: a smaller one, or the model itself without some of its layers.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result};
use cli::load::{self, Loaded};
use draft::{DraftModel, DraftModelOptions, Drafter};
use model::source::{Kind, Located};
use model::{LoadOptions, Model};

use crate::cost_cache::{self, Measured};
use crate::draft::{Allowance, DraftQuant};

/// Tokens of prompts that a draft model reads in one step at most, beside the newest few of each request.
const READ_AHEAD: usize = 256;

/// Chance of standing below which a chain of drafts is not continued, whatever a draft costs.
const MIN_SURVIVAL: f64 = 0.05;

impl Allowance {
    /// A drafter that is another model, or was trained for the target, of this name.
    ///
    /// # Errors
    /// When the model cannot be had, read or run here, or has another tokenizer than the target.
    pub(crate) fn other(self, name: &str, target: &Loaded) -> Result<Box<dyn Drafter>> {
        if let Some(dir) = learned_draft(name)? {
            return self.learned(&dir, name, target);
        }
        let draft = load_draft(name, target)?;
        let measured = Measured { name: &draft.name, bytes_on_disk: draft.bytes_on_disk, model: &draft.model };
        self.drafter("model", measured, target)
    }

    /// The drafter in a directory, which was trained for the target; `name` is what it is called in messages.
    ///
    /// # Errors
    /// When it cannot be read, or was trained for another target.
    pub(crate) fn learned(self, dir: &Path, name: &str, target: &Loaded) -> Result<Box<dyn Drafter>> {
        let (model, vocab) = (&target.model, target.model.config().vocab.min(target.tokenizer.vocab_size()));
        let drafts_for = draft::Target { model, vocab, kv_format: target.kv_format };
        let quantise = self.draft_quant == DraftQuant::Q8_0;
        let options = LoadOptions { isa: target.isa, compute: target.compute, quantise };
        let context = || format!("cannot draft with {name}");
        let drafter = draft::load_learned(dir, drafts_for, &target.pool, options).with_context(context)?;
        if draft::is_untrained(dir).with_context(context)? {
            eprintln!("warning: every norm of {name} is as training begins with it: the drafter looks untrained");
        }
        Ok(drafter)
    }

    /// A drafter that is the target without some of its layers.
    ///
    /// # Errors
    /// When the target does not have these layers, or no others.
    pub(crate) fn without_layers(self, skipped: &SkipSet, target: &Loaded) -> Result<Box<dyn Drafter>> {
        let layers = skipped.layers(target.model.config().layers);
        let model =
            target.model.without_layers(&layers).with_context(|| format!("cannot draft with {}", target.name))?;
        let name = format!("{} without layers {}", target.name, SkipSet::Layers(layers));
        let measured = Measured { name: &name, bytes_on_disk: target.bytes_on_disk, model: &Arc::new(model) };
        self.drafter("skip", measured, target)
    }

    fn drafter(self, name: &'static str, draft: Measured<'_>, target: &Loaded) -> Result<Box<dyn Drafter>> {
        let curve = cost_cache::curve(draft, target, self.measure_costs)?;
        let drafter = DraftModel::new(Arc::clone(draft.model), curve, self.options(name, draft.model, target));
        Ok(Box::new(drafter))
    }

    fn options(self, name: &'static str, draft: &Model, target: &Loaded) -> DraftModelOptions {
        let page = draft.kv_layout(target.kv_format).bytes_per_page();
        DraftModelOptions {
            name,
            vocab: target.model.config().vocab.min(target.tokenizer.vocab_size()),
            kv_format: target.kv_format,
            pages: ((self.draft_kv_memory as usize) << 20) / page,
            read_ahead: READ_AHEAD,
            min_survival: MIN_SURVIVAL,
        }
    }
}

/// A model that is to draft for another one.
struct LoadedDraft {
    /// What it is called.
    name: String,
    /// Size of its weight files.
    bytes_on_disk: u64,
    model: Arc<Model>,
}

/// Finds or fetches the model `name`, and loads it to draft for `target`, on its threads.
///
/// # Errors
/// When the model cannot be had, read or run here, or when its tokens are not the target's: that is known before its
/// weights are read.
fn load_draft(name: &str, target: &Loaded) -> Result<LoadedDraft> {
    let Located { kind, name } = load::locate(Some(name))?;
    let context = || format!("cannot draft with {name}");
    let (weights, config, tokenizer, _) = load::open(&kind, false).with_context(context)?;
    tokenizer.check_vocab(config.vocab).with_context(context)?;
    tokenizer.check_drafts_for(&target.tokenizer).with_context(context)?;
    let options = LoadOptions { isa: target.isa, compute: target.compute, quantise: false };
    let model = Model::load(&weights, config, &target.pool, options).with_context(context)?;
    Ok(LoadedDraft { bytes_on_disk: weights.bytes_on_disk(), model: Arc::new(model), name })
}

/// The directory of a drafter that was trained for a target, if this is one and no model of its own. It is fetched if it
/// must be.
///
/// # Errors
/// When the name names nothing, or it cannot be fetched or read.
pub(crate) fn learned_draft(name: &str) -> Result<Option<PathBuf>> {
    let Located { kind, name } = load::locate(Some(name))?;
    let Kind::Directory(dir) = kind else { return Ok(None) };
    let learned = draft::is_learned(&dir).with_context(|| format!("cannot draft with {name}"))?;
    Ok(learned.then_some(dir))
}

/// The layers that a model leaves out when it drafts for itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SkipSet {
    /// Every other layer of the middle half.
    Middle,
    /// These, in ascending order.
    Layers(Vec<usize>),
}

impl SkipSet {
    /// The layers to skip of a model of `layers` layers.
    pub(crate) fn layers(&self, layers: usize) -> Vec<usize> {
        match self {
            SkipSet::Middle => (layers / 4..layers - layers / 4).skip(1).step_by(2).collect(),
            SkipSet::Layers(skipped) => skipped.clone(),
        }
    }
}

impl FromStr for SkipSet {
    type Err = String;

    /// Layers and ranges of layers, with commas or colons between: `3,5,8-11`. Nothing: the middle.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(SkipSet::Middle);
        }
        let mut layers = Vec::new();
        for part in text.split([',', ':']) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.trim().parse::<u16>().map(usize::from);
            match (number(first), number(last)) {
                (Ok(first), Ok(last)) if first <= last => layers.extend(first..=last),
                _ => return Err(format!("{part:?} is neither a layer nor a range of layers such as 8-11")),
            }
        }
        layers.sort_unstable();
        layers.dedup();
        Ok(SkipSet::Layers(layers))
    }
}

impl fmt::Display for SkipSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SkipSet::Layers(layers) = self else { return Ok(()) };
        for (i, run) in layers.chunk_by(|a, b| a + 1 == *b).enumerate() {
            f.write_str(if i == 0 { "" } else { "," })?;
            match (run, run[0], run[run.len() - 1]) {
                ([_], first, _) => write!(f, "{first}")?,
                ([_, _], first, last) => write!(f, "{first},{last}")?,
                (_, first, last) => write!(f, "{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skip_sets_are_written_as_they_are_read() {
        for (text, layers, written) in [
            ("3", vec![3], "3"),
            ("7,3,5", vec![3, 5, 7], "3,5,7"),
            ("3:5:8-11", vec![3, 5, 8, 9, 10, 11], "3,5,8-11"),
            ("4,5,4-5", vec![4, 5], "4,5"),
        ] {
            let set: SkipSet = text.parse().unwrap();
            assert_eq!(set, SkipSet::Layers(layers));
            assert_eq!(set.to_string(), written);
        }
        for wrong in ["x", "3,", "5-3", "-2", "3--5", "70000", "1-99999"] {
            assert!(wrong.parse::<SkipSet>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn without_a_set_every_other_layer_of_the_middle_is_skipped() {
        let set: SkipSet = "".parse().unwrap();
        assert_eq!(set.layers(12), [4, 6, 8]);
        assert_eq!(set.layers(4), [2]);
        assert!(set.layers(1).is_empty());
    }
}
