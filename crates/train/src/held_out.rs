//! What a drafter is worth on texts that it does not learn from.

use crate::TrainError;
use crate::batch::{Batch, BlockShape, anchors};
use crate::drafter::Drafter;
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
    /// Sum over rows of the distance between confidence and acceptance, and of how many rows.
    unsure: f64,
    confidences: usize,
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

    /// How far confidences are from the truth, in the mean; `None`: there are none.
    pub fn confidence_error(&self) -> Option<f64> {
        (self.confidences > 0).then(|| self.unsure / self.confidences as f64)
    }

    fn merge(&mut self, other: &HeldOut) {
        let widest = self.acceptance.len().max(other.acceptance.len());
        self.acceptance.resize(widest, 0.0);
        self.agreement.resize(widest, 0.0);
        self.acceptance.iter_mut().zip(&other.acceptance).for_each(|(sum, part)| *sum += part);
        self.agreement.iter_mut().zip(&other.agreement).for_each(|(sum, part)| *sum += part);
        self.rounds += other.rounds;
        self.accepted += other.accepted;
        self.agreed += other.agreed;
        self.unsure += other.unsure;
        self.confidences += other.confidences;
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

/// What the whole blocks among these rows do. `sure`: the confidences of the rows, where they are known.
pub(crate) fn rounds(says: &[RowSays], sure: &[f32], targets: &[RowTarget<'_>], shape: BlockShape) -> HeldOut {
    let mut sum = HeldOut::default();
    let BlockShape { rows, silent, .. } = shape;
    for (at, (says, targets)) in says.chunks_exact(rows).zip(targets.chunks_exact(rows)).enumerate() {
        let says = &says[silent..];
        if targets[silent..].iter().all(|target| target.weight > 0.0) {
            sum.add(says);
            for (sure, says) in sure.iter().skip(at * rows + silent).zip(says) {
                sum.unsure += f64::from((says.acceptance - sure).abs());
                sum.confidences += 1;
            }
        }
    }
    sum
}

/// What the drafter says of `texts`, at places that are the same each time; `None`: there are no texts.
pub(crate) fn evaluate(
    drafter: &Drafter,
    store: &mut FeatureStore,
    texts: &[Text],
) -> Result<Option<HeldOut>, TrainError> {
    let mut sum = HeldOut::default();
    for texts in texts.chunks(AT_ONCE) {
        let mut batch = Batch::new(drafter.layout());
        for text in texts {
            let features = store.of(text)?;
            batch.add(text, &features, &drafter.base.vocabulary, anchors(text, ANCHORS, None))?;
        }
        let (says, sure) = drafter.says(&batch)?;
        sum.merge(&rounds(&says, &sure, &batch.targets(), batch.shape));
    }
    Ok((sum.rounds > 0).then_some(sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_ends_with_the_first_draft_that_does_not_stand() {
        let row = |acceptance, agrees| RowSays { acceptance, agrees, ..RowSays::default() };
        let says = [row(0.5, true), row(0.5, true), row(1.0, false), row(0.5, true), row(1.0, true), row(1.0, true)];
        let target = |weight| RowTarget { teacher: &[], weight };
        // The second block is not whole.
        let targets = [1.0, 1.0, 1.0, 1.0, 1.0, 0.0].map(target);
        let shape = BlockShape { rows: 3, silent: 0, mask: 0, falls: 1.0 };
        let one = rounds(&says, &[0.5, 1.0, 1.0], &targets, shape);
        assert_eq!((one.rounds, one.tau(), one.greedy_tau()), (1, 2.0, 3.0));
        assert_eq!((one.acceptance(), one.agreement()), (vec![0.5, 0.5, 1.0], vec![1.0, 1.0, 0.0]));
        assert_eq!(one.confidence_error(), Some(0.5 / 3.0));
        let silent = rounds(&says, &[], &targets, BlockShape { silent: 1, ..shape });
        assert_eq!((silent.rounds, silent.tau(), silent.agreement()), (1, 2.0, vec![1.0, 0.0]));
        assert_eq!(silent.confidence_error(), None);
        let mut two = HeldOut::default();
        two.merge(&one);
        two.merge(&one);
        assert_eq!((two.rounds, two.tau()), (2, 2.0));
    }
}
