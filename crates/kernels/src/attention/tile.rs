//! The arithmetic of a few query heads of one row over the keys that it sees.

use std::ops::Range;

use super::layer::{Element, PAGE, Store, Wide};
use super::{Attention, AttentionRow};
use crate::lanes::{self, Kernel, LANES, Lanes, Vector, WIDE};
use crate::ops::exp;

/// Query heads that share the loads of a key: more do not fit the registers.
pub(super) const MAX_HEADS: usize = 4;
/// Pages of a block, the keys between two corrections of the running softmax.
const BLOCK_PAGES: usize = 4;
/// Positions of a block. Blocks start at multiples of it, for every row.
const BLOCK: usize = BLOCK_PAGES * PAGE;

/// Memory of one thread, used again for every item.
pub(super) struct Scratch<E> {
    /// `[head_dim, heads]`.
    pub(super) q: Vec<f32>,
    pub(super) tiles: Gathered<E>,
}

/// The tiles of one block, brought into the order of positions.
pub(super) struct Gathered<E> {
    /// `[BLOCK_PAGES, head_dim, PAGE]`.
    k: Vec<[E; PAGE]>,
    /// `[BLOCK_PAGES, PAGE, head_dim]`.
    v: Vec<E>,
}

impl<E: Element> Scratch<E> {
    pub(super) fn new(head_dim: usize) -> Scratch<E> {
        Scratch { q: vec![0.0; MAX_HEADS * head_dim], tiles: Gathered { k: Vec::new(), v: Vec::new() } }
    }
}

/// The keys and values that one row sees through one K/V head.
pub(super) struct Keys<'a, E> {
    store: &'a Store<E>,
    row: AttentionRow<'a>,
    kv_head: usize,
    /// The first position that the row sees.
    first: usize,
    gathered: &'a mut Gathered<E>,
}

/// One page of keys and values, by position.
#[derive(Clone, Copy)]
struct Tile<'a, E> {
    /// `[head_dim, PAGE]`.
    k: &'a [[E; PAGE]],
    /// `[PAGE, head_dim]`.
    v: &'a [E],
    /// The places that the row sees: `start..end`. What the others hold means nothing.
    start: usize,
    end: usize,
    /// The tiles of the same place in the next block, to be asked for early: pages lie scattered, which the machine's
    /// own prefetching cannot follow. Those of this tile where there is none.
    next_k: &'a [[E; PAGE]],
    next_v: &'a [E],
}

