//! Compiling grammars, off the threads that answer, and keeping those that will be asked for again: clients send the
//! same form with every request.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use engine::{Grammar, GrammarCompiler, GrammarError, GrammarSource};
use model::tokenizer::Tokenizer;
use tokio::sync::Semaphore;

use crate::error::ApiError;

/// Grammars that are compiled at the same time: the engine needs the processors too.
const AT_ONCE: usize = 2;

/// Compiled grammars that are kept.
const KEPT: usize = 32;

/// Bytes of their keys together, and four times what one may have that is kept.
const KEPT_BYTES: usize = 256 << 10;

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
    kept: Mutex<Kept>,
}

/// Compiled grammars by what they were made from, the latest used first.
#[derive(Debug, Default)]
struct Kept(Vec<(String, Grammar)>);

impl Kept {
    fn find(&mut self, key: &str) -> Option<Grammar> {
        let place = self.0.iter().position(|(known, _)| known == key)?;
        self.0[..=place].rotate_right(1);
        self.0.first().map(|(_, grammar)| grammar.clone())
    }

    fn keep(&mut self, key: String, grammar: Grammar) {
        if key.len() > KEPT_BYTES / 4 {
            return;
        }
        // Another request may have been compiling the same.
        self.0.retain(|(known, _)| *known != key);
        self.0.insert(0, (key, grammar));
        let mut bytes = 0;
        let fits = |(key, _): &(String, Grammar)| {
            bytes += key.len();
            bytes <= KEPT_BYTES
        };
        let fitting = self.0.iter().take(KEPT).map(fits).take_while(|&fits| fits).count();
        self.0.truncate(fitting);
    }
}

impl Grammars {
    pub(crate) fn new(tokenizer: Tokenizer) -> Self {
        Self { tokenizer, compiler: Arc::default(), permits: Semaphore::new(AT_ONCE), kept: Mutex::default() }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // Nothing that panics runs under the lock.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
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
        // Not the source itself: JSON that differs in the order of its members is equal, and its grammar another.
        let key = format!("{source:?}");
        if let Some(grammar) = self.kept().find(&key) {
            return Ok(Ok(grammar));
        }
        // An error says that the semaphore is closed, which nobody does.
        let _permit = self.permits.acquire().await.map_err(|error| ApiError::failed(error.to_string()))?;
        let (tokenizer, compiler) = (self.tokenizer.clone(), Arc::clone(&self.compiler));
        let compile = move || {
            let compiler = compiler.get_or_init(|| GrammarCompiler::new(&tokenizer));
            compiler.as_ref().map_err(GrammarError::clone)?.compile(&source)
        };
        let compiled = tokio::task::spawn_blocking(compile).await;
        let compiled = compiled.map_err(|error| ApiError::failed(error.to_string()))?;
        if let Ok(grammar) = &compiled {
            self.kept().keep(key, grammar.clone());
        }
        Ok(compiled)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use testkit::byte_tokenizer;

    use super::*;

    async fn compiled(grammars: &Grammars, source: GrammarSource) -> Grammar {
        grammars.try_compile(source).await.unwrap().unwrap()
    }

    fn members(names: [&str; 2]) -> GrammarSource {
        let properties: serde_json::Map<_, _> = names.map(|name| (name.to_owned(), json!({}))).into_iter().collect();
        GrammarSource::JsonSchema { schema: json!({ "type": "object", "properties": properties }), lenient: false }
    }

    #[tokio::test]
    async fn a_form_that_comes_again_is_compiled_once() {
        let grammars = Grammars::new(byte_tokenizer());
        let first = compiled(&grammars, members(["a", "b"])).await;
        assert_eq!(compiled(&grammars, members(["a", "b"])).await, first);
        assert_ne!(compiled(&grammars, members(["b", "a"])).await, first, "the order of members counts");
        assert!(grammars.try_compile(GrammarSource::Regex("(".into())).await.unwrap().is_err());
        assert_eq!(grammars.kept().0.len(), 2);
    }

    #[tokio::test]
    async fn what_is_kept_is_bounded_and_the_latest() {
        let grammars = Grammars::new(byte_tokenizer());
        let regex = |i: usize| GrammarSource::Regex(format!("a{{{i}}}"));
        let used = compiled(&grammars, regex(0)).await;
        let unused = compiled(&grammars, regex(1)).await;
        for i in 2..=KEPT {
            compiled(&grammars, regex(i)).await;
            assert_eq!(compiled(&grammars, regex(0)).await, used);
        }
        assert_eq!(grammars.kept().0.len(), KEPT);
        assert_ne!(compiled(&grammars, regex(1)).await, unused);
        let long = |i: usize, share: usize| GrammarSource::Choice(vec![i.to_string().repeat(KEPT_BYTES / share)]);
        for i in 1..=6 {
            compiled(&grammars, long(i, 5)).await;
        }
        compiled(&grammars, long(1, 3)).await;
        assert_eq!(grammars.kept().0.len(), 4, "four of those that are not too long");
    }
}
