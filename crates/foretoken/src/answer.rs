//! One answer: streamed to standard output as it comes, and what it took.

use std::io::{self, Write};
use std::ops::ControlFlow;

use anyhow::Result;
use engine::batch::{DRAFT_POSITIONS, Reason};
use engine::{Delta, Drafting, Engine, FinishReason, Generation, SamplingParams};
use model::tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::tally::{Tally, Work};
use cli::machine;

/// A finished answer.
pub(crate) struct Answer {
    /// All that was streamed.
    pub(crate) text: String,
    tokens: Vec<u32>,
    generation: Generation,
    /// What the engine did for it, prompt included.
    tally: Tally,
}

/// How an answer is shown.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Show {
    /// Colours tell the text of drafts from that of tokens that the model had to give itself.
    pub(crate) drafts: bool,
}

/// Escape sequences of terminals.
const GREEN: &str = "\x1b[32m";
const PLAIN: &str = "\x1b[0m";

/// Continues `prompt` on standard output, and with log-probabilities asked for writes one JSON object a token to stderr.
///
/// # Errors
/// When the request cannot run, generation fails, or the reader of the output has gone.
pub(crate) fn stream(
    engine: &mut Engine,
    prompt: &[u32],
    params: &SamplingParams,
    drafting: &Drafting,
    how: Show,
) -> Result<Answer> {
    let tokenizer = engine.tokenizer().clone();
    let (mut text, mut tokens, mut failed) = (String::new(), Vec::new(), None);
    let before = Work::from(engine.stats());
    let generation = engine.generate(prompt, params.clone(), drafting, |delta| {
        text.push_str(&delta.text);
        tokens.push(delta.token);
        match show(delta, &tokenizer, how) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        }
    });
    // The line of the answer ends in any case: an error or a shell prompt starts on its own.
    if !text.is_empty() && !text.ends_with('\n') && failed.is_none() {
        failed = writeln!(io::stdout()).err();
    }
    match failed {
        Some(error) => Err(error.into()),
        None => {
            let generation = generation?;
            Ok(Answer { text, tokens, generation, tally: tally(&generation, Work::from(engine.stats()) - before) })
        }
    }
}

/// The same answer without drafts, shown to nobody.
///
/// # Errors
/// When the request cannot run or generation fails.
pub(crate) fn plain(engine: &mut Engine, prompt: &[u32], params: &SamplingParams) -> Result<Answer> {
    let (mut text, mut tokens) = (String::new(), Vec::new());
    let before = Work::from(engine.stats());
    let drafting = Drafting { enabled: false, ..Drafting::default() };
    let generation = engine.generate(prompt, params.clone(), &drafting, |delta| {
        text.push_str(&delta.text);
        tokens.push(delta.token);
        ControlFlow::Continue(())
    })?;
    Ok(Answer { text, tokens, generation, tally: tally(&generation, Work::from(engine.stats()) - before) })
}

fn tally(Generation { usage, timings, .. }: &Generation, work: Work) -> Tally {
    Tally {
        answers: 1,
        prompt_tokens: usage.prompt_tokens as u64,
        output_tokens: usage.output_tokens as u64,
        decode_tokens: timings.decode_tokens as u64,
        request_steps: work.drafts.proposals + work.drafts.silent.iter().sum::<u64>(),
        drafted: usage.drafted_tokens as u64,
        accepted: usage.accepted_tokens as u64,
        seconds: (timings.first_token + timings.decode).as_secs_f64(),
        decode_seconds: timings.decode.as_secs_f64(),
        work,
    }
}

fn show(delta: &Delta, tokenizer: &Tokenizer, how: Show) -> io::Result<()> {
    if !delta.text.is_empty() {
        let mut out = io::stdout().lock();
        match how.drafts && delta.drafted {
            true => write!(out, "{GREEN}{}{PLAIN}", delta.text)?,
            false => out.write_all(delta.text.as_bytes())?,
        }
        out.flush()?;
    }
    if let Some(logprob) = delta.logprob {
        let top: Vec<Value> = delta.top.iter().map(|&(id, logprob)| token(id, logprob, tokenizer)).collect();
        let mut line = token(delta.token, logprob, tokenizer);
        line["top"] = json!(top);
        writeln!(io::stderr(), "{line}")?;
    }
    Ok(())
}

fn token(id: u32, logprob: f32, tokenizer: &Tokenizer) -> Value {
    let bytes = tokenizer.bytes(id).unwrap_or_default();
    // Six decimals: more than the logits are exact to.
    let logprob = (f64::from(logprob) * 1e6).round() / 1e6;
    json!({ "id": id, "token": String::from_utf8_lossy(&bytes), "logprob": logprob })
}

impl Answer {
    /// What the answer took, in one line. What was not measured is left out.
    pub(crate) fn summary(&self) -> String {
        let Generation { finish, usage, timings } = &self.generation;
        let rate = |rate: Option<f64>| rate.map(|rate| format!(" at {rate:.1} tokens/s")).unwrap_or_default();
        let mut line = format!(
            "prompt {} tokens{}, answer {} tokens{}, first token after {:.0} ms",
            usage.prompt_tokens,
            rate(timings.prompt_rate()),
            usage.output_tokens,
            rate(timings.decode_rate()),
            timings.first_token.as_secs_f64() * 1e3,
        );
        if let Some(bytes) = machine::peak_memory() {
            line.push_str(&format!(", peak memory {:.1} MB", bytes as f64 / 1e6));
        }
        if *finish == FinishReason::Length {
            line.push_str(" (cut short: --max-tokens or the context is used up)");
        }
        line
    }

    /// What drafts did, in one line; `None` if the request had no step to draft for.
    pub(crate) fn drafts(&self) -> Option<String> {
        let Tally { drafted, accepted, work, .. } = &self.tally;
        let mut line = format!("drafts: {accepted} of {drafted} accepted, {:.2} tokens a step", self.tally.tau()?);
        let shares = (1..=DRAFT_POSITIONS).map_while(|distance| work.acceptance_at(distance));
        let shares: Vec<String> = shares.map(|share| format!("{:.0}", share * 100.0)).collect();
        if !shares.is_empty() {
            line.push_str(&format!(" (by position {} %)", shares.join(" ")));
        }
        let ms = |seconds: f64| seconds * 1e3;
        line.push_str(&format!(
            ", with the prompt {:.0} ms drafting, {:.0} ms in the model, {:.0} ms for the rest",
            ms(work.propose),
            ms(work.forward),
            ms((work.seconds - work.propose - work.forward).max(0.0)),
        ));
        if *drafted == 0 {
            let (reason, _) = Reason::ALL.iter().zip(work.drafts.silent).max_by_key(|&(_, steps)| steps)?;
            line.push_str(&format!(" (mostly: {})", reason.name()));
        }
        Some(line)
    }

    /// How this answer compares with the `plain` one to the same prompt, in one line.
    pub(crate) fn against(&self, plain: &Answer) -> String {
        let [with, without] = [self, plain].map(|answer| answer.tally.decode_rate());
        let speed = match (with, without) {
            (Some(with), Some(without)) => {
                format!("{with:.1} tokens/s with drafts, {without:.1} without: {:.2} times as fast", with / without)
            }
            _ => "too short an answer to time".into(),
        };
        format!("compared: {speed}; {}", if self.tokens == plain.tokens { "the same tokens" } else { "other tokens" })
    }

    /// Whether it has the tokens of the other one.
    pub(crate) fn equals(&self, other: &Answer) -> bool {
        self.tokens == other.tokens
    }
}
