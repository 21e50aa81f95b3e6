//! A datastore against trying everything, and against damage.

use std::collections::BTreeMap;
use std::path::Path;

use model::tokenizer::{TokenKind, Tokenizer, Vocabulary};
use proptest::prelude::*;

use super::*;
use crate::alone::ask;

const VOCAB: usize = 100;

fn builder(documents: &[&[u32]]) -> DatastoreBuilder {
    let mut builder = DatastoreBuilder::new(VOCAB, 7, 1000);
    documents.iter().for_each(|document| builder.add(document).unwrap());
    builder
}

fn store(documents: &[&[u32]]) -> Store {
    Store::from_bytes(builder(documents).to_bytes()).unwrap()
}

fn options() -> DatastoreOptions {
    DatastoreOptions { min: 1, ..DatastoreOptions::default() }
}

/// Every path of the proposal, with the product of its confidences over that of the match.
fn paths(datastore: &Datastore, tokens: &[u32]) -> BTreeMap<Vec<u32>, f64> {
    let Ok(proposal) = datastore.draft(&ask(tokens)) else { return BTreeMap::new() };
    let tree = proposal.tree();
    let path = |node| tree.path(node).into_iter().map(|node| tree.tokens()[node]).collect();
    (1..tree.len()).map(|node| (path(node), tree.confidences()[node])).collect()
}

#[test]
fn the_longest_match_decides_and_what_followed_it_is_a_tree() {
    let datastore = Datastore::new(store(&[&[1, 2, 3, 4], &[1, 2, 3, 5], &[1, 2, 3, 4], &[9, 3, 6]]), options());
    let sure = confidence(3);
    let found = paths(&datastore, &[8, 1, 2, 3]);
    assert_eq!(found, BTreeMap::from([(vec![4], 2.0 / 3.0 * sure), (vec![5], 1.0 / 3.0 * sure)]));
    let shorter = paths(&datastore, &[8, 9, 2, 3]);
    assert_eq!(shorter.len(), 2, "2 3 is longer than 3");
    assert!(paths(&datastore, &[8, 1, 7]).is_empty());
}

#[test]
fn no_match_and_no_continuation_crosses_the_end_of_a_document() {
    let datastore = Datastore::new(store(&[&[1, 2], &[3, 4], &[2, 7]]), options());
    assert!(paths(&datastore, &[2, 3]).keys().eq([&vec![4]]), "2 and 3 are of two documents: 3 alone matches");
    let only_ends = Datastore::new(store(&[&[5, 1, 2], &[2, 7]]), options());
    assert!(paths(&only_ends, &[1, 2]).keys().eq([&vec![7]]), "the longer match is at an end, the shorter is not");
    assert!(paths(&only_ends, &[7]).is_empty());
}

#[test]
fn the_tree_has_a_budget_and_paths_have_a_length() {
    let document: Vec<u32> = (0..60).collect();
    let long = Datastore::new(store(&[&document]), options());
    assert_eq!(paths(&long, &[3]).len(), 8, "what may still be said");
    let short = Datastore::new(store(&[&document]), DatastoreOptions { depth: 3, ..options() });
    assert_eq!(paths(&short, &[3]).len(), 3);
    let said: [&[u32]; 5] = [&[1, 2, 3], &[1, 2, 4], &[1, 5, 6], &[1, 5, 7], &[1, 2, 8]];
    let small = Datastore::new(store(&said), DatastoreOptions { drafts: 2, ..options() });
    assert!(paths(&small, &[1]).keys().eq([&vec![2], &vec![5]]), "what was said most often");
}

#[test]
fn of_many_places_some_are_looked_at_evenly() {
    let documents: Vec<[u32; 2]> = (0..90).map(|i| [99, i / 30]).collect();
    let all: Vec<&[u32]> = documents.iter().map(|document| &document[..]).collect();
    let datastore = Datastore::new(store(&all), DatastoreOptions { places: 3, ..options() });
    let thirds = paths(&datastore, &[99]);
    assert!(thirds.keys().eq([&vec![0], &vec![1], &vec![2]]), "not the first three, which say 0: {thirds:?}");
}

