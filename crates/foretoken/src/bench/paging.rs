//! What scattering costs attention: pages in any order over the pool against the same positions in one run of memory.

use std::io::{self, Write};
use std::time::Instant;

use kernels::{Attention, AttentionRow, KvLayer, KvSlot, PAGE, Strided};
use serde_json::{Value, json};

use crate::stats::Samples;
use cli::load::Loaded;

/// Timed sweeps over all layers.
const SWEEPS: usize = 41;

/// Attention of one row in all layers, once over pages in order and once over the same pages scattered.
pub(crate) struct Paging {
    context: usize,
    /// Seconds a sweep.
    in_order: Samples,
    scattered: Samples,
}

impl Paging {
    /// Measures the attention of a row that sees `context` positions. The two orders take turns.
    pub(crate) fn measure(loaded: &Loaded, context: usize) -> Self {
        let config = loaded.model.config();
        let pages = context.div_ceil(PAGE);
        // Half of the pool in order, half of it scattered: each order has memory of its own.
        let ids: Vec<u32> = (0..2 * pages as u32).collect();
        let (in_order, rest) = ids.split_at(pages);
        let scattered = scatter(rest);
        let layers: Vec<KvLayer> = (0..config.layers).map(|_| filled(loaded, &ids)).collect();
        let attention =
            Attention { heads: config.heads, scale: (config.head_dim as f32).powf(-0.5), window: None, first: 0 };
        let q = vec![0.5; config.q_width()];
        let mut out = vec![0.0; config.q_width()];
        let mut sweep = |table: &[u32]| {
            let row = AttentionRow { table, position: context - 1, prefix: context, path: &[] };
            let start = Instant::now();
            for layer in &layers {
                let q = Strided { data: q.as_slice(), stride: q.len() };
                let width = out.len();
                let out = Strided { data: out.as_mut_slice(), stride: width };
                attention.attend(&loaded.pool, loaded.isa, layer, &[row], q, out);
            }
            start.elapsed().as_secs_f64()
        };
        let mut paging = Self { context, in_order: Samples::default(), scattered: Samples::default() };
        for turn in 0..=SWEEPS {
            let (a, b) = match turn % 2 {
                0 => {
                    let a = sweep(in_order);
                    (a, sweep(&scattered))
                }
                _ => {
                    let b = sweep(&scattered);
                    (sweep(in_order), b)
                }
            };
            // The first warms up.
            if turn > 0 {
                paging.in_order.push(a);
                paging.scattered.push(b);
            }
        }
        paging
    }

    /// How many times as long scattered pages take, by the medians.
    fn ratio(&self) -> f64 {
        self.scattered.median() / self.in_order.median()
    }

    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "attention of one row at context {} in all layers: {:.3} ms over pages in order, {:.3} ms over scattered \
             ones ({:.3} times)",
            self.context,
            self.in_order.median() * 1e3,
            self.scattered.median() * 1e3,
            self.ratio(),
        )
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "context": self.context,
            "in_order": self.in_order.to_json(),
            "scattered": self.scattered.to_json(),
            "scattered_by_in_order": self.ratio(),
        })
    }
}

/// A layer whose `pages` have been written, so that the system has given their memory.
fn filled(loaded: &Loaded, pages: &[u32]) -> KvLayer {
    let config = loaded.model.config();
    let mut layer = KvLayer::new(loaded.kv_format, pages.len(), config.kv_heads, config.head_dim);
    let row = vec![0.25; PAGE * config.kv_width()];
    let rows = || Strided { data: row.as_slice(), stride: config.kv_width() };
    for &page in pages {
        let slots: Vec<KvSlot> = (0..PAGE as u8).map(|offset| KvSlot { page, offset }).collect();
        layer.append(&loaded.pool, loaded.isa, &slots, rows(), rows());
    }
    layer
}

/// The same pages in an order in which no two neighbours stay together: the first half and the second, backwards, in
/// turns.
fn scatter(pages: &[u32]) -> Vec<u32> {
    let (low, high) = pages.split_at(pages.len() / 2);
    let mut scattered = Vec::with_capacity(pages.len());
    for at in 0..high.len() {
        scattered.push(high[high.len() - 1 - at]);
        scattered.extend(low.len().checked_sub(at + 1).map(|at| low[at]));
    }
    scattered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattered_pages_are_the_same_without_neighbours() {
        for count in [1, 2, 7, 64] {
            let pages: Vec<u32> = (10..10 + count).collect();
            let scattered = scatter(&pages);
            assert!(count < 4 || scattered.windows(2).all(|pair| pair[1] != pair[0] + 1), "{scattered:?}");
            let mut sorted = scattered;
            sorted.sort_unstable();
            assert_eq!(sorted, pages);
        }
    }
}
