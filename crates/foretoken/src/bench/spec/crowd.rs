//! Many requests at once: throughput with and without drafts, and how many drafts are checked, over the load.

use std::time::Instant;

use anyhow::Result;
use indicatif::ProgressBar;
use serde_json::{Value, json};

use super::contest::{self, Checks, Setup};
use super::drive::{self, Asking};
use super::oracle::Truths;
use super::questions::Question;
use crate::tally::{Tally, Work, ratio};

/// One number of clients, without drafts and with those of each drafter.
#[derive(Debug, Clone)]
pub(crate) struct Point {
    pub(crate) temperature: f32,
    pub(crate) clients: usize,
    /// Requests of one turn.
    pub(crate) requests: usize,
    pub(crate) off: Leg,
    /// By drafter.
    pub(crate) on: Vec<Leg>,
}

/// All turns of one contestant.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Leg {
    /// From the first request to the end of the last.
    pub(crate) seconds: f64,
    pub(crate) tally: Tally,
}

impl Leg {
    /// Output tokens of all requests by the whole time, in which their prompts are.
    pub(crate) fn throughput(&self) -> Option<f64> {
        ratio(self.tally.output_tokens as f64, self.seconds)
    }

    fn to_json(self) -> Value {
        let mut value = self.tally.to_json_with_work();
        value["wall_seconds"] = json!(self.seconds);
        value["throughput_tokens_per_s"] = json!(self.throughput());
        value
    }
}

impl Point {
    /// Throughput with a drafter by throughput without.
    pub(crate) fn gain(&self, drafter: usize) -> Option<f64> {
        ratio(self.on.get(drafter)?.throughput()?, self.off.throughput()?)
    }

    pub(crate) fn to_json(&self, drafters: &[String]) -> Value {
        let on: Vec<Value> = (drafters.iter().zip(&self.on).enumerate())
            .map(|(at, (drafter, leg))| {
                let mut value = leg.to_json();
                value["drafter"] = json!(drafter);
                value["throughput_by_off"] = json!(self.gain(at));
                value
            })
            .collect();
        json!({
            "temperature": self.temperature,
            "clients": self.clients,
            "requests": self.requests,
            "off": self.off.to_json(),
            "on": on,
        })
    }
}

/// Has `questions` answered, `clients` at a time, `repeat` times there and back.
///
/// Every turn has an engine of its own, which has seen none of the answers, and whose drafter and calibration know
/// nothing yet.
///
/// # Errors
/// When an engine cannot be had, or refuses or fails a request.
pub(crate) fn measure(
    setup: &Setup,
    questions: &[&Question],
    asking: &Asking,
    (clients, repeat): (usize, usize),
    checks: &mut Checks,
    bar: &ProgressBar,
) -> Result<Point> {
    let truths = Truths::default();
    let (temperature, requests) = (asking.temperature, questions.len());
    let on = vec![Leg::default(); setup.contestants.len()];
    let mut point = Point { temperature, clients, requests, off: Leg::default(), on };
    for (who, _) in contest::turns(setup.contestants.len()).repeat(repeat) {
        let contestant = who.map(|who| &setup.contestants[who]);
        let name = contestant.map_or("plain".to_owned(), ToString::to_string);
        let service = setup.engine(contestant, &truths, clients)?;
        let handle = service.handle();
        setup.warm_up(&handle, questions[0], asking)?;
        let (start, before) = (Instant::now(), Work::from(handle.stats()));
        let answers = drive::answer(&handle, questions, asking, clients, bar)?;
        let seconds = start.elapsed().as_secs_f64();
        let work = Work::from(handle.stats()) - before;
        for (question, answer) in questions.iter().zip(&answers) {
            truths.insert(&question.tokens, &answer.tokens);
            checks.check(temperature, question, &format!("{name}, {clients} clients"), &answer.tokens);
        }
        let leg = who.map_or(&mut point.off, |who| &mut point.on[who]);
        let sum: Tally = answers.into_iter().map(|answer| answer.tally).sum();
        leg.tally += Tally { work, ..sum };
        leg.seconds += seconds;
    }
    Ok(point)
}
