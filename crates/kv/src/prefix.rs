//! Which full pages hold which text, so that a sequence that begins like an earlier one need not compute it again.
//!
//! A page's keys and values depend on its own tokens and on all before them. So a page is found by its tokens *and* the
//! page before it, which is found in the same way, down to the salt at the root: a chain. The map compares whole keys,
//! never hashes alone, so two texts cannot be taken for each other.
//!
//! Whoever holds a page of a chain holds all pages before it, and returns them from the tail. A page therefore becomes
//! idle before the one that it follows: the page that has been idle for longest is never one that another follows.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kernels::PAGE;

/// Keeps texts apart: a prefix that was remembered under one salt is never found under another, so that nobody learns
/// from the time of an answer what others have asked. It is kept whole, not as a hash: salts cannot collide.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Salt(Option<Arc<str>>);

impl Salt {
    /// The salt of a name. All who have none share their prefixes.
    pub fn new(name: Option<&str>) -> Salt {
        Salt(name.map(Arc::from))
    }
}

/// What a page follows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Parent {
    /// Nothing: it is the first of its text.
    Root(Salt),
    /// Another findable page.
    Page(u32),
}

/// What a page is found by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) parent: Parent,
    pub(crate) tokens: [u32; PAGE],
}

/// A findable page.
#[derive(Debug)]
struct Entry {
    key: Key,
    /// When the last sequence left it; `None` while one has it.
    idle_since: Option<u64>,
}

/// The findable pages.
#[derive(Debug, Default)]
pub(crate) struct Prefixes {
    found: HashMap<Key, u32>,
    /// By page; as long as the highest findable page so far needs.
    entries: Vec<Option<Entry>>,
    /// The findable pages that no sequence has, longest idle first.
    idle: BTreeMap<u64, u32>,
    /// Counts the pages that became idle.
    clock: u64,
}

impl Prefixes {
    /// Findable pages.
    pub(crate) fn len(&self) -> usize {
        self.found.len()
    }

    /// Findable pages that no sequence has: those that can be evicted.
    pub(crate) fn idle(&self) -> usize {
        self.idle.len()
    }

    /// Whether a page is findable, by whatever key.
    pub(crate) fn has(&self, page: u32) -> bool {
        self.entries.get(page as usize).is_some_and(Option::is_some)
    }

    /// The page of a key.
    pub(crate) fn find(&self, key: &Key) -> Option<u32> {
        self.found.get(key).copied()
    }

    /// Makes a page findable. A sequence has it, and the pages before it.
    pub(crate) fn insert(&mut self, key: Key, page: u32) {
        debug_assert!(!self.has(page), "page {page} has a key");
        let index = page as usize;
        if self.entries.len() <= index {
            self.entries.resize_with(index + 1, || None);
        }
        self.found.insert(key.clone(), page);
        self.entries[index] = Some(Entry { key, idle_since: None });
    }

    /// Notes that no sequence has the page any more. Returns whether it stays findable.
    pub(crate) fn rest(&mut self, page: u32) -> bool {
        let Some(entry) = self.entries.get_mut(page as usize).and_then(Option::as_mut) else { return false };
        entry.idle_since = Some(self.clock);
        self.idle.insert(self.clock, page);
        self.clock += 1;
        true
    }

    /// Notes that a sequence has the page.
    pub(crate) fn wake(&mut self, page: u32) {
        let entry = self.entries.get_mut(page as usize).and_then(Option::as_mut);
        if let Some(since) = entry.and_then(|entry| entry.idle_since.take()) {
            self.idle.remove(&since);
        }
    }

    /// Makes a page unfindable. No findable page follows it.
    pub(crate) fn forget(&mut self, page: u32) {
        self.wake(page);
        if let Some(entry) = self.entries.get_mut(page as usize).and_then(Option::take) {
            self.found.remove(&entry.key);
        }
    }

    /// Forgets the page that has been idle for longest and returns it.
    pub(crate) fn evict(&mut self) -> Option<u32> {
        let (_, &page) = self.idle.first_key_value()?;
        self.forget(page);
        Some(page)
    }
}
