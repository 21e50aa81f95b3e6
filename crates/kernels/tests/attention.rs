//! Attention against f64, and that a row's bits depend on that row and what it sees alone.

use std::num::NonZeroUsize;

use half::f16;
use kernels::{Attention, AttentionRow, Isa, KvFormat, KvLayer, KvSlot, PAGE, Pool, Strided};
use proptest::prelude::*;

/// A generator of test data (splitmix64): cases are described by a seed and stay small.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn numbers(&mut self, n: usize, size: f32) -> Vec<f32> {
        (0..n).map(|_| (self.next() >> 40) as f32 / (1 << 23) as f32 * size - size).collect()
    }

    /// `0..n` in any order.
    fn shuffled(&mut self, n: usize) -> Vec<u32> {
        let mut ids: Vec<u32> = (0..n as u32).collect();
        (1..n).rev().for_each(|i| ids.swap(i, self.below(i + 1)));
        ids
    }
}

#[derive(Debug, Clone)]
struct Shape {
    kv_heads: usize,
    group: usize,
    head_dim: usize,
    /// Committed positions.
    prefix: usize,
    window: Option<usize>,
    format: KvFormat,
    seed: u64,
}

fn shape() -> impl Strategy<Value = Shape> {
    let window = prop_oneof![2 => Just(None), 1 => (1usize..40).prop_map(Some), 1 => (1usize..400).prop_map(Some)];
    let head_dim = prop_oneof![Just(64usize), Just(32), (1usize..30).prop_map(|n| 2 * n)];
    let prefix = prop_oneof![1usize..20, 1usize..300];
    let format = prop_oneof![Just(KvFormat::F16), Just(KvFormat::F32)];
    (1usize..4, 1usize..10, head_dim, prefix, window, format, any::<u64>()).prop_map(
        |(kv_heads, group, head_dim, prefix, window, format, seed)| Shape {
            kv_heads,
            group,
            head_dim,
            prefix,
            window,
            format,
            seed,
        },
    )
}

fn pool(threads: usize) -> Pool {
    Pool::new(NonZeroUsize::new(threads).unwrap())
}

/// A sequence with a prefix and a tree of drafts behind it: node `i` in slot `prefix + i`, parents before children.
struct Case {
    shape: Shape,
    layer: KvLayer,
    table: Vec<u32>,
    /// Keys and values of every slot, as stored: `[slots, kv_heads * head_dim]`.
    k: Vec<f32>,
    v: Vec<f32>,
    /// The slots from the root to each node.
    paths: Vec<Vec<u32>>,
    /// A query for the last position of the prefix and one for each node, `[1 + nodes, heads * head_dim]`.
    q: Vec<f32>,
}

const NODES: usize = 20;

impl Case {
    /// With NaN in every slot that no row sees.
    fn new(shape: Shape, isa: Isa) -> Case {
        let mut rng = Rng(shape.seed);
        let slots = shape.prefix + NODES;
        let pages = slots.div_ceil(PAGE) + 3;
        let mut table = rng.shuffled(pages);
        table.truncate(slots.div_ceil(PAGE));
        let width = shape.kv_heads * shape.head_dim;
        let (k, v) = (rng.numbers(slots * width, 2.0), rng.numbers(slots * width, 2.0));
        let paths = (0..NODES).fold(Vec::<Vec<u32>>::new(), |mut paths, node| {
            let parent = rng.below(node + 1);
            let mut path = if parent == 0 { Vec::new() } else { paths[parent - 1].clone() };
            path.push((shape.prefix + node) as u32);
            paths.push(path);
            paths
        });
        let q = rng.numbers((1 + NODES) * shape.group * width, 3.0);
        let mut layer = KvLayer::new(shape.format, pages, shape.kv_heads, shape.head_dim);
        let everywhere: Vec<KvSlot> = (0..pages as u32 * 16).map(|s| slot_in(s / 16, s as usize % 16)).collect();
        let nan = vec![f32::NAN; width];
        let same = || Strided { data: &nan[..], stride: 0 };
        layer.append(&pool(1), isa, &everywhere, same(), same());
        let mut case = Case { shape, layer, table, k, v, paths, q };
        case.write(&pool(2), isa, 0..slots);
        case
    }

