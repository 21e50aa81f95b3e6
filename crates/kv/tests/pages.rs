//! What a cache does, one property at a time, on traces short enough to follow by hand.

mod common;

use common::{LAYOUT, grow, holds, new_cache, pool};
use kernels::{KvLayer, KvSlot};
use kv::{KvCache, Layers, Layout, OutOfPages, Salt, Sequence};

/// A text of `len` tokens that no other `seed` gives.
fn text(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|position| 1000 * seed + position).collect()
}

/// Computes a text, makes it findable and ends its sequence.
fn leave(cache: &mut KvCache, text: &[u32], salt: &Salt) {
    let mut sequence = Sequence::new();
    grow(&pool(), cache, &mut sequence, text);
    cache.remember(&mut sequence, text, salt);
    cache.free(sequence);
}

/// How much of a text is found.
fn found(cache: &mut KvCache, text: &[u32], salt: &Salt) -> usize {
    let sequence = cache.match_prefix(text, salt);
    let len = sequence.len();
    cache.free(sequence);
    len
}

#[test]
fn positions_have_their_place_in_a_page() {
    let mut cache = new_cache(3);
    let mut sequence = Sequence::new();
    cache.reserve(&mut sequence, 40).unwrap();
    let table = sequence.table().to_vec();
    for position in 0..40 {
        let want = KvSlot { page: table[position / 16], offset: (position % 16) as u8 };
        assert_eq!(sequence.slot(position), want);
    }
    assert_eq!(cache.reserve(&mut sequence, 49), Err(OutOfPages { needed: 1, free: 0 }));
    assert_eq!(sequence.len(), 40);
}

#[test]
fn a_page_has_k_and_v_of_all_layers() {
    assert_eq!(LAYOUT.bytes_per_token(), 2 * 2 * 2 * 4);
    assert_eq!(LAYOUT.bytes_per_page(), 16 * LAYOUT.bytes_per_token());
}

#[test]
fn a_fork_that_goes_its_own_way_copies_one_page() {
    let (pool, mut cache) = (pool(), new_cache(8));
    let (mut first, mut text) = (Sequence::new(), text(0, 40));
    grow(&pool, &mut cache, &mut first, &text);
    let mut second = cache.fork(&first);
    assert_eq!((cache.free_pages(), second.table()), (5, first.table()));

    let mut other = text.clone();
    other.push(7);
    text.push(8);
    grow(&pool, &mut cache, &mut second, &other);
    assert_eq!((cache.counts().copied_pages, cache.free_pages()), (1, 4));
    assert_eq!(second.table()[..2], first.table()[..2]);
    assert_ne!(second.table()[2], first.table()[2]);
    // The page is the first one's alone now.
    grow(&pool, &mut cache, &mut first, &text);
    assert_eq!((cache.counts().copied_pages, cache.free_pages()), (1, 4));
    assert!(holds(&pool, &cache, &first, &text) && holds(&pool, &cache, &second, &other));

    cache.free(first);
    assert!(holds(&pool, &cache, &second, &other));
    cache.free(second);
    assert_eq!(cache.free_pages(), 8);
}

#[test]
fn a_fork_at_the_end_of_a_page_copies_nothing() {
    let (pool, mut cache) = (pool(), new_cache(4));
    let (mut first, text) = (Sequence::new(), text(0, 32));
    grow(&pool, &mut cache, &mut first, &text);
    let mut second = cache.fork(&first);
    cache.reserve(&mut first, 33).unwrap();
    cache.reserve(&mut second, 33).unwrap();
    assert_eq!((cache.counts().copied_pages, cache.free_pages()), (0, 0));
}

#[test]
fn without_a_page_for_the_copy_nothing_is_taken() {
    let mut cache = new_cache(2);
    let mut first = Sequence::new();
    cache.reserve(&mut first, 20).unwrap();
    let mut second = cache.fork(&first);
    assert_eq!(cache.reserve(&mut second, 21), Err(OutOfPages { needed: 1, free: 0 }));
    assert_eq!((second.len(), second.table()), (20, first.table()));
    cache.free(first);
    assert_eq!(cache.reserve(&mut second, 21), Ok(()));
}

#[test]
fn a_prefix_is_found_in_whole_pages_and_never_to_the_last_token() {
    let (mut cache, salt) = (new_cache(8), Salt::default());
    leave(&mut cache, &text(0, 40), &salt);
    let lens = [0, 1, 16, 17, 32, 33, 40];
    let lens = lens.map(|len| found(&mut cache, &text(0, len), &salt));
    assert_eq!(lens, [0, 0, 0, 16, 16, 32, 32]);
    assert_eq!((cache.counts().asked_tokens, cache.counts().found_tokens), (139, 96));

    let mut other = text(0, 40);
    other[20] = 0;
    assert_eq!(found(&mut cache, &other, &salt), 16);
    // The same tokens, but not at the beginning.
    assert_eq!(found(&mut cache, &text(0, 40)[16..], &salt), 0);
}

#[test]
fn only_computed_tokens_are_remembered() {
    let (mut cache, salt) = (new_cache(8), Salt::default());
    let mut sequence = Sequence::new();
    cache.reserve(&mut sequence, 64).unwrap();
    cache.remember(&mut sequence, &text(0, 31), &salt);
    assert_eq!(cache.findable_pages(), 1);
    // Nor can more be than the sequence has.
    cache.remember(&mut sequence, &text(0, 100), &salt);
    assert_eq!(cache.findable_pages(), 4);
}

