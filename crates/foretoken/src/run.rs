//! `foretoken run`: answers one prompt, or chats.

use std::io::{self, BufRead, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use engine::{Drafting, Engine, EngineOptions, SamplingParams};
use model::chat::{ChatTemplate, RenderOptions};
use serde_json::{Value, json};

use crate::answer::{self, Answer};
use crate::draft::DraftArgs;
use crate::load::{Loaded, ModelArgs};
use crate::prompt::{self, Prompt};
use crate::sampling::SamplingArgs;

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// What to answer; `-` reads standard input. Without it standard input is read, or on a terminal a chat begins
    prompt: Option<String>,
    /// Read the prompt from a file (`-`: standard input)
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    prompt_file: Option<PathBuf>,
    /// Instructions to the model that stand before the conversation
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,
    /// Continue the prompt as it stands, without the model's chat template
    #[arg(long)]
    raw: bool,
    /// Positions for prompt and answer together [default: all that the model was made for]
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    draft: DraftArgs,
}

pub(crate) fn run(args: &RunArgs) -> Result<()> {
    let prompt = prompt::find(args.prompt.as_deref(), args.prompt_file.as_deref())?;
    let params = args.sampling.to_params();
    let loaded = args.model.load(!args.raw)?;
    let mut session = Session::new(loaded, params, args)?;
    match prompt {
        Prompt::Text(text) => session.answer(&text).map(drop),
        Prompt::Interactive => session.chat(),
    }
}

/// A loaded model in a conversation.
struct Session {
    engine: Engine,
    /// `None`: prompts go to the model as they stand.
    template: Option<ChatTemplate>,
    messages: Vec<Value>,
    params: SamplingParams,
}

impl Session {
    fn new(loaded: Loaded, params: SamplingParams, args: &RunArgs) -> Result<Self> {
        if !args.raw && loaded.template.is_none() {
            let name = &loaded.name;
            bail!("{name} has no chat template: add --raw to continue the prompt as it stands");
        }
        let most = loaded.model.config().context;
        if let Some(context) = args.context.filter(|&context| context == 0 || context > most) {
            bail!("--context is {context}; it must be from 1 to {most}, the context of {}", loaded.name);
        }
        let speculation = args.draft.speculation(&loaded)?;
        let Loaded { model, tokenizer, template, pool, kv_format, .. } = loaded;
        let options = EngineOptions { kv_format, context: args.context, ..EngineOptions::default() };
        let messages = args.system.iter().map(|text| json!({ "role": "system", "content": text })).collect();
        Ok(Self { engine: Engine::new(model, tokenizer, pool, options, speculation), template, messages, params })
    }

    /// Answers `text` as the next turn and keeps both for the turns that follow.
    fn answer(&mut self, text: &str) -> Result<Answer> {
        let tokenizer = self.engine.tokenizer();
        let prompt = match &self.template {
            None => tokenizer.encode_prompt(text)?,
            Some(template) => {
                self.messages.push(json!({ "role": "user", "content": text }));
                let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
                template.encode(&self.messages, &options, tokenizer)?
            }
        };
        let answer = answer::stream(&mut self.engine, &prompt, &self.params, &Drafting::default())?;
        eprintln!("{}", answer.summary());
        self.messages.push(json!({ "role": "assistant", "content": answer.text }));
        Ok(answer)
    }

    /// Turn after turn until the end of input. An answer that fails (a context that is full) does not end the chat.
    fn chat(&mut self) -> Result<()> {
        eprintln!("Chat: an empty line or Ctrl-D ends it.");
        let turns_before = self.messages.len();
        loop {
            eprint!("> ");
            io::stderr().flush()?;
            let mut line = String::new();
            io::stdin().lock().read_line(&mut line).context("cannot read the prompt from the terminal")?;
            if line.trim().is_empty() {
                return Ok(());
            }
            if let Err(error) = self.answer(line.trim_end_matches(['\r', '\n'])) {
                if crate::is_broken_pipe(&error) {
                    return Err(error);
                }
                eprintln!("error: {}; the conversation begins anew", crate::one_line(&error));
                self.messages.truncate(turns_before);
            }
        }
    }
}
