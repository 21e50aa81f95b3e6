//! Who computes how many rows in a step, and who may begin: pure functions of numbers, without requests or pages.

/// What a running lane could compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Tokens whose keys and values are not in the cache yet. At least 1.
    pub(crate) pending: usize,
    /// Tokens whose keys and values are.
    pub(crate) context: usize,
    /// The lane has given out a token and waits for the next: it has one token pending.
    pub(crate) decodes: bool,
}

/// The rows of each lane in the next step, for lanes in the order in which they are to be served.
///
/// Every decode gets its row. What they leave of `row_budget`, and at least one row so that no prompt starves, goes to
/// the prompts, first come first served: no later prompt has rows while an earlier one lacks some. A prompt's rows count
/// the more, the more they have to look back on, so that a step takes about as long in the midst of a long prompt as at
/// its beginning.
pub(crate) fn rows(demands: &[Demand], row_budget: usize) -> Vec<usize> {
    let decodes = demands.iter().filter(|demand| demand.decodes).count();
    // In 1 / CONTEXT_OF_A_ROW of a row.
    let mut left = row_budget.saturating_sub(decodes).max(1).saturating_mul(CONTEXT_OF_A_ROW);
    let mut starving = true;
    let share = |demand: &Demand| {
        if demand.decodes {
            return 1;
        }
        let cost = CONTEXT_OF_A_ROW + demand.context;
        let rows = demand.pending.min((left / cost).max(usize::from(std::mem::take(&mut starving))));
        // Whoever comes later waits until this one has all its rows.
        left = if rows < demand.pending { 0 } else { left.saturating_sub(rows * cost) };
        rows
    };
    demands.iter().map(share).collect()
}

/// Tokens that a row looks back on in about the time that the rest of its computation takes: so it is for the default
/// model, where a row of a long chunk takes 0.55 ms, and 0.5 ms more for each 1,024 tokens before it. Larger models have
/// more of the rest, so that for them steps get shorter than they need to be.
const CONTEXT_OF_A_ROW: usize = 1024;

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
        Demand { pending, context: 0, decodes: false }
    }

    const DECODE: Demand = Demand { pending: 1, context: 500, decodes: true };

    #[test]
    fn rows_deep_in_a_prompt_count_more() {
        let deep = |context| Demand { pending: 1000, context, decodes: false };
        assert_eq!(rows(&[deep(0), DECODE], 129), [128, 1]);
        assert_eq!(rows(&[deep(1024), DECODE], 129), [64, 1]);
        assert_eq!(rows(&[deep(7 * 1024), DECODE], 129), [16, 1]);
        assert_eq!(rows(&[deep(1 << 20), prompt(1)], 129), [1, 0], "nobody starves, and nobody overtakes");
        assert_eq!(rows(&[prompt(10), deep(1024)], 128), [10, 59]);
        assert_eq!(rows(&[prompt(10), deep(1024)], usize::MAX), [10, 1000]);
    }

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
            lanes in prop::collection::vec((1usize..300, 0usize..4000, 1usize..20), 1..24),
            row_budget in 1usize..200,
        ) {
            let lane = |(prompt, found, outputs)| (Demand { pending: prompt, context: found, decodes: false }, outputs);
            let mut lanes: Vec<(Demand, usize)> = lanes.into_iter().map(lane).collect();
            let work: usize = lanes.iter().map(|(prompt, outputs)| prompt.pending + outputs).sum();
            let mut steps = 0;
            while !lanes.is_empty() {
                let demands: Vec<Demand> = lanes.iter().map(|lane| lane.0).collect();
                let rows = rows(&demands, row_budget);
                let decodes = demands.iter().filter(|demand| demand.decodes).count();
                prop_assert!(rows.iter().sum::<usize>() <= row_budget.max(decodes + 1));
                for ((lane, outputs), rows) in lanes.iter_mut().zip(rows) {
                    prop_assert!(rows <= lane.pending && (!lane.decodes || rows == 1));
                    (lane.pending, lane.context) = (lane.pending - rows, lane.context + rows);
                    if lane.pending == 0 {
                        (*lane, *outputs) = (Demand { pending: 1, decodes: true, ..*lane }, *outputs - 1);
                    }
                }
                lanes.retain(|&(_, outputs)| outputs > 0);
                steps += 1;
                prop_assert!(steps <= work, "no progress");
            }
        }
    }
}
