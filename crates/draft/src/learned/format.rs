//! What a checkpoint's `config.json` says of how it drafts, whoever wrote it.

mod block;

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use model::Tap;
use model::config::ConfigError;
use model::weights::Weights;
use serde_json::Value;
use spec::SequentialTemperature;

use super::LearnedError;
use super::hydra::HydraFormat;
use super::medusa::MedusaFormat;

pub(super) use block::{BlockFormat, DominoShape, Follows, Markov, MarkovKind, SelectorShape};

/// How a learned drafter drafts.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Format {
    Block(BlockFormat),
    Feature(FeatureFormat),
    Medusa(MedusaFormat),
    Hydra(HydraFormat),
}

/// How a feature-level drafter drafts: one token after the other (EAGLE-3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FeatureFormat {
    /// The generation of EAGLE, or what else it is.
    pub(super) kind: FeatureKind,
    /// The target's hidden states that it reads, in the order of the fusion's inputs; none: as its kind does.
    pub(super) taps: Vec<Tap>,
    /// Drafts that it was trained to say in a row.
    pub(super) steps: usize,
    /// Tokens that its own head knows, if those are fewer than the target's.
    pub(super) known: Option<usize>,
    /// The object of `config.json` that describes its layer; `None`: the whole.
    part: Option<&'static str>,
}

/// What a feature-level drafter makes its drafts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FeatureKind {
    /// EAGLE-1 and 2.
    First,
    Third {
        normed_residual: bool,
    },
    /// So many modules for multi-token prediction, with the number of the first among the layers of its checkpoint.
    Modules {
        first: usize,
        modules: usize,
    },
    /// The same as Qwen3-Next has them.
    Next {
        modules: usize,
    },
}

/// Drafts in a row where a checkpoint does not say how many it was trained for.
const STEPS: usize = 5;

/// One `config.json`, and the object in it that a family nests its fields in.
pub(super) struct Fields {
    file: String,
    root: Value,
    nested: &'static str,
}

impl Format {
    /// The object of `config.json` that describes the draft's layers; `None`: the whole.
    pub(super) fn part(&self) -> Option<&'static str> {
        match self {
            Format::Block(format) => format.part,
            Format::Feature(format) => format.part,
            Format::Medusa(_) | Format::Hydra(_) => None,
        }
    }

    /// What the names of its tensors begin with.
    fn tensors(&self) -> &'static [&'static str] {
        match self {
            Format::Block(_) => &[
                "embed_tokens.weight",
                "lm_head.weight",
                "fc.weight",
                "hidden_norm.weight",
                "norm.weight",
                "layers.",
                "markov_head.",
                "confidence_head.",
                "candidate_selector.",
                "prefix_gru.",
                "embed_proj.",
                "d2t",
                "t2d",
            ],
            Format::Feature(FeatureFormat { kind: FeatureKind::Next { .. }, .. }) => {
                &["mtp.", "model.", "lm_head.weight"]
            }
            Format::Feature(FeatureFormat { kind: FeatureKind::Modules { .. }, .. }) => {
                &["model.", "lm_head.weight", "embed_tokens.weight"]
            }
            Format::Feature(_) => {
                &["embed_tokens.weight", "lm_head.weight", "fc.", "norm.weight", "layers.0.", "midlayer.", "d2t", "t2d"]
            }
            Format::Medusa(_) => &["medusa_head.", "blocks.", "lm_heads."],
            Format::Hydra(format) => format.tensors(),
        }
    }

    /// Whether such a drafter has a tensor of this name.
    pub(super) fn knows(&self, tensor: &str) -> bool {
        // Medusa's own files call the heads by their numbers alone.
        let is_numbered = matches!(self, Format::Medusa(_)) && tensor.starts_with(|first: char| first.is_ascii_digit());
        is_numbered || self.tensors().iter().any(|known| tensor.starts_with(known))
    }

    /// What the `config.json` of a directory says; `None`: it is no learned drafter's.
    pub(super) fn read(dir: &Path) -> Result<Option<Format>, LearnedError> {
        let path = dir.join("config.json");
        let file = path.display().to_string();
        let text = fs::read_to_string(&path).map_err(|source| ConfigError::Io { file: file.clone(), source })?;
        let root: Value = serde_json::from_str(&text)
            .map_err(|error| ConfigError::Json { file: file.clone(), problem: error.to_string() })?;
        Fields { file, root, nested: "dflash_config" }.format()
    }
}

