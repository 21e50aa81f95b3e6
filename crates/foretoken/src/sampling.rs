//! Sampling options of the command line.

use clap::Args;
use engine::SamplingParams;

/// How tokens are chosen and when the answer ends. The defaults decode greedily.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Stop after so many tokens
    #[arg(long, value_name = "N", default_value_t = 512)]
    max_tokens: usize,
    /// 0 picks the likeliest token; higher is more varied
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true)]
    temperature: f32,
    /// Choose among the K likeliest tokens only (0: all)
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: usize,
    /// Choose among the likeliest tokens that together reach probability P
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    top_p: f32,
    /// Drop tokens less likely than P times the likeliest
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    min_p: f32,
    /// Choose among the tokens of most typical information content that together reach probability P
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    typical_p: f32,
    /// Make tokens of the prompt and the answer less likely (1: off)
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    repetition_penalty: f32,
    /// Subtract X from the logit of every token that the answer holds
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    presence_penalty: f32,
    /// Subtract X from a token's logit for each time that the answer holds it
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    frequency_penalty: f32,
    /// Add V to the logit of token ID (repeatable)
    #[arg(long, value_name = "ID=V", value_parser = parse_bias)]
    logit_bias: Vec<(u32, f32)>,
    /// The same seed gives the same answer
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// End the answer before this text (repeatable)
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// End the answer at this token, besides the model's own (repeatable)
    #[arg(long, value_name = "ID")]
    stop_token: Vec<u32>,
    /// Do not end the answer within its first N tokens
    #[arg(long, value_name = "N", default_value_t = 0)]
    min_tokens: usize,
    /// Go on after the model's own end token
    #[arg(long)]
    ignore_eos: bool,
    /// Report the log-probability of each token and of the N likeliest, one JSON object a token on stderr
    #[arg(long, value_name = "N")]
    logprobs: Option<usize>,
}

impl SamplingArgs {
    /// The same as a request's parameters; whether they are in range is the engine's to say.
    pub(crate) fn to_params(&self) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.iter().copied().collect(),
            seed: self.seed,
            stop: self.stop.clone(),
            stop_tokens: self.stop_token.clone(),
            max_tokens: Some(self.max_tokens),
            min_tokens: self.min_tokens,
            ignore_eos: self.ignore_eos,
            logprobs: self.logprobs,
            ..SamplingParams::default()
        }
    }
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let (id, value) = text.split_once('=').ok_or("expected ID=V, for example 42=-5")?;
    let id = id.trim().parse().map_err(|_| format!("'{id}' is not a token id"))?;
    let value = value.trim().parse().map_err(|_| format!("'{value}' is not a number"))?;
    Ok((id, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bias_is_a_token_and_a_number() {
        assert_eq!(parse_bias("42=-5.5"), Ok((42, -5.5)));
        for bad in ["42", "x=1", "42=y", "-1=2"] {
            assert!(parse_bias(bad).is_err(), "{bad}");
        }
    }
}
