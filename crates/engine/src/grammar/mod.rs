//! Grammars: what an output must be a sentence of.
//!
//! A [`GrammarCompiler`] is made once for a model's tokenizer and turns a JSON schema, a regular expression or a Lark
//! grammar into a [`Grammar`], off the engine's thread: that takes milliseconds. A grammar is part of the sampling
//! parameters. Each choice of a request follows it with a state of its own, which is a function of the tokens committed
//! and of nothing else. Which token is chosen among the allowed ones is the sampler's; tool calls and JSON bodies may
//! not enter.
//!
//! The parsing itself is `llguidance`'s. Tokens are told apart by their bytes alone, so any way of spelling an allowed
//! text is allowed; control tokens are no text and match nothing.

mod state;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use llguidance::api::{GrammarWithLexer, ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{ParserFactory, TokenParser};
use model::tokenizer::Tokenizer;
use serde_json::{Value, json};

pub(crate) use state::{GrammarState, GrammarStop};

/// White space between the tokens of JSON: one space, or a line break with its indentation. Without a bound a model that
/// is not sure how to go on writes white space until its tokens run out.
const WHITESPACE: &str = r"[ ]|\n[ ]{0,24}";

/// What bounds the time and memory of hostile grammars.
fn limits() -> ParserLimits {
    ParserLimits {
        // Some kilobytes each, of every choice that runs.
        max_lexer_states: 20_000,
        max_grammar_size: 200_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// Bytes that a source may have, as JSON or text.
const MAX_SOURCE: usize = 256 << 10;

/// Characters of an error's text.
const MAX_MESSAGE: usize = 300;

/// Repetitions that a schema or an expression may count: each takes its own states.
const MAX_COUNT: u64 = 10_000;

/// Stack of the thread that compiles: schemas nest.
const STACK: usize = 64 << 20;

/// What a grammar is made from.
#[derive(Debug, Clone, PartialEq)]
pub enum GrammarSource {
    /// JSON that is valid under a schema. The members of an object come in the schema's order.
    JsonSchema {
        /// The schema.
        schema: Value,
        /// Keywords that cannot be enforced are passed over instead of refused.
        lenient: bool,
    },
    /// Text that a regular expression matches as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A grammar in llguidance's variant of Lark, from the rule `start`.
    Lark(String),
}

impl GrammarSource {
    /// The schema as a part of a Lark grammar, after `%json`.
    pub fn json_for_lark(schema: &Value, lenient: bool) -> String {
        with_options(schema, lenient).to_string()
    }
}

/// A source that no grammar can be made from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// It is too large.
    #[error("the grammar has {size} bytes; it may have at most {max}")]
    TooLarge {
        /// Bytes of the source.
        size: usize,
        /// Bytes that it may have.
        max: usize,
    },
    /// It counts too far.
    #[error("{keyword} is {value}; a grammar may count to at most {max}")]
    Count {
        /// The keyword of the schema.
        keyword: String,
        /// Its value.
        value: String,
        /// What it may be.
        max: u64,
    },
    /// It is not valid, asks for what is not supported, or would be too costly to follow.
    #[error("{0}")]
    Invalid(String),
    /// No thread can be had to compile it.
    #[error("cannot start a thread: {0}")]
    Thread(String),
}

/// Makes grammars for one model's tokenizer. Cheap to clone.
#[derive(Clone)]
pub struct GrammarCompiler {
    factory: Arc<ParserFactory>,
    /// Tokens by which the model ends its output.
    eos: Arc<[u32]>,
}

/// A compiled grammar. Cheap to clone; equal to its clones only.
#[derive(Clone)]
pub struct Grammar {
    /// The parser before the first token.
    start: Arc<TokenParser>,
    eos: Arc<[u32]>,
}

impl GrammarCompiler {
    /// Prepares the tokens: some tens of milliseconds.
    ///
    /// # Errors
    /// [`GrammarError::Invalid`] for a vocabulary that cannot be searched.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, GrammarError> {
        let vocab = tokenizer.vocab_size() as u32;
        let words: Vec<Vec<u8>> = (0..vocab).map(|id| word(tokenizer, id)).collect();
        let eos: Arc<[u32]> = tokenizer.eos().iter().copied().filter(|&id| id < vocab).collect();
        let info = TokRxInfo::new(vocab, eos.first().copied().unwrap_or(INVALID_TOKEN));
        let mut trie = TokTrie::from(&info, &words);
        if !eos.is_empty() {
            trie = trie.with_eos_tokens(&eos);
        }
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        // No tokens are forced: how an allowed text is spelled is the model's to say.
        let capabilities = InferenceCapabilities::default();
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&environment, capabilities, &slices).map_err(invalid)?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(Self { factory: Arc::new(factory), eos })
    }

