//! What one step learns from: blocks at random places of some texts.

use std::ops::Range;

use candle_core::{Device, Tensor};
use half::slice::HalfFloatSliceExt;
use rand::seq::index;
use rand_chacha::ChaCha8Rng;

use crate::TrainError;
use crate::features::{TEACHER_TOKENS, TextFeatures};
use crate::head_loss::RowTarget;
use crate::texts::Text;
use crate::vocabulary::DraftVocabulary;

/// How blocks are laid out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct BlockShape {
    /// Rows of a block: the anchor's, and those of what is to be drafted.
    pub(crate) rows: usize,
    /// Rows at its beginning that give no draft: 0, where a row says what comes after it, or 1, where it says what it is.
    pub(crate) silent: usize,
    /// The token of what is to be drafted.
    pub(crate) mask: u32,
    /// Draft number n counts exp(-n / falls) of the first.
    pub(crate) falls: f32,
}

/// Blocks of some texts.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) shape: BlockShape,
    pub(crate) texts: Vec<BatchText>,
    /// The anchor and masks of every block, `[rows]`.
    pub(crate) tokens: Vec<u32>,
    /// Positions in their texts, `[rows]`.
    pub(crate) positions: Vec<u32>,
    /// The true token before each row's draft, `[rows]`.
    pub(crate) before: Vec<u32>,
    /// `[rows, TEACHER_TOKENS]`
    teachers: Vec<(Option<u32>, f32)>,
    /// 0 where the text has ended, `[rows]`.
    weights: Vec<f32>,
}

/// The blocks of one text.
#[derive(Debug)]
pub(crate) struct BatchText {
    /// The tokens before the last anchor, `[context]`.
    pub(crate) tokens: Vec<u32>,
    /// The target's hidden states there, `[context, taps * hidden]`.
    pub(crate) features: Tensor,
    /// Its rows among all.
    pub(crate) rows: Range<usize>,
    /// Where its blocks begin.
    pub(crate) anchors: Vec<usize>,
}

/// At most so many `anchors` of a text, each where the text has a token for the first row at least: drawn by chance, or spread
/// evenly without it.
pub(crate) fn anchors(text: &Text, most: usize, chance: Option<&mut ChaCha8Rng>) -> Vec<usize> {
    let places = text.tokens.len().saturating_sub(1 + text.prompt);
    let count = most.min(places);
    let mut anchors: Vec<usize> = match chance {
        Some(chance) => index::sample(chance, places, count).into_iter().collect(),
        None => (0..count).map(|at| at * places / count).collect(),
    };
    anchors.sort_unstable();
    anchors.into_iter().map(|at| text.prompt + at).collect()
}

impl Batch {
    /// Without any blocks.
    pub(crate) fn new(shape: BlockShape) -> Batch {
        Batch {
            shape,
            texts: Vec::new(),
            tokens: Vec::new(),
            positions: Vec::new(),
            before: Vec::new(),
            teachers: Vec::new(),
            weights: Vec::new(),
        }
    }

    /// Adds blocks at `anchors`, not empty and in ascending order, of a text.
    pub(crate) fn add(
        &mut self,
        text: &Text,
        features: &TextFeatures,
        vocabulary: &DraftVocabulary,
        anchors: Vec<usize>,
    ) -> Result<(), TrainError> {
        let context = anchors.last().copied().unwrap_or(0);
        let mut values = vec![0.0; context * features.width];
        features.hidden[..values.len()].convert_to_f32_slice(&mut values);
        let first = self.tokens.len();
        for &anchor in &anchors {
            for row in 0..self.shape.rows {
                self.add_row(text, features, vocabulary, (anchor, row));
            }
        }
        let features = Tensor::from_vec(values, (context, features.width), &Device::Cpu)?;
        let tokens = text.tokens[..context].to_vec();
        self.texts.push(BatchText { tokens, features, rows: first..self.tokens.len(), anchors });
        Ok(())
    }

