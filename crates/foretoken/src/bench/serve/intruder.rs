//! A long prompt that arrives while others decode: how long their next tokens wait for it.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::client::{Client, Failure};
use super::point::Summary;
use super::stream::Answer;
use super::workload::Workload;

/// Requests that decode when the long prompt arrives.
pub(crate) const STREAMS: u64 = 8;
/// Events of each of them before it does.
const LEAD: usize = 8;
/// Tokens of the answers that it meets at least, and at most: twice as many are asked for as often as they end before the long
/// prompt is computed.
const STREAM: u64 = 512;
const LONGEST: u64 = 4096;

/// Tokens that answer the long prompt: enough for some text.
const ANSWER: u64 = 8;

/// One way to serve, and what the long prompt did to the others.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Setting {
    pub(crate) name: String,
    /// Rows that a step computes at most; `None` where another server decides.
    pub(crate) row_budget: Option<usize>,
    pub(crate) streams: u64,
    pub(crate) rounds: Vec<Round>,
}

/// One arrival of a long prompt.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Round {
    /// Tokens of the long prompt, as the server counts them.
    pub(crate) prompt_tokens: u64,
    /// From its sending to its first text.
    pub(crate) ttft_ms: f64,
    /// The largest gap of any stream between the moment from which all of them decoded and its sending.
    pub(crate) gap_before_ms: f64,
    /// The largest gap of any stream between its sending and its first text.
    pub(crate) gap_during_ms: f64,
    /// Every gap of every stream: when it ended, from the sending of the long prompt on, and how long it was.
    pub(crate) gaps_ms: Vec<(f64, f64)>,
}

impl Setting {
    /// Largest gaps of the rounds, with the long prompt or before it.
    pub(crate) fn largest(&self, of: impl Fn(&Round) -> f64) -> Summary {
        Summary::of(self.rounds.iter().map(of))
    }
}

/// Measures `rounds` arrivals of a prompt of `tokens` tokens.
///
/// # Errors
/// When a request fails, or the others have ended before the long prompt is answered.
pub(crate) async fn measure(
    (client, workload): (&Arc<Client>, &Arc<Workload>),
    name: &str,
    row_budget: Option<usize>,
    (tokens, rounds): (usize, u64),
) -> Result<Setting> {
    let mut setting = Setting { name: name.to_owned(), row_budget, streams: STREAMS, rounds: Vec::new() };
    let (mut length, mut arrivals) = (workload.params().max_tokens.max(STREAM), 0);
    while (setting.rounds.len() as u64) < rounds {
        // Far from the numbers of other requests.
        let first = (1 << 40) + arrivals * (STREAMS + 1);
        arrivals += 1;
        match arrival((client, workload), length, tokens, first).await? {
            Some(round) => setting.rounds.push(round),
            None if 2 * length <= LONGEST => length *= 2,
            None => {
                bail!("a stream of {length} tokens ended before the long prompt was answered: try a shorter prompt")
            }
        }
    }
    Ok(setting)
}

/// One arrival; `None`: a stream of `length` tokens ended too early.
async fn arrival(
    (client, workload): (&Arc<Client>, &Arc<Workload>),
    length: u64,
    tokens: usize,
    first: u64,
) -> Result<Option<Round>> {
    let (sender, mut under_way) = mpsc::unbounded_channel();
    let mut streams = JoinSet::new();
    for number in first..first + STREAMS {
        let (client, workload, sender) = (client.clone(), workload.clone(), sender.clone());
        streams.spawn(async move {
            let mut sender = Some(sender);
            let watch = |events| {
                if let Some(sender) = sender.take_if(|_| events >= LEAD) {
                    // Nobody waits when another stream has failed.
                    let _ = sender.send(());
                }
            };
            let body = workload.body_up_to(number, length);
            client.ask_watched(workload.path(), body, watch).await
        });
    }
    drop(sender);
    let mut begun = 0;
    while begun < STREAMS && under_way.recv().await.is_some() {
        begun += 1;
    }
    let prompt = workload.unique(tokens, first + STREAMS);
    let prompt = prompt.ok_or_else(|| anyhow!("a long prompt is made of words: leave out --prompts"))?;
    let salted = workload.params().salted;
    let body = workload.body_of(&prompt, first + STREAMS, ANSWER, salted);
    let long = client.ask(workload.path(), body).await.map_err(|failure| failed("the long prompt", failure));
    let streams = streams.join_all().await.into_iter().collect::<Result<Vec<_>, _>>();
    let streams = streams.map_err(|failure| failed("a stream beside the long prompt", failure))?;
    compare(&streams, &long?)
}

