//! What a drafter is lent in tests where nothing is in the target's pages.

use std::num::NonZeroUsize;

use kernels::{KvFormat, Pool};
use kv::{KvCache, Layout, Sequence};

use crate::{Ask, Greedy, Key, Round, Unread};

/// A sequence of nothing.
pub(crate) static NOWHERE: Sequence = Sequence::new();

/// A cache that nobody looks into.
pub(crate) fn cache() -> KvCache {
    KvCache::new(Layout { layers: 1, kv_heads: 1, head_dim: 2, format: KvFormat::F16 }, 1)
}

/// What a round lends.
pub(crate) struct Lent {
    pool: Pool,
    cache: KvCache,
    unread: Unread,
}

impl Lent {
    pub(crate) fn new() -> Lent {
        Lent { pool: Pool::new(NonZeroUsize::MIN), cache: cache(), unread: Unread::default() }
    }

    /// A round in which a step and a row take so many seconds.
    pub(crate) fn round(&mut self, step_seconds: f64, row_seconds: f64) -> Round<'_> {
        let Lent { pool, cache, unread } = self;
        Round { pool, cache, step_seconds, row_seconds, checks_all: false, unread }
    }
}

/// A greedy request of these tokens, the first of which are its prompt.
pub(crate) fn ask(tokens: &[u32]) -> Ask<'_> {
    Ask {
        key: Key { request: 0, choice: 0 },
        tokens,
        prompt: 1,
        predicted: &[],
        max_drafts: 8,
        remaining: 64,
        choose: &Greedy,
        sequence: &NOWHERE,
    }
}
