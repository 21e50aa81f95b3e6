//! Which of the target's tokens a draft knows.

use std::cmp::Reverse;

use crate::texts::Text;

/// The tokens of a draft's head, and where each of the target's is among them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DraftVocabulary {
    /// The target's token for each of the draft's, in ascending order.
    ids: Vec<u32>,
    /// The draft's token for each of the target's.
    known: Vec<Option<u32>>,
    /// Whether it is smaller than the target's.
    reduced: bool,
}

impl DraftVocabulary {
    /// All `vocab` tokens of the target.
    pub(crate) fn whole(vocab: usize) -> DraftVocabulary {
        DraftVocabulary::new((0..vocab as u32).collect(), vocab, false)
    }

    /// The `size` tokens that are most frequent in answers; of those that are in none, the first.
    pub(crate) fn most_frequent(size: usize, vocab: usize, texts: &[Text]) -> DraftVocabulary {
        let mut counts = vec![0u64; vocab];
        let answers = texts.iter().flat_map(|text| &text.tokens[text.prompt..]);
        answers.for_each(|&token| counts[token as usize] += 1);
        let mut ids: Vec<u32> = (0..vocab as u32).collect();
        ids.sort_by_key(|&id| (Reverse(counts[id as usize]), id));
        ids.truncate(size);
        ids.sort_unstable();
        DraftVocabulary::new(ids, vocab, true)
    }

    /// These tokens, in ascending order, of `vocab`; `None`: they are not.
    pub(crate) fn of(ids: Vec<u32>, vocab: usize) -> Option<DraftVocabulary> {
        let ascending = ids.windows(2).all(|pair| pair[0] < pair[1]);
        let known = ids.last().is_some_and(|&last| (last as usize) < vocab);
        (ascending && known).then(|| DraftVocabulary::new(ids, vocab, true))
    }

    fn new(ids: Vec<u32>, vocab: usize, reduced: bool) -> DraftVocabulary {
        let mut known = vec![None; vocab];
        (0..).zip(&ids).for_each(|(at, &id)| known[id as usize] = Some(at));
        DraftVocabulary { ids, known, reduced }
    }

    /// Tokens that the draft knows.
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether it is smaller than the target's.
    pub(crate) fn is_reduced(&self) -> bool {
        self.reduced
    }

    /// The target's token for each of the draft's, in ascending order.
    pub(crate) fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The draft's token for one of the target's; `None`: it does not know it.
    pub(crate) fn index(&self, token: u32) -> Option<u32> {
        self.known.get(token as usize).copied().flatten()
    }

    /// The share of the tokens of answers that it knows.
    pub(crate) fn coverage(&self, texts: &[Text]) -> f64 {
        let answers = || texts.iter().flat_map(|text| &text.tokens[text.prompt..]);
        answers().filter(|&&token| self.index(token).is_some()).count() as f64 / answers().count().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::texts::Origin;

    #[test]
    fn the_most_frequent_tokens_of_answers_are_known() {
        let text = Text { origin: Origin::Own, number: 0, prompt: 2, tokens: vec![1, 1, 5, 3, 5, 9] };
        let vocabulary = DraftVocabulary::most_frequent(3, 10, std::slice::from_ref(&text));
        assert_eq!(vocabulary.ids(), [3, 5, 9]);
        assert_eq!([1, 5, 9, 70].map(|token| vocabulary.index(token)), [None, Some(1), Some(2), None]);
        assert_eq!(DraftVocabulary::most_frequent(2, 10, std::slice::from_ref(&text)).coverage(&[text]), 0.75);
    }
}
