//! What drafters read of the rows that a step has computed, and when.
//!
//! Rows of prompts are read at once. Those of requests that decode wait until the drafter is asked about them, or until their
//! page is full: one that is not asked then costs hardly anything. What a drafter makes of rows may not enter.

use draft::{Computed, DraftError, Drafter, Key, Unread, UnreadRows};
use kernels::{PAGE, Pool};
use kv::{KvCache, Sequence};
use model::{Output, Segment, Tap};

use super::lane::Lane;

/// What waits to be read, and with which hidden states.
pub(super) struct Reading {
    taps: Vec<Tap>,
    /// Whether rows may wait: where several read, each would want them at another time.
    waits: bool,
    pub(super) unread: Unread,
    /// Of a hidden state.
    width: usize,
    /// The hidden states of this step's drafts, for each tap `[drafts, hidden]`: of which some will be committed.
    drafts: Vec<(Key, Vec<Vec<f32>>)>,
}

impl Reading {
    /// Nothing has been computed yet.
    pub(super) fn new(drafter: &dyn Drafter) -> Reading {
        let mut taps = Vec::new();
        for tap in drafter.taps() {
            if !taps.contains(&tap) {
                taps.push(tap);
            }
        }
        let (waits, unread) = (drafter.readers() <= 1, Unread::new(taps.clone()));
        Reading { taps, waits, unread, width: 0, drafts: Vec::new() }
    }

    /// The target's hidden states that are read.
    pub(super) fn taps(&self) -> &[Tap] {
        &self.taps
    }

    /// Takes what a step has computed, `batch` being the segments of those `running` that have rows: hands the drafter what it
    /// has to read now, and lets the rest wait.
    pub(super) fn computed(
        &mut self,
        drafter: &mut dyn Drafter,
        (pool, cache): (&Pool, &mut KvCache),
        running: &[Lane],
        batch: &[Segment<'_>],
        output: &Output<'_>,
    ) -> Result<(), DraftError> {
        if self.taps.is_empty() {
            return Ok(());
        }
        let lanes = || running.iter().filter(|lane| lane.rows > 0);
        let states: Vec<&[f32]> = output.taps.iter().map(Vec::as_slice).collect();
        if !self.waits || lanes().all(|lane| decoding(lane).is_none()) {
            let taps: Vec<(Tap, &[f32])> = self.taps.iter().copied().zip(states).collect();
            return drafter.computed(&mut Computed { pool, cache, taps: &taps, batch });
        }
        let rows = batch.iter().map(|segment| segment.tokens.len()).sum::<usize>().max(1);
        let width = states.first().map_or(0, |states| states.len() / rows);
        let part = |from: usize, count: usize| states.iter().map(move |all| &all[from * width..(from + count) * width]);
        self.drafts.clear();
        self.width = width;
        let (mut due, mut first) = (Vec::new(), 0);
        for (lane, segment) in lanes().zip(batch) {
            let count = segment.tokens.len();
            match decoding(lane) {
                Some(key) => {
                    self.unread.push(key, lane.computed, part(first, 1));
                    if count > 1 {
                        self.drafts.push((key, part(first + 1, count - 1).map(<[f32]>::to_vec).collect()));
                    }
                    if (lane.computed + 1).is_multiple_of(PAGE) {
                        due.extend(self.unread.take(key).map(|rows| of(lane, rows)));
                    }
                }
                None => due.push(of(lane, UnreadRows::new(segment.start, count, part(first, count)))),
            }
            first += count;
        }
        self.unread.hand(drafter, (pool, cache), &due)
    }

    /// Takes the accepted drafts of a lane, whose committed tokens were `before` in the cache and now are more.
    pub(super) fn accepted(
        &mut self,
        drafter: &mut dyn Drafter,
        lent: (&Pool, &mut KvCache),
        lane: &Lane,
        before: usize,
    ) -> Result<(), DraftError> {
        let [choice] = &lane.choices[..] else { return Ok(()) };
        let key = Key { request: lane.id.0, choice: choice.index };
        let Some((_, states)) = self.drafts.iter().find(|(other, _)| *other == key) else { return Ok(()) };
        for (position, &node) in (before..lane.computed).zip(&lane.accepted.path) {
            let row = (node - 1) * self.width..node * self.width;
            self.unread.push(key, position, states.iter().map(|all| &all[row.clone()]));
        }
        match before / PAGE < lane.computed / PAGE {
            true => {
                let due = self.unread.take(key).map(|rows| of(lane, rows));
                self.unread.hand(drafter, lent, due.as_slice())
            }
            false => Ok(()),
        }
    }

    /// Forgets what waits of a request.
    pub(super) fn forget(&mut self, key: Key) {
        self.unread.take(key);
    }
}

/// Rows with what they are of.
fn of(lane: &Lane, rows: UnreadRows) -> (&Sequence, &[u32], UnreadRows) {
    (&lane.sequence, lane.tokens(), rows)
}

/// The one choice of a lane that decodes.
fn decoding(lane: &Lane) -> Option<Key> {
    match &lane.choices[..] {
        [choice] if lane.demand().decodes => Some(Key { request: lane.id.0, choice: choice.index }),
        _ => None,
    }
}
