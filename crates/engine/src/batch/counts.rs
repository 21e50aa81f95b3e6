//! What became of drafts and how large steps were, counted.

use spec::{Accepted, Tree};

use super::verify::counted;

/// Distances from the anchor that are counted apart; further ones count with the last.
pub const DRAFT_POSITIONS: usize = 16;

/// Seconds that [`StepCounts::by_seconds`] tells apart.
pub const STEP_SECONDS: [f64; 14] =
    [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192];

/// Rows that [`StepCounts::by_rows`] tells apart.
pub const STEP_ROWS: [f64; 11] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];

/// Steps by their size. A mean would hide the one step in a hundred that everybody waits for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepCounts {
    /// Steps that took as long as the place in [`STEP_SECONDS`] says or less, and longer than the one before it says; the
    /// last: longer than all.
    pub by_seconds: [u64; STEP_SECONDS.len() + 1],
    /// The same by rows and [`STEP_ROWS`].
    pub by_rows: [u64; STEP_ROWS.len() + 1],
}

impl StepCounts {
    pub(super) fn count(&mut self, seconds: f64, rows: usize) {
        self.by_seconds[STEP_SECONDS.partition_point(|&bound| bound < seconds)] += 1;
        self.by_rows[STEP_ROWS.partition_point(|&bound| bound < rows as f64)] += 1;
    }
}

/// Why a request that decoded had no draft checked in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Its client wants none.
    Disabled,
    /// It can say one token more, which needs none.
    LastToken,
    /// Nothing came to the drafter's mind.
    NoMatch,
    /// It is longer than the drafter can follow.
    Context,
    /// Drafting, or checking, would have taken more time than it saved.
    DoesNotPay,
    /// The drafter had not read all of it yet, or has no memory to.
    Behind,
    /// There were no pages for drafts.
    NoPages,
    /// The drafter failed.
    Failed,
}

impl Reason {
    /// All of them.
    pub const ALL: [Reason; 8] = [
        Reason::Disabled,
        Reason::LastToken,
        Reason::NoMatch,
        Reason::Context,
        Reason::DoesNotPay,
        Reason::Behind,
        Reason::NoPages,
        Reason::Failed,
    ];

    /// As metrics and tables have it.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Disabled => "disabled",
            Reason::LastToken => "last_token",
            Reason::NoMatch => "no_match",
            Reason::Context => "context",
            Reason::DoesNotPay => "does_not_pay",
            Reason::Behind => "behind",
            Reason::NoPages => "no_pages",
            Reason::Failed => "failed",
        }
    }
}

/// What became of drafts.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct DraftCounts {
    /// Proposals of which something was checked: steps of a request that had drafts.
    pub proposals: u64,
    /// Drafts that were checked, but for those beyond the end of their request.
    pub checked: u64,
    /// Drafts that were committed.
    pub accepted: u64,
    /// Steps of a request in which a draft at this distance from the anchor, from 1, was checked.
    pub checked_at: [u64; DRAFT_POSITIONS],
    /// Of these, those in which one was committed.
    pub accepted_at: [u64; DRAFT_POSITIONS],
    /// Steps of a request without drafts, by [`Reason`] in the order of [`Reason::ALL`].
    pub silent: [u64; Reason::ALL.len()],
    /// Drafts of which the target's opinion is known: the children of what was committed.
    pub judged: u64,
    /// The sum of their calibrated confidences: how many of them should have stood.
    pub expected: f64,
    /// The sum of (confidence − outcome)²: over `judged`, the Brier score.
    pub squared_error: f64,
}

impl DraftCounts {
    /// Steps of a request that decodes, with drafts and without.
    pub fn decodes(&self) -> u64 {
        self.proposals + self.silent.iter().sum::<u64>()
    }

    /// Drafts that were checked of each request that decoded since `before`; `None` if none did.
    pub(super) fn budget(&self, before: &DraftCounts) -> Option<f64> {
        let decodes = self.decodes() - before.decodes();
        (decodes > 0).then(|| (self.checked - before.checked) as f64 / decodes as f64)
    }

    /// A request had no drafts in a step.
    pub(super) fn silent(&mut self, reason: Reason) {
        self.silent[reason as usize] += 1;
    }

    /// A tree was checked.
    pub(super) fn checked(&mut self, tree: &Tree, accepted: &Accepted, ended: bool) {
        self.proposals += 1;
        self.checked += counted(tree, accepted, ended).count() as u64;
        self.accepted += accepted.path.len() as u64;
        let deepest = counted(tree, accepted, ended).map(|node| tree.depths()[node] as usize).max().unwrap_or(0);
        let place = |depth: usize| (depth - 1).min(DRAFT_POSITIONS - 1);
        (1..=deepest).for_each(|depth| self.checked_at[place(depth)] += 1);
        (1..=accepted.path.len()).for_each(|depth| self.accepted_at[place(depth)] += 1);
    }

    /// The target has said of a draft, which was admitted with this confidence, whether it stands.
    pub(super) fn judged(&mut self, confidence: f64, stands: bool) {
        self.judged += 1;
        self.expected += confidence;
        self.squared_error += (confidence - f64::from(u8::from(stands))).powi(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_counts_where_it_fits() {
        let mut counts = StepCounts::default();
        [(0.0, 1), (0.001, 2), (0.0011, 3), (8.2, 1024), (f64::INFINITY, 1025)]
            .into_iter()
            .for_each(|(seconds, rows)| counts.count(seconds, rows));
        assert_eq!((counts.by_seconds[..2].to_vec(), counts.by_seconds[14]), (vec![2, 1], 2));
        assert_eq!((counts.by_rows[..3].to_vec(), counts.by_rows[10..].to_vec()), (vec![1, 1, 1], vec![1, 1]));
    }
}
