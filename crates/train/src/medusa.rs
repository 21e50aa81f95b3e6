//! Medusa's heads: each says, from one hidden state of the target, what comes so many tokens later (Cai et al. 2024, arXiv
//! 2401.10774).
//!
//! The forward is that of the loader's residual blocks, with gradients. The heads' words stay the target's ("Medusa-1" with a
//! frozen head): what is learned is what the hidden state would be so many tokens later.

use candle_core::{Device, Tensor};
use serde_json::json;

use crate::TrainError;
use crate::batch::{Batch, BatchText};
use crate::begin;
use crate::drafter::{Base, Hidden};
use crate::export::{self, Files};
use crate::target::TargetWeights;
use crate::vocabulary::DraftVocabulary;

/// Medusa's heads; all that they learn is in the parameters.
pub(crate) struct Medusa {
    /// What they say their words with: the target's head, `[vocab, hidden]`.
    words: Tensor,
}

impl Medusa {
    /// Heads that say what the target's own does.
    pub(crate) fn begin(base: &mut Base, target: &TargetWeights<'_>) -> Result<Medusa, TrainError> {
        let hidden = base.config.hidden;
        for head in 0..base.shape.drafts {
            base.parameters.add(format!("heads.{head}.weight"), &begin::zeros(&[hidden, hidden])?)?;
            base.parameters.add(format!("heads.{head}.bias"), &begin::zeros(&[hidden])?)?;
        }
        Ok(Medusa { words: target.head(&DraftVocabulary::whole(base.config.vocab))? })
    }

    pub(crate) fn forward(&self, base: &Base, batch: &Batch) -> Result<Hidden, TrainError> {
        let state = |text: &BatchText| {
            let before: Vec<u32> = text.anchors.iter().map(|&anchor| anchor as u32 - 1).collect();
            text.features.index_select(&Tensor::new(before, &Device::Cpu)?, 0)
        };
        let states = Tensor::cat(&batch.texts.iter().map(state).collect::<Result<Vec<_>, _>>()?, 0)?;
        let mut drafts = Vec::with_capacity(base.shape.drafts);
        for head in 0..base.shape.drafts {
            let get = |part: &str| base.get(&format!("heads.{head}.{part}"));
            let moved = states.matmul(get("weight")?)?.broadcast_add(get("bias")?)?.silu()?;
            drafts.push((&states + moved)?);
        }
        let (blocks, width) = states.dims2()?;
        let hidden = Tensor::stack(&drafts, 1)?.reshape((blocks * base.shape.drafts, width))?;
        Ok(Hidden { hidden, before: None, sure: None })
    }

    /// Medusa's own files, in which every head has words of its own.
    pub(crate) fn files(&self, base: &Base) -> Result<Files, TrainError> {
        let Base { shape, config, .. } = base;
        let mut tensors = Vec::new();
        for head in 0..shape.drafts {
            let get = |part: &str| base.get(&format!("heads.{head}.{part}"));
            tensors.push(export::half(format!("{head}.0.linear.weight"), &get("weight")?.t()?)?);
            tensors.push(export::half(format!("{head}.0.linear.bias"), get("bias")?)?);
            tensors.push(export::half(format!("{head}.1.weight"), &self.words)?);
        }
        let config = json!({
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "medusa_num_heads": shape.drafts,
            "medusa_num_layers": 1,
            "hidden_size": config.hidden,
            "vocab_size": config.vocab,
            "torch_dtype": "float16",
        });
        Ok(Files { config, tensors })
    }
}
