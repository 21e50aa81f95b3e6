//! K/V whose contents tell which text they belong to, and a way to read them back.

#![allow(dead_code)]

use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroUsize;

use kernels::{Attention, AttentionRow, Isa, KvFormat, KvLayer, KvSlot, PAGE, Pool, Strided};
use kv::{KvCache, Layout, Sequence};

pub(crate) const LAYOUT: Layout = Layout { layers: 2, kv_heads: 1, head_dim: 2, format: KvFormat::F32 };

/// Layers of a [`new_cache`]: its own, and one that is attached.
const LAYERS: usize = LAYOUT.layers + 1;

/// A cache with a layer attached to it, which has the same contents as if it was its own.
pub(crate) fn new_cache(pages: usize) -> KvCache {
    let mut cache = KvCache::new(LAYOUT, pages);
    cache.attach(Layout { layers: 1, ..LAYOUT });
    cache
}

pub(crate) fn pool() -> Pool {
    Pool::new(NonZeroUsize::MIN)
}

/// K and V of position `position` of a text in one layer: like a model's, they depend on all tokens up to it.
fn contents(text: &[u32], position: usize, layer: usize) -> [[f32; 2]; 2] {
    let number = |which: usize| {
        let mut hasher = DefaultHasher::new();
        (&text[..=position], layer, which).hash(&mut hasher);
        (hasher.finish() >> 44) as f32 / (1 << 20) as f32
    };
    [[number(0), number(1)], [number(2), number(3)]]
}

fn append(pool: &Pool, layer: &mut KvLayer, index: usize, slots: &[KvSlot], text: &[u32], from: usize) {
    let rows: Vec<_> = (from..text.len()).map(|position| contents(text, position, index)).collect();
    let (k, v): (Vec<f32>, Vec<f32>) =
        (rows.iter().flat_map(|r| r[0]).collect(), rows.iter().flat_map(|r| r[1]).collect());
    layer.append(pool, Isa::detect(), slots, Strided { data: &k, stride: 2 }, Strided { data: &v, stride: 2 });
}

/// Computes a text's K/V from position `from` on into all layers, as a forward would.
pub(crate) fn write(pool: &Pool, cache: &mut KvCache, sequence: &Sequence, text: &[u32], from: usize) {
    let slots: Vec<KvSlot> = (from..text.len()).map(|position| sequence.slot(position)).collect();
    for index in 0..LAYERS {
        append(pool, cache.layer_mut(index), index, &slots, text, from);
    }
}

/// What every position sees of itself and of the one before it, so that each K and each V has a part in it.
fn seen(pool: &Pool, layer: &KvLayer, table: &[u32], len: usize) -> Vec<f32> {
    let row = |position| AttentionRow { table, position, prefix: position + 1, path: &[] };
    let rows: Vec<AttentionRow<'_>> = (0..len).map(row).collect();
    let q = [3.0, -2.0].repeat(len);
    let mut out = vec![0.0; 2 * len];
    let (q, to) = (Strided { data: &q[..], stride: 2 }, Strided { data: &mut out[..], stride: 2 });
    Attention { heads: 1, scale: 1.0, window: Some(2), first: 0 }.attend(pool, Isa::detect(), layer, &rows, q, to);
    out
}

/// Whether the pages of a sequence hold the K/V of a text, bit by bit, in all layers.
pub(crate) fn holds(pool: &Pool, cache: &KvCache, sequence: &Sequence, text: &[u32]) -> bool {
    let (len, pages) = (text.len(), text.len().div_ceil(PAGE));
    let table: Vec<u32> = (0..pages as u32).collect();
    let slots: Vec<KvSlot> =
        (0..len).map(|position| KvSlot { page: table[position / PAGE], offset: (position % PAGE) as u8 }).collect();
    sequence.len() == len
        && (0..LAYERS).all(|index| {
            let mut plain = KvLayer::new(LAYOUT.format, pages, LAYOUT.kv_heads, LAYOUT.head_dim);
            append(pool, &mut plain, index, &slots, text, 0);
            seen(pool, &plain, &table, len) == seen(pool, cache.layer(index), sequence.table(), len)
        })
}

/// Grows a sequence to a text that begins with its own.
pub(crate) fn grow(pool: &Pool, cache: &mut KvCache, sequence: &mut Sequence, text: &[u32]) {
    let from = sequence.len();
    cache.reserve(sequence, text.len()).unwrap();
    write(pool, cache, sequence, text, from);
}
