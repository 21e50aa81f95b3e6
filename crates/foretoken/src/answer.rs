//! One answer: streamed to standard output as it comes, and what it took.

use std::io::{self, Write};
use std::ops::ControlFlow;

use anyhow::Result;
use engine::{Delta, Drafting, Engine, FinishReason, Generation, SamplingParams};
use model::tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::machine;

/// A finished answer.
pub(crate) struct Answer {
    /// All that was streamed.
    pub(crate) text: String,
    generation: Generation,
}

/// Continues `prompt` on standard output, and with log-probabilities asked for writes one JSON object a token to stderr.
///
/// # Errors
/// When the request cannot run, generation fails, or the reader of the output has gone.
pub(crate) fn stream(
    engine: &mut Engine,
    prompt: &[u32],
    params: &SamplingParams,
    drafting: &Drafting,
) -> Result<Answer> {
    let tokenizer = engine.tokenizer().clone();
    let (mut text, mut failed) = (String::new(), None);
    let generation = engine.generate(prompt, params.clone(), drafting, |delta| {
        text.push_str(&delta.text);
        match show(delta, &tokenizer) {
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
        None => Ok(Answer { text, generation: generation? }),
    }
}

fn show(delta: &Delta, tokenizer: &Tokenizer) -> io::Result<()> {
    if !delta.text.is_empty() {
        let mut out = io::stdout().lock();
        out.write_all(delta.text.as_bytes())?;
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
        if usage.drafted_tokens > 0 {
            line.push_str(&format!(", {} of {} drafts accepted", usage.accepted_tokens, usage.drafted_tokens));
        }
        if let Some(bytes) = machine::peak_memory() {
            line.push_str(&format!(", peak memory {:.1} MB", bytes as f64 / 1e6));
        }
        if *finish == FinishReason::Length {
            line.push_str(" (cut short: --max-tokens or the context is used up)");
        }
        line
    }
}
