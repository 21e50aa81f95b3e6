//! One request at a time: every prompt is answered plainly and with every drafter, in turns.

use anyhow::Result;
use engine::batch::Service;
use serde_json::{Value, json};

use super::contest::{self, Checks, Setup};
use super::drive::{self, Asking};
use super::oracle::Truths;
use super::questions::Question;
use crate::stats::Samples;
use crate::tally::{Tally, ratio};
use cli::progress;

/// What the category of all prompts is called.
pub(crate) const ALL: &str = "all";

/// One prompt, and what its answers took.
#[derive(Debug, Clone)]
pub(crate) struct Measured {
    pub(crate) id: String,
    pub(crate) category: String,
    pub(crate) plain: Tally,
    /// By drafter.
    pub(crate) drafted: Vec<Tally>,
}

impl Measured {
    pub(crate) fn to_json(&self) -> Value {
        let drafted: Value = self.drafted.iter().map(|tally| tally.to_json()).collect();
        json!({ "id": self.id, "category": self.category, "plain": self.plain.to_json(), "drafted": drafted })
    }
}

/// Answers all `questions`, `repeat` times there and back, one request at a time.
///
/// Every contestant has an engine for each time that it answers a prompt: nobody has seen an answer before it is asked
/// for, and nobody's buffers are warmer than another's.
///
/// # Errors
/// When an engine cannot be had, or refuses or fails a request.
pub(crate) fn measure(
    setup: &Setup,
    questions: &[&Question],
    asking: &Asking,
    repeat: usize,
    checks: &mut Checks,
) -> Result<Vec<Measured>> {
    let truths = Truths::default();
    let engine = |contestant| setup.engine(contestant, &truths, 1);
    let times = |contestant| (0..2 * repeat).map(|_| engine(contestant)).collect::<Result<Vec<Service>>>();
    let plain = times(None)?;
    let drafted = setup.contestants.iter().map(|contestant| times(Some(contestant))).collect::<Result<Vec<_>>>()?;
    for engine in drafted.iter().flatten().chain(&plain) {
        setup.warm_up(&engine.handle(), questions[0], asking)?;
    }
    let turns = contest::turns(setup.contestants.len());
    let bar = progress::steps("one at a time", (questions.len() * repeat * turns.len()) as u64);
    let mut all = Vec::new();
    for &question in questions {
        let drafted_tallies = vec![Tally::default(); setup.contestants.len()];
        let (id, category) = (question.id.clone(), question.category.clone());
        let mut measured = Measured { id, category, plain: Tally::default(), drafted: drafted_tallies };
        for round in 0..repeat {
            for &(who, back) in &turns {
                let (engines, sum, name) = match who {
                    None => (&plain, &mut measured.plain, "plain".to_owned()),
                    Some(who) => (&drafted[who], &mut measured.drafted[who], setup.contestants[who].to_string()),
                };
                let engine = &engines[2 * round + usize::from(back)];
                for answer in drive::answer(&engine.handle(), &[question], asking, 1, &bar)? {
                    truths.insert(&question.tokens, &answer.tokens);
                    checks.check(asking.temperature, question, &name, &answer.tokens);
                    *sum += answer.tally;
                }
            }
        }
        all.push(measured);
    }
    bar.finish_and_clear();
    Ok(all)
}

/// What one drafter did for the prompts of one category.
#[derive(Debug, Clone)]
pub(crate) struct Summary {
    pub(crate) drafter: String,
    pub(crate) category: String,
    pub(crate) prompts: usize,
    pub(crate) plain: Tally,
    pub(crate) drafted: Tally,
    /// Tokens a second after the first token, the middle one of the prompts': plain, drafted.
    pub(crate) median_rates: [Option<f64>; 2],
    /// How many times faster the tokens after the first came.
    pub(crate) decode: SpeedUp,
    /// How many times faster whole answers came.
    pub(crate) whole: SpeedUp,
}

/// Plain seconds by drafted seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SpeedUp {
    /// Of the sums over all prompts.
    pub(crate) total: Option<f64>,
    /// Of the prompts, the middle one.
    pub(crate) median: Option<f64>,
    /// Of the prompts, the least.
    pub(crate) least: Option<f64>,
}

impl SpeedUp {
    /// From plain and drafted seconds of each prompt. A prompt that took no time has no ratio.
    fn of(seconds: impl Iterator<Item = (f64, f64)> + Clone) -> Self {
        let (plain, drafted) = seconds.clone().fold((0.0, 0.0), |sum, each| (sum.0 + each.0, sum.1 + each.1));
        let ratios: Samples = seconds.filter_map(|(plain, drafted)| ratio(plain, drafted)).collect();
        let [median, least] =
            [ratios.median(), ratios.min()].map(|value| Some(value).filter(|value| value.is_finite()));
        Self { total: ratio(plain, drafted), median, least }
    }

    fn to_json(self) -> Value {
        json!({ "total": self.total, "median": self.median, "least": self.least })
    }
}