    fn write(&mut self, pool: &Pool, isa: Isa, slots: std::ops::Range<usize>) {
        let width = self.shape.kv_heads * self.shape.head_dim;
        let to: Vec<KvSlot> = slots.clone().map(|s| slot_in(self.table[s / PAGE], s % PAGE)).collect();
        let k = Strided { data: &self.k[slots.start * width..], stride: width };
        let v = Strided { data: &self.v[slots.start * width..], stride: width };
        self.layer.append(pool, isa, &to, k, v);
    }

    fn width(&self) -> usize {
        self.shape.kv_heads * self.shape.group * self.shape.head_dim
    }

    /// Row 0 is the last of the prefix, row `1 + i` node `i`.
    fn rows(&self) -> Vec<AttentionRow<'_>> {
        let prefix = self.shape.prefix;
        let last = AttentionRow { table: &self.table, position: prefix - 1, prefix, path: &[] };
        let node = |path: &'_ Vec<u32>| prefix + path.len() - 1;
        let nodes = self.paths.iter().map(|path| AttentionRow { position: node(path), path, ..last });
        std::iter::once(last).chain(nodes).collect()
    }

    fn attend(&self, pool: &Pool, isa: Isa, rows: &[AttentionRow<'_>], q: &[f32]) -> Vec<f32> {
        let heads = self.shape.kv_heads * self.shape.group;
        let attention = Attention { heads, scale: 0.3, window: self.shape.window, first: 0 };
        let mut out = vec![f32::NAN; rows.len() * self.width()];
        let stride = self.width();
        let (from, to) = (Strided { data: q, stride }, Strided { data: &mut out[..], stride });
        attention.attend(pool, isa, &self.layer, rows, from, to);
        out
    }

    /// The slots that a row sees, in the order of positions.
    fn seen(&self, row: usize) -> Vec<usize> {
        let path: &[u32] = if row == 0 { &[] } else { &self.paths[row - 1] };
        let slots: Vec<usize> = (0..self.shape.prefix).chain(path.iter().map(|&s| s as usize)).collect();
        slots[slots.len().saturating_sub(self.shape.window.unwrap_or(usize::MAX))..].to_vec()
    }

    /// What a row's result should be, in f64 over the stored numbers.
    fn reference(&self, row: usize) -> Vec<f64> {
        let Shape { kv_heads, group, head_dim, .. } = self.shape;
        let slots = self.seen(row);
        let at = |numbers: &[f32], slot: usize, kv_head: usize, d: usize| {
            let x = numbers[(slot * kv_heads + kv_head) * head_dim + d];
            f64::from(if self.shape.format == KvFormat::F16 { f16::from_f32(x).to_f32() } else { x })
        };
        (0..kv_heads * group)
            .flat_map(|head| {
                let q = &self.q[row * self.width() + head * head_dim..][..head_dim];
                let score = |&slot: &usize| {
                    0.3 * (0..head_dim).map(|d| f64::from(q[d]) * at(&self.k, slot, head / group, d)).sum::<f64>()
                };
                let scores: Vec<f64> = slots.iter().map(score).collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                let sum: f64 = weights.iter().sum();
                let value =
                    |d| slots.iter().zip(&weights).map(|(&s, w)| w / sum * at(&self.v, s, head / group, d)).sum();
                (0..head_dim).map(value).collect::<Vec<f64>>()
            })
            .collect()
    }
}

