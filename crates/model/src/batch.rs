//! What one forward is asked for: rows of several sequences, which keys each sees, and what is wanted of them.

use kernels::{AttentionRow, KvSlot, PAGE};
use kv::Sequence;

/// The rows of one sequence in a forward.
#[derive(Debug, Clone, Copy)]
pub struct Segment<'a> {
    /// The sequence, with room for `start + tokens.len()` slots. The slots from `start` on are written.
    pub sequence: &'a Sequence,
    /// Tokens that are committed and already in the K/V: the slot of the first row.
    pub start: usize,
    /// The rows' tokens.
    pub tokens: &'a [u32],
    /// What the rows see of each other.
    pub visibility: Visibility<'a>,
    /// Which rows' logits are wanted.
    pub logits: Logits<'a>,
}

impl<'a> Segment<'a> {
    /// The slot of the position before a row's; `None` for a first one.
    fn before(&self, row: usize) -> Option<usize> {
        match self.visibility {
            Visibility::Causal | Visibility::Block => (self.start + row).checked_sub(1),
            Visibility::Tree { parents } => match parents[row] {
                Some(parent) => Some(self.start + parent as usize),
                None => self.start.checked_sub(1),
            },
            Visibility::Paths { prefix, paths } => match &paths[row][..] {
                [.., parent, _] => Some(*parent as usize),
                _ => prefix.checked_sub(1),
            },
        }
    }
}

/// A batch of which only the rows from some position on are wanted, and no logits.
#[derive(Debug)]
pub(crate) struct Later<'a> {
    batch: &'a [Segment<'a>],
    /// For each tree that begins below that position, the slots of each row's ancestors past the prefix and its own.
    paths: Vec<Vec<Vec<u32>>>,
}

impl<'a> Later<'a> {
    /// The rows from positions up to `first` on.
    pub(crate) fn new(batch: &'a [Segment<'a>], first: usize) -> Later<'a> {
        let paths = |segment: &Segment<'_>| match segment.visibility {
            Visibility::Tree { parents } if segment.start < first => {
                let mut paths: Vec<Vec<u32>> = Vec::with_capacity(parents.len());
                for (row, parent) in parents.iter().enumerate() {
                    let above = parent.and_then(|parent| paths.get(parent as usize)).cloned().unwrap_or_default();
                    paths.push(above.into_iter().chain([(segment.start + row) as u32]).collect());
                }
                paths
            }
            _ => Vec::new(),
        };
        Later { batch, paths: batch.iter().map(paths).collect() }
    }

    /// The rows at positions from `first` on. Those of a tree that begins below are each a segment of its own.
    pub(crate) fn from(&self, first: usize) -> Vec<Segment<'_>> {
        let mut later = Vec::with_capacity(self.batch.len());
        for (segment, paths) in self.batch.iter().zip(&self.paths) {
            let segment = Segment { logits: Logits::None, ..*segment };
            let (start, skipped) = (segment.start, first.saturating_sub(segment.start).min(segment.tokens.len()));
            match segment.visibility {
                Visibility::Tree { .. } if skipped > 0 => later.extend(
                    paths.iter().enumerate().filter(|(_, path)| start + path.len() > first).map(|(row, _)| Segment {
                        start: start + row,
                        tokens: &segment.tokens[row..=row],
                        visibility: Visibility::Paths { prefix: start, paths: &paths[row..=row] },
                        ..segment
                    }),
                ),
                _ => later.push(Segment { start: start + skipped, tokens: &segment.tokens[skipped..], ..segment }),
            }
        }
        later
    }
}

/// What rows of a segment see beside the committed prefix.
#[derive(Debug, Clone, Copy)]
pub enum Visibility<'a> {
    /// Row `i` is at position `start + i` and sees the rows before it.
    Causal,
    /// Row `i` is at position `start + i` and sees all rows of the segment, those after it too.
    Block,
    /// Row `i` sees its ancestors: `parents[i]` is an earlier row, or `None` for a row that follows the prefix. Its
    /// position is the number of its ancestors past `start`.
    Tree {
        /// Each row's parent, `[rows]`.
        parents: &'a [Option<u32>],
    },
    /// Row `i` sees `prefix` positions and then those of its path, which may have been computed in earlier forwards.
    Paths {
        /// Committed tokens, in the slots of the same number.
        prefix: usize,
        /// For each row the slots of its ancestors past the prefix and its own, which is `start + i`: `[rows]`.
        paths: &'a [Vec<u32>],
    },
}

