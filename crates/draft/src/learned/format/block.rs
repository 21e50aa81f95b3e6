//! What a block drafter's `config.json` says.

use model::{ConvolutionShape, Sight, Tap};
use serde_json::Value;

use super::{Fields, LearnedError};

/// How a block drafter drafts.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::learned) struct BlockFormat {
    /// Rows of a block: the anchor and masks.
    pub(in crate::learned) block: usize,
    /// Row i says what comes after it (DeepSpec), so that the anchor's row gives the first draft; or else what it is
    /// itself (z-lab), so that the anchor's row gives none. `None`: the file leaves it open.
    pub(in crate::learned) anchor_first: Option<bool>,
    /// The token of what is to be drafted.
    pub(in crate::learned) mask: u32,
    /// The target's hidden states that it reads, in the order of the fusion's inputs.
    pub(in crate::learned) taps: Vec<Tap>,
    /// How a draft depends on those before it.
    pub(in crate::learned) follows: Follows,
    /// Whether a head says how sure each draft is, and whether that looks at the draft before it.
    pub(in crate::learned) confidence: Option<bool>,
    /// Tokens that its own head knows; `None`: it has the target's.
    pub(in crate::learned) known: Option<usize>,
    /// How far back each layer sees; `None`: everything. Empty: all layers see everything.
    pub(in crate::learned) windows: Vec<Option<usize>>,
    /// What the rows of a block see of each other, by layer. Empty: all see all.
    pub(in crate::learned) sight: Vec<Sight>,
    /// Convolutions around its sublayers.
    pub(in crate::learned) convolution: Option<ConvolutionShape>,
    /// What embeddings are multiplied by.
    pub(in crate::learned) embedding_scale: f32,
    /// What logits are multiplied by.
    pub(in crate::learned) logit_scale: f32,
    /// A logit z then becomes cap * tanh(z / cap).
    pub(in crate::learned) logit_cap: Option<f32>,
    /// The object of `config.json` that describes its layers; `None`: the whole.
    pub(super) part: Option<&'static str>,
}

/// What makes a draft depend on those before it in its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::learned) enum Follows {
    /// Nothing.
    Nothing,
    /// A bias that the draft before gives (DSpark).
    Markov(Markov),
    /// A state that reads all drafts before (Domino).
    Domino(DominoShape),
    /// A choice among the likeliest of each row by the draft before (DFlash 2).
    Selector(SelectorShape),
}

/// Domino's correction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::learned) struct DominoShape {
    /// Width of the state.
    pub(in crate::learned) states: usize,
    /// Width of the correction before it becomes one of logits.
    pub(in crate::learned) rank: usize,
    /// Drafts at the beginning of a block that are not corrected.
    pub(in crate::learned) uncorrected: usize,
}

/// DFlash 2's choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::learned) struct SelectorShape {
    pub(in crate::learned) rank: usize,
    /// Tokens of a row that it chooses among.
    pub(in crate::learned) candidates: usize,
}

/// The head that makes a draft depend on the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::learned) struct Markov {
    pub(in crate::learned) rank: usize,
    pub(in crate::learned) kind: MarkovKind,
}

/// What of the block such a head looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::learned) enum MarkovKind {
    /// Nothing: a bias of the token before.
    Vanilla,
    /// A gate on that bias, by the row's hidden state.
    Gated,
    /// A state that goes along the block.
    Rnn,
}

impl BlockFormat {
    /// Drafts of a block.
    pub(in crate::learned) fn drafts(&self) -> usize {
        self.block - usize::from(!self.is_anchor_first())
    }

    /// Whether the anchor's row gives a draft. Where the file leaves it open, and nobody has decided: it does not.
    pub(in crate::learned) fn is_anchor_first(&self) -> bool {
        self.anchor_first.unwrap_or(false)
    }
}

/// Rows of a block at most.
const MAX_BLOCK: usize = 64;

/// The most that a width or count of a head may be: beyond it the file is wrong, not large.
const MAX_WIDTH: usize = 1 << 16;

