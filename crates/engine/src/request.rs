//! A request: its tokens, its text, when it ends, and the one function that commits a token.

use draft::Words;
use model::detokenize::Detokenizer;
use model::tokenizer::{Tokenizer, TokenizerError};

use spec::{Distribution, Expansion};

use crate::drafting::Drafting;
use crate::grammar::GrammarState;
use crate::history::History;
use crate::noise::{NoiseKey, Purpose};
use crate::params::{ParamsError, SamplingParams};
use crate::process::Scratch;
use crate::sampler::{SampleError, Sampled, Sampler};
use crate::stop::StopMatcher;

/// What a request may use of the model it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Tokens that can be sampled: ids below this.
    pub vocab: usize,
    /// Positions of prompt and output together.
    pub context: usize,
    /// Tokens by which the model ends its output.
    pub eos: Vec<u32>,
}

/// A request that cannot run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// A sampling parameter is out of range.
    #[error(transparent)]
    Params(#[from] ParamsError),
    /// There is nothing to continue.
    #[error("the prompt is empty: give at least one token")]
    EmptyPrompt,
    /// The prompt leaves no room for an output token.
    #[error(
        "the prompt has {prompt} tokens, and the context holds {context}, the answer included: shorten the prompt by at \
        least {}",
        (prompt + 1).saturating_sub(*context)
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Positions of the context.
        context: usize,
    },
    /// So many choices cannot run at once.
    #[error("n is {n}; it must be from 1 to {max}")]
    Choices {
        /// Choices asked for.
        n: u32,
        /// Choices that may run at once.
        max: usize,
    },
    /// The prompt has a token that the model does not know.
    #[error("token {token} at position {position} of the prompt is not below the vocabulary's {vocab}")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Its place in the prompt.
        position: usize,
        /// Tokens of the vocabulary.
        vocab: usize,
    },
}

/// A token that cannot be committed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The request has ended.
    #[error("the request has ended: token {token} came too late")]
    Ended {
        /// The token.
        token: u32,
    },
    /// The token has no text. It is not committed, and the request ends with [`FinishReason::Error`].
    #[error("the text of token {token} cannot be had: {source}")]
    Text {
        /// The token.
        token: u32,
        /// What the tokenizer says.
        source: TokenizerError,
    },
    /// The grammar forbids the token, or cannot be followed past it. It is not committed, and the request ends with
    /// [`FinishReason::Error`].
    #[error("the grammar cannot be followed past token {token}")]
    Grammar {
        /// The token.
        token: u32,
    },
}

/// Why a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// An end-of-sequence or stop token, or a grammar that allows nothing more.
    Stop,
    /// A stop string.
    StopString,
    /// `max_tokens`, or the end of the context.
    Length,
    /// The receiver wanted no more.
    Cancelled,
    /// Logits or a token that nothing can be done with.
    Error,
}

/// What one committed token adds to the answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Delta {
    /// The token.
    pub token: u32,
    /// Text that is now sure to stay. Often the token's own; less when a character is incomplete or a stop string may
    /// have begun, more when that is resolved.
    pub text: String,
    /// The token's log-probability, if asked for.
    pub logprob: Option<f32>,
    /// The likeliest tokens and their log-probabilities, if asked for.
    pub top: Vec<(u32, f32)>,
    /// Whether the token had been drafted.
    pub drafted: bool,
}

/// The outcome of a commit.
#[derive(Debug, Clone, PartialEq)]
pub struct Committed {
    /// What the token adds.
    pub delta: Delta,
    /// Set when the request ends with this token.
    pub finish: Option<FinishReason>,
}

/// Tokens of a request so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens committed, the one that ended the request included.
    pub output_tokens: usize,
    /// Tokens of the prompt that the prefix cache spared the computation of.
    pub cached_tokens: usize,
    /// Drafts that were checked.
    pub drafted_tokens: usize,
    /// Drafts that were committed.
    pub accepted_tokens: usize,
}

/// One choice of one request, from its prompt to its end.
#[derive(Debug, Clone)]
pub struct Request {
    history: History,
    sampler: Sampler,
    detokenizer: Detokenizer,
    stops: StopMatcher,
    grammar: Option<GrammarState>,
    drafting: Drafting,
    context: usize,
    cached_tokens: usize,
    drafted_tokens: usize,
    accepted_tokens: usize,
    finish: Option<FinishReason>,
}