/// Which rows of a segment get logits.
#[derive(Debug, Clone, Copy)]
pub enum Logits<'a> {
    /// None: a chunk of a prompt before its last.
    None,
    /// The last row's.
    Last,
    /// Every row's.
    All,
    /// These rows', in this order.
    Rows(&'a [usize]),
}

/// A hidden state that a forward gives out for every row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tap {
    /// The embedding: what enters layer 0.
    Embedding,
    /// The residual stream after a layer.
    Layer(usize),
    /// After the last layer and the final norm.
    Final,
}

/// A forward that cannot be run as asked.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ForwardError {
    #[error("token {token} is outside the model's vocabulary of {vocab}")]
    Token { token: u32, vocab: usize },
    #[error("position {position} is outside the model's context of {context}")]
    Position { position: usize, context: usize },
    #[error("the sequence has room for {room} tokens, and its rows need {need}")]
    Room { room: usize, need: usize },
    #[error("a tree of {rows} rows has {parents} parents")]
    TreeSize { rows: usize, parents: usize },
    #[error("the path of row {row} does not end at the row")]
    Path { row: usize },
    #[error("row {row} of a tree has the parent {parent}, which is not an earlier row")]
    Parent { row: usize, parent: u32 },
    #[error("logits of row {row} are wanted of a segment of {rows} rows")]
    NoSuchRow { row: usize, rows: usize },
    #[error("the hidden state after layer {layer} is wanted of a model of {layers} layers")]
    NoSuchLayer { layer: usize, layers: usize },
    #[error("the K/V cache has {found}, and the model needs {needed}")]
    Cache { found: String, needed: String },
}

/// A batch with every row's place worked out.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) tokens: Vec<u32>,
    pub(crate) positions: Vec<u32>,
    pub(crate) slots: Vec<KvSlot>,
    /// Where the position before each row's lies; `None` for a first one.
    pub(crate) before: Vec<Option<KvSlot>>,
    /// Rows whose logits are wanted, in the order wanted.
    pub(crate) logit_rows: Vec<usize>,
    /// Each row's segment.
    segments: Vec<usize>,
    /// Each row's slots past the committed prefix, one row after another; empty for causal rows.
    paths: Vec<u32>,
    /// Where each row's path begins and ends.
    path_ranges: Vec<(usize, usize)>,
}