    fn add_row(
        &mut self,
        text: &Text,
        features: &TextFeatures,
        vocabulary: &DraftVocabulary,
        (anchor, row): (usize, usize),
    ) {
        let BlockShape { silent, mask, falls, .. } = self.shape;
        self.tokens.push(if row == 0 { text.tokens[anchor] } else { mask });
        self.positions.push((anchor + row) as u32);
        let draft = row.checked_sub(silent).filter(|draft| anchor + draft + 1 < text.tokens.len());
        let Some(draft) = draft else {
            self.before.push(mask);
            self.weights.push(0.0);
            self.teachers.resize(self.teachers.len() + TEACHER_TOKENS, (None, 0.0));
            return;
        };
        let before = anchor + draft;
        self.before.push(text.tokens[before]);
        self.weights.push((-(draft as f32) / falls).exp());
        let from = (before - text.prompt) * TEACHER_TOKENS;
        let tokens = &features.tokens[from..from + TEACHER_TOKENS];
        let probabilities = &features.probabilities[from..from + TEACHER_TOKENS];
        self.teachers.extend(tokens.iter().zip(probabilities).map(|(&token, &p)| (vocabulary.index(token), p)));
    }

    /// What each row should say.
    pub(crate) fn targets(&self) -> Vec<RowTarget<'_>> {
        let rows = self.weights.iter().zip(self.teachers.chunks_exact(TEACHER_TOKENS));
        rows.map(|(&weight, teacher)| RowTarget { teacher, weight }).collect()
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;
    use crate::texts::Origin;

    #[test]
    fn rows_say_what_follows_and_end_with_the_text() {
        let text = Text { origin: Origin::Own, number: 0, prompt: 2, tokens: vec![9, 8, 7, 6, 5] };
        assert_eq!(anchors(&text, 10, None), [2, 3]);
        assert_eq!(anchors(&text, 1, None), [2]);
        let features = TextFeatures {
            hidden: (0..8).map(|x| f16::from_f32(x as f32)).collect(),
            width: 2,
            tokens: [vec![6; TEACHER_TOKENS], vec![5; TEACHER_TOKENS]].concat(),
            probabilities: vec![0.25; 2 * TEACHER_TOKENS],
        };
        let vocabulary = DraftVocabulary::most_frequent(2, 10, std::slice::from_ref(&text));
        assert_eq!(vocabulary.ids(), [5, 6]);
        let shape = BlockShape { rows: 3, silent: 0, mask: 0, falls: 3.0 };
        let mut batch = Batch::new(shape);
        batch.add(&text, &features, &vocabulary, vec![2, 3]).unwrap();
        assert_eq!(batch.tokens, [7, 0, 0, 6, 0, 0]);
        assert_eq!(batch.positions, [2, 3, 4, 3, 4, 5]);
        assert_eq!(batch.before[..2], [7, 6]);
        let targets = batch.targets();
        let likeliest: Vec<Option<u32>> = targets.iter().map(|target| target.teacher[0].0).collect();
        assert_eq!(likeliest, [Some(1), Some(0), None, Some(0), None, None]);
        assert_eq!(targets[1].teacher[0], (Some(0), 0.25));
        assert_eq!(targets.iter().filter(|target| target.weight > 0.0).count(), 3);
        assert_eq!(batch.texts[0].features.to_vec2::<f32>().unwrap(), [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]);
        assert_eq!(batch.texts[0].tokens, [9, 8, 7]);
        // Where rows say what they are, the anchor's says nothing.
        let mut batch = Batch::new(BlockShape { silent: 1, ..shape });
        batch.add(&text, &features, &vocabulary, vec![2]).unwrap();
        let targets = batch.targets();
        let likeliest: Vec<Option<u32>> = targets.iter().map(|target| target.teacher[0].0).collect();
        assert_eq!((&batch.tokens[..], likeliest), (&[7, 0, 0][..], vec![None, Some(1), Some(0)]));
        assert_eq!((&batch.before[1..], targets[0].weight, targets[1].weight), (&[7, 6][..], 0.0, 1.0));
    }
}