impl Fields {
    pub(super) fn block(&self, anchor_first: bool) -> Result<BlockFormat, LearnedError> {
        let given = self.find("target_layer_ids").is_some_and(|ids| !ids.is_null());
        let taps = if given { self.taps("target_layer_ids", 0)? } else { self.evenly_spaced()? };
        self.block_of(Some(anchor_first), taps)
    }

    /// The layers that z-lab's older files mean: as many as the draft has, spread from the second to the last but two.
    fn evenly_spaced(&self) -> Result<Vec<Tap>, LearnedError> {
        let (layers, draft) = (self.number("num_target_layers")?, self.number("num_hidden_layers")?);
        if layers < 5 || draft == 0 || draft > layers {
            return Err(self.wrong("num_target_layers", format!("is {layers}, of which {draft} cannot be read")));
        }
        if draft == 1 {
            return Ok(vec![Tap::Layer(layers / 2)]);
        }
        let span = (layers - 4) as f64;
        Ok((0..draft)
            .map(|i| Tap::Layer((1.0 + i as f64 * span / (draft - 1) as f64).round_ties_even() as usize))
            .collect())
    }

    /// A block drafter as speculators writes it.
    pub(super) fn speculators_block(&self, part: Option<&'static str>) -> Result<BlockFormat, LearnedError> {
        let block = self.number("block_size")?;
        let known = match self.find("draft_vocab_size") {
            None | Some(Value::Null) => None,
            Some(_) => Some(self.number("draft_vocab_size")?),
        };
        let anchor_first = match (self.find("sample_from_anchor"), self.speculative_tokens()) {
            (Some(Value::Bool(from_anchor)), _) => Some(*from_anchor),
            (_, Some(tokens)) if tokens == block => Some(true),
            (_, Some(tokens)) if tokens + 1 == block => Some(false),
            _ => None,
        };
        let taps = self.taps("aux_hidden_state_layer_ids", -1)?;
        Ok(BlockFormat { known, part, ..self.block_of(anchor_first, taps)? })
    }

    fn block_of(&self, anchor_first: Option<bool>, taps: Vec<Tap>) -> Result<BlockFormat, LearnedError> {
        let block = self.number("block_size")?;
        if !(2..=MAX_BLOCK).contains(&block) {
            return Err(self.wrong("block_size", format!("is {block}, which is not between 2 and {MAX_BLOCK}")));
        }
        let mask = self.number("mask_token_id")?;
        let mask = u32::try_from(mask).map_err(|_| self.wrong("mask_token_id", format!("is {mask}, no token")))?;
        let windows = self.windows()?;
        let convolution = match self.find("conv_kernel_size") {
            None | Some(Value::Null) => None,
            Some(_) => Some(self.convolution()?),
        };
        Ok(BlockFormat {
            block,
            anchor_first,
            mask,
            taps,
            follows: self.follows()?,
            confidence: match self.flag("enable_confidence_head")? {
                true => Some(self.flag("confidence_head_with_markov")?),
                false => None,
            },
            known: None,
            sight: self.sight(&windows)?,
            windows,
            convolution,
            embedding_scale: self.factor("input_embedding_scale")?.unwrap_or(1.0),
            logit_scale: self.factor("output_multiplier")?.unwrap_or(1.0),
            logit_cap: self.factor("final_logit_softcapping")?.filter(|&cap| cap > 0.0),
            part: None,
        })
    }

    /// Where a field of the layers is: at the top, nested, or in the part that describes them.
    fn of_layers(&self, field: &str) -> Option<&Value> {
        let nested = self.root.get("transformer_layer_config").and_then(|part| part.get(field));
        self.find(field).or(nested).filter(|value| !value.is_null())
    }