fn failed(what: &str, failure: Failure) -> anyhow::Error {
    anyhow!("{what} failed: {}: {}", failure.kind, failure.message)
}

/// What `long` did to `streams`; `None`: one of them ended before it was answered.
fn compare(streams: &[Answer], long: &Answer) -> Result<Option<Round>> {
    let Some(&first) = long.events.first() else { bail!("the long prompt was answered without text") };
    let (mut before, mut during, mut gaps_ms) = (0f64, 0f64, Vec::new());
    // Until then they waited for each other's prompts.
    let all_decode = streams.iter().filter_map(|stream| stream.events.first()).max().copied();
    for stream in streams {
        if stream.events.len() < LEAD || stream.events.last().is_none_or(|&last| last < first) {
            return Ok(None);
        }
        for pair in stream.events.windows(2) {
            let (begin, end) = (pair[0], pair[1]);
            let gap = (end - begin).as_secs_f64() * 1e3;
            gaps_ms.push((ms_since(long.sent, end), gap));
            if end > long.sent && begin < first {
                during = during.max(gap);
            } else if end <= long.sent && all_decode.is_some_and(|since| begin >= since) {
                before = before.max(gap);
            }
        }
    }
    Ok(Some(Round {
        prompt_tokens: long.usage.prompt,
        ttft_ms: ms_since(long.sent, first),
        gap_before_ms: before,
        gap_during_ms: during,
        gaps_ms,
    }))
}

/// Milliseconds from `start` to `moment`, below zero if it was before.
fn ms_since(start: Instant, moment: Instant) -> f64 {
    match moment.checked_duration_since(start) {
        Some(after) => after.as_secs_f64() * 1e3,
        None => -(start - moment).as_secs_f64() * 1e3,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::stream::Usage;
    use super::*;

    #[test]
    fn gaps_belong_to_before_during_or_after() {
        let start = Instant::now();
        let answer = |sent: u64, events: &[u64]| {
            let at = |ms: u64| start + Duration::from_millis(ms);
            let events: Vec<Instant> = events.iter().map(|&ms| at(ms)).collect();
            let usage = Usage { prompt: 50, ..Usage::default() };
            Answer { sent: at(sent), ended: *events.last().unwrap(), events, usage, finish: "length".into() }
        };
        let lead = [0, 10, 20, 30, 40, 50, 60, 90];
        let stream = answer(0, &[&lead[..], &[140, 150, 1000]].concat());
        let long = answer(100, &[145, 160]);
        let round = compare(std::slice::from_ref(&stream), &long).unwrap().unwrap();
        assert_eq!((round.gap_before_ms, round.gap_during_ms, round.ttft_ms), (30.0, 50.0, 45.0));
        assert_eq!((round.gaps_ms.len(), round.gaps_ms[0], round.gaps_ms[9]), (10, (-90.0, 10.0), (900.0, 850.0)));

        // The gap of 45 ms lies before the second stream has begun.
        let early = answer(0, &[0, 45, 50, 60, 70, 80, 85, 90, 150]);
        let second = answer(0, &[46, 50, 55, 60, 65, 70, 75, 80, 150]);
        assert_eq!(compare(&[early, second], &long).unwrap().unwrap().gap_before_ms, 10.0);

        let late = answer(100, &[2000]);
        assert!(compare(&[stream], &late).unwrap().is_none());
    }
}
