//! What all drafters in training have in common, and what each kind says of itself.
//!
//! Every kind turns the features of a text into hidden states, a row for each draft of a block, which a frozen head of the
//! target's turns into words. So blocks, losses, looks at texts that are held out, checkpoints and files are shared, and a
//! kind is what lies between. How the weights move may not enter.

use std::path::Path;

use candle_core::{Device, Tensor};
use kernels::Isa;
use model::Tap;
use model::config::Config;
use serde_json::{Value, json};

use crate::TrainError;
use crate::batch::{Batch, BlockShape};
use crate::block::Block;
use crate::chain::Chain;
use crate::export::{self, About, Files};
use crate::head_loss::{Follow, Head, HeadInputs, LossWeights, RowSays};
use crate::medusa::Medusa;
use crate::parameters::Parameters;
use crate::target::TargetWeights;
use crate::trainer::{Profile, timed};
use crate::vocabulary::DraftVocabulary;

/// How a drafter drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// A block in one forward, a head that makes a draft depend on the one before, and one that says how sure each is
    /// (DSpark).
    Dspark,
    /// A block in one forward (DFlash).
    Dflash,
    /// One draft after the other, each from the feature that the one before it gave (EAGLE-3).
    Eagle3,
    /// The same with a whole layer of the target's shape, from its last hidden state (the modules of DeepSeek-V3).
    Mtp,
    /// Heads that each say one draft, from the target's last hidden state (Medusa).
    Medusa,
}

impl Method {
    /// Its name, as options and files have it.
    pub fn name(self) -> &'static str {
        match self {
            Method::Dspark => "dspark",
            Method::Dflash => "dflash",
            Method::Eagle3 => "eagle3",
            Method::Mtp => "mtp",
            Method::Medusa => "medusa",
        }
    }

    /// Whether it reads hidden states between layers, and not the last one.
    pub fn reads_taps(self) -> bool {
        matches!(self, Method::Dspark | Method::Dflash | Method::Eagle3)
    }

    /// Whether its files can have a head of fewer tokens than the target's. Others learn from the most frequent tokens, and
    /// draft all.
    pub fn has_own_head(self) -> bool {
        self.reads_taps()
    }

    /// Layers that it can have.
    pub fn layers(self) -> std::ops::RangeInclusive<usize> {
        match self {
            Method::Dspark | Method::Dflash => 1..=64,
            Method::Eagle3 | Method::Mtp => 1..=1,
            Method::Medusa => 0..=0,
        }
    }
}

/// What a drafter will be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrafterShape {
    /// How it drafts.
    pub method: Method,
    /// Layers of the target that its own begin as, one for each.
    pub layers: Vec<usize>,
    /// Drafts of a round.
    pub drafts: usize,
    /// DSpark: of the head that makes a draft depend on the one before.
    pub rank: usize,
    /// Block drafters: the token that stands for what is to be drafted.
    pub mask: u32,
    /// Layers of the target whose outputs it reads, in ascending order, where it reads them.
    pub taps: Vec<usize>,
}

impl DrafterShape {
    /// The target's hidden states that it reads.
    pub(crate) fn features(&self) -> Vec<Tap> {
        match self.method.reads_taps() {
            true => self.taps.iter().map(|&tap| Tap::Layer(tap)).collect(),
            false => vec![Tap::Final],
        }
    }

    /// What must be the same where a training goes on.
    fn fixed(&self) -> Value {
        json!({
            "method": self.method.name(), "layers": self.layers, "drafts": self.drafts, "rank": self.rank,
            "mask": self.mask, "taps": self.taps,
        })
    }

    /// Refuses what the target or the method does not have.
    ///
    /// # Errors
    /// That names the option.
    pub fn check(&self, target: &Config) -> Result<(), TrainError> {
        let below = |layer: &&usize| **layer >= target.layers;
        for (option, layers) in [("--init-layers", &self.layers), ("--taps", &self.taps)] {
            if let Some(layer) = layers.iter().find(below) {
                return Err(TrainError::option(
                    option,
                    format!("names layer {layer} of a target with {}", target.layers),
                ));
            }
        }
        let (method, allowed) = (self.method.name(), self.method.layers());
        if !allowed.contains(&self.layers.len()) {
            let (count, most) = (self.layers.len(), allowed.end());
            let problem = match allowed.start() == most {
                true => format!("is {count}: {method} has {most}"),
                false => format!("is {count}: {method} has {} to {most}", allowed.start()),
            };
            return Err(TrainError::option("--layers", problem));
        }
        if self.method.reads_taps() && self.taps.is_empty() {
            return Err(TrainError::option("--taps", "names no layer"));
        }
        Ok(())
    }
}

