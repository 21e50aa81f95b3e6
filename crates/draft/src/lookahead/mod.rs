//! Lookahead decoding (Fu et al. 2024, arXiv 2402.02057): n-grams that the target itself found, ahead of the text.
//!
//! The window's rows hang in the proposal as probes: its first level is a path below the anchor, and each column's further
//! levels are a path below its node, so that a row sees exactly what Jacobi's iteration wants it to see. What the target
//! says after a column's last row lengthens that column, whose tokens then are an n-gram of the target's own making.

mod pool;
mod window;

use std::collections::HashMap;

use spec::{Proposal, ProposalError};

use self::pool::Pool;
use self::window::Window;
use crate::ngram::confidence;
use crate::{Ask, DraftError, Drafter, Key, Round, Silence, Verdict};

/// How large the window is, and what is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LookaheadOptions {
    /// Tokens of an n-gram (N, `LEVEL`). At least 3.
    pub ngram: usize,
    /// Columns of the window (W). 0: only what the text itself says.
    pub window: usize,
    /// N-grams that are checked, and kept, for a token that they begin with (G).
    pub guesses: usize,
    /// Tokens of the prompt's end whose n-grams are taken in.
    pub prompt: usize,
}

impl Default for LookaheadOptions {
    /// Far smaller than on machines where rows are free.
    fn default() -> Self {
        Self { ngram: 4, window: 4, guesses: 4, prompt: 4096 }
    }
}

/// Drafts n-grams that begin with the anchor, from a window that is computed along with them as long as it pays.
///
/// What a window's row brings, in drafts that stood, is measured; admission then sees to it that windows are computed only
/// where this is more than a row costs. As one that is not computed brings nothing, it is tried anew after ever longer.
#[derive(Debug)]
pub struct Lookahead {
    options: LookaheadOptions,
    requests: HashMap<Key, Request>,
    trial: Trial,
}

#[derive(Debug)]
struct Request {
    /// Where the next n-gram of the text ends that is not in the pool.
    read: usize,
    pool: Pool,
    window: Window,
    /// Of the newest proposal: the node at the end of each column, and what the target said after it.
    tails: Vec<usize>,
    heard: Vec<Option<u32>>,
    /// Its nodes that are drafts, the first ones, and for each whether only the window knew it.
    guesses: usize,
    found: Vec<bool>,
}

/// What windows bring.
#[derive(Debug)]
struct Trial {
    /// Windows that are computed until it is known.
    windows: u32,
    /// Drafts that stood because of a window, and rows of windows, over the newest of them.
    stood: f64,
    rows: f64,
    /// Proposals since a window was last computed, and how many of them until the next trial.
    idle: u32,
    pause: u32,
}

/// What a row of a window is held to bring until it is known: more than windows are known to bring, so that they are tried
/// wherever a row is cheap enough for them to pay, and nowhere else.
const HOPE: f64 = 0.05;
const WINDOWS: u32 = 16;

/// How much of the past remains after each step.
const KEEP: f64 = 1.0 - 1.0 / 256.0;

const FIRST_PAUSE: u32 = 1024;
const LAST_PAUSE: u32 = 1 << 16;

impl Trial {
    fn new() -> Trial {
        Trial { windows: WINDOWS, stood: 0.0, rows: 0.0, idle: 0, pause: FIRST_PAUSE }
    }

    /// What a row of a window brings, in drafts that stand.
    fn worth(&mut self) -> f64 {
        self.idle += 1;
        if self.idle >= self.pause {
            self.pause = self.pause.saturating_mul(2).min(LAST_PAUSE);
            (self.windows, self.idle) = (WINDOWS, 0);
            (self.stood, self.rows) = (0.0, 0.0);
        }
        if self.windows > 0 || self.rows <= 0.0 { HOPE } else { (self.stood / self.rows).min(1.0) }
    }

    fn note(&mut self, rows: usize, stood: usize) {
        if rows > 0 {
            (self.idle, self.windows) = (0, self.windows.saturating_sub(1));
        }
        self.stood = self.stood * KEEP + stood as f64;
        self.rows = self.rows * KEEP + rows as f64;
    }
}

