//! N-grams by the token that they begin with.

use std::collections::HashMap;

/// The newest few n-grams for each first token.
#[derive(Debug)]
pub(super) struct Pool {
    guesses: usize,
    by_token: HashMap<u32, Vec<Guess>>,
}

/// What follows a token, and whether only the window has ever said so.
type Guess = (Box<[u32]>, bool);

impl Pool {
    /// Keeps `guesses` n-grams for each token at most.
    pub(super) fn new(guesses: usize) -> Pool {
        Pool { guesses, by_token: HashMap::new() }
    }

    /// Adds an n-gram, or makes it the newest. `found`: the window has it, and not the text.
    pub(super) fn add(&mut self, ngram: &[u32], found: bool) {
        let Some((&token, next)) = ngram.split_first() else { return };
        let known = self.by_token.entry(token).or_default();
        let before = known.iter().position(|(tokens, _)| **tokens == *next).map(|at| known.remove(at));
        let found = found && before.is_none_or(|(_, found)| found);
        known.push((next.into(), found));
        if known.len() > self.guesses {
            known.remove(0);
        }
    }

    /// What has followed `token`, the newest first, and whether only the window has said so.
    pub(super) fn guesses(&self, token: u32) -> impl Iterator<Item = (&[u32], bool)> {
        let known = self.by_token.get(&token).map_or(&[][..], Vec::as_slice);
        known.iter().rev().map(|(tokens, found)| (&**tokens, *found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept_and_what_comes_again_is_new() {
        let mut pool = Pool::new(2);
        for ngram in [[1, 2, 3], [1, 4, 5], [1, 2, 3], [1, 6, 7], [2, 2, 3]] {
            pool.add(&ngram, true);
        }
        let guesses = |pool: &Pool| pool.guesses(1).map(|(tokens, found)| (tokens.to_vec(), found)).collect::<Vec<_>>();
        assert_eq!(guesses(&pool), [(vec![6, 7], true), (vec![2, 3], true)]);
        pool.add(&[1, 2, 3], false);
        pool.add(&[1, 2, 3], true);
        assert_eq!(guesses(&pool), [(vec![2, 3], false), (vec![6, 7], true)], "the text has said it");
        assert!(pool.guesses(9).next().is_none());
        let mut nothing = Pool::new(0);
        nothing.add(&[1, 2], true);
        assert!(nothing.guesses(1).next().is_none());
    }
}
