//! Who computes how many rows in a step, and who may begin: pure functions of numbers, without requests or pages.

/// What a running lane could compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Tokens whose keys and values are not in the cache yet. At least 1.
    pub(crate) pending: usize,
    /// The lane has given out a token and waits for the next: it has one token pending.
    pub(crate) decodes: bool,
}

/// The rows of each lane in the next step, for lanes in the order in which they are to be served.
///
/// Every decode gets its row. What they leave of `row_budget`, and at least one row so that no prompt starves, goes to
/// the prompts, first come first served: no later prompt has rows while an earlier one lacks some.
pub(crate) fn rows(demands: &[Demand], row_budget: usize) -> Vec<usize> {
    let decodes = demands.iter().filter(|demand| demand.decodes).count();
    let mut left = row_budget.saturating_sub(decodes).max(1);
    let share = |demand: &Demand| {
        let rows = if demand.decodes { 1 } else { demand.pending.min(left) };
        left -= if demand.decodes { 0 } else { rows };
        rows
    };
    demands.iter().map(share).collect()
}

/// What is taken of the engine, and what is left.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    /// Choices that run.
    pub(crate) running: usize,
    /// Choices that may run.
    pub(crate) max_running: usize,
    /// Pages that can be had.
    pub(crate) free_pages: usize,
    /// Pages that those who run will soon want of them.
    pub(crate) promised_pages: usize,
}

impl Room {
    /// Whether `choices` more may begin that will soon want `pages` pages.
    ///
    /// Whoever would run alone may: nobody is let in whom the whole pool could not hold.
    pub(crate) fn takes(&self, choices: usize, pages: usize) -> bool {
        let fits = self.running + choices <= self.max_running && self.promised_pages + pages <= self.free_pages;
        self.running == 0 || fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn prompt(pending: usize) -> Demand {
        Demand { pending, decodes: false }
    }

    const DECODE: Demand = Demand { pending: 1, decodes: true };

    #[test]
    fn decodes_come_first_and_prompts_share_the_rest_in_order() {
        assert_eq!(rows(&[prompt(10), DECODE, prompt(3), DECODE, prompt(9)], 16), [10, 1, 3, 1, 1]);
        assert_eq!(rows(&[prompt(100), DECODE, prompt(3)], 16), [15, 1, 0]);
        assert_eq!(rows(&[DECODE; 5], 2), [1; 5]);
        assert_eq!(rows(&[DECODE, DECODE, prompt(7)], 2), [1, 1, 1]);
        assert!(rows(&[], 2).is_empty());
    }

    #[test]
    fn the_first_may_always_begin_and_the_others_if_there_is_room() {
        let room = Room { running: 2, max_running: 4, free_pages: 10, promised_pages: 3 };
        assert!(room.takes(2, 7));
        assert!(!room.takes(3, 7) && !room.takes(2, 8));
        assert!(Room { running: 0, free_pages: 0, ..room }.takes(1, 5));
    }

    proptest! {
        #[test]
        fn budgets_hold_no_decode_waits_and_everyone_finishes(
            lanes in prop::collection::vec((1usize..300, 1usize..20), 1..24),
            row_budget in 1usize..200,
        ) {
            let mut lanes: Vec<_> = lanes.into_iter().map(|(prompt, outputs)| (prompt, outputs, false)).collect();
            let work: usize = lanes.iter().map(|(prompt, outputs, _)| prompt + outputs).sum();
            let mut steps = 0;
            while !lanes.is_empty() {
                let demand = |&(pending, _, decodes): &(usize, usize, bool)| Demand { pending, decodes };
                let demands: Vec<Demand> = lanes.iter().map(demand).collect();
                let rows = rows(&demands, row_budget);
                let decodes = demands.iter().filter(|demand| demand.decodes).count();
                prop_assert!(rows.iter().sum::<usize>() <= row_budget.max(decodes + 1));
                for ((pending, outputs, decodes), rows) in lanes.iter_mut().zip(rows) {
                    prop_assert!(rows <= *pending && (!*decodes || rows == 1));
                    *pending -= rows;
                    if *pending == 0 {
                        (*pending, *outputs, *decodes) = (1, *outputs - 1, true);
                    }
                }
                lanes.retain(|&(_, outputs, _)| outputs > 0);
                steps += 1;
                prop_assert!(steps <= work, "no progress");
            }
        }
    }
}