impl<'a, E: Element> Keys<'a, E> {
    pub(super) fn new(
        store: &'a Store<E>,
        row: AttentionRow<'a>,
        kv_head: usize,
        attention: &Attention,
        gathered: &'a mut Gathered<E>,
    ) -> Keys<'a, E> {
        let within = attention.window.map_or(0, |window| (row.position + 1).saturating_sub(window.max(1)));
        let first = within.max(attention.first);
        Keys { store, row, kv_head, first, gathered }
    }

    /// The blocks that the row sees a part of.
    fn blocks(&self) -> std::ops::RangeInclusive<usize> {
        self.first / BLOCK..=self.row.position / BLOCK
    }

    /// The pages of a block that the row sees a part of, as numbers of pages of its sequence.
    fn pages(&self, block: usize) -> std::ops::RangeInclusive<usize> {
        let (first, last) = (block * BLOCK_PAGES, block * BLOCK_PAGES + BLOCK_PAGES - 1);
        first.max(self.first / PAGE)..=last.min(self.row.position / PAGE)
    }

    /// The places of a page that the row sees.
    fn places(&self, page: usize) -> (usize, usize) {
        let start = page * PAGE;
        (self.first.saturating_sub(start), PAGE.min(self.row.position + 1 - start))
    }

    /// Whether every visible position of a page lies in the slot of its own number.
    fn in_place(&self, page: usize) -> bool {
        let (start, end) = self.places(page);
        let (start, end) = (page * PAGE + start, page * PAGE + end);
        end <= self.row.prefix || (start.max(self.row.prefix)..end).all(|p| self.row.slot(p) == p)
    }

    /// The tiles of a block, and how many there are.
    #[inline(always)]
    fn tiles(&mut self, block: usize) -> ([Tile<'_, E>; BLOCK_PAGES], usize) {
        let pages = self.pages(block);
        let first = *pages.start();
        let mut scattered = [false; BLOCK_PAGES];
        for page in pages.clone() {
            scattered[page - first] = !self.in_place(page);
            if scattered[page - first] {
                self.gather(page, page - first);
            }
        }
        let mut tiles = [Tile { k: &[], v: &[], start: 0, end: 0, next_k: &[], next_v: &[] }; BLOCK_PAGES];
        let mut count = 0;
        for page in pages {
            let (start, end) = self.places(page);
            let (k, v) = if scattered[count] {
                let (rows, numbers) = (self.store.head_dim, self.store.head_dim * PAGE);
                (&self.gathered.k[count * rows..][..rows], &self.gathered.v[count * numbers..][..numbers])
            } else {
                self.store.tiles(self.row.table[page], self.kv_head)
            };
            let next = page + BLOCK_PAGES;
            let (next_k, next_v) = match self.row.table.get(next) {
                Some(&id) if next <= self.row.position / PAGE => self.store.tiles(id, self.kv_head),
                _ => (k, v),
            };
            tiles[count] = Tile { k, v, start, end, next_k, next_v };
            count += 1;
        }
        (tiles, count)
    }

    /// Copies the visible positions of a page to tile `to` of the scratch memory.
    #[cold]
    fn gather(&mut self, page: usize, to: usize) {
        let head_dim = self.store.head_dim;
        let (start, end) = self.places(page);
        self.gathered.k.resize(BLOCK_PAGES * head_dim, [E::ZERO; PAGE]);
        self.gathered.v.resize(BLOCK_PAGES * head_dim * PAGE, E::ZERO);
        let to_k = &mut self.gathered.k[to * head_dim..][..head_dim];
        let to_v = &mut self.gathered.v[to * head_dim * PAGE..][..head_dim * PAGE];
        for place in start..end {
            let slot = self.row.slot(page * PAGE + place);
            let (k, v) = self.store.tiles(self.row.table[slot / PAGE], self.kv_head);
            for (to, from) in to_k.iter_mut().zip(k) {
                to[place] = from[slot % PAGE];
            }
            to_v[place * head_dim..][..head_dim].copy_from_slice(&v[slot % PAGE * head_dim..][..head_dim]);
        }
    }
}

/// One to [`MAX_HEADS`] query heads of one row, all of one K/V head.
pub(super) struct Heads<'a, E> {
    /// `[heads, head_dim]`.
    pub(super) q: &'a [f32],
    pub(super) scale: f32,
    pub(super) keys: Keys<'a, E>,
    /// Room for `[head_dim, MAX_HEADS]`.
    pub(super) q_scaled: &'a mut [f32],
    /// `[heads, head_dim]`.
    pub(super) out: &'a mut [f32],
}

impl<E: Element> Kernel for Heads<'_, E> {
    type Output = ();

    /// Register tiles of heads, pages of keys and vectors of values. They change which sums run side by side, not the
    /// order of any sum.
    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        let heads = self.q.len() / self.keys.store.head_dim;
        match (heads, S::Wide::REGISTERS >= 32) {
            (1, false) => attend::<S, E, 1, 4, 4>(s, self),
            (2, false) => attend::<S, E, 2, 2, 2>(s, self),
            (3, false) => attend::<S, E, 3, 1, 2>(s, self),
            (_, false) => attend::<S, E, 4, 1, 1>(s, self),
            (1, true) => attend::<S, E, 1, 4, 4>(s, self),
            (2, true) => attend::<S, E, 2, 4, 4>(s, self),
            (3, true) => attend::<S, E, 3, 4, 4>(s, self),
            (_, true) => attend::<S, E, 4, 4, 4>(s, self),
        }
    }
}

