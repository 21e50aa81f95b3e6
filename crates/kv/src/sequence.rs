//! The pages of one sequence.

use kernels::{KvSlot, PAGE};

/// The positions of one sequence and the pages that hold them. It belongs to the cache that it grew in and returns its
/// pages by [`KvCache::free`](crate::KvCache::free); one that is dropped instead keeps them from everybody.
///
/// Other sequences may hold the same pages. Only the positions that [`KvCache::reserve`](crate::KvCache::reserve) gave
/// to this sequence since it was forked, matched or truncated may be written.
#[derive(Debug, Default)]
pub struct Sequence {
    pub(crate) table: Vec<u32>,
    pub(crate) len: usize,
}

impl Sequence {
    /// A sequence without positions.
    pub const fn new() -> Sequence {
        Sequence { table: Vec::new(), len: 0 }
    }

    /// Positions that have a slot: all below this.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no position has a slot.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The page ids: position `p` lies at place `p % PAGE` of page `table[p / PAGE]`.
    pub fn table(&self) -> &[u32] {
        &self.table
    }

    /// The slot of a position.
    ///
    /// # Panics
    /// When the position is not below [`Sequence::len`].
    pub fn slot(&self, position: usize) -> KvSlot {
        assert!(position < self.len, "position {position} of a sequence of {}", self.len);
        KvSlot { page: self.table[position / PAGE], offset: (position % PAGE) as u8 }
    }
}
