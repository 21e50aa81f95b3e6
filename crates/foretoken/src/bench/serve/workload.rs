//! What is asked: prompts of a file, or made of words that are one token each, so that a prompt has exactly the length
//! that was asked for and no two begin alike.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use clap::ValueEnum;
use hyper::body::Bytes;
use serde_json::{Value, json};

use super::words::Words;
use crate::bench::random::Random;
use cli::prompts::{self, Content, Line};

/// Which of the two APIs is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Endpoint {
    /// /v1/chat/completions
    Chat,
    /// /v1/completions
    Completions,
}

impl Endpoint {
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
        }
    }

    /// The field of a request that holds `text`.
    pub(crate) fn prompt(self, text: &str) -> Prompt {
        match self {
            Self::Chat => Prompt::Messages(json!([{ "role": "user", "content": text }])),
            Self::Completions => Prompt::Text(text.to_owned()),
        }
    }
}

/// What a request continues.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Prompt {
    Text(String),
    Messages(Value),
}

impl Prompt {
    /// Puts it into the body of a request.
    pub(crate) fn set(&self, body: &mut Value) {
        match self {
            Self::Text(text) => body["prompt"] = text.as_str().into(),
            Self::Messages(messages) => body["messages"] = messages.clone(),
        }
    }
}

/// Where prompts come from.
#[derive(Debug)]
pub(crate) enum Prompts {
    /// In the order of the file, again and again.
    File(Vec<Prompt>),
    /// So many tokens each.
    Synthetic(Words, usize),
}

/// What all requests have in common.
#[derive(Debug, Clone)]
pub(crate) struct Params {
    pub(crate) model: String,
    pub(crate) max_tokens: u64,
    pub(crate) temperature: f64,
    pub(crate) seed: u64,
    pub(crate) ignore_eos: bool,
    /// Keep each request from the prefixes of the others by a `cache_salt` of its own: for servers that know the field.
    pub(crate) salted: bool,
}

/// The requests of a measurement.
#[derive(Debug)]
pub(crate) struct Workload {
    endpoint: Endpoint,
    prompts: Prompts,
    params: Params,
    /// Tells the salts of this run from those of others.
    run: u128,
}

impl Workload {
    pub(crate) fn new(endpoint: Endpoint, prompts: Prompts, params: Params) -> Self {
        let run = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        Self { endpoint, prompts, params, run }
    }