#[test]
fn another_salt_never_finds() {
    let salts = [None, Some(""), Some("a"), Some("b")].map(Salt::new);
    let (mut cache, text) = (new_cache(9), text(0, 33));
    for (index, salt) in salts.iter().enumerate() {
        assert_eq!(found(&mut cache, &text, salt), 0);
        leave(&mut cache, &text, salt);
        assert_eq!(cache.findable_pages(), 2 * (index + 1));
    }
    // A page that was found under one salt is not to be had under another.
    let mut cache = new_cache(8);
    leave(&mut cache, &text, &salts[2]);
    let mut sequence = cache.match_prefix(&text, &salts[2]);
    cache.remember(&mut sequence, &text, &salts[3]);
    assert_eq!(found(&mut cache, &text, &salts[3]), 0);
}

#[test]
fn longest_idle_goes_first_and_of_a_text_its_tail() {
    let salt = Salt::default();
    let texts = [text(1, 49), text(2, 33)];
    let after = |pages: usize| {
        let mut cache = new_cache(5);
        leave(&mut cache, &texts[0][..48], &salt);
        leave(&mut cache, &texts[1][..32], &salt);
        // A page that is asked for is not idle for long.
        assert_eq!(found(&mut cache, &texts[0][..17], &salt), 16);
        cache.reserve(&mut Sequence::new(), pages * 16).unwrap();
        [found(&mut cache, &texts[0], &salt), found(&mut cache, &texts[1], &salt)]
    };
    let lens: Vec<[usize; 2]> = (0..=5).map(after).collect();
    assert_eq!(lens, [[48, 32], [32, 32], [16, 32], [16, 16], [16, 0], [0, 0]]);
}

#[test]
fn pages_in_use_are_never_evicted() {
    let (pool, mut cache, salt) = (pool(), new_cache(4), Salt::default());
    leave(&mut cache, &text(0, 64), &salt);
    assert_eq!((cache.free_pages(), cache.cached_pages()), (4, 4));
    let held = cache.match_prefix(&text(0, 33), &salt);
    assert_eq!((cache.free_pages(), cache.cached_pages()), (2, 2));
    let mut taker = Sequence::new();
    assert_eq!(cache.reserve(&mut taker, 33), Err(OutOfPages { needed: 3, free: 2 }));
    grow(&pool, &mut cache, &mut taker, &text(9, 32));
    assert!(holds(&pool, &cache, &held, &text(0, 32)));
    assert_eq!(found(&mut cache, &text(0, 64), &salt), 32);
}

#[test]
fn a_text_that_two_compute_at_once_ends_up_in_the_same_pages() {
    let (pool, mut cache, salt) = (pool(), new_cache(8), Salt::default());
    let mut sequences = [Sequence::new(), Sequence::new()];
    let texts = [text(0, 40), [text(0, 32), text(1, 16)].concat()];
    for (sequence, text) in sequences.iter_mut().zip(&texts) {
        grow(&pool, &mut cache, sequence, text);
    }
    assert_eq!(cache.free_pages(), 2);
    for (sequence, text) in sequences.iter_mut().zip(&texts) {
        cache.remember(sequence, text, &salt);
        assert!(holds(&pool, &cache, sequence, text));
    }
    assert_eq!(sequences[0].table()[..2], sequences[1].table()[..2]);
    assert_eq!((cache.free_pages(), cache.findable_pages()), (4, 3));
    sequences.into_iter().for_each(|sequence| cache.free(sequence));
    assert_eq!((cache.free_pages(), cache.cached_pages()), (8, 3));
}

#[test]
fn a_sequence_that_steps_back_into_a_findable_page_leaves_it_findable() {
    let (pool, mut cache, salt) = (pool(), new_cache(4), Salt::default());
    let (mut sequence, text) = (Sequence::new(), text(0, 33));
    grow(&pool, &mut cache, &mut sequence, &text[..32]);
    cache.remember(&mut sequence, &text[..32], &salt);
    cache.truncate(&mut sequence, 20);
    let other = [&text[..20], &[7, 7]].concat();
    grow(&pool, &mut cache, &mut sequence, &other);
    assert!(holds(&pool, &cache, &sequence, &other));
    let old = cache.match_prefix(&text, &salt);
    assert!(holds(&pool, &cache, &old, &text[..32]));
}

#[test]
fn a_sequence_alone_can_have_all_pages() {
    let (pool, mut cache, salt) = (pool(), new_cache(2), Salt::default());
    let (mut sequence, text) = (Sequence::new(), text(0, 32));
    grow(&pool, &mut cache, &mut sequence, &text);
    cache.remember(&mut sequence, &text, &salt);
    cache.truncate(&mut sequence, 20);
    cache.reserve(&mut sequence, 32).unwrap();
    assert_eq!((cache.free_pages(), cache.findable_pages(), cache.counts().copied_pages), (0, 1, 0));
}

#[test]
fn attached_layers_are_apart_and_come_along_into_a_new_cache() {
    let mut cache = KvCache::new(LAYOUT, 3);
    let layouts = [1, 3].map(|layers| Layout { layers, kv_heads: layers, ..LAYOUT });
    let both = layouts.map(|layout| cache.attach(layout));
    let mut anew = cache.anew();
    for cache in [&mut cache, &mut anew] {
        assert_eq!((cache.layers().layout, cache.layers().layers.len()), (LAYOUT, LAYOUT.layers));
        let heads = |kv: Layers<'_>| kv.layers.iter().map(KvLayer::kv_heads).collect::<Vec<_>>();
        assert_eq!(both.map(|attached| heads(cache.attached(&attached))), [vec![1], vec![3; 3]]);
        assert_eq!(cache.attached_two(&both).map(heads), [vec![1], vec![3; 3]]);
        assert_eq!((cache.total_pages(), cache.free_pages()), (3, 3));
    }
}
