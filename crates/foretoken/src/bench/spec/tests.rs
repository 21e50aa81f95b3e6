//! Measurements on the tiny model of the fixtures: what is counted in two ways is the same.

use std::num::NonZeroUsize;
use std::sync::Arc;

use engine::batch::ServiceOptions;
use engine::measure_cost;
use kernels::{KvFormat, Pool};
use model::LoadOptions;
use testkit::byte_tokenizer;

use super::Drafters;
use super::contest::{Checks, Contestant, Setup};
use super::crowd;
use super::drive::Asking;
use super::questions::Question;
use super::single;
use crate::draft::{Allowance, Kind};
use cli::load::Loaded;
use cli::progress;

/// The tiny model of the fixtures.
pub(crate) fn tiny() -> Loaded {
    let (pool, kv_format) = (Pool::new(NonZeroUsize::MIN), KvFormat::F16);
    let model = testkit::target("llama", &pool);
    let LoadOptions { isa, compute, .. } = testkit::options();
    let (name, tokenizer, model) = ("tiny".into(), byte_tokenizer(), Arc::new(model));
    Loaded { name, bytes_on_disk: 0, model, tokenizer, template: None, pool, isa, compute, kv_format }
}

fn setup(contestants: Vec<Contestant>) -> Setup {
    let loaded = tiny();
    let curve = measure_cost(&loaded.model, &loaded.pool, loaded.kv_format).unwrap();
    let options = ServiceOptions { kv_bytes: 1 << 24, prefix_cache: false, ..ServiceOptions::default() };
    Setup { loaded, options, contestants, allowance: Allowance::default(), max_drafts: 4, curve, seed: 5 }
}

fn questions() -> Vec<Question> {
    let prompt = |number: u64| (0..20).map(|at| ((at * number) % 7 + 60) as u32).collect();
    let question = |number| Question {
        number,
        id: number.to_string(),
        category: if number % 2 == 0 { "even" } else { "odd" }.into(),
        tokens: prompt(number),
    };
    (1..=5).map(question).collect()
}

const ASKING: Asking = Asking { temperature: 0.8, max_tokens: 40, ignore_eos: true, seed: 1 };

#[test]
fn drafters_have_commas_between_them_and_layers_too() {
    let names = |list: &str| -> Result<Vec<String>, String> {
        Ok(list.parse::<Drafters>()?.0.iter().map(ToString::to_string).collect())
    };
    let expected = ["ngram", "skip:3,5,8-11", "suffix"].map(str::to_owned);
    assert_eq!(names("ngram,skip:3,5,8-11,suffix").unwrap(), expected);
    assert!(names("3,ngram").is_err() && names("ngram,,auto").is_err() && names("").is_err());
}

#[test]
fn steps_and_drafts_that_answers_show_are_those_that_the_engine_counts() {
    let setup = setup(vec![Contestant::Drafter(Kind::Ngram), Contestant::Synthetic(0.7)]);
    let (questions, mut checks) = (questions(), Checks::default());
    let asked: Vec<&Question> = questions.iter().collect();
    let measured = single::measure(&setup, &asked, &ASKING, 2, &mut checks).unwrap();
    assert_eq!(measured.len(), 5);
    for measured in &measured {
        assert_eq!((measured.plain.answers, measured.plain.decode_tokens), (4, 4 * 39));
        assert_eq!(measured.plain.request_steps, 4 * 39);
        for tally in measured.drafted.iter().chain([&measured.plain]) {
            let work = &tally.work;
            assert_eq!((tally.answers, tally.output_tokens, tally.prompt_tokens), (4, 4 * 40, 4 * 20));
            assert_eq!(tally.request_steps, work.steps);
            assert_eq!((tally.drafted, tally.accepted), (work.drafts.checked, work.drafts.accepted));
            assert!(work.seconds > 0.0 && work.propose + work.forward <= work.seconds * 1.001, "{work:?}");
            assert!(tally.decode_seconds < tally.seconds);
        }
        for drafted in &measured.drafted {
            let counts = drafted.work.drafts;
            assert_eq!(counts.proposals + counts.silent.iter().sum::<u64>(), drafted.request_steps);
            assert_eq!(counts.accepted_at.iter().sum::<u64>(), counts.accepted);
        }
    }
    assert_eq!((checks.compared, checks.differences.len()), (5 * (4 * 3 - 1), 0));
}

#[test]
fn a_crowd_says_what_each_says_alone() {
    let setup = setup(vec![Contestant::Synthetic(0.9)]);
    let (questions, mut checks) = (questions(), Checks::default());
    let asked: Vec<&Question> = questions.iter().collect();
    single::measure(&setup, &asked, &ASKING, 1, &mut checks).unwrap();
    let point = crowd::measure(&setup, &asked, &ASKING, (3, 1), &mut checks, &progress::steps("", 20)).unwrap();
    assert_eq!((checks.compared, checks.differences.len()), (5 * 7, 0));
    assert_eq!((point.clients, point.requests), (3, 5));
    for leg in [&point.off, &point.on[0]] {
        assert_eq!((leg.tally.answers, leg.tally.output_tokens), (10, 10 * 40));
        assert_eq!(leg.tally.drafted, leg.tally.work.drafts.checked);
        assert!(leg.tally.work.steps < leg.tally.request_steps + 10, "requests share steps");
        assert!(leg.throughput().unwrap() > 0.0);
    }
    assert_eq!(point.off.tally.tau(), Some(1.0));
    let json = point.to_json(&["synthetic 0.9".into()]);
    assert_eq!(json["on"][0]["throughput_by_off"].as_f64(), point.gain(0));
}
