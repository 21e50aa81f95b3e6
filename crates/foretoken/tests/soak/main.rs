//! The server in a storm: many clients at once, most of them rude, and afterwards nothing may be left of them.
//!
//! The real program runs a tiny model with little memory, few places and a short queue, so that requests are preempted
//! and turned away all the time. `FORETOKEN_SOAK_SECONDS` says how long the storm lasts.

mod behaviour;
mod http;
mod server;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::Instant;

use behaviour::{BEHAVIOURS, Client};
use server::{Resources, Server, witness};

/// Clients at the same time.
const CLIENTS: usize = 64;

/// Seconds of the storm where the environment does not say.
const SECONDS: u64 = 15;

/// What the memory may grow by from a quarter of the storm to its end: what the allocator keeps of a busier moment. Some
/// seconds' storm stays below 3 MiB; what grows with the number of requests shows the better the longer the storm is.
const MARGIN_KIB: u64 = 8 << 10;

/// What must have happened for the test to mean something.
const MUST_HAPPEN: [&str; 17] = [
    "answered whole",
    "answered as a stream",
    "answered as without the storm",
    "answered several on one connection",
    "answered a slow reader",
    "tokenised and back",
    "refused for the queue",
    "refused for the body's size",
    "refused for its JSON",
    "refused for a field",
    "left before the answer",
    "left in mid-stream",
    "left in the head",
    "left in the body",
    "left a connection open",
    "sent what is no HTTP",
    "closed its side after asking",
];

type Counts = BTreeMap<&'static str, u64>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_leaves_no_trace() {
    let seconds = std::env::var("FORETOKEN_SOAK_SECONDS").ok();
    let seconds = seconds.map_or(SECONDS, |seconds| seconds.parse().expect("FORETOKEN_SOAK_SECONDS is a whole number"));
    let storm = Duration::from_secs(seconds);
    let server = Server::start();
    let at_start = server.resources();
    let calm = Arc::new(witness(&server.address, "calm").await.expect("an idle server has room"));

    let mut counts = Counts::new();
    rage(&server, &calm, 0, storm / 4, &mut counts).await;
    server.wait_idle().await;
    let warm = server.resources();
    rage(&server, &calm, 1, storm - storm / 4, &mut counts).await;
    let figures = server.wait_idle().await;
    let at_end = server.resources();

    counts.iter().for_each(|(what, count)| println!("{count:8} {what}"));
    println!(
        "         preempted {} times, {} tokens, {} of {} drafts accepted",
        figures["preemptions_total"],
        figures["generation_tokens_total"],
        figures["accepted_tokens_total"],
        figures["drafted_tokens_total"]
    );
    println!("         at the start {at_start}; warm {warm}; at the end {at_end}");

    assert_eq!(
        witness(&server.address, "after").await.expect("an idle server has room"),
        *calm,
        "the storm has changed the answer"
    );
    assert!(figures["accepted_tokens_total"] > 0.0 && figures["rejected_tokens_total"] > 0.0, "hardly any drafts");
    assert!(server.is_ready().await);
    for what in MUST_HAPPEN {
        assert!(counts.get(what).is_some_and(|&count| count > 0), "no client was {what:?}: the storm is too short");
    }
    assert!(at_end.rss_kib <= warm.rss_kib + MARGIN_KIB, "memory grows: {} KiB, then {}", warm.rss_kib, at_end.rss_kib);
    wait_for_resources(&server, &at_start).await;
    server.end();
}

/// Lets all clients loose for a while, and adds up what has become of their requests.
async fn rage(server: &Server, calm: &Arc<Value>, season: u64, time: Duration, counts: &mut Counts) {
    let until = Instant::now() + time;
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let mut client = Client::new(server, calm, season * CLIENTS as u64 + number as u64);
        clients.spawn(async move {
            // Each behaviour once by turns, so that none is left to chance; then at random.
            for turn in 0.. {
                let behaviour = if turn < BEHAVIOURS.len() { number + turn } else { client.below(BEHAVIOURS.len()) };
                client.behave(BEHAVIOURS[behaviour % BEHAVIOURS.len()]).await;
                if Instant::now() >= until {
                    break;
                }
            }
            client.counts
        });
    }
    while let Some(done) = clients.join_next().await {
        for (what, count) in done.expect("a client met what it must not") {
            *counts.entry(what).or_default() += count;
        }
    }
}

/// Waits until connections and helper threads are given back. Idle threads stay for some seconds.
async fn wait_for_resources(server: &Server, at_start: &Resources) {
    let mut now = server.resources();
    for _ in 0..600 {
        if now.descriptors <= at_start.descriptors && now.threads <= at_start.threads {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        now = server.resources();
    }
    panic!("at the start {at_start}, long after the storm {now}");
}