/// `H` heads: scores of `P` pages at a time, values of `C` wide vectors at a time.
#[inline(always)]
fn attend<S: Lanes, E: Element, const H: usize, const P: usize, const C: usize>(s: S, mut heads: Heads<'_, E>) {
    let head_dim = heads.keys.store.head_dim;
    let q = &mut heads.q_scaled.as_chunks_mut::<H>().0[..head_dim];
    for (d, q) in q.iter_mut().enumerate() {
        *q = std::array::from_fn(|h| heads.q[h * head_dim + d] * heads.scale);
    }
    let mut running = [Running { max: f32::NEG_INFINITY, sum: s.splat(0.0) }; H];
    heads.out.fill(0.0);
    for block in heads.keys.blocks() {
        let (tiles, count) = heads.keys.tiles(block);
        let tiles = &tiles[..count];
        let mut weights = [[[f32::NEG_INFINITY; PAGE]; BLOCK_PAGES]; H];
        scores::<S, E, H, P>(s, q, tiles, &mut weights);
        let mut correction = [0.0; H];
        for h in 0..H {
            correction[h] = running[h].step(s, &mut weights[h][..count]);
        }
        values::<S, E, H, C>(s, tiles, &weights, correction, heads.out);
    }
    for (out, running) in heads.out.chunks_exact_mut(head_dim).zip(running) {
        let sum = lanes::sum(s, running.sum);
        out.iter_mut().for_each(|out| *out /= sum);
    }
}

/// The softmax of one head so far.
#[derive(Clone, Copy)]
struct Running<V> {
    max: f32,
    /// Lane by lane, over the keys at that place of their eight.
    sum: V,
}

impl<V: Copy> Running<V> {
    /// Takes in the scores of a block, which become weights; returns the factor on what was summed before.
    #[inline(always)]
    fn step<S: Lanes<V = V>>(&mut self, s: S, pages: &mut [[f32; PAGE]]) -> f32 {
        let mut max = s.splat(self.max);
        for scores in pages.as_flattened().as_chunks::<LANES>().0 {
            max = s.max(max, s.load(scores));
        }
        let max = lanes::largest(s, max);
        let correction = exp(s, s.splat(self.max - max));
        let w = s.wide();
        let max_lanes = w.splat(max);
        for scores in pages.iter_mut() {
            w.store(exp(w, w.sub(w.load(scores), max_lanes)), scores);
        }
        let mut sum = s.mul(self.sum, correction);
        for weights in pages.as_flattened().as_chunks::<LANES>().0 {
            sum = s.add(sum, s.load(weights));
        }
        *self = Running { max, sum };
        lanes::lanes(s, correction)[0]
    }
}

