//! Lookahead against a target whose every word is known.

use std::collections::HashSet;
use std::convert::Infallible;

use proptest::prelude::*;
use spec::Accepted;

use super::*;
use crate::Greedy;

const KEY: Key = Key { request: 0, choice: 0 };

fn ask(tokens: &[u32]) -> Ask<'_> {
    Ask {
        key: KEY,
        tokens,
        prompt: 4,
        predicted: &[],
        max_drafts: 8,
        remaining: 64,
        choose: &Greedy,
        sequence: &crate::alone::NOWHERE,
    }
}

/// One step with a target that says `says(text)`: the proposal, of which all is checked, or only drafts, and what stood.
fn step(
    lookahead: &mut Lookahead,
    tokens: &mut Vec<u32>,
    says: impl Fn(&[u32]) -> u32,
    windows: bool,
) -> (Proposal, Accepted) {
    let mut lent = crate::alone::Lent::new();
    let mut round = lent.round(1.0, 0.1);
    let whole = lookahead.propose(&mut round, &[ask(tokens)]).unwrap().remove(0).unwrap();
    let kept: Vec<bool> = (0..whole.tree().len()).map(|node| node == 0 || windows || whole.is_draft(node)).collect();
    let (proposal, proposed) = whole.keep(&kept).unwrap();
    let tree = proposal.tree();
    let after = |node: usize| {
        let path = tree.path(node).into_iter().map(|node| tree.tokens()[node]);
        says(&tokens.iter().copied().chain(path).collect::<Vec<u32>>())
    };
    let Ok(accepted) = spec::keyed(tree, |node| Ok::<_, Infallible>(Some(after(node))));
    let heard: Vec<(usize, u32)> =
        (0..tree.len()).filter(|&node| proposal.is_heard(node)).map(|node| (proposed[node], after(node))).collect();
    lookahead.heard(KEY, &heard);
    if tree.drafts() > 0 {
        lookahead.judged(KEY, &Verdict { tree, proposed: &proposed, accepted: &accepted });
    }
    let said: Vec<u32> = accepted.path.iter().map(|&node| tree.tokens()[node]).chain(accepted.next).collect();
    tokens.extend(said);
    (proposal, accepted)
}

/// A target that says a number more of each place, and so nothing twice: a window that is ahead finds it.
fn by_place(text: &[u32]) -> u32 {
    90 + text.len() as u32
}

/// A target whose next token depends on the last one alone: what follows old tokens is old, and never catches up.
fn by_token(text: &[u32]) -> u32 {
    text.last().map_or(1, |last| last * 5 % 1_000_003)
}

#[test]
fn the_window_finds_what_the_text_has_never_said() {
    let drafted = |windows| {
        let mut lookahead = Lookahead::new(LookaheadOptions::default());
        let mut tokens = vec![1, 2, 3, 4];
        let steps: Vec<usize> =
            (0..60).map(|_| step(&mut lookahead, &mut tokens, by_place, windows).1.path.len()).collect();
        assert!((4..tokens.len()).all(|len| tokens[len] == by_place(&tokens[..len])), "it says what it would without");
        steps
    };
    assert_eq!(drafted(false).iter().sum::<usize>(), 0);
    let with = drafted(true);
    assert!(with.iter().sum::<usize>() >= 60, "{with:?}");
}

#[test]
fn a_row_of_the_window_sees_the_first_level_up_to_its_column_and_its_column() {
    // Two columns of two tokens: [anchor, a] and [b, c].
    let mut lookahead = Lookahead::new(LookaheadOptions { ngram: 3, window: 2, guesses: 4, prompt: 0 });
    let mut tokens = vec![1, 2, 3, 4];
    let seen = std::cell::RefCell::new(HashSet::new());
    let says = |text: &[u32]| {
        seen.borrow_mut().insert(text.to_vec());
        90 + text.len() as u32
    };
    let (proposal, _) = step(&mut lookahead, &mut tokens, says, true);
    let tree = proposal.tree();
    let Request { tails, window, .. } = &lookahead.requests[&KEY];
    let [first, second]: [&[u32]; 2] = window.columns(8).collect::<Vec<_>>().try_into().unwrap();
    assert_eq!(first[0], 4);
    let [a, b, c] = [first[1], second[0], second[1]];
    let path = |tail: usize| tree.path(tail).iter().map(|&node| tree.tokens()[node]).collect::<Vec<u32>>();
    assert_eq!([path(tails[0]), path(tails[1])], [vec![a], vec![b, c]]);
    assert_eq!(tree.depths()[tails[1]], 2, "its place is the column's and the level's");
    let seen = seen.into_inner();
    assert!(seen.contains(&[1, 2, 3, 4, a][..]) && seen.contains(&[1, 2, 3, 4, b, c][..]));
    // What was said there makes n-grams, and the next window.
    assert_eq!(tokens, [1, 2, 3, 4, 94]);
    step(&mut lookahead, &mut tokens, by_place, true);
    let pool = &lookahead.requests[&KEY].pool;
    assert!(pool.guesses(4).any(|(tokens, found)| tokens == [a, 95] && found));
    assert!(pool.guesses(b).any(|(tokens, found)| tokens == [c, 96] && found));
    let columns: Vec<&[u32]> = lookahead.requests[&KEY].window.columns(8).collect();
    assert_eq!(columns, [&[94, 95][..], &[c, 96]]);
}

