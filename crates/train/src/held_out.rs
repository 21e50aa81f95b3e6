//! What a drafter is worth on texts that it does not learn from.

use crate::TrainError;
use crate::batch::{Batch, anchors};
use crate::dspark::Dspark;
use crate::features::FeatureStore;
use crate::head_loss::{RowSays, RowTarget};
use crate::texts::Text;

/// Blocks of a text.
const ANCHORS: usize = 16;
/// Texts of one forward.
const AT_ONCE: usize = 4;

/// What rounds would do, had the text's own tokens come before each draft.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HeldOut {
    /// Rounds that were looked at.
    pub rounds: usize,
    /// Drafts that would be accepted at temperature 1, summed over rounds.
    accepted: f64,
    /// Drafts in a row that are the target's likeliest tokens.
    agreed: f64,
    /// For each place in a block how likely its draft is accepted, summed over rounds.
    acceptance: Vec<f64>,
    /// For each place how often it is the target's likeliest token.
    agreement: Vec<f64>,
    /// Sum over rows of the distance between confidence and acceptance.
    unsure: f64,
}

impl HeldOut {
    /// Tokens that a round commits at temperature 1, the target's own included.
    pub fn tau(&self) -> f64 {
        1.0 + self.accepted / self.rounds.max(1) as f64
    }

    /// The same for greedy decoding.
    pub fn greedy_tau(&self) -> f64 {
        1.0 + self.agreed / self.rounds.max(1) as f64
    }

    /// How likely a draft is accepted, by its place in the block.
    pub fn acceptance(&self) -> Vec<f64> {
        self.acceptance.iter().map(|sum| sum / self.rounds.max(1) as f64).collect()
    }

    /// How often a draft is the target's likeliest token, by its place in the block.
    pub fn agreement(&self) -> Vec<f64> {
        self.agreement.iter().map(|sum| sum / self.rounds.max(1) as f64).collect()
    }

    /// How far confidences are from the truth, in the mean.
    pub fn confidence_error(&self) -> f64 {
        self.unsure / (self.rounds * self.acceptance.len()).max(1) as f64
    }

    fn add(&mut self, round: &[RowSays]) {
        self.rounds += 1;
        self.acceptance.resize(round.len(), 0.0);
        self.agreement.resize(round.len(), 0.0);
        let (mut survival, mut agrees) = (1.0, true);
        for (at, says) in round.iter().enumerate() {
            let acceptance = f64::from(says.acceptance);
            survival *= acceptance;
            agrees &= says.agrees;
            self.accepted += survival;
            self.agreed += f64::from(u8::from(agrees));
            self.acceptance[at] += acceptance;
            self.agreement[at] += f64::from(u8::from(says.agrees));
        }
    }
}

/// What the whole blocks among these rows do.
pub(crate) fn rounds(says: &[RowSays], targets: &[RowTarget<'_>], block: usize) -> HeldOut {
    let mut sum = HeldOut::default();
    for (says, targets) in says.chunks_exact(block).zip(targets.chunks_exact(block)) {
        if targets.iter().all(|target| target.weight > 0.0) {
            sum.add(says);
        }
    }
    sum
}

/// What the drafter says of `texts`, at places that are the same each time; `None`: there are no texts.
pub(crate) fn evaluate(
    drafter: &Dspark,
    store: &mut FeatureStore,
    texts: &[Text],
) -> Result<Option<HeldOut>, TrainError> {
    let mut sum = HeldOut::default();
    for texts in texts.chunks(AT_ONCE) {
        let mut batch = Batch::default();
        for text in texts {
            let features = store.of(text)?;
            batch.add(drafter.block_shape(), text, &features, &drafter.vocabulary, anchors(text, ANCHORS, None))?;
        }
        let (says, sure) = drafter.says(&batch)?;
        let targets = batch.targets();
        let block = drafter.shape.block;
        for ((says, sure), targets) in says.chunks_exact(block).zip(sure.chunks_exact(block)).zip(targets.chunks_exact(block)) {
            if targets.iter().all(|target| target.weight > 0.0) {
                sum.add(says);
                sum.unsure += says.iter().zip(sure).map(|(says, sure)| f64::from((says.acceptance - sure).abs())).sum::<f64>();
            }
        }
    }
    Ok((sum.rounds > 0).then_some(sum))
}
