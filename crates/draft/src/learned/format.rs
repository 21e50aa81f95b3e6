//! What a checkpoint's `config.json` says of how it drafts, whoever wrote it.

use std::fs;
use std::path::Path;

use model::Tap;
use model::config::ConfigError;
use serde_json::Value;

use super::LearnedError;

/// How a learned drafter drafts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Format {
    Block(BlockFormat),
    Feature(FeatureFormat),
    Medusa(MedusaFormat),
}

/// Medusa's heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MedusaFormat {
    pub(super) heads: usize,
    /// Residual blocks of a head.
    pub(super) blocks: usize,
}

/// How a feature-level drafter drafts: one token after the other (EAGLE-3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FeatureFormat {
    /// The target's hidden states that it reads, in the order of the fusion's inputs; none: three, by the target's depth.
    pub(super) taps: Vec<Tap>,
    /// Drafts that it was trained to say in a row.
    pub(super) steps: usize,
    /// Tokens that its own head knows, if those are fewer than the target's.
    pub(super) known: Option<usize>,
}

/// Drafts in a row where a checkpoint does not say how many it was trained for.
const STEPS: usize = 5;

/// How a block drafter drafts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BlockFormat {
    /// Rows of a block: the anchor and masks.
    pub(super) block: usize,
    /// Row i says what comes after it (DeepSpec), so that the anchor's row gives the first draft; or else what it is
    /// itself (z-lab), so that the anchor's row gives none.
    pub(super) anchor_first: bool,
    /// The token of what is to be drafted.
    pub(super) mask: u32,
    /// The target's hidden states that it reads, in the order of the fusion's inputs.
    pub(super) taps: Vec<Tap>,
    /// How a draft depends on the one before it.
    pub(super) markov: Option<Markov>,
    /// Whether a head says how sure each draft is, and whether that looks at the draft before it.
    pub(super) confidence: Option<bool>,
}

/// The head that makes a draft depend on the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Markov {
    pub(super) rank: usize,
    pub(super) kind: MarkovKind,
}

/// What of the block such a head looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MarkovKind {
    /// Nothing: a bias of the token before.
    Vanilla,
    /// A gate on that bias, by the row's hidden state.
    Gated,
    /// A state that goes along the block.
    Rnn,
}

/// One `config.json`, and the object in it that a family nests its fields in.
struct Fields {
    file: String,
    root: Value,
    nested: &'static str,
}

impl Format {
    /// What the names of its tensors begin with.
    pub(super) fn tensors(&self) -> &'static [&'static str] {
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
            ],
            Format::Feature(_) => {
                &["embed_tokens.weight", "lm_head.weight", "fc.", "norm.weight", "layers.0.", "midlayer.", "d2t", "t2d"]
            }
            Format::Medusa(_) => &["medusa_head.", "blocks.", "lm_heads."],
        }
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

impl Fields {
    fn format(&self) -> Result<Option<Format>, LearnedError> {
        let names = self.root.get("architectures").and_then(Value::as_array);
        let architecture = names.and_then(|names| names.first()).and_then(Value::as_str).unwrap_or_default();
        match architecture {
            "Qwen3DSparkModel" => self.block(true).map(Format::Block).map(Some),
            "DFlashDraftModel" => self.block(false).map(Format::Block).map(Some),
            "Qwen3Eagle3Model" | "LlamaForCausalLMEagle3" => self.feature().map(Format::Feature).map(Some),
            _ if self.find("medusa_num_heads").is_some() => self.medusa().map(Format::Medusa).map(Some),
            _ => Ok(None),
        }
    }

    fn medusa(&self) -> Result<MedusaFormat, LearnedError> {
        let heads = self.number("medusa_num_heads")?;
        let blocks = if self.find("medusa_num_layers").is_some() { self.number("medusa_num_layers")? } else { 1 };
        if !(1..=16).contains(&heads) || blocks > 16 {
            let problem = format!("is {heads}, with {blocks} blocks each: known are 1 to 16");
            return Err(self.wrong("medusa_num_heads", problem));
        }
        Ok(MedusaFormat { heads, blocks })
    }

