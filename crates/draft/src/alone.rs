//! What a drafter is lent in tests where nothing is in the target's pages.

use kernels::KvFormat;
use kv::{KvCache, Layout, Sequence};

use crate::{Ask, Greedy, Key};

/// A sequence of nothing.
pub(crate) static NOWHERE: Sequence = Sequence::new();

/// A cache that nobody looks into.
pub(crate) fn cache() -> KvCache {
    KvCache::new(Layout { layers: 1, kv_heads: 1, head_dim: 2, format: KvFormat::F16 }, 1)
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