#[test]
fn windows_that_bring_nothing_are_worth_nothing_until_they_are_tried_again() {
    let mut lookahead = Lookahead::new(LookaheadOptions::default());
    let mut tokens = vec![1, 5, 25, 125];
    let mut worths = Vec::new();
    for _ in 0..FIRST_PAUSE + 100 {
        let windows = lookahead.trial.windows > 0 || lookahead.trial.idle + 1 == lookahead.trial.pause;
        let (proposal, _) = step(&mut lookahead, &mut tokens, by_token, windows);
        worths.push((1..proposal.tree().len()).map(|node| proposal.worth(node)).fold(0.0, f64::max));
    }
    assert!(worths[..WINDOWS as usize].iter().all(|&worth| worth == HOPE));
    let again = worths.iter().rposition(|&worth| worth == HOPE).unwrap() + 1;
    assert_eq!(again, 2 * WINDOWS as usize + FIRST_PAUSE as usize - 1, "one more trial");
    assert!(worths[WINDOWS as usize..again - WINDOWS as usize].iter().all(|&worth| worth == 0.0));
    assert_eq!(lookahead.trial.pause, 2 * FIRST_PAUSE);
    lookahead.finished(KEY, &tokens, 4);
    assert!(lookahead.requests.is_empty());
}

#[test]
fn the_text_itself_is_in_the_pool_once() {
    let options = LookaheadOptions { ngram: 3, window: 0, guesses: 9, prompt: 3 };
    let mut lookahead = Lookahead::new(options);
    let drafts = |lookahead: &mut Lookahead, tokens: &[u32]| -> Vec<u32> {
        lookahead.draft(&ask(tokens)).map_or(Vec::new(), |proposal| proposal.tree().tokens()[1..].to_vec())
    };
    assert!(drafts(&mut lookahead, &[1, 7, 7, 1]).is_empty(), "no n-gram but 7 7 1 is of the prompt's last three");
    assert_eq!(drafts(&mut lookahead, &[1, 7, 7, 1, 8, 9, 1]), [8, 9]);
    assert_eq!(drafts(&mut lookahead, &[1, 7, 7, 1, 8, 9, 1, 8, 6, 1]), [8, 6, 9], "the newest first, in one tree");
}

proptest! {
    #[test]
    fn every_ngram_of_the_window_is_what_the_target_says_after_what_its_row_saw(
        prompt in prop::collection::vec(0u32..6, 4..10),
        ngram in 3usize..6,
        window in 1usize..5,
        computed in prop::collection::vec(any::<bool>(), 12),
    ) {
        // The next token depends on all of the text.
        let says = |text: &[u32]| text.iter().fold(7u32, |hash, &token| hash.wrapping_mul(31).wrapping_add(token)) % 6;
        let mut lookahead = Lookahead::new(LookaheadOptions { ngram, window, guesses: 64, prompt: 64 });
        let mut tokens = prompt;
        for windows in computed {
            let before = tokens.clone();
            step(&mut lookahead, &mut tokens, says, windows);
            let Request { window, heard, .. } = &lookahead.requests[&KEY];
            let columns: Vec<&[u32]> = window.columns(8).collect();
            prop_assert!(columns[0][0] == *before.last().unwrap());
            for (index, column) in columns.iter().enumerate() {
                prop_assert_eq!(column.len(), ngram - 1);
                let level = columns[1..=index].iter().map(|column| column[0]);
                let row: Vec<u32> = before.iter().copied().chain(level).chain(column[1..].iter().copied()).collect();
                // A row may be that of a draft as well, which is always checked.
                prop_assert!(heard[index].map_or(!windows, |token| token == says(&row)));
            }
            let ngrams: Vec<Vec<u32>> =
                columns.iter().zip(heard).filter(|_| windows).filter_map(|(column, heard)| Some([column, &[(*heard)?][..]].concat())).collect();
            lookahead.draft(&ask(&tokens)).ok();
            for ngram in ngrams {
                let known = lookahead.requests[&KEY].pool.guesses(ngram[0]).any(|(tokens, _)| *tokens == ngram[1..]);
                prop_assert!(known, "{ngram:?} is in the pool");
            }
        }
    }
}