fn slot_in(page: u32, offset: usize) -> KvSlot {
    KvSlot { page, offset: offset as u8 }
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn attention_is_that_of_f64(shape in shape()) {
        for isa in Isa::available() {
            let case = Case::new(shape.clone(), isa);
            let got = case.attend(&pool(2), isa, &case.rows(), &case.q);
            for row in 0..=NODES {
                for (i, want) in case.reference(row).into_iter().enumerate() {
                    let got = f64::from(got[row * case.width() + i]);
                    prop_assert!((got - want).abs() <= 2e-5, "{} row {} [{}]: {} is not {}", isa, row, i, got, want);
                }
            }
        }
    }

    #[test]
    fn bits_depend_on_the_row_alone(shape in shape()) {
        for isa in Isa::available() {
            let case = Case::new(shape.clone(), isa);
            let (rows, width) = (case.rows(), case.width());
            let want = bits(&case.attend(&pool(1), isa, &rows, &case.q));
            for threads in 2..=4 {
                prop_assert_eq!(&bits(&case.attend(&pool(threads), isa, &rows, &case.q)), &want);
            }
            for threads in [1, 4] {
                for row in [0, 1, NODES / 2, NODES] {
                    let q = &case.q[row * width..][..width];
                    let alone = bits(&case.attend(&pool(threads), isa, &rows[row..=row], q));
                    prop_assert_eq!(alone, &want[row * width..][..width]);
                }
            }
        }
    }

    /// Whatever lies in the slots that a row does not see: other branches, positions before the window, unwritten ones.
    #[test]
    fn what_a_row_does_not_see_has_no_effect(shape in shape(), row in 0..=NODES) {
        for isa in Isa::available() {
            let mut case = Case::new(shape.clone(), isa);
            let width = case.width();
            let q = case.q[row * width..][..width].to_vec();
            let want = bits(&case.attend(&pool(1), isa, &case.rows()[row..=row], &q));
            prop_assert!(want.iter().all(|&x| f32::from_bits(x).is_finite()));

            let seen = case.seen(row);
            let kv_width = shape.kv_heads * shape.head_dim;
            for slot in (0..shape.prefix + NODES).filter(|slot| !seen.contains(slot)) {
                case.k[slot * kv_width..][..kv_width].fill(f32::NAN);
                case.v[slot * kv_width..][..kv_width].fill(f32::NAN);
            }
            case.write(&pool(1), isa, 0..shape.prefix + NODES);
            prop_assert_eq!(&bits(&case.attend(&pool(2), isa, &case.rows()[row..=row], &q)), &want);
        }
    }

    /// A node's bits are those of the last row of a chain: its path after compaction.
    #[test]
    fn a_tree_row_has_the_bits_of_its_chain(shape in shape(), node in 0..NODES) {
        for isa in Isa::available() {
            let mut case = Case::new(shape.clone(), isa);
            let (prefix, width) = (shape.prefix, case.width());
            let q = case.q[(1 + node) * width..][..width].to_vec();
            let tree = bits(&case.attend(&pool(2), isa, &case.rows()[1 + node..=1 + node], &q));

            let (path, table) = (case.paths[node].clone(), case.table.clone());
            let slot = |s: usize| slot_in(table[s / PAGE], s % PAGE);
            for (i, &from) in path.iter().enumerate() {
                case.layer.copy_slot(slot(from as usize), slot(prefix + i));
            }
            let position = prefix + path.len() - 1;
            let chain = AttentionRow { table: &table, position, prefix: position + 1, path: &[] };
            prop_assert_eq!(&bits(&case.attend(&pool(1), isa, &[chain], &q)), &tree);

            // The same with its first page elsewhere.
            let mut other = table.clone();
            other[0] = (0..).find(|page| !table.contains(page)).unwrap();
            case.layer.copy_page(table[0], other[0]);
            let chain = AttentionRow { table: &other, ..chain };
            prop_assert_eq!(&bits(&case.attend(&pool(3), isa, &[chain], &q)), &tree);
        }
    }
}

/// q, k and v as column ranges of one matrix, and rows of two sequences in one call.
#[test]
fn strides_are_honoured() {
    let (kv_heads, head_dim, width) = (1, 8, 24);
    for isa in Isa::available() {
        let mut rng = Rng(7);
        let qkv = rng.numbers(2 * width, 1.0);
        let mut layer = KvLayer::new(KvFormat::F32, 2, kv_heads, head_dim);
        let column = |at: usize| Strided { data: &qkv[at..], stride: width };
        layer.append(&pool(1), isa, &[slot_in(1, 0), slot_in(0, 0)], column(8), column(16));
        let row = |table| AttentionRow { table, position: 0, prefix: 1, path: &[] };
        let mut out = [7.0; 2 * 10];
        let attention = Attention { heads: 1, scale: 1.0, window: None, first: 0 };
        let to = Strided { data: &mut out[..], stride: 10 };
        attention.attend(&pool(2), isa, &layer, &[row(&[1]), row(&[0])], column(0), to);
        // One key each: the result is its value.
        assert_eq!(out[..8], qkv[16..24], "{isa}");
        assert_eq!(out[10..18], qkv[40..48], "{isa}");
        assert_eq!([out[8], out[9], out[18], out[19]], [7.0; 4], "{isa}");
    }
}

