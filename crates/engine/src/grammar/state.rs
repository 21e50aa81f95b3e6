//! How far one choice has come in its grammar.

use std::fmt;
use std::panic::AssertUnwindSafe;

use llguidance::TokenParser;
use llguidance::api::StopReason;
use llguidance::panic_utils::catch_unwind;

use super::Grammar;

/// Why a grammar can be followed no further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GrammarStop {
    /// No token of the vocabulary continues it.
    DeadEnd,
    /// What may come next takes too much to find out.
    TooComplex,
    /// The token is not one that may come next, or the parser failed.
    Failed,
}

/// The state of one choice: a function of the grammar and of the tokens that it was advanced by.
pub(crate) struct GrammarState {
    grammar: Grammar,
    /// Made at the first token: a request that waits holds none.
    parser: Option<Box<TokenParser>>,
}

impl GrammarState {
    /// Before the first token.
    pub(crate) fn new(grammar: Grammar) -> Self {
        Self { grammar, parser: None }
    }

    /// Whether the token is one by which the model ends its output. Under a grammar it is never text.
    pub(crate) fn is_eos(&self, token: u32) -> bool {
        self.grammar.eos.contains(&token)
    }

    /// A token to end with where nothing else is left.
    pub(crate) fn eos(&self) -> Option<u32> {
        self.grammar.eos.first().copied()
    }

    /// Whether the output so far is a sentence of the grammar.
    pub(crate) fn is_accepting(&mut self) -> bool {
        self.run(|parser| parser.is_accepting()).unwrap_or(false)
    }

    /// Whether `token` may come next. `ends` are the tokens that end the output: they may where it is a sentence.
    pub(crate) fn allows(&mut self, token: u32, ends: &[u32]) -> bool {
        if ends.contains(&token) && self.is_accepting() {
            return true;
        }
        !self.is_eos(token) && self.is_text(token)
    }

    fn is_text(&mut self, token: u32) -> bool {
        let parser = self.parser();
        if token as usize >= parser.token_env.tok_trie().vocab_size() {
            return false;
        }
        catch_unwind(AssertUnwindSafe(|| parser.validate_token(token))).unwrap_or(false)
    }

    /// Sets the logits of all tokens that may not come next to −∞. `ends` as for [`GrammarState::allows`].
    ///
    /// # Errors
    /// [`GrammarStop`] when nothing at all may come, or it cannot be said what.
    pub(crate) fn mask(&mut self, row: &mut [f32], ends: &[u32]) -> Result<(), GrammarStop> {
        let accepting = self.is_accepting();
        let ends = ends.iter().filter(|&&token| accepting && (token as usize) < row.len());
        let ends: Vec<(u32, f32)> = ends.map(|&token| (token, row[token as usize])).collect();
        let parser = self.parser();
        let allowed = catch_unwind(AssertUnwindSafe(|| parser.compute_mask()));
        match allowed {
            Ok(allowed) => keep(row, allowed.as_slice()),
            // Only an end may come, and the vocabulary's own are none.
            Err(_) if accepting && self.stop() == GrammarStop::DeadEnd => row.fill(f32::NEG_INFINITY),
            Err(_) => return Err(self.stop()),
        }
        for &token in self.grammar.eos.iter() {
            if let Some(logit) = row.get_mut(token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        for (token, logit) in ends {
            row[token as usize] = logit;
        }
        Ok(())
    }

    /// Goes on past `token`. Answers whether the output is now a sentence that nothing can be added to.
    ///
    /// # Errors
    /// [`GrammarStop`] when the token may not come next.
    pub(crate) fn advance(&mut self, token: u32) -> Result<bool, GrammarStop> {
        if !self.is_text(token) {
            return Err(match self.stop() {
                GrammarStop::TooComplex => GrammarStop::TooComplex,
                _ => GrammarStop::Failed,
            });
        }
        let parser = self.parser();
        let advanced = catch_unwind(AssertUnwindSafe(|| {
            parser.consume_token(token)?;
            parser.check_stop()
        }));
        advanced.map_err(|_| self.stop())
    }

    fn parser(&mut self) -> &mut TokenParser {
        // A deep clone: what the lexer finds out for one choice must not count against the limits of another.
        self.parser.get_or_insert_with(|| Box::new(self.grammar.start.deep_clone()))
    }

    fn run<T>(&mut self, step: impl FnOnce(&mut TokenParser) -> T) -> Option<T> {
        let parser = self.parser();
        catch_unwind(AssertUnwindSafe(|| Ok(step(parser)))).ok()
    }

    fn stop(&mut self) -> GrammarStop {
        match self.parser().stop_reason() {
            StopReason::NoExtensionBias | StopReason::NoExtension => GrammarStop::DeadEnd,
            StopReason::LexerTooComplex | StopReason::ParserTooComplex => GrammarStop::TooComplex,
            _ => GrammarStop::Failed,
        }
    }
}

impl Clone for GrammarState {
    fn clone(&self) -> Self {
        let parser = self.parser.as_ref().map(|parser| Box::new(parser.deep_clone()));
        Self { grammar: self.grammar.clone(), parser }
    }
}

impl fmt::Debug for GrammarState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokens = self.parser.as_ref().map_or(0, |parser| parser.num_tokens());
        f.debug_struct("GrammarState").field("tokens", &tokens).finish_non_exhaustive()
    }
}

/// Sets the logits whose bit is not set, or that have none, to −∞.
fn keep(row: &mut [f32], bits: &[u32]) {
    let words = bits.iter().copied().chain(std::iter::repeat(0));
    for (logits, word) in row.chunks_mut(32).zip(words) {
        match word {
            0 => logits.fill(f32::NEG_INFINITY),
            u32::MAX => {}
            word => {
                let banned = logits.iter_mut().enumerate().filter(|(bit, _)| (word >> bit) & 1 == 0);
                banned.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
            }
        }
    }
}
