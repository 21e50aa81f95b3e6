//! Has the target answer prompts, and invent them, many at a time.

use std::collections::HashSet;
use std::sync::mpsc::{self, Receiver, Sender};

use engine::batch::{Event, Handle, Sink, Submission, SubmitError};
use engine::{Drafting, SamplingParams};
use model::chat::{ChatTemplate, Message, RenderOptions, TemplateError};
use model::tokenizer::{Tokenizer, TokenizerError};
use rand::Rng;
use serde_json::json;

use super::openings::OPENINGS;
use super::{Origin, Text, TextFile, TextSettings};
use crate::TrainError;
use crate::chance::{Purpose, chance};

/// Tokens of a prompt that the target invents, at most.
const OWN_PROMPT_TOKENS: usize = 256;

/// Stands for the user's words where the template is asked what comes before them.
const PLACE: &str = "0user0words0";

/// A prompt to be answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// One of a file, as the target's tokens up to where the answer begins.
    Prompt {
        /// Which, from 0.
        number: u32,
        /// `[tokens]`
        tokens: Vec<u32>,
    },
    /// One that the target invents.
    Own {
        /// Which, from 0.
        number: u32,
    },
}

impl Asked {
    /// What its text is told from others by.
    pub fn key(&self) -> (Origin, u32) {
        match *self {
            Asked::Prompt { number, .. } => (Origin::Prompts, number),
            Asked::Own { number } => (Origin::Own, number),
        }
    }
}

/// A text that cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The template has no place for the user's words that could be found.
    #[error("the chat template does not show the user's words: give prompts with --prompts instead of --self-prompts")]
    NoPlace,
    /// The template refuses a conversation of one message.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// A text cannot be encoded or decoded.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The engine takes no request.
    #[error("the engine refuses prompt {number}: {source}")]
    Refused {
        /// Which.
        number: u32,
        /// Why.
        source: SubmitError,
    },
    /// The engine failed a request.
    #[error("the engine failed prompt {number}: {message}")]
    Failed {
        /// Which.
        number: u32,
        /// Why.
        message: String,
    },
    /// The engine's thread has ended.
    #[error("the engine has stopped")]
    Stopped,
}

/// Writes texts.
pub struct TextWriter<'a> {
    /// The target, running.
    pub handle: &'a Handle,
    /// Its text.
    pub tokenizer: &'a Tokenizer,
    /// Its conversations; only invented prompts need it.
    pub template: Option<&'a ChatTemplate>,
    /// What the texts depend on.
    pub settings: &'a TextSettings,
    /// Texts at a time.
    pub at_once: usize,
}

/// A text on its way.
struct Job {
    origin: Origin,
    number: u32,
    /// `None`: the prompt is still being invented, after so many tokens.
    prompt: Option<Vec<u32>>,
    opening: &'static str,
}

/// What came of a request.
type Outcome = (Job, Result<Vec<u32>, String>);