#[test]
fn half_precision_saturates() {
    for isa in Isa::available() {
        let mut layer = KvLayer::new(KvFormat::F16, 1, 1, 10);
        let k = [0.0; 10];
        let v = [1e9, -1e9, f32::INFINITY, f32::NEG_INFINITY, 65504.0, 65520.0, 1.0, -1e-9, 1e9, -70000.0];
        let all = |data| Strided { data, stride: 10 };
        layer.append(&pool(1), isa, &[slot_in(0, 3)], all(&k[..]), all(&v[..]));
        let row = AttentionRow { table: &[0], position: 3, prefix: 4, path: &[] };
        let mut out = [0.0; 10];
        let attention = Attention { heads: 1, scale: 1.0, window: Some(1), first: 0 };
        let to = Strided { data: &mut out[..], stride: 10 };
        attention.attend(&pool(1), isa, &layer, &[row], Strided { data: &[1.0; 10], stride: 10 }, to);
        let most = 65504.0;
        assert_eq!(out, [most, -most, most, -most, most, most, 1.0, -0.0, most, -most], "{isa}");
    }
}

/// A window of 12 sees 12 keys, the row's own included.
#[test]
fn the_window_counts_the_row_itself() {
    for isa in Isa::available() {
        let mut layer = KvLayer::new(KvFormat::F32, 2, 1, 2);
        let slots: Vec<KvSlot> = (0..20).map(|s| slot_in(s / 16, s as usize % 16)).collect();
        let v: Vec<f32> = (0..20).flat_map(|s| [s as f32, 1.0]).collect();
        let k = [0.0; 40];
        layer.append(&pool(1), isa, &slots, Strided { data: &k, stride: 2 }, Strided { data: &v, stride: 2 });
        let row = AttentionRow { table: &[0, 1], position: 19, prefix: 20, path: &[] };
        let mut out = [0.0; 2];
        let attention = Attention { heads: 1, scale: 1.0, window: Some(12), first: 0 };
        let to = Strided { data: &mut out[..], stride: 2 };
        attention.attend(&pool(1), isa, &layer, &[row], Strided { data: &[1.0; 2], stride: 2 }, to);
        assert_eq!(out, [(8..20).sum::<i32>() as f32 / 12.0, 1.0], "{isa}");
    }
}

/// Positions below the first are seen by nobody, in a window or without one.
#[test]
fn nobody_sees_below_the_first_position() {
    for (isa, window) in Isa::available().into_iter().flat_map(|isa| [(isa, None), (isa, Some(30))]) {
        let mut layer = KvLayer::new(KvFormat::F32, 2, 1, 2);
        let slots: Vec<KvSlot> = (0..20).map(|s| slot_in(s / 16, s as usize % 16)).collect();
        let v: Vec<f32> = (0..20).flat_map(|s| [if s < 3 { f32::NAN } else { s as f32 }, 1.0]).collect();
        let k = [0.0; 40];
        layer.append(&pool(1), isa, &slots, Strided { data: &k, stride: 2 }, Strided { data: &v, stride: 2 });
        let row = AttentionRow { table: &[0, 1], position: 18, prefix: 19, path: &[] };
        let mut out = [0.0; 2];
        let attention = Attention { heads: 1, scale: 1.0, window, first: 3 };
        let to = Strided { data: &mut out[..], stride: 2 };
        attention.attend(&pool(1), isa, &layer, &[row], Strided { data: &[1.0; 2], stride: 2 }, to);
        assert_eq!(out, [(3..19).sum::<i32>() as f32 / 16.0, 1.0], "{isa}");
    }
}

#[test]
fn what_is_kept_can_be_read() {
    for format in [KvFormat::F16, KvFormat::F32] {
        let mut layer = KvLayer::new(format, 2, 2, 10);
        let numbers = |from: u32| (from..from + 20).map(|n| n as f32 / 8.0).collect::<Vec<f32>>();
        let (k, v) = (numbers(1), numbers(100));
        let all = |data| Strided { data, stride: 20 };
        layer.append(&pool(1), Isa::detect(), &[slot_in(1, 5)], all(&k[..]), all(&v[..]));
        let (mut found_k, mut found_v) = (vec![0.0; 20], vec![0.0; 20]);
        layer.read(slot_in(1, 5), &mut found_k, &mut found_v);
        assert_eq!((found_k, found_v), (k, v), "{format:?}");
    }
}
