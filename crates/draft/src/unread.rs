//! Rows that the target has computed, and that nobody has read yet.
//!
//! Who reads [hidden states](Drafter::taps) for a request that it is not asked about would read them for nothing; and many
//! rows at once take hardly longer than one. So rows of requests that decode wait until the drafter is asked about them, or
//! their page is full, when other requests may find it.

use std::collections::HashMap;

use kernels::Pool;
use kv::{KvCache, Sequence};
use model::{Logits, Segment, Tap, Visibility};

use crate::{Ask, Computed, DraftError, Drafter, Key, Round};

/// The waiting rows of all requests.
#[derive(Debug, Default)]
pub struct Unread {
    /// With which hidden states they wait.
    taps: Vec<Tap>,
    rows: HashMap<Key, UnreadRows>,
}

/// The waiting rows of a request: consecutive ones, up to the newest that is computed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UnreadRows {
    /// The position of the first.
    start: usize,
    /// How many there are.
    count: usize,
    /// Their hidden states, for each tap: `[count, hidden]`.
    states: Vec<Vec<f32>>,
}

impl Unread {
    /// Where rows wait with these hidden states.
    pub fn new(taps: Vec<Tap>) -> Unread {
        Unread { taps, rows: HashMap::new() }
    }

    /// Adds the row at `position` of a request, which comes right after those that wait: `states` are those of all taps.
    pub fn push<'s>(&mut self, key: Key, position: usize, states: impl Iterator<Item = &'s [f32]>) {
        let rows = self.rows.entry(key).or_default();
        if rows.start + rows.count != position {
            *rows = UnreadRows { start: position, ..UnreadRows::default() };
        }
        for (tap, state) in states.enumerate() {
            if rows.states.len() == tap {
                rows.states.push(Vec::new());
            }
            rows.states[tap].extend_from_slice(state);
        }
        rows.count += 1;
    }

    /// Hands a drafter rows that waited, each with the sequence and the tokens of its request.
    ///
    /// # Errors
    ///
    /// [`DraftError`] when it could not read them.
    pub fn hand(
        &self,
        drafter: &mut dyn Drafter,
        (pool, cache): (&Pool, &mut KvCache),
        rows: &[(&Sequence, &[u32], UnreadRows)],
    ) -> Result<(), DraftError> {
        if rows.is_empty() {
            return Ok(());
        }
        let batch: Vec<Segment<'_>> =
            rows.iter().map(|(sequence, tokens, rows)| rows.segment(sequence, tokens)).collect();
        let states = joined(rows.iter().map(|(.., rows)| rows));
        let taps: Vec<(Tap, &[f32])> = self.taps.iter().copied().zip(states.iter().map(Vec::as_slice)).collect();
        drafter.computed(&mut Computed { pool, cache, taps: &taps, batch: &batch })
    }

    /// Takes the waiting rows of a request; they are read now, or never.
    pub fn take(&mut self, key: Key) -> Option<UnreadRows> {
        self.rows.remove(&key)
    }
}

impl UnreadRows {
    /// `count` rows from `start` on, with their states for each tap.
    pub fn new<'s>(start: usize, count: usize, states: impl Iterator<Item = &'s [f32]>) -> UnreadRows {
        UnreadRows { start, count, states: states.map(<[f32]>::to_vec).collect() }
    }

    /// The positions of the rows.
    pub fn positions(&self) -> std::ops::Range<usize> {
        self.start..self.start + self.count
    }

    /// Their hidden states, for each tap: `[rows, hidden]`.
    pub fn states(&self) -> &[Vec<f32>] {
        &self.states
    }

    /// The rows as a part of a batch, of a request with these `tokens`.
    fn segment<'a>(&self, sequence: &'a Sequence, tokens: &'a [u32]) -> Segment<'a> {
        Segment {
            sequence,
            start: self.start,
            tokens: &tokens[self.positions()],
            visibility: Visibility::Causal,
            logits: Logits::None,
        }
    }
}

/// Hands a drafter that reads what waits of the requests that it is asked about.
pub(crate) fn catch_up(drafter: &mut dyn Drafter, round: &mut Round<'_>, asks: &[Ask<'_>]) -> Result<(), DraftError> {
    let rows: Vec<(&Sequence, &[u32], UnreadRows)> =
        asks.iter().filter_map(|ask| Some((ask.sequence, ask.tokens, round.unread.take(ask.key)?))).collect();
    round.unread.hand(drafter, (round.pool, &mut *round.cache), &rows)
}

/// The hidden states of several requests' rows, one after the other, for each tap.
fn joined<'r>(rows: impl Iterator<Item = &'r UnreadRows>) -> Vec<Vec<f32>> {
    let mut all: Vec<Vec<f32>> = Vec::new();
    for rows in rows {
        all.resize_with(all.len().max(rows.states.len()), Vec::new);
        all.iter_mut().zip(&rows.states).for_each(|(all, states)| all.extend_from_slice(states));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_wait_in_order_until_they_are_taken() {
        let (key, mut unread) = (Key { request: 1, choice: 0 }, Unread::default());
        for position in 4..6 {
            let value = [position as f32];
            unread.push(key, position, [&value[..], &value[..]].into_iter());
        }
        let rows = unread.take(key).unwrap();
        assert_eq!((rows.positions(), rows.states()), (4..6, &[vec![4.0, 5.0], vec![4.0, 5.0]][..]));
        assert_eq!(unread.take(key), None);
        // What was lost in between is not read: rows are never other than consecutive.
        unread.push(key, 7, [&[7.0][..]].into_iter());
        unread.push(key, 9, [&[9.0][..]].into_iter());
        assert_eq!(unread.take(key).unwrap().positions(), 9..10);
    }
}