impl Lookahead {
    /// Nothing seen yet.
    pub fn new(options: LookaheadOptions) -> Self {
        let options = LookaheadOptions { ngram: options.ngram.max(3), ..options };
        Self { options, requests: HashMap::new(), trial: Trial::new() }
    }

    fn draft(&mut self, ask: &Ask<'_>) -> Result<Proposal, Silence> {
        let LookaheadOptions { ngram, window, guesses, prompt } = self.options;
        let request = self.requests.entry(ask.key).or_insert_with(|| Request {
            read: ask.prompt.saturating_sub(prompt) + ngram,
            pool: Pool::new(guesses),
            window: Window::new(window, ngram - 1),
            tails: Vec::new(),
            heard: Vec::new(),
            guesses: 0,
            found: Vec::new(),
        });
        request.advance(ask.tokens, ngram);
        let worth = self.trial.worth();
        // Confidences and worths are in range, and parents are there: the tree cannot refuse.
        let proposal = request.propose(ask, worth).map_err(|_| Silence::NoMatch)?;
        if proposal.tree().drafts() == 0 { Err(Silence::NoMatch) } else { Ok(proposal) }
    }
}

impl Request {
    /// Takes in what has been said since: new n-grams of the text, and what the target said in the window.
    fn advance(&mut self, tokens: &[u32], ngram: usize) {
        let heard: Option<Vec<u32>> = self.heard.iter().copied().collect();
        for grown in self.window.advance(tokens, heard.as_deref().unwrap_or_default()) {
            self.pool.add(&grown, true);
        }
        for end in self.read..=tokens.len() {
            self.pool.add(&tokens[end - ngram..end], false);
        }
        self.read = self.read.max(tokens.len() + 1);
        self.heard.clear();
    }

    /// The n-grams that begin with the anchor, and the window.
    fn propose(&mut self, ask: &Ask<'_>, worth: f64) -> Result<Proposal, ProposalError> {
        let mut proposal = Proposal::new(ask.anchor());
        self.found = vec![false];
        for (rank, (tokens, found)) in self.pool.guesses(ask.anchor()).enumerate() {
            let mut node = 0;
            for (len, &token) in (1..).zip(tokens.iter().take(ask.max_drafts)) {
                let nodes = proposal.tree().len();
                // A first guess: what was found last is the likeliest.
                node = proposal.add_point(node, token, confidence(len) / (rank + 1) as f64)?;
                match node == nodes {
                    true => self.found.push(found),
                    false => self.found[node] &= found,
                }
            }
        }
        self.guesses = proposal.tree().len();
        self.tails.clear();
        let mut first = 0;
        for (index, column) in self.window.columns(ask.max_drafts).enumerate() {
            // The first column begins with the anchor.
            if index > 0 {
                first = proposal.add_probe(first, column[0], worth, false)?;
            }
            let mut node = first;
            for (level, &token) in column.iter().enumerate().skip(1) {
                node = proposal.add_probe(node, token, worth, level + 1 == column.len())?;
            }
            self.tails.push(node);
        }
        self.heard = vec![None; self.tails.len()];
        Ok(proposal)
    }
}

impl Drafter for Lookahead {
    fn name(&self) -> &'static str {
        "lookahead"
    }

    fn propose(&mut self, _: &mut Round<'_>, asks: &[Ask<'_>]) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
        Ok(asks.iter().map(|ask| self.draft(ask)).collect())
    }

    fn heard(&mut self, key: Key, says: &[(usize, u32)]) {
        let Some(request) = self.requests.get_mut(&key) else { return };
        for (tail, heard) in request.tails.iter().zip(&mut request.heard) {
            *heard = says.iter().find(|(node, _)| node == tail).map(|&(_, token)| token);
        }
    }

    fn judged(&mut self, key: Key, verdict: &Verdict<'_>) {
        let Some(request) = self.requests.get(&key) else { return };
        let stood = verdict.accepted.path.iter().filter_map(|&node| request.found.get(*verdict.proposed.get(node)?));
        let rows = verdict.proposed.iter().filter(|&&node| node >= request.guesses).count();
        self.trial.note(rows, stood.filter(|&&found| found).count());
    }

    fn finished(&mut self, key: Key, _: &[u32], _: usize) {
        self.requests.remove(&key);
    }
}

#[cfg(test)]
mod tests;
