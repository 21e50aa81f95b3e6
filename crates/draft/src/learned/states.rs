//! A hidden state for each position of a text, kept in the target's own pages, so that it is shared, found and rolled back
//! with them.

use kernels::{Isa, KvFormat, Pool, Strided};
use kv::{Attached, KvCache, Layout};
use model::Segment;

use crate::Ask;

/// The layer that holds the states.
pub(super) struct States {
    hidden: usize,
    isa: Isa,
    format: KvFormat,
    attached: Option<Attached>,
}

impl States {
    pub(super) fn new(hidden: usize, isa: Isa, format: KvFormat) -> States {
        States { hidden, isa, format, attached: None }
    }

    /// The hidden state of a position, half in the place of a key and half in that of a value.
    fn layout(&self) -> Layout {
        Layout { layers: 1, kv_heads: 1, head_dim: self.hidden / 2, format: self.format }
    }

    pub(super) fn bytes_per_page(&self) -> usize {
        self.layout().bytes_per_page()
    }

    pub(super) fn attach(&mut self, cache: &mut KvCache) {
        self.attached = Some(cache.attach(self.layout()));
    }

    /// Keeps the `states` of the rows of a batch, `[rows, hidden]`.
    pub(super) fn keep(&self, pool: &Pool, cache: &mut KvCache, batch: &[Segment<'_>], states: &[f32]) {
        let Some(attached) = &self.attached else { return };
        let rows = batch
            .iter()
            .flat_map(|segment| (0..segment.tokens.len()).map(|row| segment.sequence.slot(segment.start + row)));
        let slots: Vec<_> = rows.collect();
        let part = |from: usize| Strided { data: &states[from..], stride: self.hidden };
        if !slots.is_empty() {
            cache.attached(attached).layers[0].append(pool, self.isa, &slots, part(0), part(self.hidden / 2));
        }
    }

    /// The states of the positions before the anchors of requests, `[asks, hidden]`; zero where there is none.
    pub(super) fn before_anchors<'a>(
        &self,
        cache: &mut KvCache,
        asks: impl ExactSizeIterator<Item = &'a Ask<'a>>,
    ) -> Vec<f32> {
        let mut rows = vec![0.0; asks.len() * self.hidden];
        let Some(attached) = &self.attached else { return rows };
        let layer = &cache.attached(attached).layers[0];
        for (ask, row) in asks.zip(rows.chunks_exact_mut(self.hidden)) {
            let (k, v) = row.split_at_mut(self.hidden / 2);
            if let Some(before) = ask.tokens.len().checked_sub(2) {
                layer.read(ask.sequence.slot(before), k, v);
            }
        }
        rows
    }
}
