//! Drafters: whatever proposes tokens that the target then checks.
//!
//! The room for every way to guess what a request says next, one file each with one `impl` [`Drafter`]. A drafter sees the
//! committed tokens of requests and nothing of the others; what it proposes changes how fast an answer comes and never
//! what it says. Sampling, acceptance, pages of the target, scheduling and HTTP may not enter.

#[cfg(test)]
mod alone;
mod auto;
mod choose;
mod datastore;
mod draft_model;
mod learned;
mod lookahead;
mod merged;
mod ngram;
mod occurrences;
mod predicted;
mod suffix;
mod trial;
mod unread;

pub use auto::Auto;
pub use choose::{Choose, Chosen, Greedy, Words};
pub use datastore::{
    Datastore, DatastoreBuilder, DatastoreError, DatastoreOptions, DocumentError, Header, ORDER, Store,
};
pub use draft_model::{DraftModel, DraftModelOptions};
pub use learned::{LearnedError, Target, is_learned, is_untrained, load as load_learned};
pub use lookahead::{Lookahead, LookaheadOptions};
pub use merged::Merged;
pub use ngram::{Ngram, NgramOptions, Occurrence};
pub use predicted::Predicted;
pub use suffix::{Suffix, SuffixOptions};
pub use trial::{Text, TrialError};
pub use unread::{Unread, UnreadRows};

use kernels::Pool;
use kv::{KvCache, Sequence};
use model::{Segment, Tap};
use spec::{Accepted, Proposal, Tree};

/// Names a choice of a request to drafters. No two that a drafter ever sees are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The request.
    pub request: u64,
    /// Which of its n choices.
    pub choice: u32,
}

/// What a step lends to drafters.
pub struct Round<'a> {
    /// The target's threads, which have nothing to do meanwhile. A drafter starts none of its own.
    pub pool: &'a Pool,
    /// The target's keys and values, for the layers that a drafter has [attached](Drafter::attach) to them.
    pub cache: &'a mut KvCache,
    /// Seconds that a step of the asking requests takes without drafts (their share, if others decode as well): a draft
    /// that stands saves what this is for each of them.
    pub step_seconds: f64,
    /// Seconds that one more row takes, about: what checking a draft costs.
    pub row_seconds: f64,
    /// Whether all that is drafted is checked, whatever it costs: drafters then say one chain, as long as it may be.
    pub checks_all: bool,
    /// Rows that the target has computed and that nobody has read yet.
    pub unread: &'a mut Unread,
}

/// How far below what pays a draft may be said to be likely and still be proposed: what a drafter says is not quite true, and
/// whoever admits drafts knows better.
const DOUBT: f64 = 0.5;

/// Where rows are this dear, a tree has two ways to go on at a place, and the cheaper they are the more.
const WAYS: [(f64, usize); 3] = [(0.5, 1), (0.2, 2), (0.06, 4)];

/// Ways to go on at a place where rows cost next to nothing.
const MOST_WAYS: usize = 8;

impl Round<'_> {
    /// What checking a draft costs, in drafts that stand, where so many requests ask.
    fn price(&self, asks: usize) -> f64 {
        let price = self.row_seconds * asks.max(1) as f64 / self.step_seconds;
        if price.is_finite() { price } else { 1.0 }
    }

    /// Survival below which no draft can be worth a row.
    fn least_survival(&self, asks: usize) -> f64 {
        if self.checks_all {
            return 0.0;
        }
        (DOUBT * self.price(asks)).min(DOUBT)
    }

    /// Ways to go on at a place of a tree that are worth drafting; 1: a chain.
    fn ways(&self, asks: usize) -> usize {
        if self.checks_all {
            return 1;
        }
        let price = self.price(asks);
        WAYS.iter().find(|(least, _)| price >= *least).map_or(MOST_WAYS, |&(_, ways)| ways)
    }
}

/// A request that could use drafts.
#[derive(Clone, Copy)]
pub struct Ask<'a> {
    /// Whose tokens they are.
    pub key: Key,
    /// The committed tokens, prompt first; the last is the anchor. Not empty.
    pub tokens: &'a [u32],
    /// How many of them are the prompt.
    pub prompt: usize,
    /// What the client says the output will be; empty if it says nothing.
    pub predicted: &'a [u32],
    /// Drafts on a path at most: what may still be said, and what the client allows. At least 1.
    pub max_drafts: usize,
    /// Tokens that the request may still say, if nothing ends it before.
    pub remaining: usize,
    /// How the request chooses tokens.
    pub choose: &'a dyn Choose,
    /// Where its tokens but the anchor lie in [`Round::cache`], and where the next ones will.
    pub sequence: &'a Sequence,
}

impl Ask<'_> {
    /// The newest committed token.
    pub fn anchor(&self) -> u32 {
        self.tokens.last().copied().unwrap_or_default()
    }
}

/// Why a request gets no drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Silence {
    /// Nothing comes to the drafter's mind.
    NoMatch,
    /// The request is longer than the drafter can follow.
    Context,
    /// Drafting takes more time here than it saves.
    DoesNotPay,
    /// The drafter has not read all of the request yet, or has no memory to.
    Behind,
}