/// A drafter in training.
pub(crate) struct Drafter {
    pub(crate) base: Base,
    kind: Kind,
}

/// What lies between features and hidden states.
enum Kind {
    Block(Block),
    Chain(Chain),
    Medusa(Medusa),
}

/// What every kind has.
pub(crate) struct Base {
    pub(crate) shape: DrafterShape,
    /// Of its layers: the target's, with as many as it has.
    pub(crate) config: Config,
    pub(crate) vocabulary: DraftVocabulary,
    pub(crate) parameters: Parameters,
    /// Layers of the target.
    pub(crate) target_layers: usize,
    /// The target's, `[vocab, hidden]`.
    pub(crate) embedding: Tensor,
    /// The target's.
    pub(crate) head: Head,
}

/// What a kind makes of a batch.
pub(crate) struct Hidden {
    /// What the head takes, `[rows, hidden]`.
    pub(crate) hidden: Tensor,
    /// What makes a draft depend on the one before: embeddings of the tokens before the drafts, `[rows, rank]`.
    pub(crate) before: Option<Tensor>,
    /// Logits of the confidences, `[rows]`.
    pub(crate) sure: Option<Tensor>,
}

/// The weight of the confidences' loss (DSpark, equation 12).
const CONFIDENCE: f64 = 1.0;

impl Drafter {
    /// A drafter that has learned nothing: its layers are some of the target's.
    ///
    /// # Errors
    /// When the shape does not suit the target, or a tensor of that is missing.
    pub(crate) fn begin(
        shape: DrafterShape,
        vocabulary: DraftVocabulary,
        target: &TargetWeights<'_>,
        isa: Isa,
        seed: u64,
    ) -> Result<Drafter, TrainError> {
        shape.check(target.config)?;
        let head = Head { weights: target.head(&vocabulary)?, isa };
        let mut base = Base {
            config: crate::begin::config(shape.layers.len(), target.config),
            embedding: target.embedding()?,
            parameters: Parameters::default(),
            target_layers: target.config.layers,
            shape,
            vocabulary,
            head,
        };
        let kind = match base.shape.method {
            Method::Dspark | Method::Dflash => Kind::Block(Block::begin(&mut base, target, seed)?),
            Method::Eagle3 | Method::Mtp => Kind::Chain(Chain::begin(&mut base, target, seed)?),
            Method::Medusa => Kind::Medusa(Medusa::begin(&mut base, target)?),
        };
        Ok(Drafter { base, kind })
    }

    /// How its blocks are laid out.
    pub(crate) fn layout(&self) -> BlockShape {
        let DrafterShape { method, drafts, mask, .. } = self.base.shape;
        let silent = usize::from(method == Method::Dflash);
        // What later drafts count: DSpark, section 3.3; DFlash, where the weight falls twice as fast; EAGLE and Medusa, where a
        // further draft counts 0.8 of the one before.
        let falls = match method {
            Method::Dspark => drafts as f32,
            Method::Dflash => (drafts as f32 / 2.0).max(1.0),
            _ => -1.0 / 0.8f32.ln(),
        };
        BlockShape { rows: drafts + silent, silent, mask, falls }
    }

    /// What must be the same where a training goes on.
    pub(crate) fn fixed(&self) -> Value {
        let Base { shape, config, vocabulary, .. } = &self.base;
        json!({ "drafter": shape.fixed(), "known": vocabulary.len(), "target": [config.hidden, config.vocab] })
    }

    /// What the rows of a batch become.
    pub(crate) fn forward(&self, batch: &Batch) -> Result<Hidden, TrainError> {
        match &self.kind {
            Kind::Block(block) => block.forward(&self.base, batch),
            Kind::Chain(chain) => chain.forward(&self.base, batch),
            Kind::Medusa(medusa) => medusa.forward(&self.base, batch),
        }
    }

