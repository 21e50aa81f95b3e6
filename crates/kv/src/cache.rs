//! The K/V memory of one model, and what may be done with it.

use kernels::{KvLayer, PAGE};

use crate::pages::Pages;
use crate::prefix::{Key, Parent, Prefixes};
use crate::{Layout, Salt, Sequence};

/// A sequence needs more pages than are free. Nothing was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the sequence needs {needed} more K/V pages of {PAGE} tokens, but {free} are free: shorten it, or give the cache more pages"
)]
pub struct OutOfPages {
    /// Pages that the sequence lacks.
    pub needed: usize,
    /// Pages that are free or can be evicted.
    pub free: usize,
}

/// Layers that lie beside the model's own in the pages of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attached {
    first: usize,
    layout: Layout,
}

/// The layers of one shape in a cache, to be read and written.
#[derive(Debug)]
pub struct Layers<'a> {
    /// Their shape.
    pub layout: Layout,
    /// `[layout.layers]`
    pub layers: &'a mut [KvLayer],
}

/// What a cache has done since it was made. The counts only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pages copied because a sequence was to write to one that others have.
    pub copied_pages: u64,
    /// Findable pages given to another use.
    pub evicted_pages: u64,
    /// Tokens that [`KvCache::match_prefix`] was asked for.
    pub asked_tokens: u64,
    /// Tokens of these that it found.
    pub found_tokens: u64,
}

/// The K/V memory of one model: its pages, who refers to them, and which of them hold a known text.
///
/// Other layers can be [attached](KvCache::attach): what a drafter knows of a position then lies in the position's own
/// page, is found with it, copied with it and goes with it.
#[derive(Debug)]
pub struct KvCache {
    layout: Layout,
    /// The model's own, and then those that are attached.
    layers: Vec<KvLayer>,
    attached: Vec<Attached>,
    pages: Pages,
    prefixes: Prefixes,
    counts: Counts,
}

impl KvCache {
    /// A cache of `pages` pages, all free. Memory is taken from the system as pages are first written.
    ///
    /// # Panics
    /// When `pages` does not fit a page id (2³²).
    pub fn new(layout: Layout, pages: usize) -> KvCache {
        let count = u32::try_from(pages).unwrap_or_else(|_| panic!("{pages} pages in a K/V cache"));
        let Layout { layers, kv_heads, head_dim, format } = layout;
        let layers = (0..layers).map(|_| KvLayer::new(format, pages, kv_heads, head_dim)).collect();
        let (pages, prefixes) = (Pages::new(count), Prefixes::default());
        KvCache { layout, layers, attached: Vec::new(), pages, prefixes, counts: Counts::default() }
    }

    /// A cache of the same shape, with the same layers attached, of which all pages are free.
    pub fn anew(&self) -> KvCache {
        let mut cache = KvCache::new(self.layout, self.total_pages());
        for attached in &self.attached {
            cache.attach(attached.layout);
        }
        cache
    }

    /// Adds layers of another shape to every page. What a page holds in them follows it from now on; nothing is in them
    /// yet, so that whoever attaches them does so before a page is remembered.
    pub fn attach(&mut self, layout: Layout) -> Attached {
        let Layout { layers, kv_heads, head_dim, format } = layout;
        let (attached, pages) = (Attached { first: self.layers.len(), layout }, self.total_pages());
        self.layers.extend((0..layers).map(|_| KvLayer::new(format, pages, kv_heads, head_dim)));
        self.attached.push(attached);
        attached
    }