impl TextWriter<'_> {
    /// Writes the texts of all that is `asked` to `file`, but for those that are `done`, each as soon as it is finished.
    /// `progress` hears of each text that was written.
    ///
    /// # Errors
    /// When the engine stops, a prompt is refused, or the file cannot be written. What was written stays.
    pub fn write(
        &self,
        asked: impl IntoIterator<Item = Asked>,
        done: &HashSet<(Origin, u32)>,
        file: &mut TextFile,
        mut progress: impl FnMut(&Text),
    ) -> Result<(), TrainError> {
        let before = self.before_the_users_words()?;
        let (sender, inbox) = mpsc::channel();
        let left = asked.into_iter().filter(|asked| !done.contains(&asked.key()));
        let mut left = left.map(|asked| self.job(asked));
        let mut running = 0;
        loop {
            while running < self.at_once
                && let Some(job) = left.next()
            {
                self.submit(job, before.as_deref(), &sender)?;
                running += 1;
            }
            if running == 0 {
                return Ok(());
            }
            match self.next(&inbox)? {
                (job, tokens) if job.prompt.is_none() => {
                    let job = self.invented(job, &tokens)?;
                    self.submit(job, before.as_deref(), &sender)?;
                }
                (Job { origin, number, prompt, .. }, answer) => {
                    running -= 1;
                    let mut tokens = prompt.unwrap_or_default();
                    let prompt = tokens.len();
                    tokens.extend(answer);
                    let text = Text { origin, number, prompt, tokens };
                    file.append(&text)?;
                    progress(&text);
                }
            }
        }
    }

    fn job(&self, asked: Asked) -> Job {
        match asked {
            Asked::Prompt { number, tokens } => {
                Job { origin: Origin::Prompts, number, prompt: Some(tokens), opening: "" }
            }
            Asked::Own { number } => {
                let at =
                    chance(self.settings.seed, Purpose::Opening, u64::from(number)).random_range(0..OPENINGS.len());
                Job { origin: Origin::Own, number, prompt: None, opening: OPENINGS[at] }
            }
        }
    }

    /// What the template has before the user's words; `None` without a template.
    fn before_the_users_words(&self) -> Result<Option<String>, WriteError> {
        let Some(template) = self.template else { return Ok(None) };
        let text = template.render(&[Message::new("user", PLACE)], &RenderOptions::default())?;
        let at = text.find(PLACE).ok_or(WriteError::NoPlace)?;
        Ok(Some(text[..at].to_owned()))
    }

    /// The job, with the prompt that the target has invented.
    fn invented(&self, job: Job, tokens: &[u32]) -> Result<Job, WriteError> {
        let template = self.template.ok_or(WriteError::NoPlace)?;
        let words = self.tokenizer.decode(tokens, true)?;
        let content = format!("{}{words}", job.opening);
        let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
        let message = json!({ "role": "user", "content": content.trim() });
        let prompt = template.encode(&[message], &options, self.tokenizer)?;
        Ok(Job { prompt: Some(prompt), ..job })
    }

    fn submit(&self, job: Job, before: Option<&str>, sender: &Sender<Outcome>) -> Result<(), WriteError> {
        let number = job.number;
        let (prompt, params) = match &job.prompt {
            Some(prompt) => (prompt.clone(), self.answering(&job)),
            None => {
                let before = before.ok_or(WriteError::NoPlace)?;
                (self.tokenizer.encode_prompt(&format!("{before}{}", job.opening))?, self.inventing(&job))
            }
        };
        let drafting = Drafting::default();
        let submission = Submission { prompt, params, n: 1, cache_salt: None, priority: 0, drafting };
        let submitted = self.handle.submit(submission, collect(job, sender.clone()));
        submitted.map(drop).map_err(|source| WriteError::Refused { number, source })
    }

    /// As the target is, so that prompts are as varied as it can make them; its unlikeliest words would make no sense.
    fn inventing(&self, job: &Job) -> SamplingParams {
        SamplingParams {
            temperature: 1.0,
            top_p: 0.95,
            seed: chance(self.settings.seed, Purpose::Invention, u64::from(job.number)).random(),
            max_tokens: Some(OWN_PROMPT_TOKENS),
            ..SamplingParams::default()
        }
    }

    /// Half of the answers are the target's likeliest words, as most are asked for; the others wander, and show it how to go
    /// on from there.
    fn answering(&self, job: &Job) -> SamplingParams {
        let purpose = match job.origin {
            Origin::Prompts => Purpose::Answer,
            Origin::Own => Purpose::OwnAnswer,
        };
        let mut chance = chance(self.settings.seed, purpose, u64::from(job.number));
        SamplingParams {
            temperature: if chance.random() { 0.0 } else { 0.8 },
            seed: chance.random(),
            max_tokens: Some(self.settings.answer_tokens),
            ..SamplingParams::default()
        }
    }

    fn next(&self, inbox: &Receiver<Outcome>) -> Result<(Job, Vec<u32>), WriteError> {
        let (job, tokens) = inbox.recv().map_err(|_| WriteError::Stopped)?;
        match tokens {
            Ok(tokens) => Ok((job, tokens)),
            Err(message) => Err(WriteError::Failed { number: job.number, message }),
        }
    }
}

/// Collects the tokens of a request, and sends them when it has ended.
fn collect(job: Job, sender: Sender<Outcome>) -> Sink {
    let (mut job, mut tokens) = (Some(job), Vec::new());
    Box::new(move |event| {
        let outcome = match event {
            Event::Delta { delta, .. } => return tokens.push(delta.token),
            Event::Finished { .. } => Ok(std::mem::take(&mut tokens)),
            Event::Failed { message, .. } => Err(message),
        };
        if let Some(job) = job.take() {
            // An error says that nobody waits for it any more.
            let _ = sender.send((job, outcome));
        }
    })
}
