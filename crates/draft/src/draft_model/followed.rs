//! What a draft model has computed of each request, and where the pages for it come from.

use std::collections::HashMap;

use kernels::PAGE;
use kv::{KvCache, Sequence};

use crate::{Ask, Key};

/// One request.
struct Followed {
    /// As long as `tokens`, but while drafts are being computed.
    sequence: Sequence,
    /// The tokens whose keys and values are in the sequence: committed ones, and drafts that are not yet judged.
    tokens: Vec<u32>,
    /// The newest round that asked for it.
    used: u64,
}

/// The requests that a draft model follows, and their keys and values.
pub(super) struct Requests {
    cache: KvCache,
    followed: HashMap<Key, Followed>,
    round: u64,
}

impl Requests {
    pub(super) fn new(cache: KvCache) -> Self {
        Self { cache, followed: HashMap::new(), round: 0 }
    }

    /// Begins a round. What is known of each request that asks is cut back to what of it was committed, and to at least
    /// one token less than there are: somebody wants the logits of the last.
    pub(super) fn begin(&mut self, asks: &[Ask<'_>]) {
        self.round += 1;
        for ask in asks {
            let Some(followed) = self.followed.get_mut(&ask.key) else { continue };
            let common = followed.tokens.iter().zip(ask.tokens).take_while(|(own, committed)| own == committed).count();
            followed.tokens.truncate(common.min(ask.tokens.len().saturating_sub(1)));
            self.cache.truncate(&mut followed.sequence, followed.tokens.len());
            followed.used = self.round;
        }
    }

    /// Tokens of a request whose keys and values are there.
    pub(super) fn computed(&self, key: Key) -> usize {
        self.followed.get(&key).map_or(0, |followed| followed.tokens.len())
    }

    /// Makes room for the first `len` tokens of a request that asks in this round. Pages are taken from the requests that
    /// have not asked for longest, never from one that asks as well: two that take each other's pages would both be
    /// computed again and again. For the same reason one that is not followed yet has to find room for `whole` tokens,
    /// and all others a page to grow into.
    ///
    /// Returns whether there is room. If not, the request is no longer followed.
    pub(super) fn reserve(&mut self, key: Key, len: usize, whole: usize) -> bool {
        if !self.followed.contains_key(&key) && whole.div_ceil(PAGE) + self.asking() > self.within_reach() {
            return false;
        }
        let round = self.round;
        let fresh = || Followed { sequence: Sequence::new(), tokens: Vec::new(), used: round };
        let mut followed = self.followed.remove(&key).unwrap_or_else(fresh);
        while self.cache.reserve(&mut followed.sequence, len).is_err() {
            if !self.evict() {
                self.cache.free(followed.sequence);
                return false;
            }
        }
        self.followed.insert(key, followed);
        true
    }

    /// Followed requests that ask in this round.
    fn asking(&self) -> usize {
        self.followed.values().filter(|followed| followed.used == self.round).count()
    }

    /// Pages that are free or can be made so.
    fn within_reach(&self) -> usize {
        let idle = self.followed.values().filter(|followed| followed.used < self.round);
        self.cache.free_pages() + idle.map(|followed| followed.sequence.table().len()).sum::<usize>()
    }

    /// Forgets the request that has not asked for longest.
    fn evict(&mut self) -> bool {
        let idle = self.followed.iter().filter(|(_, followed)| followed.used < self.round);
        let oldest = idle.min_by_key(|(key, followed)| (followed.used, **key)).map(|(&key, _)| key);
        oldest.is_some_and(|key| self.forget(key))
    }

    /// Stops to follow a request. Returns whether it was followed.
    pub(super) fn forget(&mut self, key: Key) -> bool {
        let followed = self.followed.remove(&key);
        let was = followed.is_some();
        if let Some(followed) = followed {
            self.cache.free(followed.sequence);
        }
        was
    }

    /// The cache, to compute in, and the sequence of each of `keys`, which have all been reserved.
    pub(super) fn sequences(&mut self, keys: impl Iterator<Item = Key>) -> (&mut KvCache, Vec<&Sequence>) {
        let sequences = keys.filter_map(|key| Some(&self.followed.get(&key)?.sequence)).collect();
        (&mut self.cache, sequences)
    }

    /// Notes that the keys and values of these next `tokens` of a request have been computed.
    pub(super) fn note(&mut self, key: Key, tokens: &[u32]) {
        if let Some(followed) = self.followed.get_mut(&key) {
            followed.tokens.extend_from_slice(tokens);
        }
    }

    /// Ends a round: gives back the room that was not used.
    pub(super) fn end(&mut self) {
        for followed in self.followed.values_mut().filter(|followed| followed.used == self.round) {
            self.cache.truncate(&mut followed.sequence, followed.tokens.len());
        }
    }
}

#[cfg(test)]
impl Requests {
    /// Every page is free or a followed request's, and no request has more than its tokens need.
    pub(super) fn check(&self) {
        for followed in self.followed.values() {
            assert_eq!(followed.sequence.len(), followed.tokens.len());
            assert_eq!(followed.sequence.table().len(), followed.tokens.len().div_ceil(PAGE));
        }
        let held: usize = self.followed.values().map(|followed| followed.sequence.table().len()).sum();
        assert_eq!(self.cache.free_pages() + held, self.cache.total_pages());
    }

    pub(super) fn count(&self) -> usize {
        self.followed.len()
    }
}