    /// The model's own layers.
    pub fn layers(&mut self) -> Layers<'_> {
        Layers { layout: self.layout, layers: &mut self.layers[..self.layout.layers] }
    }

    /// Layers that were attached to this cache.
    ///
    /// # Panics
    /// When they were attached to another cache that has more of them.
    pub fn attached(&mut self, attached: &Attached) -> Layers<'_> {
        let Attached { first, layout } = *attached;
        Layers { layout, layers: &mut self.layers[first..first + layout.layers] }
    }

    /// Layers that were attached to this cache one after the other.
    ///
    /// # Panics
    /// When they were attached to another cache that has more of them, or in another order.
    pub fn attached_two(&mut self, [one, other]: &[Attached; 2]) -> [Layers<'_>; 2] {
        let (first, second) = self.layers.split_at_mut(other.first);
        [
            Layers { layout: one.layout, layers: &mut first[one.first..one.first + one.layout.layers] },
            Layers { layout: other.layout, layers: &mut second[..other.layout.layers] },
        ]
    }

    /// The shape of the K/V.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// All pages.
    pub fn total_pages(&self) -> usize {
        self.pages.total()
    }

    /// Pages that no sequence has: the free ones and those that can be evicted.
    pub fn free_pages(&self) -> usize {
        self.pages.free() + self.prefixes.idle()
    }

    /// Pages that no sequence has and that a prefix can be found in: those that can be evicted.
    pub fn cached_pages(&self) -> usize {
        self.prefixes.idle()
    }

    /// Pages that a prefix can be found in, whether sequences have them or not.
    pub fn findable_pages(&self) -> usize {
        self.prefixes.len()
    }

    /// What has been done since the cache was made.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Gives slots to all positions below `len`, which may be written from the sequence's present length on: a page of
    /// theirs that others can read is copied first, in all layers. A sequence that is as long already stays as it is.
    /// Pages that hold a remembered prefix and that no sequence has are evicted when no page is free.
    ///
    /// # Errors
    /// [`OutOfPages`] when it needs more pages than are free or can be evicted; the sequence is then unchanged.
    pub fn reserve(&mut self, sequence: &mut Sequence, len: usize) -> Result<(), OutOfPages> {
        if len <= sequence.len {
            return Ok(());
        }
        let partial = (!sequence.len.is_multiple_of(PAGE)).then_some(sequence.len / PAGE);
        let shared = partial.filter(|&place| self.pages.references(sequence.table[place]) > 1);
        let fresh = len.div_ceil(PAGE) - sequence.table.len();
        let (needed, free) = (fresh + usize::from(shared.is_some()), self.free_pages());
        if needed > free {
            return Err(OutOfPages { needed, free });
        }
        sequence.table.extend((0..fresh).map_while(|_| self.take()));
        sequence.len = len;
        if let Some(place) = partial {
            self.own(&mut sequence.table[place]);
        }
        Ok(())
    }

    /// A page with one reference, free or evicted.
    fn take(&mut self) -> Option<u32> {
        let page = self.pages.take().or_else(|| {
            let page = self.prefixes.evict()?;
            self.counts.evicted_pages += 1;
            Some(page)
        })?;
        self.pages.refer(page);
        Some(page)
    }

    /// Makes a page of a table one that only this sequence can read, by a copy if it must be.
    fn own(&mut self, page: &mut u32) {
        let from = *page;
        if self.pages.references(from) == 1 && !self.prefixes.has(from) {
            return;
        }
        let Some(to) = self.take() else {
            // Pages that other sequences have were counted, so this one is but findable, and nothing is left to evict:
            // no page follows it. It would be evicted itself if it had no reader, so that a sequence alone can have
            // all pages.
            self.prefixes.forget(from);
            return;
        };
        for layer in &mut self.layers {
            layer.copy_page(from, to);
        }
        self.counts.copied_pages += 1;
        *page = to;
        self.release(from);
    }

    /// Adds a page to a table.
    fn share(&mut self, page: u32) {
        if self.pages.refer(page) {
            self.prefixes.wake(page);
        }
    }

    /// Takes a page from a table.
    fn release(&mut self, page: u32) {
        if self.pages.drop_reference(page) && !self.prefixes.rest(page) {
            self.pages.give_back(page);
        }
    }

    /// A second sequence of the same positions, in the same pages. Both may grow: whichever first writes to the partial
    /// page at the end gets a copy of it from [`KvCache::reserve`]. Positions that are reserved but not yet written
    /// must be truncated before: neither may write to what both have.
    pub fn fork(&mut self, sequence: &Sequence) -> Sequence {
        for &page in &sequence.table {
            self.share(page);
        }
        Sequence { table: sequence.table.clone(), len: sequence.len }
    }

    /// Takes the slots of all positions from `len` on; pages without a position left are returned, which is all that it
    /// costs. A sequence that is shorter already stays as it is.
    pub fn truncate(&mut self, sequence: &mut Sequence, len: usize) {
        sequence.len = sequence.len.min(len);
        let pages = sequence.len.div_ceil(PAGE);
        // From the tail: what comes last in a text is evicted first.
        for page in sequence.table.drain(pages..).rev() {
            self.release(page);
        }
    }

    /// Keeps, of the positions from `start` on, those at the distances `kept` from it, ascending, and moves them together:
    /// the accepted path of a tree of drafts. The other positions are truncated.
    pub fn keep(&mut self, sequence: &mut Sequence, start: usize, kept: &[usize]) {
        for (to, &from) in kept.iter().enumerate().filter(|(to, from)| to != *from) {
            let (from, to) = (sequence.slot(start + from), sequence.slot(start + to));
            self.layers.iter_mut().for_each(|layer| layer.copy_slot(from, to));
        }
        self.truncate(sequence, start + kept.len());
    }

    /// Takes all pages of a sequence that has ended. Those that are remembered stay findable until they are evicted.
    pub fn free(&mut self, mut sequence: Sequence) {
        self.truncate(&mut sequence, 0);
    }

    /// The longest remembered prefix of `tokens` under `salt`, in whole pages: a sequence of as many positions, which
    /// need not be computed. The last token is never part of it, for somebody wants its logits.
    pub fn match_prefix(&mut self, tokens: &[u32], salt: &Salt) -> Sequence {
        let most = tokens.len().saturating_sub(1) / PAGE;
        let mut sequence = Sequence::new();
        let mut parent = Parent::Root(salt.clone());
        for &tokens in tokens.as_chunks::<PAGE>().0.iter().take(most) {
            let Some(page) = self.prefixes.find(&Key { parent, tokens }) else { break };
            self.share(page);
            sequence.table.push(page);
            parent = Parent::Page(page);
        }
        sequence.len = sequence.table.len() * PAGE;
        self.counts.asked_tokens += tokens.len() as u64;
        self.counts.found_tokens += sequence.len as u64;
        sequence
    }

    /// Makes the full pages of a sequence findable by its `tokens` under `salt`. The K/V of all these tokens must have
    /// been written; positions past them are left out, and so are tokens past the sequence's end.
    ///
    /// Where the same text is findable in other pages already, the sequence changes over to these (they hold the same
    /// bits) and its own are returned. Pages that are findable by another text or salt end what is remembered.
    pub fn remember(&mut self, sequence: &mut Sequence, tokens: &[u32], salt: &Salt) {
        let len = tokens.len().min(sequence.len);
        let mut parent = Parent::Root(salt.clone());
        for (place, &tokens) in tokens[..len].as_chunks::<PAGE>().0.iter().enumerate() {
            let own = sequence.table[place];
            let key = Key { parent, tokens };
            let page = match self.prefixes.find(&key) {
                Some(page) if page == own => page,
                _ if self.prefixes.has(own) => return,
                Some(page) => {
                    self.share(page);
                    self.release(own);
                    sequence.table[place] = page;
                    page
                }
                None => {
                    self.prefixes.insert(key, own);
                    own
                }
            };
            parent = Parent::Page(page);
        }
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
