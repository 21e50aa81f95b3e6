//! Two requests, one after the other, that begin alike: how much sooner the second has its first token.

use anyhow::{Result, anyhow};
use serde::{Deserialize, Serialize};

use super::client::Client;
use super::point::Summary;
use super::stream::Answer;
use super::workload::Workload;

/// Tokens of each prompt after the shared ones.
const OWN: usize = 16;
/// Tokens of each answer: enough for some text.
const ANSWER: u64 = 8;

/// What a shared prefix was worth.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SharedPrefix {
    /// Tokens that both prompts begin with.
    pub(crate) shared_tokens: usize,
    pub(crate) rounds: Vec<Pair>,
    /// Time to first text of the first request by that of the second.
    pub(crate) ratio: Summary,
}

/// Two requests that share a prefix which nobody had before.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Pair {
    /// Tokens of each prompt, as the server counts them.
    pub(crate) prompt_tokens: u64,
    pub(crate) first_ttft_ms: f64,
    /// Prompt tokens of the first that the server had computed before.
    pub(crate) first_cached_tokens: u64,
    pub(crate) second_ttft_ms: f64,
    pub(crate) second_cached_tokens: u64,
}

/// Measures `rounds` pairs of requests that share `tokens` tokens.
///
/// # Errors
/// When a request fails or is answered without text.
pub(crate) async fn measure(
    client: &Client,
    workload: &Workload,
    (tokens, rounds): (usize, u64),
) -> Result<SharedPrefix> {
    let mut pairs = Vec::new();
    for round in 0..rounds {
        let first = ask(client, workload, (tokens, round), 2 * round).await?;
        let second = ask(client, workload, (tokens, round), 2 * round + 1).await?;
        pairs.push(Pair {
            prompt_tokens: second.usage.prompt,
            first_ttft_ms: ttft_ms(&first)?,
            first_cached_tokens: first.usage.cached,
            second_ttft_ms: ttft_ms(&second)?,
            second_cached_tokens: second.usage.cached,
        });
    }
    let ratio = Summary::of(pairs.iter().map(|pair| pair.first_ttft_ms / pair.second_ttft_ms));
    Ok(SharedPrefix { shared_tokens: tokens, rounds: pairs, ratio })
}

async fn ask(client: &Client, workload: &Workload, prefix: (usize, u64), number: u64) -> Result<Answer> {
    let prompt = workload.sharing(prefix, (OWN, number));
    let prompt = prompt.ok_or_else(|| anyhow!("a shared prefix is made of words: leave out --prompts"))?;
    // Without a salt: here the cache is what is measured.
    let body = workload.body_of(&prompt, number, ANSWER, false);
    let answer = client.ask(workload.path(), body).await;
    answer.map_err(|failure| anyhow!("a request with a shared prefix failed: {}: {}", failure.kind, failure.message))
}

fn ttft_ms(answer: &Answer) -> Result<f64> {
    answer.first().map(|seconds| seconds * 1e3).ok_or_else(|| anyhow!("a request was answered without text"))
}
