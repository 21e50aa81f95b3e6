//! The K/V of one layer: pages, and how numbers lie in them.

use std::fmt;

use crate::attention::Strided;
use crate::lanes::{self, Kernel, LANES, Lanes, Vector, WIDE};
use crate::pool::Disjoint;
use crate::{Isa, Pool};

/// Positions in a page.
pub const PAGE: usize = 16;

/// Rows from which writing K/V is worth waking the pool.
const PARALLEL_ROWS: usize = 32;

/// The number format of K and V.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// Half precision; larger numbers become ±65504.
    F16,
    /// Single precision, for comparisons.
    F32,
}

impl KvFormat {
    /// Bytes of one number.
    pub fn bytes(self) -> usize {
        match self {
            KvFormat::F16 => 2,
            KvFormat::F32 => 4,
        }
    }
}

/// The place of one position's K and V in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KvSlot {
    /// The page.
    pub page: u32,
    /// The place in the page, below [`PAGE`].
    pub offset: u8,
}

/// A wide vector of the set `S`.
pub(super) type Wide<S> = <<S as Lanes>::Wide as Vector>::V;

/// A stored number.
pub(super) trait Element: Copy + Send + Sync {
    const ZERO: Self;
    fn load<S: Lanes>(s: S, from: &[Self; LANES]) -> S::V;
    fn load_wide<S: Lanes>(s: S, from: &[Self; WIDE]) -> Wide<S>;
    fn store<S: Lanes>(s: S, v: S::V, to: &mut [Self; LANES]);
    fn value(self) -> f32;
}

/// Half precision bits.
impl Element for u16 {
    const ZERO: u16 = 0;

    #[inline(always)]
    fn load<S: Lanes>(s: S, from: &[u16; LANES]) -> S::V {
        s.load_f16(from)
    }

    #[inline(always)]
    fn load_wide<S: Lanes>(s: S, from: &[u16; WIDE]) -> Wide<S> {
        s.wide().load_f16(from)
    }

    /// Saturates: one infinite key would make every score of its head infinite.
    #[inline(always)]
    fn store<S: Lanes>(s: S, v: S::V, to: &mut [u16; LANES]) {
        s.store_f16(s.max(s.splat(-65504.0), s.min(s.splat(65504.0), v)), to);
    }

    fn value(self) -> f32 {
        half::f16::from_bits(self).to_f32()
    }
}

impl Element for f32 {
    const ZERO: f32 = 0.0;

    #[inline(always)]
    fn load<S: Lanes>(s: S, from: &[f32; LANES]) -> S::V {
        s.load(from)
    }

    #[inline(always)]
    fn load_wide<S: Lanes>(s: S, from: &[f32; WIDE]) -> Wide<S> {
        s.wide().load(from)
    }

    #[inline(always)]
    fn store<S: Lanes>(s: S, v: S::V, to: &mut [f32; LANES]) {
        s.store(v, to);
    }

    fn value(self) -> f32 {
        self
    }
}

/// The numbers of a layer. A page has one tile of K and one of V for each K/V head.
#[derive(Debug)]
pub(super) struct Store<E> {
    /// `[pages, kv_heads, head_dim, PAGE]`: the keys of a page side by side, so that their scores are lanes.
    k: Vec<E>,
    /// `[pages, kv_heads, PAGE, head_dim]`.
    v: Vec<E>,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
}

impl<E: Element> Store<E> {
    /// Numbers of one tile.
    fn tile(&self) -> usize {
        PAGE * self.head_dim
    }

    /// The tiles `([head_dim, PAGE], [PAGE, head_dim])` of a page and K/V head.
    #[inline(always)]
    pub(super) fn tiles(&self, page: u32, kv_head: usize) -> (&[[E; PAGE]], &[E]) {
        let at = (page as usize * self.kv_heads + kv_head) * self.tile();
        (self.k[at..at + self.tile()].as_chunks().0, &self.v[at..at + self.tile()])
    }

