//! Attention over pages of K/V.
//!
//! A sequence's keys and values lie in pages of [`PAGE`] positions, scattered over one [`KvLayer`]; a row sees its
//! committed prefix and then a path of slots (a tree of drafts: its ancestors and itself). Keys are walked in blocks by
//! absolute position with a running softmax, so a head's bits depend on its query and on the keys and values that it
//! sees, position by position: not on the page ids, on the other rows, on how heads are spread over threads, or on
//! whether a key sits in the prefix or on a path. A key that the row does not see never reaches its result, whatever
//! the slot holds. Who owns a page, and why, may not enter.

mod layer;
mod tile;

use std::sync::atomic::{AtomicUsize, Ordering};

pub use layer::{KvFormat, KvLayer, KvSlot, PAGE};

use crate::pool::Disjoint;
use crate::{Isa, Pool, lanes};
use layer::{Element, Store, on_store};
use tile::{Heads, Keys, MAX_HEADS, Scratch};

/// Rows of a matrix, or of a column range of a wider one: row `r` starts at `r * stride`.
#[derive(Debug)]
pub struct Strided<T> {
    /// The numbers, from the first of the first row.
    pub data: T,
    /// Numbers from one row to the next.
    pub stride: usize,
}

/// One query: where its sequence's keys and values lie, and which of them it sees.
#[derive(Debug, Clone, Copy)]
pub struct AttentionRow<'a> {
    /// The page ids of the sequence: slot `s` is place `s % PAGE` of page `table[s / PAGE]`.
    pub table: &'a [u32],
    /// Its position. It sees the positions up to and including it, as far back as the window reaches.
    pub position: usize,
    /// Positions below this lie in the slot of the same number. `position + 1` for a row of a chain.
    pub prefix: usize,
    /// The slots of the positions from `prefix` on: its ancestors and itself. Empty for a row of a chain.
    pub path: &'a [u32],
}

impl AttentionRow<'_> {
    /// The slot of a position that the row sees.
    #[inline(always)]
    fn slot(&self, position: usize) -> usize {
        if position < self.prefix { position } else { self.path[position - self.prefix] as usize }
    }
}

/// What all rows of a call share.
#[derive(Debug, Clone, Copy)]
pub struct Attention {
    /// Query heads: a multiple of the layer's K/V heads.
    pub heads: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// How many positions a row sees, its own included. `None`: all.
    pub window: Option<usize>,
    /// Positions below this are seen by no row.
    pub first: usize,
}

impl Attention {
    /// Attends with every row of `q` (`[rows, heads * head_dim]`) and writes the same shape to `out`.
    ///
    /// # Panics
    /// When shapes disagree, a row's table or path is too short for what it sees, or a page is not in the layer.
    pub fn attend(
        &self,
        pool: &Pool,
        isa: Isa,
        layer: &KvLayer,
        rows: &[AttentionRow<'_>],
        q: Strided<&[f32]>,
        out: Strided<&mut [f32]>,
    ) {
        let width = self.heads * layer.head_dim();
        assert!(
            self.heads.is_multiple_of(layer.kv_heads()),
            "{} heads over {} K/V heads",
            self.heads,
            layer.kv_heads()
        );
        assert!(q.stride >= width && out.stride >= width, "rows of {} and {} for {width}", q.stride, out.stride);
        on_store!(layer, store => self.attend_in(pool, isa, store, rows, &q, out));
    }

    fn attend_in<E: Element>(
        &self,
        pool: &Pool,
        isa: Isa,
        store: &Store<E>,
        rows: &[AttentionRow<'_>],
        q: &Strided<&[f32]>,
        out: Strided<&mut [f32]>,
    ) {
        let split = Split::new(rows.len(), store.kv_heads, self.heads / store.kv_heads, pool.threads());
        let out_stride = out.stride;
        let out = Disjoint::new(out.data);
        let next = AtomicUsize::new(0);
        let work = |_thread| {
            let mut scratch = Scratch::new(store.head_dim);
            loop {
                let item = next.fetch_add(1, Ordering::Relaxed);
                if item >= split.items() {
                    break;
                }
                let (row, first_head, count) = split.item(item);
                let columns = first_head * store.head_dim..(first_head + count) * store.head_dim;
                let start = row * out_stride;
                // SAFETY: an item is one row and a range of its heads; no two items share a head of a row.
                let out = unsafe { out.slice(start + columns.start..start + columns.end) };
                let q = &q.data[row * q.stride..][columns];
                let keys = Keys::new(store, rows[row], first_head / split.group, self, &mut scratch.tiles);
                lanes::run(isa, Heads { q, scale: self.scale, keys, q_scaled: &mut scratch.q, out });
            }
        };
        if split.items() <= 1 { work(0) } else { pool.share(work) }
    }
}

/// How rows and heads are cut into items of work. A head's arithmetic is the same in any cut.
struct Split {
    rows: usize,
    kv_heads: usize,
    /// Query heads of one K/V head.
    group: usize,
    /// Query heads of one item, which share its loads of keys and values; the last item of a group may have fewer.
    heads: usize,
}

impl Split {
    /// The cut that ends soonest, if an item costs as much as its heads and one more for the loads that they share.
    fn new(rows: usize, kv_heads: usize, group: usize, threads: usize) -> Split {
        let time = |heads: &usize| (rows * kv_heads * group.div_ceil(*heads)).div_ceil(threads) * (heads + 1);
        let heads = (1..=MAX_HEADS.min(group)).rev().min_by_key(time).unwrap_or(1);
        Split { rows, kv_heads, group, heads }
    }

    fn items(&self) -> usize {
        self.rows * self.kv_heads * self.group.div_ceil(self.heads)
    }

    /// The row, the first query head and the number of heads of an item. Items of one K/V head follow each other: rows
    /// of the same sequence then find its keys and values in the cache.
    fn item(&self, item: usize) -> (usize, usize, usize) {
        let parts = self.group.div_ceil(self.heads);
        let (kv_head, row, part) = (item / parts / self.rows, item / parts % self.rows, item % parts);
        let first = part * self.heads;
        (row, kv_head * self.group + first, self.heads.min(self.group - first))
    }
}

#[cfg(test)]
mod tests {
    use super::Split;

    #[test]
    fn every_head_of_every_row_is_in_one_item() {
        for (rows, kv_heads, group, threads) in [(1, 3, 3, 2), (1, 1, 9, 4), (5, 2, 7, 2), (8, 4, 1, 3), (2, 1, 4, 64)]
        {
            let split = Split::new(rows, kv_heads, group, threads);
            let mut seen = vec![0; rows * kv_heads * group];
            for (row, first, count) in (0..split.items()).map(|item| split.item(item)) {
                assert_eq!(first / group, (first + count - 1) / group, "an item has one K/V head");
                (first..first + count).for_each(|head| seen[row * kv_heads * group + head] += 1);
            }
            assert!(seen.iter().all(|&n| n == 1), "{seen:?}");
        }
    }
}
