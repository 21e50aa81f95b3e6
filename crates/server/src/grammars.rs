//! Compiling grammars, off the threads that answer.

use std::sync::{Arc, OnceLock};

use engine::{Grammar, GrammarCompiler, GrammarError, GrammarSource};
use model::tokenizer::Tokenizer;
use tokio::sync::Semaphore;

use crate::error::ApiError;

/// Grammars that are compiled at the same time: the engine needs the processors too.
const AT_ONCE: usize = 2;

/// A grammar that a client asked for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Wanted {
    /// The field that it came in.
    pub(crate) field: &'static str,
    pub(crate) source: GrammarSource,
}

/// The compiler of the served model, made when the first grammar is asked for.
pub(crate) struct Grammars {
    tokenizer: Tokenizer,
    compiler: Arc<OnceLock<Result<GrammarCompiler, GrammarError>>>,
    permits: Semaphore,
}

impl Grammars {
    pub(crate) fn new(tokenizer: Tokenizer) -> Self {
        Self { tokenizer, compiler: Arc::default(), permits: Semaphore::new(AT_ONCE) }
    }

    /// Compiles a grammar.
    ///
    /// # Errors
    /// 400 naming the field, when the grammar is not valid or not supported.
    pub(crate) async fn compile(&self, wanted: Wanted) -> Result<Grammar, ApiError> {
        let field = wanted.field;
        let compiled = self.try_compile(wanted.source).await?;
        compiled.map_err(|error| match error {
            GrammarError::Thread(_) => ApiError::failed(error.to_string()),
            error => ApiError::field(field, format!("{field}: {error}")),
        })
    }

    /// Compiles a grammar whose errors are the caller's to explain.
    pub(crate) async fn try_compile(&self, source: GrammarSource) -> Result<Result<Grammar, GrammarError>, ApiError> {
        // An error says that the semaphore is closed, which nobody does.
        let _permit = self.permits.acquire().await.map_err(|error| ApiError::failed(error.to_string()))?;
        let (tokenizer, compiler) = (self.tokenizer.clone(), Arc::clone(&self.compiler));
        let compile = move || {
            let compiler = compiler.get_or_init(|| GrammarCompiler::new(&tokenizer));
            compiler.as_ref().map_err(GrammarError::clone)?.compile(&source)
        };
        tokio::task::spawn_blocking(compile).await.map_err(|error| ApiError::failed(error.to_string()))
    }
}