impl Plan {
    /// Works out `batch` for a model of `vocab` tokens and `context` positions.
    pub(crate) fn make(&mut self, batch: &[Segment<'_>], vocab: usize, context: usize) -> Result<(), ForwardError> {
        self.tokens.clear();
        self.positions.clear();
        self.slots.clear();
        self.before.clear();
        self.logit_rows.clear();
        self.segments.clear();
        self.paths.clear();
        self.path_ranges.clear();
        for (index, segment) in batch.iter().enumerate() {
            let (first, rows) = (self.tokens.len(), segment.tokens.len());
            let (room, need) = (segment.sequence.table().len() * PAGE, segment.start + rows);
            if need > room {
                return Err(ForwardError::Room { room, need });
            }
            self.tokens.extend_from_slice(segment.tokens);
            if let Some(&token) = segment.tokens.iter().find(|&&token| token as usize >= vocab) {
                return Err(ForwardError::Token { token, vocab });
            }
            for row in 0..rows {
                let position = self.add_row(segment, row)?;
                if position >= context {
                    return Err(ForwardError::Position { position, context });
                }
                self.positions.push(position as u32);
                self.slots.push(segment.sequence.slot(segment.start + row));
                self.before.push(segment.before(row).map(|slot| segment.sequence.slot(slot)));
                self.segments.push(index);
            }
            self.add_logits(segment.logits, first, rows)?;
        }
        Ok(())
    }

    /// Notes the path of a row and returns its position.
    fn add_row(&mut self, segment: &Segment<'_>, row: usize) -> Result<usize, ForwardError> {
        let (start, begin) = (segment.start, self.paths.len());
        let position = match segment.visibility {
            Visibility::Causal | Visibility::Block => start + row,
            Visibility::Tree { parents } => {
                let rows = segment.tokens.len();
                if parents.len() != rows {
                    return Err(ForwardError::TreeSize { rows, parents: parents.len() });
                }
                match parents[row] {
                    Some(parent) if parent as usize >= row => return Err(ForwardError::Parent { row, parent }),
                    // The rows of this segment are the last ones noted.
                    Some(parent) => {
                        let (from, to) = self.path_ranges[self.path_ranges.len() - row + parent as usize];
                        self.paths.extend_from_within(from..to);
                    }
                    None => {}
                }
                self.paths.push((start + row) as u32);
                start + self.paths.len() - begin - 1
            }
            Visibility::Paths { prefix, paths } => {
                let path = paths.get(row).map_or(&[][..], Vec::as_slice);
                if path.last() != Some(&((start + row) as u32)) {
                    return Err(ForwardError::Path { row });
                }
                self.paths.extend_from_slice(path);
                prefix + path.len() - 1
            }
        };
        self.path_ranges.push((begin, self.paths.len()));
        Ok(position)
    }

    fn add_logits(&mut self, logits: Logits<'_>, first: usize, rows: usize) -> Result<(), ForwardError> {
        match logits {
            Logits::None => {}
            Logits::Last => self.logit_rows.extend((rows > 0).then(|| first + rows - 1)),
            Logits::All => self.logit_rows.extend(first..first + rows),
            Logits::Rows(wanted) => {
                if let Some(&row) = wanted.iter().find(|&&row| row >= rows) {
                    return Err(ForwardError::NoSuchRow { row, rows });
                }
                self.logit_rows.extend(wanted.iter().map(|row| first + row));
            }
        }
        Ok(())
    }

    /// The rows as attention wants them.
    pub(crate) fn attention_rows<'a>(&'a self, batch: &'a [Segment<'a>]) -> Vec<AttentionRow<'a>> {
        let row = |row: usize| {
            let segment = &batch[self.segments[row]];
            let (from, to) = self.path_ranges[row];
            let position = match segment.visibility {
                Visibility::Block => segment.start + segment.tokens.len() - 1,
                _ => self.positions[row] as usize,
            };
            let prefix = match segment.visibility {
                Visibility::Causal | Visibility::Block => position + 1,
                Visibility::Tree { .. } => segment.start,
                Visibility::Paths { prefix, .. } => prefix,
            };
            AttentionRow { table: segment.sequence.table(), position, prefix, path: &self.paths[from..to] }
        };
        (0..self.tokens.len()).map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_from_a_position_on_are_those_of_texts_and_of_trees() {
        let sequence = Sequence::new();
        let segment =
            |start, tokens, visibility| Segment { sequence: &sequence, start, tokens, visibility, logits: Logits::All };
        // Depths 0, 1, 1, 2, 3.
        let parents = [None, Some(0), Some(0), Some(2), Some(3)];
        let tree = Visibility::Tree { parents: &parents };
        let batch = [
            segment(0, &[10, 11, 12, 13], Visibility::Causal),
            segment(0, &[20], Visibility::Causal),
            segment(1, &[30, 31, 32, 33, 34], tree),
            segment(3, &[40, 41, 42, 43, 44], tree),
        ];
        let later = Later::new(&batch, 3);
        let rows = |first: usize| {
            let row = |segment: &Segment<'_>| {
                let path = match segment.visibility {
                    Visibility::Paths { prefix, paths } => Some((prefix, paths[0].clone())),
                    _ => None,
                };
                (segment.start, segment.tokens.to_vec(), path)
            };
            later.from(first).iter().map(row).collect::<Vec<_>>()
        };
        let whole = |start, tokens: &[u32]| (start, tokens.to_vec(), None);
        let kept = [whole(0, &[10, 11, 12, 13]), whole(0, &[20]), whole(1, &[30, 31, 32, 33, 34])];
        assert_eq!(rows(0)[..3], kept);
        assert_eq!(rows(1)[..3], [whole(1, &[11, 12, 13]), whole(1, &[]), whole(1, &[30, 31, 32, 33, 34])]);
        let single = |start, token, path: &[u32]| (start, vec![token], Some((1, path.to_vec())));
        let cut = [single(4, 33, &[1, 3, 4]), single(5, 34, &[1, 3, 4, 5])];
        let from_3 = rows(3);
        assert_eq!(from_3[..2], [whole(3, &[13]), whole(1, &[])]);
        assert_eq!(from_3[2..4], cut);
        assert_eq!(from_3[4], whole(3, &[40, 41, 42, 43, 44]));
        let before: Vec<Option<usize>> = later
            .from(3)
            .iter()
            .map(|segment| segment.tokens.len().checked_sub(1).and_then(|_| segment.before(0)))
            .collect();
        assert_eq!(before, [Some(2), None, Some(3), Some(4), Some(2)]);
    }
}