/// The file beside a draft that its confidences are calibrated by.
const CALIBRATION: &str = "calibration.json";

/// The temperatures beside a draft, and the shifts if there are any, one for each of the `drafts` of a block; `None`: there
/// are none.
pub(super) fn calibration(dir: &Path, drafts: usize) -> Result<Option<SequentialTemperature>, LearnedError> {
    let path = dir.join(CALIBRATION);
    let file = path.display().to_string();
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(ConfigError::Io { file, source }.into()),
    };
    let wrong = |field, problem: String| LearnedError::Field { file: file.clone(), field, problem };
    let root: Value = serde_json::from_str(&text)
        .map_err(|error| ConfigError::Json { file: file.clone(), problem: error.to_string() })?;
    let numbers = |field: &'static str| {
        let values = root.get(field).and_then(Value::as_array);
        let values = values.and_then(|values| values.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>());
        let values = values.ok_or_else(|| wrong(field, "is missing, or no list of numbers".into()))?;
        let problem = || format!("has {} numbers, where a block has {drafts} drafts", values.len());
        if values.len() == drafts { Ok(values) } else { Err(wrong(field, problem())) }
    };
    let temperatures = numbers("temperatures")?;
    let scaling = match root.get("shifts") {
        None => SequentialTemperature::new(temperatures),
        Some(_) => SequentialTemperature::with_shifts(temperatures, numbers("shifts")?),
    };
    scaling.map(Some).map_err(|error| wrong("temperatures", format!("is wrong: {error}")))
}

impl Fields {
    fn format(&self) -> Result<Option<Format>, LearnedError> {
        let names = self.root.get("architectures").and_then(Value::as_array);
        let architecture = names.and_then(|names| names.first()).and_then(Value::as_str).unwrap_or_default();
        match architecture {
            "Qwen3DSparkModel" | "DSparkDraftModel" => self.block(true).map(Format::Block).map(Some),
            "DFlashDraftModel" | "DFlash2DraftModel" => self.block(false).map(Format::Block).map(Some),
            "DominoDraftModel" => self.block(self.flag("shift_label")?).map(Format::Block).map(Some),
            "Qwen3Eagle3Model" | "LlamaForCausalLMEagle3" => {
                let normed_residual = self.flag("norm_before_residual")?;
                self.feature(FeatureKind::Third { normed_residual }).map(Format::Feature).map(Some)
            }
            _ if self.find("speculators_model_type").is_some() => self.speculators().map(Some),
            _ if self.has_tensor("mtp.fc.weight") => {
                let modules = self.modules(&["mtp_num_hidden_layers", "num_nextn_predict_layers"])?;
                self.feature(FeatureKind::Next { modules }).map(Format::Feature).map(Some)
            }
            _ if self.find("num_nextn_predict_layers").and_then(Value::as_u64).is_some_and(|modules| modules > 0) => {
                let (first, modules) =
                    (self.number("num_hidden_layers")?, self.modules(&["num_nextn_predict_layers"])?);
                self.feature(FeatureKind::Modules { first, modules }).map(Format::Feature).map(Some)
            }
            // A model of one layer, but for its tensors.
            _ if self.find("num_hidden_layers").and_then(Value::as_u64) == Some(1) && self.has_tensor("fc.weight") => {
                self.feature(FeatureKind::First).map(Format::Feature).map(Some)
            }
            _ if self.find("hydra_num_heads").is_some() => HydraFormat::read(self).map(Format::Hydra).map(Some),
            _ if self.find("medusa_num_heads").is_some() => MedusaFormat::read(self).map(Format::Medusa).map(Some),
            _ => Ok(None),
        }
    }