/// A drafter that failed. The requests go on without drafts.
#[derive(Debug, thiserror::Error)]
#[error("the drafter {drafter} failed: {message}")]
pub struct DraftError {
    /// Its name.
    pub drafter: &'static str,
    /// What happened.
    pub message: String,
}

/// What the target has computed, for drafters that look into it.
pub struct Computed<'a> {
    /// The target's threads.
    pub pool: &'a Pool,
    /// The target's keys and values, those of these rows included.
    pub cache: &'a mut KvCache,
    /// The hidden states that drafters asked for, with which each is: `[rows, hidden]`.
    pub taps: &'a [(Tap, &'a [f32])],
    /// Its rows, segment by segment: of prompts, anchors, and drafts, of which some will turn out not to stand.
    pub batch: &'a [Segment<'a>],
}

/// What became of the part of a proposal that was checked.
#[derive(Debug, Clone, Copy)]
pub struct Verdict<'a> {
    /// What was checked of the proposal.
    pub tree: &'a Tree,
    /// Which node of the proposal each of its nodes was, `[tree.len()]`.
    pub proposed: &'a [usize],
    /// What of `tree` stands.
    pub accepted: &'a Accepted,
}

/// What asking a drafter may come to, by what is known before anybody has seen it at work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outlook {
    /// Seconds that it takes to draft for the request.
    pub seconds: f64,
    /// Seconds that it takes first to read what the request says that the drafter does not know.
    pub reading: f64,
    /// Seconds that drafts save if they stand as often as good ones do; what checking them takes is off.
    pub gain: f64,
}

impl Outlook {
    /// Nothing is known of it: it has to be tried.
    pub const OPEN: Outlook = Outlook { seconds: 0.0, reading: 0.0, gain: f64::INFINITY };
}

/// Something that proposes tokens.
///
/// A drafter keeps what it likes of each request between steps and is told when a request has ended. Who asks may throw
/// away any part of a proposal, and need not ask in every step: what counts are the tokens in [`Ask`].
pub trait Drafter: Send {
    /// Its name, as users write it.
    fn name(&self) -> &'static str;

    /// The hidden states of the target that it reads.
    fn taps(&self) -> Vec<Tap> {
        Vec::new()
    }

    /// Bytes that the layers which it [attaches](Drafter::attach) add to a page.
    fn bytes_per_page(&self) -> usize {
        0
    }

    /// Attaches the layers that it keeps in the target's pages. Called once, before anything is computed.
    fn attach(&mut self, cache: &mut KvCache) {
        let _ = cache;
    }

    /// Slots beyond those of the committed tokens that a drafter writes to while it proposes for a request.
    fn slots_ahead(&self) -> usize {
        0
    }

    /// How many there are in it that read hidden states.
    fn readers(&self) -> usize {
        usize::from(!self.taps().is_empty())
    }

    /// The target has computed rows. Whoever reads [hidden states](Drafter::taps) takes in what it needs of all of them:
    /// pages that they are in may be found by other requests. Where one alone reads, those that it is told of in
    /// [`Round::unread`] come here only if it does not take them before.
    ///
    /// # Errors
    ///
    /// [`DraftError`] when it could not: drafts may then be bad.
    fn computed(&mut self, computed: &mut Computed<'_>) -> Result<(), DraftError> {
        let _ = computed;
        Ok(())
    }

    /// Proposes for every request of a step, in the order of `asks`: `asks.len()` answers.
    ///
    /// # Errors
    ///
    /// [`DraftError`] when it cannot serve anybody.
    fn propose(
        &mut self,
        round: &mut Round<'_>,
        asks: &[Ask<'_>],
    ) -> Result<Vec<Result<Proposal, Silence>>, DraftError>;

    /// What it would come to if it were asked for this request, one of `asks`. Who takes little time need not know.
    fn outlook(&self, round: &Round<'_>, asks: usize, ask: &Ask<'_>) -> Outlook {
        let _ = (round, asks, ask);
        Outlook::OPEN
    }

    /// What became of the newest proposal for a request; proposals of which nothing was checked are not told of. Who
    /// learns nothing from it need not listen.
    fn judged(&mut self, key: Key, verdict: &Verdict<'_>) {
        let _ = (key, verdict);
    }

    /// What the target says after nodes of the newest proposal for which this was [asked](Proposal::is_heard): its likeliest
    /// token after each that was computed. Told of before the verdict.
    fn heard(&mut self, key: Key, says: &[(usize, u32)]) {
        let _ = (key, says);
    }

    /// A request has ended with these tokens, the first `prompt` of them its prompt: what is kept of it can go.
    fn finished(&mut self, key: Key, tokens: &[u32], prompt: usize);
}

/// A chain of drafts that no chance chose, with the confidence of each.
fn chain(anchor: u32, drafts: impl IntoIterator<Item = (u32, f64)>) -> Result<Proposal, Silence> {
    let mut proposal = Proposal::new(anchor);
    let mut parent = 0;
    for (token, confidence) in drafts {
        // The parent is the node before, and confidences are clamped: the tree cannot refuse.
        let Ok(node) = proposal.add_point(parent, token, confidence.clamp(0.0, 1.0)) else { break };
        parent = node;
    }
    if parent == 0 { Err(Silence::NoMatch) } else { Ok(proposal) }
}
