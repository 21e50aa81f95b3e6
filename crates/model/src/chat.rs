//! Chat templates: a conversation to the one text that a model was trained on.
//!
//! A template is a Jinja program that comes with a model. It runs in `minijinja` with what the `transformers` library
//! gives its templates (Python's string and dictionary methods, `raise_exception`, `strftime_now`, `tojson`, loop
//! controls) and with a budget of steps: the file that it comes from is not trusted. What the text means as token ids
//! is [`crate::tokenizer`]'s business.

mod clock;
mod json;
mod source;
mod tools;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value as Jinja};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use tools::ToolFormat;

use crate::gguf::{GgufError, Metadata};
use crate::tokenizer::{StandIns, Tokenizer, TokenizerConfig, TokenizerError};

/// Why there is no template, or no text from it.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The template is no valid program.
    #[error("the chat template has an error in line {line}: {reason}")]
    Syntax {
        /// Line of the template, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// The template itself refuses the conversation (`raise_exception`).
    #[error("the chat template refuses this conversation: {message} (line {line} of the template)")]
    Refused {
        /// Line of the template, from 1.
        line: usize,
        /// The template's own words.
        message: String,
    },
    /// The template does something that does not work with this conversation.
    #[error("the chat template fails in line {line}: {reason}")]
    Render {
        /// Line of the template, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// The file's `chat_template` is neither a text nor a list of named texts.
    #[error("{}: chat_template must be a text, or a list of objects with \"name\" and \"template\", one of them named \"default\"", .path.display())]
    Shape {
        /// The file.
        path: PathBuf,
    },
    /// The conversation leaves no character free to tell the control tokens in it from the template's.
    #[error(
        "the conversation has every private-use character of Unicode and a control token's text: leave one of them out"
    )]
    Crowded,
    /// A file of the model directory cannot be used, or a text cannot be encoded.
    #[error(transparent)]
    Directory(#[from] TokenizerError),
    /// A GGUF key has the wrong type.
    #[error(transparent)]
    Gguf(#[from] GgufError),
}

/// One message of a conversation. Messages with more than a role and a text (tool calls and their results) go through
/// [`ChatTemplate::render_values`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: content.into() }
    }
}

/// What a template is given besides the messages.
#[derive(Debug, Clone, Default)]
pub struct RenderOptions {
    /// End the text where the assistant's answer begins.
    pub add_generation_prompt: bool,
    /// Schemas of the tools that may be called, in OpenAI's form; their keys keep their order.
    pub tools: Option<Value>,
    /// Further variables, such as `enable_thinking`; they override all others.
    pub extra: Map<String, Value>,
}

/// A model's chat template. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    environment: Arc<Environment<'static>>,
    /// Texts of the named tokens: `bos_token`, `eos_token`, ...
    specials: Arc<BTreeMap<String, String>>,
}

/// Names of the templates in the environment.
const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

/// Instructions, and bytes of intermediate texts, that one rendering may cost (well under a second), and what each byte
/// of the conversation adds to that. A template in use takes some hundred a message and less than ten a byte.
const FUEL: u64 = 10_000_000;
const FUEL_PER_BYTE: u64 = 50;

/// Nesting of calls and loops that a template may use.
const RECURSION: usize = 200;

impl ChatTemplate {
    /// A template from its source. `specials` holds the texts of the model's named tokens under `bos_token`,
    /// `eos_token` and so on.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`].
    pub fn new(source: &str, specials: &BTreeMap<String, String>) -> Result<ChatTemplate, TemplateError> {
        ChatTemplate::with_named([(DEFAULT.to_owned(), source.to_owned())], specials)
    }

    fn with_named(
        sources: impl IntoIterator<Item = (String, String)>,
        specials: &BTreeMap<String, String>,
    ) -> Result<ChatTemplate, TemplateError> {
        let mut environment = environment().map_err(template_error)?;
        for (name, source) in sources {
            environment.add_template_owned(name, source::without_generation_blocks(&source)).map_err(template_error)?;
        }
        Ok(ChatTemplate { environment: Arc::new(environment), specials: Arc::new(specials.clone()) })
    }

    /// The template of a model directory, or `None` if it has none: `chat_template.jinja`, or `chat_template` in
    /// `chat_template.json` or `tokenizer_config.json`. Of several named templates, `default` and `tool_use` are used.
    ///
    /// # Errors
    /// Files that cannot be read or understood, by name, and [`TemplateError::Syntax`].
    pub fn from_dir(dir: &Path) -> Result<Option<ChatTemplate>, TemplateError> {
        let config = TokenizerConfig::read(dir)?;
        let Some((path, value)) = source::find(dir, config.chat_template)? else { return Ok(None) };
        let sources = source::named(&value).ok_or(TemplateError::Shape { path })?;
        ChatTemplate::with_named(sources, &config.named).map(Some)
    }