#[test]
fn a_document_that_does_not_fit_or_is_no_text_is_refused() {
    let mut builder = DatastoreBuilder::new(VOCAB, 7, 6);
    assert_eq!(builder.add(&[1, 100]), Err(DocumentError::Token { token: 100, vocab: 100 }));
    assert_eq!(builder.add(&[]), Ok(()));
    assert_eq!(builder.add(&[1, 2, 3]), Ok(()));
    assert_eq!(builder.add(&[1, 2]), Err(DocumentError::Full { max_tokens: 6 }));
    assert_eq!((builder.add(&[1]), builder.tokens()), (Ok(()), 6));
}

#[test]
fn a_file_is_written_whole_and_read_again_and_what_is_none_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("texts.ftds");
    let sorted = std::sync::atomic::AtomicUsize::new(0);
    let note = |places| {
        sorted.fetch_add(places, std::sync::atomic::Ordering::Relaxed);
    };
    let header = builder(&[&[1, 2, 3], &[2, 3]]).write(&path, 3, &note).unwrap();
    assert_eq!((header.tokens, header.documents, header.vocab, sorted.into_inner()), (7, 2, 100, 5));
    let store = Store::open(&path).unwrap();
    assert!(store.check() && *store.header() == header);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");

    let bytes = std::fs::read(&path).unwrap();
    let refusal = |bytes: &[u8]| {
        let path = dir.path().join("bad");
        std::fs::write(&path, bytes).unwrap();
        Store::open(&path).unwrap_err().to_string()
    };
    assert!(refusal(b"").contains("is no datastore: build one"));
    assert!(refusal(b"hello").contains("is no datastore: build one"));
    assert!(refusal(&bytes[..40]).contains("ends within its header"));
    assert!(refusal(&bytes[..bytes.len() - 1]).contains("should have 112 bytes and has 111"));
    let changed = |at: usize| {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        bytes
    };
    assert!(refusal(&changed(8)).contains("has format 0; this program reads format 1"));
    assert!(refusal(&changed(16)).contains("its header has changed"));
    std::fs::write(dir.path().join("damaged"), changed(70)).unwrap();
    assert!(!Store::open(&dir.path().join("damaged")).unwrap().check());
    assert!(
        Store::open(Path::new("nowhere")).unwrap_err().to_string().starts_with("cannot open the datastore 'nowhere'")
    );
    assert!(builder(&[&[1]]).write(&dir.path().join("no/such/dir"), 1, &|_| ()).is_err());
}

#[test]
fn another_tokenizer_is_refused() {
    let tokenizer = |first: &str| {
        let tokens = vec![first.to_owned(), "b".to_owned()];
        let (file, model) = ("test".into(), "llama".into());
        let (kinds, scores) = (vec![TokenKind::Normal; 2], vec![0.0; 2]);
        Tokenizer::from_vocabulary(Vocabulary { file, model, tokens, kinds, scores, ..Vocabulary::default() }).unwrap()
    };
    let (ours, theirs) = (tokenizer("a"), tokenizer("c"));
    let built = DatastoreBuilder::new(ours.vocab_size(), ours.fingerprint(), 10);
    let store = Store::from_bytes(built.to_bytes()).unwrap();
    store.check_tokenizer(Path::new("texts"), &ours).unwrap();
    let refused = store.check_tokenizer(Path::new("texts"), &theirs).unwrap_err().to_string();
    assert!(
        refused.starts_with("the datastore 'texts' was built for another tokenizer (2 tokens, fingerprint "),
        "{refused}"
    );
}

#[test]
fn an_empty_datastore_knows_nothing() {
    assert!(paths(&Datastore::new(store(&[]), options()), &[1, 2]).is_empty());
}

fn documents() -> impl Strategy<Value = Vec<Vec<u32>>> {
    prop::collection::vec(prop::collection::vec(0u32..4, 1..25), 0..12)
}

/// What follows the longest match that something follows, by trying all.
fn followers<'a>(documents: &'a [Vec<u32>], tokens: &[u32]) -> Vec<&'a [u32]> {
    let longest = (1..=tokens.len().min(ORDER)).rev();
    let at = |len: usize| {
        let pattern = &tokens[tokens.len() - len..];
        let in_one = |document: &'a Vec<u32>| {
            (len..=document.len()).filter(move |&i| document[i - len..i] == *pattern).map(|i| &document[i..])
        };
        documents.iter().flat_map(in_one).collect::<Vec<_>>()
    };
    longest.map(at).find(|found| found.iter().any(|follower| !follower.is_empty())).unwrap_or_default()
}

