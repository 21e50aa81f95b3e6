//! Random traces of reserve, truncate and free against a plain model.

use kernels::{KvFormat, KvSlot, PAGE};
use kv::{KvCache, Layout, OutOfPages, Sequence};
use proptest::prelude::*;

const LAYOUT: Layout = Layout { layers: 2, kv_heads: 1, head_dim: 2, format: KvFormat::F16 };

#[derive(Debug, Clone)]
enum Step {
    /// Gives the sequence slots up to a length.
    Reserve(usize, usize),
    Truncate(usize, usize),
    Free(usize),
}

const SEQUENCES: usize = 4;

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..SEQUENCES, 0usize..200).prop_map(|(who, len)| Step::Reserve(who, len)),
        2 => (0..SEQUENCES, 0usize..200).prop_map(|(who, len)| Step::Truncate(who, len)),
        1 => (0..SEQUENCES).prop_map(Step::Free),
    ]
}

/// Every page is in one table or free, tables are as long as the sequences, and slots that a sequence keeps stay put.
fn check(
    cache: &mut KvCache,
    sequences: &[Sequence],
    lens: &[usize],
    before: &[Vec<u32>],
) -> Result<(), TestCaseError> {
    let mut held: Vec<u32> = sequences.iter().flat_map(|s| s.table()).copied().collect();
    prop_assert_eq!(held.len() + cache.free_pages(), cache.total_pages());
    for ((sequence, &len), before) in sequences.iter().zip(lens).zip(before) {
        prop_assert_eq!(sequence.len(), len);
        prop_assert_eq!(sequence.table().len(), len.div_ceil(PAGE));
        let kept = before.len().min(sequence.table().len());
        prop_assert_eq!(&before[..kept], &sequence.table()[..kept]);
    }
    // The free pages by taking them all.
    let mut rest = Sequence::new();
    let len = cache.free_pages() * PAGE;
    prop_assert_eq!(cache.reserve(&mut rest, len), Ok(()));
    held.extend(rest.table());
    cache.free(rest);
    held.sort_unstable();
    prop_assert_eq!(held, (0..cache.total_pages() as u32).collect::<Vec<u32>>());
    Ok(())
}

proptest! {
    #[test]
    fn no_page_is_lost_or_shared(pages in 0usize..40, steps in prop::collection::vec(step(), 0..80)) {
        let mut cache = KvCache::new(LAYOUT, pages);
        let mut sequences: Vec<Sequence> = (0..SEQUENCES).map(|_| Sequence::new()).collect();
        let mut lens = [0usize; SEQUENCES];
        for step in steps {
            let before: Vec<Vec<u32>> = sequences.iter().map(|s| s.table().to_vec()).collect();
            match step {
                Step::Reserve(who, len) => {
                    let free = pages - lens.iter().map(|len| len.div_ceil(PAGE)).sum::<usize>();
                    let needed = len.div_ceil(PAGE).saturating_sub(lens[who].div_ceil(PAGE));
                    let want = if needed > free { Err(OutOfPages { needed, free }) } else { Ok(()) };
                    prop_assert_eq!(cache.reserve(&mut sequences[who], len), want);
                    if want.is_ok() {
                        lens[who] = lens[who].max(len);
                    }
                }
                Step::Truncate(who, len) => {
                    cache.truncate(&mut sequences[who], len);
                    lens[who] = lens[who].min(len);
                }
                Step::Free(who) => {
                    cache.free(std::mem::take(&mut sequences[who]));
                    lens[who] = 0;
                }
            }
            check(&mut cache, &sequences, &lens, &before)?;
        }
    }
}

#[test]
fn positions_have_their_place_in_a_page() {
    let mut cache = KvCache::new(LAYOUT, 3);
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
    assert_eq!(LAYOUT.bytes_per_token(), 2 * 2 * 2 * 2);
    assert_eq!(LAYOUT.bytes_per_page(), 16 * LAYOUT.bytes_per_token());
}
