//! The pages of one model and who has them.

use kernels::{KvLayer, KvSlot, PAGE};

use crate::Layout;

/// A sequence needs more pages than are free. Nothing was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the sequence needs {needed} more K/V pages of {PAGE} tokens, but {free} are free: shorten it, or give the cache more pages"
)]
pub struct OutOfPages {
    /// Pages that the sequence lacks.
    pub needed: usize,
    /// Pages that are free.
    pub free: usize,
}

/// The positions of one sequence and the pages that hold them. It belongs to the cache that it grew in and returns its
/// pages by [`KvCache::free`]; one that is dropped instead keeps them from everybody.
#[derive(Debug, Default)]
pub struct Sequence {
    table: Vec<u32>,
    len: usize,
}

impl Sequence {
    /// A sequence without positions.
    pub fn new() -> Sequence {
        Sequence::default()
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

/// The K/V memory of one model, and its free pages.
#[derive(Debug)]
pub struct KvCache {
    layout: Layout,
    layers: Vec<KvLayer>,
    /// The last one is taken next: a page that was used already has its memory from the system.
    free: Vec<u32>,
    total: usize,
}

impl KvCache {
    /// A cache of `pages` pages, all free. Memory is taken from the system as pages are first written.
    ///
    /// # Panics
    /// When `pages` does not fit a page id (2³²).
    pub fn new(layout: Layout, pages: usize) -> KvCache {
        let ids = u32::try_from(pages).unwrap_or_else(|_| panic!("{pages} pages in a K/V cache"));
        let Layout { layers, kv_heads, head_dim, format } = layout;
        let layers = (0..layers).map(|_| KvLayer::new(format, pages, kv_heads, head_dim)).collect();
        KvCache { layout, layers, free: (0..ids).rev().collect(), total: pages }
    }

    /// The shape of the K/V.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Pages that no sequence has.
    pub fn free_pages(&self) -> usize {
        self.free.len()
    }

    /// All pages.
    pub fn total_pages(&self) -> usize {
        self.total
    }

    /// Gives slots to all positions below `len`. A sequence that is longer already stays as it is.
    ///
    /// # Errors
    /// [`OutOfPages`] when it needs more pages than are free; the sequence is then unchanged.
    pub fn reserve(&mut self, sequence: &mut Sequence, len: usize) -> Result<(), OutOfPages> {
        let needed = len.div_ceil(PAGE).saturating_sub(sequence.table.len());
        let free = self.free.len();
        if needed > free {
            return Err(OutOfPages { needed, free });
        }
        sequence.table.extend(self.free.drain(free - needed..).rev());
        sequence.len = sequence.len.max(len);
        Ok(())
    }

    /// Takes the slots of all positions from `len` on; pages without a position left become free. A sequence that is
    /// shorter already stays as it is.
    pub fn truncate(&mut self, sequence: &mut Sequence, len: usize) {
        sequence.len = sequence.len.min(len);
        let pages = sequence.len.div_ceil(PAGE);
        self.free.extend(sequence.table.drain(pages..).rev());
    }

    /// Takes all pages of a sequence that has ended.
    pub fn free(&mut self, mut sequence: Sequence) {
        self.truncate(&mut sequence, 0);
    }

    /// The pages of one layer, to attend over.
    ///
    /// # Panics
    /// When the model has no such layer.
    pub fn layer(&self, index: usize) -> &KvLayer {
        &self.layers[index]
    }

    /// The pages of one layer, to write to.
    ///
    /// # Panics
    /// When the model has no such layer.
    pub fn layer_mut(&mut self, index: usize) -> &mut KvLayer {
        &mut self.layers[index]
    }
}