proptest! {
    #[test]
    fn places_are_in_the_order_of_what_stands_there(documents in documents()) {
        let all: Vec<&[u32]> = documents.iter().map(|document| &document[..]).collect();
        let store = store(&all);
        let places = store.header().tokens - store.header().documents;
        let key = |rank: u64| {
            let place = store.place(rank as usize);
            let mut key: Vec<u32> = (0..ORDER as u64).map(|i| store.token(place + i)).collect();
            if let Some(end) = key.iter().position(|&token| token == END) {
                key.truncate(end + 1);
            }
            (key, place)
        };
        let keys: Vec<(Vec<u32>, u64)> = (0..places).map(key).collect();
        prop_assert!(keys.is_sorted());
        let mut all: Vec<u64> = keys.into_iter().map(|(_, place)| place).collect();
        all.sort_unstable();
        let expected: Vec<u64> = (0..store.header().tokens).filter(|&place| store.token(place) != END).collect();
        prop_assert_eq!(all, expected);
    }

    #[test]
    fn counts_are_those_of_trying_all_and_the_greatest_are_taken(
        documents in documents(),
        tokens in prop::collection::vec(0u32..4, 1..20),
        drafts in 1usize..30,
    ) {
        let all: Vec<&[u32]> = documents.iter().map(|document| &document[..]).collect();
        let datastore = Datastore::new(store(&all), DatastoreOptions { drafts, places: usize::MAX, ..options() });
        let followers = followers(&documents, &tokens);
        let mut counts: BTreeMap<Vec<u32>, usize> = BTreeMap::new();
        for follower in &followers {
            (1..=follower.len().min(8)).for_each(|len| *counts.entry(follower[..len].to_vec()).or_default() += 1);
        }
        let found = paths(&datastore, &tokens);
        prop_assert_eq!(found.len(), counts.len().min(drafts));
        let mut sures = BTreeMap::new();
        for (path, confidence) in &found {
            let (_, parent) = path.split_last().unwrap();
            let of = if parent.is_empty() { followers.len() } else { counts[parent] };
            prop_assert!(parent.is_empty() || found.contains_key(parent));
            let sure = confidence / (counts[path] as f64 / of as f64);
            let same = sures.entry(path.len()).or_insert(sure);
            prop_assert!((*same - sure).abs() < 1e-12, "{sure} and {same} at one depth");
        }
        let sures: Vec<f64> = sures.into_values().collect();
        prop_assert!(sures.is_sorted() && sures.iter().all(|&sure| sure > 0.0 && sure < 1.0), "{sures:?}");
        let mut best: Vec<usize> = counts.values().copied().collect();
        best.sort_unstable_by_key(|&count| std::cmp::Reverse(count));
        best.truncate(drafts);
        let mut taken: Vec<usize> = found.keys().map(|path| counts[path]).collect();
        taken.sort_unstable_by_key(|&count| std::cmp::Reverse(count));
        prop_assert_eq!(taken, best);
    }

    #[test]
    fn whatever_is_damaged_nothing_panics_and_no_unknown_token_is_drafted(
        documents in documents(),
        tokens in prop::collection::vec(0u32..4, 1..20),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..40),
        len in any::<prop::sample::Index>(),
        cut: bool,
    ) {
        let all: Vec<&[u32]> = documents.iter().map(|document| &document[..]).collect();
        let mut bytes = builder(&all).to_bytes();
        // Damage to the header is found; behind it, it comes through.
        let contents = bytes.len() - 64;
        for (at, byte) in damage.iter().filter(|_| contents > 0) {
            bytes[64 + at.index(contents)] = *byte;
        }
        if cut {
            bytes.truncate(len.index(bytes.len()));
            prop_assert!(Store::from_bytes(bytes).is_err());
        } else {
            let datastore = Datastore::new(Store::from_bytes(bytes).unwrap(), options());
            let found = paths(&datastore, &tokens);
            prop_assert!(found.keys().flatten().all(|&token| (token as usize) < VOCAB));
        }
    }

    #[test]
    fn no_bytes_make_opening_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), magic: bool) {
        let bytes = if magic { [&b"FORETKDS\x01\0\0\0"[..], &bytes].concat() } else { bytes };
        prop_assert!(Store::from_bytes(bytes).is_err());
    }
}