/// Writes the scores of the visible keys of all tiles; those of the others stay as they are.
#[inline(always)]
fn scores<S: Lanes, E: Element, const H: usize, const P: usize>(
    s: S,
    q: &[[f32; H]],
    tiles: &[Tile<'_, E>],
    to: &mut [[[f32; PAGE]; BLOCK_PAGES]; H],
) {
    let (groups, rest) = tiles.as_chunks::<P>();
    for (i, group) in groups.iter().enumerate() {
        page_scores::<S, E, H, P>(s, q, group, i * P, to);
    }
    for (i, tile) in rest.iter().enumerate() {
        page_scores::<S, E, H, 1>(s, q, &[*tile], groups.len() * P + i, to);
    }
}

#[inline(always)]
fn page_scores<S: Lanes, E: Element, const H: usize, const P: usize>(
    s: S,
    q: &[[f32; H]],
    tiles: &[Tile<'_, E>; P],
    at: usize,
    to: &mut [[[f32; PAGE]; BLOCK_PAGES]; H],
) {
    let keys = tiles.map(|tile| &tile.k[..q.len()]);
    let next = tiles.map(|tile| &tile.next_k[..q.len()]);
    let w = s.wide();
    let mut sums = [[w.splat(0.0); P]; H];
    for d in 0..q.len() {
        for p in 0..P {
            s.prefetch(&next[p][d]);
            let k = E::load_wide(s, &keys[p][d]);
            for h in 0..H {
                sums[h][p] = w.mul_add(w.splat(q[d][h]), k, sums[h][p]);
            }
        }
    }
    for h in 0..H {
        for p in 0..P {
            let mut all = [0.0; PAGE];
            w.store(sums[h][p], &mut all);
            let (start, end) = (tiles[p].start, tiles[p].end);
            if end - start == PAGE {
                to[h][at + p] = all;
            } else {
                to[h][at + p][start..end].copy_from_slice(&all[start..end]);
            }
        }
    }
}

/// `out = out * correction + Σ weight * value` over the visible places of all tiles, in order.
#[inline(always)]
fn values<S: Lanes, E: Element, const H: usize, const C: usize>(
    s: S,
    tiles: &[Tile<'_, E>],
    weights: &[[[f32; PAGE]; BLOCK_PAGES]; H],
    correction: [f32; H],
    out: &mut [f32],
) {
    let head_dim = out.len() / H;
    let mut at = 0;
    while at + C * WIDE <= head_dim {
        columns::<S, E, H, C>(s, tiles, weights, correction, out, at);
        at += C * WIDE;
    }
    while at + WIDE <= head_dim {
        columns::<S, E, H, 1>(s, tiles, weights, correction, out, at);
        at += WIDE;
    }
    while at < head_dim {
        let end = head_dim.min(at + LANES);
        last_columns(s, tiles, weights, correction, out, at..end);
        at = end;
    }
}

/// The `C * WIDE` columns from `at` on.
#[inline(always)]
fn columns<S: Lanes, E: Element, const H: usize, const C: usize>(
    s: S,
    tiles: &[Tile<'_, E>],
    weights: &[[[f32; PAGE]; BLOCK_PAGES]; H],
    correction: [f32; H],
    out: &mut [f32],
    at: usize,
) {
    let head_dim = out.len() / H;
    let w = s.wide();
    let mut sums = [[w.splat(0.0); C]; H];
    for h in 0..H {
        let (out, _) = out[h * head_dim + at..].as_chunks::<WIDE>();
        let correction = w.splat(correction[h]);
        for c in 0..C {
            sums[h][c] = w.mul(w.load(&out[c]), correction);
        }
    }
    for (t, tile) in tiles.iter().enumerate() {
        let seen = tile.start * head_dim..tile.end * head_dim;
        let rows = tile.v[seen.clone()].chunks_exact(head_dim);
        let next_rows = tile.next_v[seen].chunks_exact(head_dim);
        for ((place, row), next_row) in (tile.start..tile.end).zip(rows).zip(next_rows) {
            for line in next_row[at..at + C * WIDE].chunks(64 / size_of::<E>()) {
                s.prefetch(&line[0]);
            }
            let (v, _) = row[at..at + C * WIDE].as_chunks::<WIDE>();
            let v: [Wide<S>; C] = std::array::from_fn(|c| E::load_wide(s, &v[c]));
            for h in 0..H {
                let weight = w.splat(weights[h][t][place]);
                for c in 0..C {
                    sums[h][c] = w.mul_add(weight, v[c], sums[h][c]);
                }
            }
        }
    }
    for h in 0..H {
        let (out, _) = out[h * head_dim + at..].as_chunks_mut::<WIDE>();
        for c in 0..C {
            w.store(sums[h][c], &mut out[c]);
        }
    }
}

/// At most [`LANES`] columns.
#[inline(always)]
fn last_columns<S: Lanes, E: Element, const H: usize>(
    s: S,
    tiles: &[Tile<'_, E>],
    weights: &[[[f32; PAGE]; BLOCK_PAGES]; H],
    correction: [f32; H],
    out: &mut [f32],
    at: Range<usize>,
) {
    for (h, out) in out.chunks_exact_mut(out.len() / H).enumerate() {
        let head_dim = out.len();
        let out = &mut out[at.clone()];
        let mut sum = s.mul(lanes::load_part(s, out), s.splat(correction[h]));
        for (weights, tile) in weights[h].iter().zip(tiles) {
            for (place, &weight) in weights.iter().enumerate().take(tile.end).skip(tile.start) {
                let mut v = [E::ZERO; LANES];
                v[..out.len()].copy_from_slice(&tile.v[place * head_dim + at.start..][..out.len()]);
                sum = s.mul_add(s.splat(weight), E::load(s, &v), sum);
            }
        }
        lanes::store_part(s, sum, out);
    }
}