impl Request {
    /// Choice number `choice` of a request to continue `prompt`.
    ///
    /// # Errors
    /// [`RequestError`], before anything has run, when the parameters are out of range or the prompt does not fit.
    pub fn new(
        prompt: &[u32],
        params: SamplingParams,
        choice: u32,
        limits: &Limits,
        tokenizer: &Tokenizer,
    ) -> Result<Self, RequestError> {
        let Limits { vocab, context, ref eos } = *limits;
        params.validate(vocab)?;
        if prompt.is_empty() {
            return Err(RequestError::EmptyPrompt);
        }
        if prompt.len() >= context {
            return Err(RequestError::PromptTooLong { prompt: prompt.len(), context });
        }
        if let Some(position) = prompt.iter().position(|&token| token as usize >= vocab) {
            return Err(RequestError::UnknownToken { token: prompt[position], position, vocab });
        }
        Ok(Self {
            history: History::new(prompt),
            detokenizer: tokenizer.detokenizer(params.skip_special_tokens),
            stops: StopMatcher::new(&params.stop),
            grammar: params.grammar.clone().map(GrammarState::new),
            sampler: Sampler::new(params, eos, choice),
            drafting: Drafting::default(),
            context,
            cached_tokens: 0,
            drafted_tokens: 0,
            accepted_tokens: 0,
            finish: None,
        })
    }

    /// The same request with what its client says about drafts.
    pub fn with_drafting(self, drafting: Drafting) -> Self {
        Self { drafting, ..self }
    }

    /// What its client says about drafts.
    pub fn drafting(&self) -> &Drafting {
        &self.drafting
    }

    /// The tokens so far, prompt first, each at its absolute position.
    pub fn tokens(&self) -> &[u32] {
        self.history.tokens()
    }

    /// The committed tokens.
    pub fn outputs(&self) -> &[u32] {
        self.history.outputs()
    }

    /// What the next token is judged against. Speculation clones or extends it for the rows of its drafts.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// What chooses the tokens.
    pub fn sampler(&self) -> &Sampler {
        &self.sampler
    }

    /// Tokens so far.
    pub fn usage(&self) -> Usage {
        let output_tokens = self.outputs().len();
        let Self { cached_tokens, drafted_tokens, accepted_tokens, .. } = *self;
        let prompt_tokens = self.tokens().len() - output_tokens;
        Usage { prompt_tokens, output_tokens, cached_tokens, drafted_tokens, accepted_tokens }
    }

    /// Notes how much of the prompt was found in the prefix cache; it shows in the usage and nowhere else.
    pub(crate) fn set_cached_tokens(&mut self, tokens: usize) {
        self.cached_tokens = tokens;
    }

    /// Notes that `accepted` of `drafted` drafts were committed; it shows in the usage and nowhere else.
    pub(crate) fn count_drafts(&mut self, drafted: usize, accepted: usize) {
        self.drafted_tokens += drafted;
        self.accepted_tokens += accepted;
    }

    /// Tokens that may still be committed.
    pub fn remaining(&self) -> usize {
        let left = self.sampler.params().max_tokens.map_or(usize::MAX, |max| max.saturating_sub(self.outputs().len()));
        left.min(self.context.saturating_sub(self.tokens().len()))
    }

    /// Why the request ended, if it has.
    pub fn finish(&self) -> Option<FinishReason> {
        self.finish
    }

    /// Samples the next token from the raw `logits` `[vocab]` of the newest one's row, among those that the grammar allows.
    ///
    /// # Errors
    /// As [`Sampler::sample`]; the request then ends with [`FinishReason::Error`].
    pub fn sample(&mut self, logits: &[f32], scratch: &mut Scratch) -> Result<Sampled, SampleError> {
        // A position of the context: far below 2^32.
        let position = self.tokens().len() as u32;
        let grammar = self.grammar.as_mut();
        let sampled = self.sampler.sample_within(grammar, logits, &self.history, position, scratch);
        if sampled.is_err() {
            self.finish = Some(FinishReason::Error);
        }
        sampled
    }

    /// The law that [`Request::sample`] draws from.
    ///
    /// # Errors
    /// As [`Request::sample`].
    pub(crate) fn law(&mut self, logits: &[f32], scratch: &mut Scratch) -> Result<Distribution, SampleError> {
        let law = self.sampler.law(self.grammar.as_mut(), logits, &self.history, scratch);
        if law.is_err() {
            self.finish = Some(FinishReason::Error);
        }
        law
    }

    /// `token` as the choice from these `logits`, however it came about.
    ///
    /// # Errors
    /// As [`Request::sample`].
    pub(crate) fn chosen(&mut self, token: u32, logits: &[f32], scratch: &mut Scratch) -> Result<Sampled, SampleError> {
        let sampled = self.sampler.report(token, logits, scratch);
        if sampled.is_err() {
            self.finish = Some(FinishReason::Error);
        }
        sampled
    }

    /// Noise of the round that begins at the newest token.
    pub(crate) fn round_noise(&self, purpose: Purpose) -> NoiseKey {
        self.sampler.noise_key().of_round(purpose, self.tokens().len() as u32 - 1)
    }