    /// Modules for multi-token prediction, as the first of these fields that is there says; 1 if none is.
    fn modules(&self, fields: &[&'static str]) -> Result<usize, LearnedError> {
        let Some(field) = fields.iter().find(|field| self.find(field).is_some()) else { return Ok(1) };
        let modules = self.number(field)?;
        if !(1..=16).contains(&modules) {
            return Err(self.wrong(field, format!("is {modules}: known are 1 to 16 modules")));
        }
        Ok(modules)
    }

    /// Whether the weights beside the config can be opened and have this tensor.
    fn has_tensor(&self, name: &str) -> bool {
        let dir = Path::new(&self.file).parent().unwrap_or(Path::new("."));
        Weights::open_dir(dir).is_ok_and(|weights| weights.has(name))
    }

    fn feature(&self, kind: FeatureKind) -> Result<FeatureFormat, LearnedError> {
        let optional = |field: &'static str| match self.find(field) {
            None | Some(Value::Null) => Ok(None),
            Some(_) => self.number(field).map(Some),
        };
        Ok(FeatureFormat {
            kind,
            taps: if self.find("target_layer_ids").is_some() { self.taps("target_layer_ids", 0)? } else { Vec::new() },
            steps: optional("ttt_length")?.unwrap_or(STEPS).clamp(1, 64),
            known: optional("draft_vocab_size")?,
            part: None,
        })
    }

    /// The files of the library speculators, in which ids of layers are of those whose inputs are read.
    fn speculators(&self) -> Result<Format, LearnedError> {
        const PART: Option<&str> = Some("transformer_layer_config");
        match self.find("speculators_model_type").and_then(Value::as_str).unwrap_or_default() {
            "eagle3" => {
                let ids = "eagle_aux_hidden_state_layer_ids";
                let given = self.find(ids).is_some_and(|ids| !ids.is_null());
                let taps = if given { self.taps(ids, -1)? } else { Vec::new() };
                let steps = self.speculative_tokens().unwrap_or(STEPS).clamp(1, 64);
                let kind = FeatureKind::Third { normed_residual: self.flag("norm_before_residual")? };
                Ok(Format::Feature(FeatureFormat { taps, steps, part: PART, ..self.feature(kind)? }))
            }
            "dspark" | "dflash" | "dflash2" => self.speculators_block(PART).map(Format::Block),
            other => {
                let problem = format!("is {other:?}; known are eagle3, dflash, dflash2 and dspark");
                Err(self.wrong("speculators_model_type", problem))
            }
        }
    }

    /// Drafts of a round, as speculators has it.
    fn speculative_tokens(&self) -> Option<usize> {
        let methods = self.root.get("speculators_config")?.get("proposal_methods")?.as_array()?;
        methods.first()?.get("speculative_tokens")?.as_u64().map(|tokens| tokens as usize)
    }

    /// The outputs of the layers with these ids, and `offset` layers on; -1 is the embedding.
    fn taps(&self, field: &'static str, offset: i64) -> Result<Vec<Tap>, LearnedError> {
        let ids = self.find(field).and_then(Value::as_array).filter(|ids| !ids.is_empty());
        let ids = ids.ok_or_else(|| self.wrong(field, "is missing, or no list of layers".into()))?;
        let tap = |id: &Value| match id.as_i64().map(|id| id + offset) {
            Some(-1) => Ok(Tap::Embedding),
            Some(id) if (0..1 << 16).contains(&id) => Ok(Tap::Layer(id as usize)),
            _ => Err(self.wrong(field, format!("has {id}, which is no layer"))),
        };
        ids.iter().map(tap).collect()
    }

    /// At the top, or where its family nests it.
    pub(super) fn find(&self, field: &str) -> Option<&Value> {
        let nested = self.root.get(self.nested).and_then(|nested| nested.get(field));
        nested.or_else(|| self.root.get(field))
    }

    pub(super) fn number(&self, field: &'static str) -> Result<usize, LearnedError> {
        let value = self.find(field).ok_or_else(|| self.wrong(field, "is missing".into()))?;
        let number = value.as_u64().filter(|&number| number <= u64::from(u32::MAX));
        number.map(|number| number as usize).ok_or_else(|| self.wrong(field, format!("is {value}, no number")))
    }

    pub(super) fn flag(&self, field: &'static str) -> Result<bool, LearnedError> {
        match self.find(field) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.wrong(field, format!("is {other}, neither true nor false"))),
        }
    }

    pub(super) fn wrong(&self, field: &'static str, problem: String) -> LearnedError {
        LearnedError::Field { file: self.file.clone(), field, problem }
    }
}
