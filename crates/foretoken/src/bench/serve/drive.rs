//! Load: when requests are sent. In a closed loop each client sends the next when it has its answer; in an open one they
//! arrive by chance at a rate, however slow the answers are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::client::{Client, Failure};
use super::stream::Answer;
use super::workload::Workload;
use crate::bench::random::Random;

/// How requests follow each other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Load {
    /// So many clients, each with one request at a time.
    Closed(usize),
    /// So many requests a second on average: Poisson arrivals.
    Open(f64),
}

/// How long a measurement goes on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Extent {
    /// Until so many requests are answered.
    Requests(u64),
    /// Until no more are sent; those on their way are waited for.
    Seconds(f64),
}

/// What became of the requests of a measurement.
pub(crate) struct Outcome {
    pub(crate) results: Vec<Result<Answer, Failure>>,
    /// From the first sending to the end of the last answer.
    pub(crate) seconds: f64,
}

/// The one who sends: requests are numbered over all measurements, so that no prompt is sent twice.
pub(crate) struct Driver {
    client: Arc<Client>,
    workload: Arc<Workload>,
    next: u64,
    seed: u64,
}

impl Driver {
    pub(crate) fn new(client: Arc<Client>, workload: Arc<Workload>, seed: u64) -> Self {
        Self { client, workload, next: 0, seed }
    }

    /// Sends requests and waits for all answers.
    pub(crate) async fn run(&mut self, load: Load, extent: Extent) -> Outcome {
        let start = Instant::now();
        let (results, sent) = match load {
            Load::Closed(clients) => self.closed(clients, extent).await,
            Load::Open(rate) => self.open(arrivals(rate, extent, self.seed)).await,
        };
        self.next += sent;
        Outcome { results, seconds: start.elapsed().as_secs_f64() }
    }

    async fn closed(&self, clients: usize, extent: Extent) -> (Vec<Result<Answer, Failure>>, u64) {
        let sent = Arc::new(AtomicU64::new(0));
        let (most, until) = match extent {
            Extent::Requests(requests) => (requests, None),
            Extent::Seconds(seconds) => (u64::MAX, Some(Instant::now() + Duration::from_secs_f64(seconds))),
        };
        let mut tasks = JoinSet::new();
        for _ in 0..clients {
            let (client, workload, sent, first) = (self.client.clone(), self.workload.clone(), sent.clone(), self.next);
            tasks.spawn(async move {
                let mut results = Vec::new();
                while until.is_none_or(|until| Instant::now() < until) {
                    let number = sent.fetch_add(1, Ordering::Relaxed);
                    if number >= most {
                        break;
                    }
                    let result = client.ask(workload.path(), workload.body(first + number)).await;
                    let failed = result.is_err();
                    results.push(result);
                    // Not to hammer a server that answers nothing else.
                    if failed {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                }
                results
            });
        }
        let results: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
        let count = results.len() as u64;
        (results, count)
    }

    async fn open(&self, arrivals: Vec<Duration>) -> (Vec<Result<Answer, Failure>>, u64) {
        let start = tokio::time::Instant::now();
        let mut tasks = JoinSet::new();
        for (number, arrival) in (self.next..).zip(&arrivals) {
            tokio::time::sleep_until(start + *arrival).await;
            let (client, workload) = (self.client.clone(), self.workload.clone());
            tasks.spawn(async move { client.ask(workload.path(), workload.body(number)).await });
        }
        (tasks.join_all().await, arrivals.len() as u64)
    }
}

/// When the requests of an open loop arrive, from its start: a function of the seed.
fn arrivals(rate: f64, extent: Extent, seed: u64) -> Vec<Duration> {
    let mut random = Random::new(seed);
    let mut time = 0.0;
    let next = || {
        time += -random.unit().ln() / rate;
        Some(time)
    };
    let times = std::iter::from_fn(next);
    let times: Vec<f64> = match extent {
        Extent::Requests(requests) => times.take(requests as usize).collect(),
        Extent::Seconds(seconds) => times.take_while(|&time| time < seconds).collect(),
    };
    times.into_iter().map(Duration::from_secs_f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_a_function_of_the_seed() {
        let of = |seed| arrivals(10.0, Extent::Requests(5), seed);
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        // What was asked for first does not depend on how much was asked for.
        assert_eq!(arrivals(10.0, Extent::Requests(9), 1)[..5], of(1)[..]);
    }

    #[test]
    fn arrivals_have_the_rate_and_the_spread_of_chance() {
        let times: Vec<f64> = arrivals(8.0, Extent::Requests(20_000), 3).iter().map(Duration::as_secs_f64).collect();
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        // Exponential: the mean is 1/rate, and a gap is longer than that with probability 1/e.
        assert!((mean * 8.0 - 1.0).abs() < 0.03, "{mean}");
        let longer = gaps.iter().filter(|&&gap| gap > 1.0 / 8.0).count() as f64 / gaps.len() as f64;
        assert!((longer - (-1f64).exp()).abs() < 0.02, "{longer}");
    }

    #[test]
    fn arrivals_end_with_the_time() {
        let times = arrivals(100.0, Extent::Seconds(2.0), 0);
        assert!(times.iter().all(|time| time.as_secs_f64() < 2.0) && times.len() > 150);
    }
}