    /// The loss of a batch where a share `done` of the training is done, and what its rows say.
    pub(crate) fn loss(
        &self,
        batch: &Batch,
        done: f32,
        profile: &mut Profile,
    ) -> Result<(Tensor, Vec<RowSays>), TrainError> {
        let hidden = timed(&mut profile.layers, || self.forward(batch))?;
        let (targets, weights) = (batch.targets(), loss_weights(self.base.shape.method, done));
        let inputs = self.base.inputs(&hidden)?;
        let (mut loss, says) = timed(&mut profile.head, || self.base.head.loss(&inputs, &targets, weights))?;
        if let Some(sure) = &hidden.sure {
            let weights: Vec<f32> = targets.iter().map(|target| target.weight).collect();
            loss = (loss + (confidence_loss(sure, &says, &weights)? * CONFIDENCE)?)?;
        }
        Ok((loss, says))
    }

    /// What the rows of a batch say, and the confidences of their drafts, if it has any.
    pub(crate) fn says(&self, batch: &Batch) -> Result<(Vec<RowSays>, Vec<f32>), TrainError> {
        let hidden = self.forward(batch)?;
        let says = self.base.head.says(&self.base.inputs(&hidden)?, &batch.targets())?;
        let sure = hidden.sure.map_or(Ok(Vec::new()), |sure| crate::ops::values(&sure))?;
        Ok((says, sure.into_iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect()))
    }

    /// Writes the drafter to a directory.
    ///
    /// # Errors
    /// When its files cannot be written, or the target's positions cannot be described in them.
    pub(crate) fn export(&self, dir: &Path, about: &About) -> Result<(), TrainError> {
        let files: Files = match &self.kind {
            Kind::Block(block) => block.files(&self.base, &about.target)?,
            Kind::Chain(chain) => chain.files(&self.base, &about.target)?,
            Kind::Medusa(medusa) => medusa.files(&self.base)?,
        };
        export::write(files, dir, &about.card)
    }
}

impl Base {
    pub(crate) fn get(&self, name: &str) -> Result<&Tensor, TrainError> {
        self.parameters.get(name)
    }

    /// Rows of the target's embedding.
    pub(crate) fn embed(&self, tokens: &[u32]) -> Result<Tensor, TrainError> {
        Ok(self.embedding.index_select(&Tensor::new(tokens, &Device::Cpu)?, 0)?)
    }

    fn inputs<'a>(&'a self, hidden: &'a Hidden) -> Result<HeadInputs<'a>, TrainError> {
        let follow = match &hidden.before {
            Some(before) => Some(Follow { before, bias: self.get("markov_w2")? }),
            None => None,
        };
        Ok(HeadInputs { hidden: &hidden.hidden, follow })
    }
}

/// DSpark's weights of the losses: 0.1 cross-entropy, 0.9 distance (equation 12).
const DSPARK: LossWeights = LossWeights { cross_entropy: 0.1, variation: 0.9 };

/// The weight of the cross-entropy at the beginning, and the share of the training in which it falls to its own: what the
/// distance asks for is in proportion to what the draft already gives a token, so that it hardly moves one that has learned
/// nothing.
const FIRST_CROSS_ENTROPY: f32 = 1.0;
const FALLS_FOR: f32 = 0.3;

/// Weights of the losses where such a share of the training is done: all but DSpark learn by cross-entropy alone.
fn loss_weights(method: Method, done: f32) -> LossWeights {
    if method != Method::Dspark {
        return LossWeights { cross_entropy: 1.0, variation: 0.0 };
    }
    let first = (1.0 - done / FALLS_FOR).max(0.0);
    let cross_entropy = DSPARK.cross_entropy + (FIRST_CROSS_ENTROPY - DSPARK.cross_entropy) * first;
    LossWeights { cross_entropy, ..DSPARK }
}

/// Binary cross-entropy of confidences with the acceptance that rows have (DSpark, equation 11).
fn confidence_loss(sure: &Tensor, says: &[RowSays], weights: &[f32]) -> Result<Tensor, TrainError> {
    let total: f32 = weights.iter().sum::<f32>().max(f32::MIN_POSITIVE);
    let tensor = |values: Vec<f32>| Tensor::new(values, &Device::Cpu);
    let wanted = tensor(says.iter().map(|says| says.acceptance).collect())?;
    let weights = tensor(weights.iter().map(|weight| weight / total).collect())?;
    // ln(1 + e^x) - x wanted, where e^x may be too large for a number.
    let large = (sure.abs()?.neg()?.exp()? + 1.0)?.log()?;
    let each = ((sure.relu()? + large)? - (sure * wanted)?)?;
    Ok((each * weights)?.sum_all()?)
}