    pub(crate) fn path(&self) -> &'static str {
        self.endpoint.path()
    }

    /// The body of request `number`: but for the salt a function of the number, the parameters and the prompts.
    pub(crate) fn body(&self, number: u64) -> Bytes {
        self.body_up_to(number, self.params.max_tokens)
    }

    /// The body of request `number`, with an answer of that many tokens at most.
    pub(crate) fn body_up_to(&self, number: u64, max_tokens: u64) -> Bytes {
        let prompt = match &self.prompts {
            Prompts::File(prompts) => prompts[(number % prompts.len() as u64) as usize].clone(),
            Prompts::Synthetic(words, tokens) => self.of_words(words, *tokens, number),
        };
        self.body_of(&prompt, number, max_tokens, self.params.salted)
    }

    /// The body of a request with that prompt, and `max_tokens` and salt as given.
    pub(crate) fn body_of(&self, prompt: &Prompt, number: u64, max_tokens: u64, salted: bool) -> Bytes {
        let Params { model, temperature, seed, ignore_eos, .. } = &self.params;
        let mut body = json!({
            "model": model,
            "max_tokens": max_tokens,
            "temperature": temperature,
            // Some servers keep it in 32 bits with a sign.
            "seed": seed.wrapping_add(number) & 0x7fff_ffff,
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        prompt.set(&mut body);
        if *ignore_eos {
            body["ignore_eos"] = true.into();
        }
        if salted {
            body["cache_salt"] = format!("bench-{:x}-{number}", self.run).into();
        }
        body.to_string().into()
    }

    /// A prompt of `tokens` tokens that no other `number` has; `None` where prompts come from a file.
    pub(crate) fn unique(&self, tokens: usize, number: u64) -> Option<Prompt> {
        match &self.prompts {
            Prompts::File(_) => None,
            Prompts::Synthetic(words, _) => Some(self.of_words(words, tokens, number)),
        }
    }

    fn of_words(&self, words: &Words, tokens: usize, number: u64) -> Prompt {
        let mut random = Random::new(self.params.seed ^ number.wrapping_mul(0x2545_f491_4f6c_dd1d));
        self.endpoint.prompt(&words.unique(tokens, number, &mut random))
    }

    /// A prompt of `shared` tokens that is the same for the same `group`, and `own` tokens that no other `number` has.
    /// `None` where prompts come from a file.
    pub(crate) fn sharing(&self, (shared, group): (usize, u64), (own, number): (usize, u64)) -> Option<Prompt> {
        let Prompts::Synthetic(words, _) = &self.prompts else { return None };
        let prefix = words.unique(shared, group, &mut Random::new(self.params.seed.wrapping_add(group)));
        let mut random = Random::new(self.params.seed.wrapping_add(!number));
        Some(self.endpoint.prompt(&words.extended(prefix, own, number, &mut random)))
    }

    pub(crate) fn params(&self) -> &Params {
        &self.params
    }
}

/// Reads prompts, one JSON object a line: `{"prompt": TEXT}`, `{"messages": [...]}` or `{"turns": [TEXT, ...]}`, of
/// which the first turn is asked.
///
/// # Errors
/// When the file cannot be read, has no prompts, or a line is none of these.
pub(crate) fn read_prompts(path: &Path, endpoint: Endpoint) -> Result<Vec<Prompt>> {
    let prompt = |line: Line| match line.content {
        Content::Text(text) => Ok(endpoint.prompt(&text)),
        Content::Messages(_) if endpoint == Endpoint::Completions => {
            bail!("line {} of '{}' has messages: they need --endpoint chat", line.number, path.display())
        }
        Content::Messages(messages) => Ok(Prompt::Messages(messages.into())),
    };
    prompts::read(path)?.into_iter().map(prompt).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn read(text: &str, endpoint: Endpoint) -> Result<Vec<Prompt>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        read_prompts(file.path(), endpoint)
    }

    #[test]
    fn a_file_has_prompts_turns_or_messages() {
        let text = "{\"prompt\": \"a\"}\n\n{\"category\": \"x\", \"turns\": [\"b\", \"c\"]}\n";
        let expected = ["a", "b"].map(|text| Prompt::Text(text.into()));
        assert_eq!(read(text, Endpoint::Completions).unwrap(), expected);
        let message = json!([{ "role": "user", "content": "a" }]);
        let lines = format!("{{\"prompt\": \"a\"}}\n{{\"messages\": {message}}}");
        let expected = [Prompt::Messages(message.clone()), Prompt::Messages(message)];
        assert_eq!(read(&lines, Endpoint::Chat).unwrap(), expected);
    }

    #[test]
    fn a_line_that_is_no_prompt_is_named() {
        for (text, told) in [("{\"prompt\": \"a\"}\n{\"x\": 1}", "line 2"), ("{\"messages\": []}", "--endpoint chat")] {
            let error = read(text, Endpoint::Completions).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }

    fn workload(salted: bool) -> Workload {
        let prompts = Prompts::File(vec![Prompt::Text("a".into()), Prompt::Text("b".into())]);
        let params = Params { model: "m".into(), max_tokens: 3, temperature: 0.5, seed: 4, ignore_eos: true, salted };
        Workload::new(Endpoint::Completions, prompts, params)
    }

    #[test]
    fn a_body_says_what_was_asked_for() {
        let body: Value = serde_json::from_slice(&workload(false).body(3)).unwrap();
        let expected = json!({ "model": "m", "max_tokens": 3, "temperature": 0.5, "seed": 7, "stream": true,
            "stream_options": { "include_usage": true }, "prompt": "b", "ignore_eos": true });
        assert_eq!(body, expected);
    }

    #[test]
    fn salts_differ_between_requests() {
        let workload = workload(true);
        let salt = |number| serde_json::from_slice::<Value>(&workload.body(number)).unwrap()["cache_salt"].clone();
        assert!(salt(0).is_string() && salt(0) != salt(2));
    }
}