impl Summary {
    fn of(drafter: (usize, String), category: &str, measured: &[&Measured]) -> Self {
        let (at, drafter) = drafter;
        let pairs = measured.iter().map(|measured| (&measured.plain, &measured.drafted[at]));
        let rates = |rates: Samples| Some(rates.median()).filter(|rate| rate.is_finite());
        Self {
            drafter,
            category: category.to_owned(),
            prompts: measured.len(),
            plain: pairs.clone().map(|(plain, _)| *plain).sum(),
            drafted: pairs.clone().map(|(_, drafted)| *drafted).sum(),
            median_rates: [
                rates(pairs.clone().filter_map(|(plain, _)| plain.decode_rate()).collect()),
                rates(pairs.clone().filter_map(|(_, drafted)| drafted.decode_rate()).collect()),
            ],
            decode: SpeedUp::of(pairs.clone().map(|(plain, drafted)| (plain.decode_seconds, drafted.decode_seconds))),
            whole: SpeedUp::of(pairs.map(|(plain, drafted)| (plain.seconds, drafted.seconds))),
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "drafter": self.drafter,
            "category": self.category,
            "prompts": self.prompts,
            "plain": self.plain.to_json_with_work(),
            "drafted": self.drafted.to_json_with_work(),
            "median_decode_tokens_per_s": { "plain": self.median_rates[0], "drafted": self.median_rates[1] },
            "decode_speed_up": self.decode.to_json(),
            "whole_speed_up": self.whole.to_json(),
        })
    }
}

/// For each drafter a summary of every category, in the order in which they were measured, and of all prompts.
pub(crate) fn summaries(measured: &[Measured], drafters: &[String]) -> Vec<Summary> {
    let mut categories: Vec<&str> = Vec::new();
    for measured in measured {
        if !categories.contains(&measured.category.as_str()) {
            categories.push(&measured.category);
        }
    }
    let all: Vec<&Measured> = measured.iter().collect();
    let of = |category: &str| -> Vec<&Measured> {
        measured.iter().filter(|measured| measured.category == category).collect()
    };
    let drafters = drafters.iter().cloned().enumerate();
    let each = drafters.flat_map(|drafter| {
        let by_category = categories.iter().map(|category| Summary::of(drafter.clone(), category, &of(category)));
        by_category.chain([Summary::of(drafter.clone(), ALL, &all)]).collect::<Vec<_>>()
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(tokens: u64, request_steps: u64, seconds: f64) -> Tally {
        let decode_tokens = tokens - 1;
        let (drafted, accepted) = (2 * request_steps, decode_tokens - request_steps);
        let decode_seconds = seconds / 2.0;
        let output_tokens = tokens;
        Tally {
            answers: 1,
            output_tokens,
            decode_tokens,
            request_steps,
            drafted,
            accepted,
            seconds,
            decode_seconds,
            ..Tally::default()
        }
    }

    fn measured(category: &str, plain: f64, drafted: f64) -> Measured {
        let tallies = vec![tally(9, 4, drafted), tally(9, 8, plain)];
        Measured { id: "x".into(), category: category.into(), plain: tally(9, 8, plain), drafted: tallies }
    }

    #[test]
    fn categories_add_up_to_all() {
        let measured = [measured("a", 4.0, 2.0), measured("b", 3.0, 3.0), measured("a", 1.0, 0.25)];
        let summaries = summaries(&measured, &["one".into(), "two".into()]);
        let names: Vec<(&str, &str)> =
            summaries.iter().map(|summary| (summary.drafter.as_str(), summary.category.as_str())).collect();
        assert_eq!(names, [("one", "a"), ("one", "b"), ("one", "all"), ("two", "a"), ("two", "b"), ("two", "all")]);
        let [a, b, all] = [0, 1, 2].map(|at| &summaries[at]);
        assert_eq!((a.prompts, b.prompts, all.prompts), (2, 1, 3));
        assert_eq!(a.plain.decode_tokens + b.plain.decode_tokens, all.plain.decode_tokens);
        assert_eq!((all.plain.tau(), all.drafted.tau()), (Some(1.0), Some(2.0)));
        assert_eq!(a.whole, SpeedUp { total: Some(5.0 / 2.25), median: Some(3.0), least: Some(2.0) });
        assert_eq!(all.decode, SpeedUp { total: Some(8.0 / 5.25), median: Some(2.0), least: Some(1.0) });
        assert_eq!(a.median_rates, [Some((4.0 + 16.0) / 2.0), Some((8.0 + 64.0) / 2.0)]);
        assert_eq!(summaries[5].whole.total, Some(1.0));
    }

    #[test]
    fn answers_of_one_token_have_no_speed() {
        let speed_up = SpeedUp::of([(0.0, 0.0)].into_iter());
        assert_eq!(speed_up, SpeedUp { total: None, median: None, least: None });
    }
}
