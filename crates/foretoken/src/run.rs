//! `foretoken run`: answers one prompt, or chats.

use std::io::{self, BufRead, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use engine::{Drafting, Engine, EngineOptions, SamplingParams};
use model::chat::{ChatTemplate, RenderOptions};
use serde_json::{Value, json};
use spec::Rule;

use crate::answer::{self, Answer, Show};
use crate::draft::DraftArgs;
use crate::prompt::{self, Prompt};
use crate::sampling::SamplingArgs;
use cli::load::{Loaded, ModelArgs};

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
    /// Which drafts stand. keyed: those that the model would have said itself, so that the answer stays the same to the
    /// bit; ratio: more of them at a temperature, with the same law; typical: more still, and the answer is another one
    #[arg(long, value_name = "RULE", default_value = "keyed", help_heading = "Speculation")]
    acceptance: Rule,
    /// Colour the text that was drafted
    #[arg(long, help_heading = "Speculation")]
    show_drafts: bool,
    /// Answer once more without drafts, unseen, and say how much faster the first time was
    #[arg(long, help_heading = "Speculation")]
    compare: bool,
}

/// Tokens of the prompt and of the answer that an engine warms up with.
const WARM_UP: usize = 8;

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
    drafting: Drafting,
    /// Whether drafts are spoken of.
    drafts: bool,
    show: Show,
    compare: bool,
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
        let drafting = Drafting { rule: args.acceptance, ..Drafting::default() };
        if !drafting.rule.is_lossless() {
            eprintln!("note: --acceptance {} changes what the model says", drafting.rule);
        }
        let options = EngineOptions { kv_format, context: args.context, ..EngineOptions::default() };
        let messages = args.system.iter().map(|text| json!({ "role": "system", "content": text })).collect();
        let (drafts, engine) = (speculation.is_some(), Engine::new(model, tokenizer, pool, options, speculation));
        let (show, compare) = (Show { drafts: args.show_drafts }, args.compare);
        Ok(Self { engine, template, messages, params, drafting, drafts, show, compare })
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
        if self.compare {
            self.warm_up(&prompt)?;
        }
        let answer = answer::stream(&mut self.engine, &prompt, &self.params, &self.drafting, self.show)?;
        eprintln!("{}", answer.summary());
        if let Some(drafts) = answer.drafts().filter(|_| self.drafts) {
            eprintln!("{drafts}");
        }
        if self.compare {
            self.compare(&prompt, &answer)?;
        }
        self.messages.push(json!({ "role": "assistant", "content": answer.text }));
        Ok(answer)
    }

    /// Lets the engine grow its buffers, or the answer that comes first would look slower than the one after it. Too few
    /// tokens for a drafter to learn the answer from.
    fn warm_up(&mut self, prompt: &[u32]) -> Result<()> {
        let params = SamplingParams {
            temperature: 0.0,
            max_tokens: Some(WARM_UP),
            ignore_eos: true,
            ..SamplingParams::default()
        };
        answer::plain(&mut self.engine, &prompt[..prompt.len().min(WARM_UP)], &params).map(drop)
    }

    /// Says how the answer compares with one without drafts.
    fn compare(&mut self, prompt: &[u32], answer: &Answer) -> Result<()> {
        let plain = answer::plain(&mut self.engine, prompt, &self.params)?;
        eprintln!("{}", answer.against(&plain));
        if self.drafting.rule == Rule::Keyed && !answer.equals(&plain) {
            bail!("drafts have changed the answer, which they must not: please report this with the prompt");
        }
        Ok(())
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
