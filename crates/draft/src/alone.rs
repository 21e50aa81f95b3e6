//! What a drafter is lent in tests where nothing is in the target's pages.

use kernels::KvFormat;
use kv::{KvCache, Layout, Sequence};

/// A sequence of nothing.
pub(crate) static NOWHERE: Sequence = Sequence::new();

/// A cache that nobody looks into.
pub(crate) fn cache() -> KvCache {
    KvCache::new(Layout { layers: 1, kv_heads: 1, head_dim: 2, format: KvFormat::F16 }, 1)
}