    fn windows(&self) -> Result<Vec<Option<usize>>, LearnedError> {
        let swa = self.flag("use_swa")?;
        let wrong = |problem: String| self.wrong("layer_types", problem);
        let slides = match self.of_layers("layer_types") {
            None if !swa => return Ok(Vec::new()),
            None => vec![true; self.layers()?],
            Some(types) => {
                let types = types.as_array().ok_or_else(|| wrong("is no list".into()))?;
                let slides = |kind: &Value| match kind.as_str() {
                    Some("sliding_attention") => Ok(true),
                    Some("full_attention") => Ok(swa),
                    _ => Err(wrong(format!("has {kind}, which is neither full_attention nor sliding_attention"))),
                };
                types.iter().map(slides).collect::<Result<_, _>>()?
            }
        };
        if !slides.contains(&true) {
            return Ok(Vec::new());
        }
        let size = self.of_layers("swa_window_size").or_else(|| self.of_layers("sliding_window"));
        let size = size.and_then(Value::as_u64).filter(|&size| size > 0 && size <= u64::from(u32::MAX));
        let size = size.ok_or_else(|| self.wrong("sliding_window", "is missing, or no number above 0".into()))?;
        Ok(slides.into_iter().map(|slides| slides.then_some(size as usize)).collect())
    }

    fn layers(&self) -> Result<usize, LearnedError> {
        let layers = self.of_layers("num_hidden_layers").and_then(Value::as_u64).filter(|layers| *layers < 1 << 16);
        layers.map(|layers| layers as usize).ok_or_else(|| self.wrong("num_hidden_layers", "is missing".into()))
    }

    /// Where a layer slides its rows see back only, unless the file says otherwise.
    fn sight(&self, windows: &[Option<usize>]) -> Result<Vec<Sight>, LearnedError> {
        let flag = |field: &'static str| match self.find(field) {
            None | Some(Value::Null) => Ok(None),
            Some(_) => self.flag(field).map(Some),
        };
        let causal = match (flag("is_causal")?, flag("causal")?, flag("sliding_window_non_causal")?) {
            (Some(causal), _, _) | (None, Some(causal), _) => Some(causal),
            (None, None, Some(true)) => Some(false),
            _ => None,
        };
        let sight = |causal: bool| if causal { Sight::Back } else { Sight::Around };
        if windows.is_empty() && causal != Some(true) {
            return Ok(Vec::new());
        }
        let windows = if windows.is_empty() { &vec![None; self.layers()?][..] } else { windows };
        Ok(windows.iter().map(|window| sight(causal.unwrap_or(window.is_some()))).collect())
    }

    fn convolution(&self) -> Result<ConvolutionShape, LearnedError> {
        let (taps, group) = (self.number("conv_kernel_size")?, self.number("conv_group_size")?);
        if !(1..=MAX_BLOCK).contains(&taps) {
            return Err(self.wrong("conv_kernel_size", format!("is {taps}, which is not between 1 and {MAX_BLOCK}")));
        }
        if group == 0 {
            return Err(self.wrong("conv_group_size", "is 0".into()));
        }
        Ok(ConvolutionShape { taps, group })
    }

    fn follows(&self) -> Result<Follows, LearnedError> {
        let width = |field: &'static str| match self.number(field)? {
            width if (1..=MAX_WIDTH).contains(&width) => Ok(width),
            width => Err(self.wrong(field, format!("is {width}, which is not between 1 and {MAX_WIDTH}"))),
        };
        let is_domino = self.find("projector_type").and_then(Value::as_str) == Some("domino");
        if is_domino || self.find("gru_hidden_dim").is_some() {
            let uncorrected =
                if self.find("pure_draft_prefix_len").is_some() { self.number("pure_draft_prefix_len")? } else { 0 };
            let (states, rank) = (width("gru_hidden_dim")?, width("emb_dim")?);
            return Ok(Follows::Domino(DominoShape { states, rank, uncorrected }));
        }
        if self.find("selector_rank").is_some() {
            let (rank, candidates) = (width("selector_rank")?, width("selector_top_k")?);
            return Ok(Follows::Selector(SelectorShape { rank, candidates }));
        }
        Ok(self.markov()?.map_or(Follows::Nothing, Follows::Markov))
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

    fn factor(&self, field: &'static str) -> Result<Option<f32>, LearnedError> {
        match self.find(field) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_f64().map(|factor| factor as f32).filter(|factor| factor.is_finite()) {
                Some(factor) => Ok(Some(factor)),
                None => Err(self.wrong(field, format!("is {value}, no number"))),
            },
        }
    }
}