    /// Compiles a grammar, on a thread of its own that this one waits for: milliseconds, and at worst some hundred.
    ///
    /// # Errors
    /// [`GrammarError`], which says what is wrong with the source.
    pub fn compile(&self, source: &GrammarSource) -> Result<Grammar, GrammarError> {
        let grammar = top_level(source)?;
        let compile = || self.factory.create_parser(grammar).map_err(invalid);
        let parser = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK);
            let thread = thread.spawn_scoped(scope, compile);
            let thread = thread.map_err(|error| GrammarError::Thread(error.to_string()))?;
            thread.join().unwrap_or_else(|_| Err(GrammarError::Invalid("the grammar cannot be compiled".into())))
        });
        let mut parser = parser?;
        parser.start_without_prompt();
        Ok(Grammar { start: Arc::new(parser), eos: Arc::clone(&self.eos) })
    }
}

impl fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarCompiler").field("eos", &self.eos).finish_non_exhaustive()
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar").finish_non_exhaustive()
    }
}

impl PartialEq for Grammar {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.start, &other.start)
    }
}

/// The bytes of a token for the trie: control tokens behind the mark that no text has, and nothing for ids without text.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let bytes = tokenizer.bytes(id).unwrap_or_default();
    if tokenizer.is_special(id) || tokenizer.eos().contains(&id) {
        return [&[TokTrie::SPECIAL_TOKEN_MARKER][..], format!("[{id}]").as_bytes()].concat();
    }
    if bytes.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) { Vec::new() } else { bytes }
}

fn top_level(source: &GrammarSource) -> Result<TopLevelGrammar, GrammarError> {
    let grammar = match source {
        GrammarSource::JsonSchema { schema, lenient } => {
            check_size(schema.to_string().len())?;
            check_counts(schema)?;
            GrammarWithLexer::from_json_schema(with_options(schema, *lenient))
        }
        GrammarSource::Regex(regex) => {
            check_size(regex.len())?;
            GrammarWithLexer::from_regex(regex)
        }
        GrammarSource::Choice(texts) => {
            let alternatives: Vec<String> = texts.iter().map(|text| json!(text).to_string()).collect();
            let lark = format!("start: {}", alternatives.join(" | "));
            check_size(lark.len())?;
            GrammarWithLexer::from_lark(lark)
        }
        GrammarSource::Lark(lark) => {
            check_size(lark.len())?;
            GrammarWithLexer::from_lark(lark.clone())
        }
    };
    Ok(TopLevelGrammar::from_grammar(grammar))
}

fn check_size(size: usize) -> Result<(), GrammarError> {
    if size <= MAX_SOURCE { Ok(()) } else { Err(GrammarError::TooLarge { size, max: MAX_SOURCE }) }
}

/// Looks for counts that are too large anywhere in a schema, its constants included: who names a member so has few.
fn check_counts(schema: &Value) -> Result<(), GrammarError> {
    match schema {
        Value::Array(list) => list.iter().try_for_each(check_counts),
        Value::Object(members) => members.iter().try_for_each(|(keyword, value)| {
            let counts = ["minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"];
            let too_far = value.as_f64().is_some_and(|count| count > MAX_COUNT as f64);
            if counts.contains(&keyword.as_str()) && too_far {
                let (keyword, value) = (keyword.clone(), value.to_string());
                return Err(GrammarError::Count { keyword, value, max: MAX_COUNT });
            }
            check_counts(value)
        }),
        _ => Ok(()),
    }
}

/// The schema with our options for llguidance in place of any that came with it.
fn with_options(schema: &Value, lenient: bool) -> Value {
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        schema => schema.clone(),
    };
    if let Value::Object(members) = &mut schema {
        let options = json!({ "whitespace_pattern": WHITESPACE, "lenient": lenient });
        members.insert("x-guidance".into(), options);
    }
    schema
}

/// llguidance's own words, without what it adds for its developers.
fn invalid(error: impl fmt::Display) -> GrammarError {
    let text = format!("{error:#}");
    let text = text.split("\n<").next().unwrap_or_default().trim();
    // It quotes the line at fault, which may be all that there is.
    GrammarError::Invalid(text.chars().take(MAX_MESSAGE).collect())
}