    fn append(&mut self, pool: &Pool, isa: Isa, slots: &[KvSlot], k: &Strided<&[f32]>, v: &Strided<&[f32]>) {
        let (kv_heads, head_dim, tile) = (self.kv_heads, self.head_dim, self.tile());
        let (to_k, to_v) = (Disjoint::new(&mut self.k), Disjoint::new(&mut self.v));
        let write = |kv_head: usize| {
            for (row, slot) in slots.iter().enumerate() {
                assert!(usize::from(slot.offset) < PAGE, "place {} of a page", slot.offset);
                let at = (slot.page as usize * kv_heads + kv_head) * tile;
                let column = kv_head * head_dim;
                // SAFETY: this is a tile of one K/V head, and each head is written by one call of this closure.
                let (to_k, to_v) = unsafe { (to_k.slice(at..at + tile), to_v.slice(at..at + tile)) };
                let k = &k.data[row * k.stride + column..][..head_dim];
                let v = &v.data[row * v.stride + column..][..head_dim];
                lanes::run(isa, Append { k, v, to_k, to_v, offset: slot.offset.into() });
            }
        };
        if slots.len() < PARALLEL_ROWS { (0..kv_heads).for_each(write) } else { pool.for_each(kv_heads, write) }
    }

    fn read(&self, slot: KvSlot, k: &mut [f32], v: &mut [f32]) {
        let (head_dim, at) = (self.head_dim, usize::from(slot.offset));
        assert!(at < PAGE, "place {at} of a page");
        for kv_head in 0..self.kv_heads {
            let (keys, values) = self.tiles(slot.page, kv_head);
            let columns = kv_head * head_dim..(kv_head + 1) * head_dim;
            k[columns.clone()].iter_mut().zip(keys).for_each(|(to, from)| *to = from[at].value());
            let values = &values[at * head_dim..(at + 1) * head_dim];
            v[columns].iter_mut().zip(values).for_each(|(to, from)| *to = from.value());
        }
    }

    fn copy_slot(&mut self, from: KvSlot, to: KvSlot) {
        let (tile, head_dim) = (self.tile(), self.head_dim);
        let (from_at, to_at) = (usize::from(from.offset), usize::from(to.offset));
        assert!(from_at < PAGE && to_at < PAGE, "places {from_at} and {to_at} of a page");
        for kv_head in 0..self.kv_heads {
            let from = (from.page as usize * self.kv_heads + kv_head) * tile;
            let to = (to.page as usize * self.kv_heads + kv_head) * tile;
            for d in 0..head_dim {
                self.k[to + d * PAGE + to_at] = self.k[from + d * PAGE + from_at];
            }
            let source = from + from_at * head_dim;
            self.v.copy_within(source..source + head_dim, to + to_at * head_dim);
        }
    }

    fn copy_page(&mut self, from: u32, to: u32) {
        let page = self.kv_heads * self.tile();
        let (from, to) = (from as usize * page, to as usize * page);
        self.k.copy_within(from..from + page, to);
        self.v.copy_within(from..from + page, to);
    }
}

/// Writes one head of one row into the tiles of its page.
struct Append<'a, E> {
    k: &'a [f32],
    v: &'a [f32],
    to_k: &'a mut [E],
    to_v: &'a mut [E],
    offset: usize,
}

impl<E: Element> Kernel for Append<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        let to_v = &mut self.to_v[self.offset * self.v.len()..][..self.v.len()];
        each_vector(s, self.v, |at, v: &[E]| to_v[at..at + v.len()].copy_from_slice(v));
        let (columns, offset) = (self.to_k.as_chunks_mut::<PAGE>().0, self.offset);
        each_vector(s, self.k, |at, k: &[E]| {
            for (column, &k) in columns[at..].iter_mut().zip(k) {
                column[offset] = k;
            }
        });
    }
}

