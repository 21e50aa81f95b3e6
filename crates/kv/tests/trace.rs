//! Random traces of everything that a cache can do, against a plain model: each sequence is a text, each findable page
//! a prefix, and every question is answered by looking at all of them.

mod common;

use common::{holds, new_cache, pool, write};
use kernels::{PAGE, Pool};
use kv::{Counts, KvCache, OutOfPages, Salt, Sequence};
use proptest::prelude::*;

const SEQUENCES: usize = 4;

#[derive(Debug, Clone)]
enum Step {
    /// The sequence grows by a token, so many times.
    Append(usize, u32, usize),
    /// The second sequence ends and becomes a fork of the first.
    Fork(usize, usize),
    Truncate(usize, usize),
    Free(usize),
    Remember(usize, Option<&'static str>),
    /// The sequence ends and becomes what is found of a text: a remembered one, if there are any, cut off here and
    /// extended by so many tokens.
    Match(usize, prop::sample::Index, usize, usize, Option<&'static str>),
}

fn step() -> impl Strategy<Value = Step> {
    let who = 0..SEQUENCES;
    let salt = || prop_oneof![3 => Just(None), 1 => Just(Some("a")), 1 => Just(Some("b"))];
    let text = (any::<prop::sample::Index>(), 0usize..200, 0usize..40);
    prop_oneof![
        6 => (who.clone(), 0..2u32, 0usize..50).prop_map(|(who, token, count)| Step::Append(who, token, count)),
        2 => (who.clone(), who.clone()).prop_map(|(from, to)| Step::Fork(from, to)),
        2 => (who.clone(), 0usize..100).prop_map(|(who, len)| Step::Truncate(who, len)),
        2 => who.clone().prop_map(Step::Free),
        4 => (who.clone(), salt()).prop_map(|(who, salt)| Step::Remember(who, salt)),
        4 => (who, text, salt()).prop_map(|(who, (pick, cut, more), salt)| Step::Match(who, pick, cut, more, salt)),
    ]
}

/// A findable page.
#[derive(Debug)]
struct Findable {
    salt: Option<&'static str>,
    /// Its tokens and all before them.
    prefix: Vec<u32>,
    page: u32,
    /// When the last sequence left it.
    idle_since: Option<usize>,
}

struct Trace {
    pool: Pool,
    cache: KvCache,
    sequences: Vec<Sequence>,
    /// What each sequence holds.
    texts: Vec<Vec<u32>>,
    findable: Vec<Findable>,
    clock: usize,
    counts: Counts,
}

impl Trace {
    fn new(pages: usize) -> Trace {
        Trace {
            pool: pool(),
            cache: new_cache(pages),
            sequences: (0..SEQUENCES).map(|_| Sequence::new()).collect(),
            texts: vec![Vec::new(); SEQUENCES],
            findable: Vec::new(),
            clock: 0,
            counts: Counts::default(),
        }
    }

    /// Tables that a page is in.
    fn references(&self, page: u32) -> usize {
        self.sequences.iter().flat_map(|s| s.table()).filter(|&&held| held == page).count()
    }

    fn idle(&self) -> usize {
        self.findable.iter().filter(|one| one.idle_since.is_some()).count()
    }

    /// Pages in tables, each counted once.
    fn held(&self) -> usize {
        let mut pages: Vec<u32> = self.sequences.iter().flat_map(|s| s.table()).copied().collect();
        pages.sort_unstable();
        pages.dedup();
        pages.len()
    }

    /// Notes which findable pages are idle now; of those that became so together the tail was first.
    fn settle(&mut self) {
        let references: Vec<usize> = self.findable.iter().map(|one| self.references(one.page)).collect();
        let mut order: Vec<usize> = (0..self.findable.len()).collect();
        order.sort_by_key(|&index| std::cmp::Reverse(self.findable[index].prefix.len()));
        for index in order {
            let one = &mut self.findable[index];
            if references[index] > 0 {
                one.idle_since = None;
            } else if one.idle_since.is_none() {
                one.idle_since = Some(self.clock);
                self.clock += 1;
            }
        }
    }

    fn evict(&mut self, pages: usize) {
        for _ in 0..pages {
            let idle = (0..self.findable.len()).filter(|&index| self.findable[index].idle_since.is_some());
            let oldest = idle.min_by_key(|&index| self.findable[index].idle_since).expect("an idle page");
            self.findable.swap_remove(oldest);
            self.counts.evicted_pages += 1;
        }
    }

    fn append(&mut self, who: usize, token: u32, count: usize) -> Result<(), TestCaseError> {
        let (before, from) = (self.sequences[who].table().to_vec(), self.texts[who].len());
        let mut text = self.texts[who].clone();
        text.extend(std::iter::repeat_n(token, count));
        let partial = (count > 0 && !from.is_multiple_of(PAGE)).then(|| before[from / PAGE]);
        let shared = partial.is_some_and(|page| self.references(page) > 1);
        let findable = self.findable.iter().any(|one| Some(one.page) == partial);
        let fresh = text.len().div_ceil(PAGE) - before.len();
        let idle = self.idle();
        let empty = self.cache.total_pages() - self.held() - idle;
        let (needed, free) = (fresh + usize::from(shared), empty + idle);

        let result = self.cache.reserve(&mut self.sequences[who], text.len());
        if needed > free && count > 0 {
            prop_assert_eq!(result, Err(OutOfPages { needed, free }));
            prop_assert_eq!(self.sequences[who].table(), &before);
            return Ok(());
        }
        prop_assert_eq!(result, Ok(()));
        // A page that is only findable is copied if that leaves it findable, and taken otherwise.
        let copied = shared || (findable && fresh < free);
        self.evict((fresh + usize::from(copied)).saturating_sub(empty));
        if findable && !copied {
            self.findable.retain(|one| Some(one.page) != partial);
        }
        self.counts.copied_pages += u64::from(copied);

        let table = self.sequences[who].table().to_vec();
        for (place, (now, before)) in table.iter().zip(&before).enumerate() {
            prop_assert_eq!(now != before, copied && place == from / PAGE, "page {} of the table", place);
        }
        // Whatever can be written is nobody else's.
        for &page in if count > 0 { &table[from / PAGE..] } else { &[] } {
            prop_assert_eq!(self.references(page), 1, "page {} can be written", page);
            prop_assert!(self.findable.iter().all(|one| one.page != page), "page {} can be written", page);
        }
        write(&self.pool, &mut self.cache, &self.sequences[who], &text, from);
        self.texts[who] = text;
        Ok(())
    }

    fn fork(&mut self, from: usize, to: usize) -> Result<(), TestCaseError> {
        let fork = self.cache.fork(&self.sequences[from]);
        prop_assert_eq!(fork.table(), self.sequences[from].table());
        self.texts[to] = self.texts[from].clone();
        let old = std::mem::replace(&mut self.sequences[to], fork);
        self.cache.free(old);
        Ok(())
    }

    fn truncate(&mut self, who: usize, len: usize) -> Result<(), TestCaseError> {
        let before = self.sequences[who].table().to_vec();
        self.cache.truncate(&mut self.sequences[who], len);
        self.texts[who].truncate(len);
        let pages = self.texts[who].len().div_ceil(PAGE);
        prop_assert_eq!(self.sequences[who].table(), &before[..pages]);
        Ok(())
    }

    fn free(&mut self, who: usize) {
        self.cache.free(std::mem::take(&mut self.sequences[who]));
        self.texts[who].clear();
        self.settle();
    }

    fn remember(&mut self, who: usize, salt: Option<&'static str>) -> Result<(), TestCaseError> {
        let (text, mut table) = (self.texts[who].clone(), self.sequences[who].table().to_vec());
        self.cache.remember(&mut self.sequences[who], &text, &Salt::new(salt));
        for place in 0..text.len() / PAGE {
            let (prefix, page) = (&text[..(place + 1) * PAGE], table[place]);
            let known = self.findable.iter().find(|one| one.salt == salt && one.prefix == prefix);
            let known = known.map(|one| one.page);
            if known != Some(page) && self.findable.iter().any(|one| one.page == page) {
                break;
            }
            table[place] = known.unwrap_or(page);
            if known.is_none() {
                self.findable.push(Findable { salt, prefix: prefix.to_vec(), page, idle_since: None });
            }
        }
        prop_assert_eq!(self.sequences[who].table(), &table);
        Ok(())
    }

    fn find(&mut self, who: usize, text: &[u32], salt: Option<&'static str>) -> Result<(), TestCaseError> {
        self.free(who);
        let fits = |one: &&Findable| one.salt == salt && one.prefix.len() < text.len() && text.starts_with(&one.prefix);
        let want = self.findable.iter().filter(fits).map(|one| one.prefix.len()).max().unwrap_or(0);
        self.sequences[who] = self.cache.match_prefix(text, &Salt::new(salt));
        prop_assert_eq!(self.sequences[who].len(), want);
        self.texts[who] = text[..want].to_vec();
        self.counts.asked_tokens += text.len() as u64;
        self.counts.found_tokens += want as u64;
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Append(who, token, count) => self.append(who, token, count)?,
            Step::Fork(from, to) => self.fork(from, to)?,
            Step::Truncate(who, len) => self.truncate(who, len)?,
            Step::Free(who) => self.free(who),
            Step::Remember(who, salt) => self.remember(who, salt)?,
            Step::Match(who, ref pick, cut, more, salt) => {
                let known = (!self.findable.is_empty()).then(|| pick.get(&self.findable).prefix.clone());
                let mut text = known.unwrap_or_default();
                text.truncate(cut);
                text.extend(std::iter::repeat_n(1, more));
                self.find(who, &text, salt)?;
            }
        }
        self.settle();
        self.check()
    }

    /// Every page is held, idle or free, and every sequence holds its text.
    fn check(&self) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.held() + self.cache.free_pages(), self.cache.total_pages());
        prop_assert_eq!(self.cache.cached_pages(), self.idle());
        prop_assert_eq!(self.cache.findable_pages(), self.findable.len());
        prop_assert_eq!(self.cache.counts(), self.counts);
        for (sequence, text) in self.sequences.iter().zip(&self.texts) {
            prop_assert_eq!(sequence.table().len(), text.len().div_ceil(PAGE));
            prop_assert!(holds(&self.pool, &self.cache, sequence, text), "{:?} in {:?}", text, sequence);
        }
        Ok(())
    }

    /// When all sequences have ended every page can be had, once.
    fn end(mut self) -> Result<(), TestCaseError> {
        (0..SEQUENCES).for_each(|who| self.free(who));
        let total = self.cache.total_pages();
        prop_assert_eq!(self.cache.free_pages(), total);
        let mut all = Sequence::new();
        prop_assert_eq!(self.cache.reserve(&mut all, total * PAGE), Ok(()));
        let mut pages = all.table().to_vec();
        pages.sort_unstable();
        prop_assert_eq!(pages, (0..total as u32).collect::<Vec<u32>>());
        prop_assert_eq!((self.cache.free_pages(), self.cache.findable_pages()), (0, 0));
        Ok(())
    }
}

proptest! {
    #[test]
    fn a_trace_is_as_the_plain_model_says(pages in 0usize..24, steps in prop::collection::vec(step(), 0..60)) {
        let mut trace = Trace::new(pages);
        for step in &steps {
            trace.step(step)?;
        }
        trace.end()?;
    }
}