    /// The template of a GGUF file, or `None` if it has none.
    ///
    /// # Errors
    /// Keys of the wrong type, and [`TemplateError::Syntax`].
    pub fn from_gguf(meta: &Metadata, tokenizer: &Tokenizer) -> Result<Option<ChatTemplate>, TemplateError> {
        let Some(default) = meta.opt_str("tokenizer.chat_template")? else { return Ok(None) };
        let mut sources = vec![(DEFAULT.to_owned(), default.to_owned())];
        if let Some(tool_use) = meta.opt_str("tokenizer.chat_template.tool_use")? {
            sources.push((TOOL_USE.to_owned(), tool_use.to_owned()));
        }
        let ids = [
            ("bos_token", tokenizer.bos()),
            ("eos_token", tokenizer.eos().first().copied()),
            ("unk_token", meta.opt_u32("tokenizer.ggml.unknown_token_id")?),
            ("pad_token", meta.opt_u32("tokenizer.ggml.padding_token_id")?),
        ];
        let specials =
            ids.into_iter().filter_map(|(name, id)| Some((name.to_owned(), tokenizer.token(id?)?))).collect();
        ChatTemplate::with_named(sources, &specials).map(Some)
    }

    /// The text of a conversation.
    ///
    /// # Errors
    /// [`TemplateError::Refused`] and [`TemplateError::Render`].
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String, TemplateError> {
        self.render_messages(messages, options)
    }

    /// The text of a conversation whose messages are objects of any form that the template knows.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn render_values(&self, messages: &[Value], options: &RenderOptions) -> Result<String, TemplateError> {
        self.render_messages(messages, options)
    }

    /// The prompt's token ids: of a rendered conversation, in which the template's control tokens are control tokens
    /// and those that somebody wrote out in a message, a tool or an option are ordinary text.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`] and [`Tokenizer::encode_prompt`]; [`TemplateError::Crowded`].
    pub fn encode(
        &self,
        messages: &[Value],
        options: &RenderOptions,
        tokenizer: &Tokenizer,
    ) -> Result<Vec<u32>, TemplateError> {
        let controls = &tokenizer.inner.controls;
        let RenderOptions { add_generation_prompt, tools, extra } = options;
        let extra = Value::Object(extra.clone());
        let brought: Vec<&Value> = messages.iter().chain(tools).chain([&extra]).collect();
        let stand_ins = StandIns::new(controls, &brought).ok_or(TemplateError::Crowded)?;
        if stand_ins.is_empty() {
            return Ok(tokenizer.encode_prompt(&self.render_values(messages, options)?)?);
        }
        let put = |value: &Value| stand_ins.put(controls, value);
        let messages: Vec<Value> = messages.iter().map(put).collect();
        let extra = put(&extra).as_object().cloned().unwrap_or_default();
        let options =
            RenderOptions { add_generation_prompt: *add_generation_prompt, tools: tools.as_ref().map(put), extra };
        Ok(tokenizer.encode_rendered(&self.render_values(&messages, &options)?, &stand_ins)?)
    }

    fn render_messages(&self, messages: &[impl Serialize], options: &RenderOptions) -> Result<String, TemplateError> {
        let bytes = json::len(&messages) + json::len(&options.tools) + json::len(&options.extra);
        let mut environment = Environment::clone(&self.environment);
        environment.set_fuel(Some(FUEL + FUEL_PER_BYTE * bytes as u64));
        // `tools` and `documents` are none, not undefined: templates ask `tools is not none`.
        let mut variables: BTreeMap<&str, Jinja> = BTreeMap::from([
            ("messages", Jinja::from(Serde(messages))),
            ("tools", Jinja::from(Serde(&options.tools))),
            ("documents", Jinja::from(())),
            ("add_generation_prompt", Jinja::from(options.add_generation_prompt)),
        ]);
        variables.extend(self.specials.iter().map(|(name, text)| (name.as_str(), Jinja::from(text.as_str()))));
        variables.extend(options.extra.iter().map(|(name, value)| (name.as_str(), Jinja::from(Serde(value)))));
        let with_tools = options.tools.is_some().then(|| environment.get_template(TOOL_USE).ok()).flatten();
        let template = match with_tools {
            Some(template) => template,
            None => environment.get_template(DEFAULT).map_err(template_error)?,
        };
        template.render(variables).map_err(template_error)
    }
}

/// The environment that `transformers` gives its templates.
fn environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_recursion_limit(RECURSION);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(print);
    environment.add_filter("tojson", json::tojson);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", clock::strftime_now);
    Ok(environment)
}

/// Prints a value as Python does where that is not what `minijinja` does.
fn print(out: &mut Output, state: &mut State, value: &Jinja) -> Result<(), Error> {
    let python = match value.kind() {
        ValueKind::None => "None",
        ValueKind::Bool if value.is_true() => "True",
        ValueKind::Bool => "False",
        _ => return minijinja::escape_formatter(out, state, value),
    };
    out.write_str(python).map_err(Error::from)
}

/// The message of `raise_exception`, carried through the engine's error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: String) -> Result<Jinja, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

fn template_error(error: Error) -> TemplateError {
    let line = error.line().unwrap_or(1);
    let mut cause: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(&error);
    while let Some(inner) = cause {
        if let Some(Raised(message)) = inner.downcast_ref() {
            return TemplateError::Refused { line, message: message.clone() };
        }
        cause = inner.source();
    }
    let reason = match (error.kind(), error.detail()) {
        (ErrorKind::OutOfFuel, _) => "it takes far more steps than a conversation of this length should".to_owned(),
        (kind, Some(detail)) => format!("{kind}: {detail}"),
        (kind, None) => kind.to_string(),
    };
    match error.kind() {
        ErrorKind::SyntaxError => TemplateError::Syntax { line, reason },
        _ => TemplateError::Render { line, reason },
    }
}