    fn feature(&self) -> Result<FeatureFormat, LearnedError> {
        let optional = |field: &'static str| match self.find(field) {
            None | Some(Value::Null) => Ok(None),
            Some(_) => self.number(field).map(Some),
        };
        let (known, vocab) = (optional("draft_vocab_size")?, self.number("vocab_size")?);
        Ok(FeatureFormat {
            taps: if self.find("target_layer_ids").is_some() { self.taps()? } else { Vec::new() },
            steps: optional("ttt_length")?.unwrap_or(STEPS).clamp(1, 64),
            known: known.filter(|&known| known != vocab),
        })
    }

    fn block(&self, anchor_first: bool) -> Result<BlockFormat, LearnedError> {
        let windows = self.find("layer_types").and_then(Value::as_array);
        let slides = windows.is_some_and(|types| types.iter().any(|kind| kind == "sliding_attention"));
        if slides || self.flag("use_swa")? {
            return Err(
                self.wrong("layer_types", "has sliding windows, which block drafters cannot have here yet".into())
            );
        }
        let block = self.number("block_size")?;
        if !(2..=64).contains(&block) {
            return Err(self.wrong("block_size", format!("is {block}, which is not between 2 and 64")));
        }
        let mask = self.number("mask_token_id")?;
        let mask = u32::try_from(mask).map_err(|_| self.wrong("mask_token_id", format!("is {mask}, no token")))?;
        Ok(BlockFormat {
            block,
            anchor_first,
            mask,
            taps: self.taps()?,
            markov: self.markov()?,
            confidence: match self.flag("enable_confidence_head")? {
                true => Some(self.flag("confidence_head_with_markov")?),
                false => None,
            },
        })
    }

    /// Ids are of the layers whose outputs are read; -1 is the embedding.
    fn taps(&self) -> Result<Vec<Tap>, LearnedError> {
        const FIELD: &str = "target_layer_ids";
        let ids = self.find(FIELD).and_then(Value::as_array).filter(|ids| !ids.is_empty());
        let ids = ids.ok_or_else(|| self.wrong(FIELD, "is missing, or no list of layers".into()))?;
        let tap = |id: &Value| match id.as_i64() {
            Some(-1) => Ok(Tap::Embedding),
            Some(id) if (0..1 << 16).contains(&id) => Ok(Tap::Layer(id as usize)),
            _ => Err(self.wrong(FIELD, format!("has {id}, which is no layer"))),
        };
        ids.iter().map(tap).collect()
    }

    fn markov(&self) -> Result<Option<Markov>, LearnedError> {
        let rank = match self.find("markov_rank") {
            None | Some(Value::Null) => 0,
            Some(_) => self.number("markov_rank")?,
        };
        if rank == 0 {
            return Ok(None);
        }
        let kind = match self.find("markov_head_type").and_then(Value::as_str) {
            None | Some("vanilla") => MarkovKind::Vanilla,
            Some("gated") => MarkovKind::Gated,
            Some("rnn") => MarkovKind::Rnn,
            Some(other) => {
                let problem = format!("is {other:?}; known are vanilla, gated and rnn");
                return Err(self.wrong("markov_head_type", problem));
            }
        };
        Ok(Some(Markov { rank, kind }))
    }

    /// At the top, or where its family nests it.
    fn find(&self, field: &str) -> Option<&Value> {
        let nested = self.root.get(self.nested).and_then(|nested| nested.get(field));
        nested.or_else(|| self.root.get(field))
    }

    fn number(&self, field: &'static str) -> Result<usize, LearnedError> {
        let value = self.find(field).ok_or_else(|| self.wrong(field, "is missing".into()))?;
        let number = value.as_u64().filter(|&number| number <= u64::from(u32::MAX));
        number.map(|number| number as usize).ok_or_else(|| self.wrong(field, format!("is {value}, no number")))
    }

    fn flag(&self, field: &'static str) -> Result<bool, LearnedError> {
        match self.find(field) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.wrong(field, format!("is {other}, neither true nor false"))),
        }
    }

    fn wrong(&self, field: &'static str, problem: String) -> LearnedError {
        LearnedError::Field { file: self.file.clone(), field, problem }
    }
}
