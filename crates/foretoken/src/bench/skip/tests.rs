use indicatif::ProgressBar;

use super::super::spec::tests::tiny;
use super::*;

fn texts(loaded: &Loaded) -> Vec<Text> {
    let prompts: Vec<Vec<u32>> =
        (1..4_u32).map(|seed| (0..20).map(|i| (i * seed * 7 + i * i) % 250).collect()).collect();
    let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    judge::answer(loaded, &prompts, 24, &ProgressBar::hidden()).unwrap()
}

#[test]
fn the_whole_model_agrees_with_itself() {
    let loaded = tiny();
    let texts = texts(&loaded);
    let judge = Judge::new(&loaded, &texts, 4).unwrap();
    let whole = judge.judge(&[], 0.0).unwrap();
    assert_eq!((whole.agreement, whole.score.accepted), (1.0, 1.0));
    assert!(draftable(&texts) > 30);
    let part = judge.judge(&[1, 2], 0.0).unwrap();
    assert!(part.agreement < 1.0);
}

#[test]
fn what_is_found_is_said() {
    let loaded = tiny();
    let texts = texts(&loaded);
    let judge = Judge::new(&loaded, &texts, 4).unwrap();
    let found = search::search(4, 9, 0, |skipped| judge.judge(skipped, judge.predict(skipped.len()))).unwrap();
    assert_eq!(found.tried, 9);
    let mut best = found.best().unwrap().clone();
    let mut say = |speedup| {
        best.score.speedup = speedup;
        let mut out = Vec::new();
        print(&mut out, &judge, &found, Some(&best)).unwrap();
        String::from_utf8(out).unwrap()
    };
    assert!(say(1.25).contains("1.25 times plain decoding is expected"));
    assert!(say(0.8).contains("no set pays"));
    assert_eq!(say(1.0).lines().count(), 4 + found.by_size.len());
    assert_eq!(candidate(&best)["drafts"], best.score.drafts);
}