    /// The draft after `drafts` from a drafter's `logits`, and its probability by them. What a grammar forbids may come:
    /// it does not stand.
    pub(crate) fn draft(&self, drafts: &[u32], logits: &[f32], scratch: &mut Scratch) -> Option<(u32, f64)> {
        let position = (self.tokens().len() + drafts.len()) as u32;
        self.with_drafts(drafts, |history| self.sampler.draft(logits, history, position, scratch))
    }

    /// The tokens that are likeliest to be sampled after `drafts` if a drafter's `words` were the target's, best first.
    pub(crate) fn choices(&self, drafts: &[u32], words: Words<'_>, most: usize, scratch: &mut Scratch) -> Expansion {
        let position = (self.tokens().len() + drafts.len()) as u32;
        self.with_drafts(drafts, |history| self.sampler.choices(words, history, position, most, scratch))
    }

    /// The law that a drafter with these `logits` draws from after `drafts`.
    pub(crate) fn draft_law(&self, drafts: &[u32], logits: &[f32], scratch: &mut Scratch) -> Option<Distribution> {
        self.with_drafts(drafts, |history| self.sampler.law(None, logits, history, scratch).ok())
    }

    /// The history as if `drafts` were committed, where anything looks at it.
    fn with_drafts<T>(&self, drafts: &[u32], use_it: impl FnOnce(&History) -> T) -> T {
        let params = self.sampler.params();
        if drafts.is_empty() || !(params.has_penalties() || self.outputs().len() < params.min_tokens) {
            return use_it(&self.history);
        }
        let mut history = self.history.clone();
        drafts.iter().for_each(|&token| history.push(token));
        use_it(&history)
    }

    /// Ends the request where it is: the receiver wants no more.
    pub fn cancel(&mut self) {
        self.finish.get_or_insert(FinishReason::Cancelled);
    }

    /// Commits the next token, and ends the request if it is to end there.
    ///
    /// Everything that follows from a token follows from it here, for sampled and for verified tokens alike: history,
    /// usage, text, log-probabilities, and the end. The token that ends the request is its last and counts in its
    /// usage; the text ends before an end token, and before a stop string, which may have begun some tokens earlier.
    ///
    /// # Errors
    /// [`CommitError`] if the request has ended already or the token has no text; nothing is committed.
    pub fn commit(&mut self, sampled: Sampled) -> Result<Committed, CommitError> {
        let Sampled { token, logprob, top } = sampled;
        if self.finish.is_some() {
            return Err(CommitError::Ended { token });
        }
        let may_stop = self.outputs().len() >= self.sampler.params().min_tokens;
        let ends = (may_stop && self.sampler.is_end(token)) || self.ends_grammar(token);
        // The text is complete with this token, and nothing can follow it.
        let complete = !ends && self.follow_grammar(token)?;
        let piece = if ends { self.detokenizer.finish() } else { self.text_of(token)? };
        self.history.push(token);
        let mut released = self.stops.push(&piece, may_stop);
        if ends {
            self.finish = Some(FinishReason::Stop);
        } else if released.stopped {
            self.finish = Some(FinishReason::StopString);
        } else if complete || self.is_full() {
            self.finish = Some(if complete { FinishReason::Stop } else { FinishReason::Length });
            let rest = self.stops.push(&self.detokenizer.finish(), may_stop);
            released.text.push_str(&rest.text);
            released.stopped = rest.stopped;
        }
        if self.finish.is_some() && !released.stopped {
            released.text.push_str(&self.stops.finish());
        }
        Ok(Committed { delta: Delta { token, text: released.text, logprob, top, drafted: false }, finish: self.finish })
    }

    /// Whether the token ends the output because the grammar is at its end: it was then chosen for want of any other.
    fn ends_grammar(&self, token: u32) -> bool {
        self.grammar.as_ref().is_some_and(|grammar| grammar.is_eos(token))
    }

    /// Answers whether the grammar allows nothing after the token.
    fn follow_grammar(&mut self, token: u32) -> Result<bool, CommitError> {
        let Some(grammar) = &mut self.grammar else { return Ok(false) };
        grammar.advance(token).map_err(|_| {
            self.finish = Some(FinishReason::Error);
            CommitError::Grammar { token }
        })
    }

    fn text_of(&mut self, token: u32) -> Result<String, CommitError> {
        self.detokenizer.push(token).map_err(|source| {
            self.finish = Some(FinishReason::Error);
            CommitError::Text { token, source }
        })
    }

    /// Whether no further token is allowed.
    fn is_full(&self) -> bool {
        self.remaining() == 0
    }
}