/// Converts `x` and hands on up to [`LANES`] numbers at a time, with the place of the first.
#[inline(always)]
fn each_vector<S: Lanes, E: Element>(s: S, x: &[f32], mut write: impl FnMut(usize, &[E])) {
    let mut converted = [E::ZERO; LANES];
    let (vectors, tail) = x.as_chunks::<LANES>();
    for (i, x) in vectors.iter().enumerate() {
        E::store(s, s.load(x), &mut converted);
        write(i * LANES, &converted);
    }
    if !tail.is_empty() {
        E::store(s, lanes::load_part(s, tail), &mut converted);
        write(vectors.len() * LANES, &converted[..tail.len()]);
    }
}

pub(super) enum Data {
    F16(Store<u16>),
    F32(Store<f32>),
}

/// Runs an expression on the store of a layer, whatever its numbers are.
macro_rules! on_store {
    ($layer:expr, $store:ident => $body:expr) => {
        match &$layer.data {
            $crate::attention::layer::Data::F16($store) => $body,
            $crate::attention::layer::Data::F32($store) => $body,
        }
    };
    (mut $layer:expr, $store:ident => $body:expr) => {
        match &mut $layer.data {
            $crate::attention::layer::Data::F16($store) => $body,
            $crate::attention::layer::Data::F32($store) => $body,
        }
    };
}
pub(super) use on_store;

/// The pages of K and V of one layer.
pub struct KvLayer {
    pub(super) data: Data,
}

impl KvLayer {
    /// A layer of `pages` pages, all zero. The system gives the memory of a page when it is first written.
    pub fn new(format: KvFormat, pages: usize, kv_heads: usize, head_dim: usize) -> KvLayer {
        let len = pages * kv_heads * head_dim * PAGE;
        let data = match format {
            KvFormat::F16 => Data::F16(Store { k: vec![0; len], v: vec![0; len], kv_heads, head_dim }),
            KvFormat::F32 => Data::F32(Store { k: vec![0.0; len], v: vec![0.0; len], kv_heads, head_dim }),
        };
        KvLayer { data }
    }

    /// Heads of K and V.
    pub fn kv_heads(&self) -> usize {
        on_store!(self, store => store.kv_heads)
    }

    /// Numbers of one head.
    pub fn head_dim(&self) -> usize {
        on_store!(self, store => store.head_dim)
    }

    /// Writes row `r` of `k` and `v` (both `[rows, kv_heads * head_dim]`) to `slots[r]`; of equal slots the last wins.
    ///
    /// # Panics
    /// When `k` or `v` has fewer rows than `slots`, or a slot is not in the layer.
    pub fn append(&mut self, pool: &Pool, isa: Isa, slots: &[KvSlot], k: Strided<&[f32]>, v: Strided<&[f32]>) {
        on_store!(mut self, store => store.append(pool, isa, slots, &k, &v));
    }

    /// Reads the K and V of one position, `[kv_heads * head_dim]` each.
    ///
    /// # Panics
    /// When the slot is not in the layer, or `k` or `v` is shorter.
    pub fn read(&self, slot: KvSlot, k: &mut [f32], v: &mut [f32]) {
        on_store!(self, store => store.read(slot, k, v));
    }

    /// Copies the K and V of one position, bit by bit.
    ///
    /// # Panics
    /// When a slot is not in the layer.
    pub fn copy_slot(&mut self, from: KvSlot, to: KvSlot) {
        on_store!(mut self, store => store.copy_slot(from, to));
    }

    /// Copies a page, bit by bit.
    ///
    /// # Panics
    /// When a page is not in the layer.
    pub fn copy_page(&mut self, from: u32, to: u32) {
        on_store!(mut self, store => store.copy_page(from, to));
    }
}

/// The shape alone: the numbers would be gigabytes.
impl fmt::Debug for KvLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kv_heads, head_dim) = (self.kv_heads(), self.head_dim());
        f.debug_struct("KvLayer").field("kv_heads", &kv_heads).field("head_dim", &head_dim).finish_non_exhaustive()
    }
}
