//! The window: for each of the next few places a sequence of tokens on its way to what the target says (Jacobi's
//! iteration).

/// Columns of tokens, all of one length. The token on level l of column i is a guess at what stands i + l places after the
/// anchor; the first of the first column is the anchor itself.
#[derive(Debug)]
pub(super) struct Window {
    width: usize,
    levels: usize,
    columns: Vec<Vec<u32>>,
    /// Tokens of the text that it begins after, the anchor included.
    at: usize,
    /// Where the next filler is taken from.
    chance: u64,
}

impl Window {
    /// `width` columns of `levels` tokens; at least 2 of these.
    pub(super) fn new(width: usize, levels: usize) -> Window {
        Window { width, levels: levels.max(2), columns: Vec::new(), at: 0, chance: 0 }
    }

    /// The columns of which no row is further from the anchor than `depth`, from the first on.
    pub(super) fn columns(&self, depth: usize) -> impl Iterator<Item = &[u32]> {
        let fitting = (depth + 2).saturating_sub(self.levels);
        self.columns.iter().take(fitting).map(Vec::as_slice)
    }

    /// Moves the window to the end of `tokens`. `heard` is what the target said after each of the first columns, if these
    /// were computed in between: each gets it as a new last token and loses its first. Answers them as they were before
    /// they lost it: n-grams of one token more than there are levels.
    pub(super) fn advance(&mut self, tokens: &[u32], heard: &[u32]) -> Vec<Vec<u32>> {
        let Some(&anchor) = tokens.last() else { return Vec::new() };
        // A column that loses its first token has moved on by one place.
        let mut behind = tokens.len().saturating_sub(self.at);
        let mut ngrams = Vec::new();
        if behind > 0 && !heard.is_empty() {
            self.columns.truncate(heard.len());
            for (column, &token) in self.columns.iter_mut().zip(heard) {
                column.push(token);
                ngrams.push(column.clone());
                column.remove(0);
            }
            behind -= 1;
        }
        self.columns.drain(..behind.min(self.columns.len()));
        self.fill(tokens);
        if let Some(first) = self.columns.first_mut() {
            first[0] = anchor;
        }
        self.at = tokens.len();
        ngrams
    }

    /// Adds the columns that are missing: each guesses what the one before it does, and one token more. Fillers come from
    /// the text, and from the same places whenever it is the same.
    fn fill(&mut self, tokens: &[u32]) {
        while self.columns.len() < self.width {
            let mut column = self.columns.last().map_or(Vec::new(), |last| last[1..].to_vec());
            while column.len() < self.levels {
                self.chance =
                    self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                column.push(tokens[(self.chance >> 33) as usize % tokens.len()]);
            }
            self.columns.push(column);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(window: &Window) -> Vec<Vec<u32>> {
        window.columns(usize::MAX - 2).map(<[u32]>::to_vec).collect()
    }

    #[test]
    fn a_computed_window_moves_on_by_itself() {
        let mut window = Window::new(3, 2);
        assert!(window.advance(&[5], &[]).is_empty());
        assert_eq!(columns(&window), [[5, 5], [5, 5], [5, 5]]);
        let ngrams = window.advance(&[5, 6], &[10, 11, 12]);
        assert_eq!(ngrams, [[5, 5, 10], [5, 5, 11], [5, 5, 12]]);
        assert_eq!(columns(&window), [[6, 10], [5, 11], [5, 12]], "the anchor is known");
        let ngrams = window.advance(&[5, 6, 7], &[20, 21, 22]);
        assert_eq!(ngrams, [[6, 10, 20], [5, 11, 21], [5, 12, 22]]);
        assert_eq!(columns(&window), [[7, 20], [11, 21], [12, 22]]);
    }

    #[test]
    fn where_more_was_said_columns_go_and_new_ones_follow() {
        let mut window = Window::new(3, 2);
        window.advance(&[5], &[]);
        window.advance(&[5, 6], &[10, 11, 12]);
        // Two more tokens than the window moved on by: one column is left, and the next ones go on from it.
        let ngrams = window.advance(&[5, 6, 7, 8, 9], &[20, 21, 22]);
        assert_eq!(ngrams.len(), 3);
        let after = columns(&window);
        assert_eq!((&after[0], after[1][0]), (&vec![9, 22], 22));
        assert_eq!(after[2][0], after[1][1]);
        // A window that was not computed is moved as well.
        assert!(window.advance(&[5, 6, 7, 8, 9, 3], &[]).is_empty());
        assert_eq!(columns(&window)[0], [3, after[1][1]]);
        assert!(window.advance(&[5, 6, 7, 8, 9, 3], &[1, 1, 1]).is_empty(), "nothing was said");
    }

    #[test]
    fn no_row_is_further_away_than_allowed() {
        let mut window = Window::new(4, 3);
        window.advance(&[5, 6, 7], &[]);
        let widths = [0, 1, 2, 3, 4, 5, 9].map(|depth| window.columns(depth).count());
        assert_eq!(widths, [0, 0, 1, 2, 3, 4, 4], "column i reaches i + 2 places");
        assert_eq!(Window::new(0, 3).columns(9).count(), 0);
    }
}
