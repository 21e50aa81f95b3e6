//! How text is cut into words before merging, by the names that GGUF files use (`tokenizer.ggml.pre`).
//!
//! The patterns are those of the models' own `tokenizer.json` files. An unknown name is an error: another model's rule
//! gives plausible and wrong token ids.

use tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

use super::TokenizerError;

/// Up to three digits a word; letters take one leading symbol; symbols take the line breaks behind them.
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// As Llama 3, but every digit for itself.
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// Mistral's Tekken: words also break where lower case turns into upper case.
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// GPT-2's own pattern.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The rule of one family of tokenizers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rule {
    splits: &'static [SplitStep],
    /// A word that is a token is that token, whatever the merges would make of it.
    pub(crate) ignore_merges: bool,
    /// Whether a file that does not say so wants a begin-of-text token.
    pub(crate) add_bos: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SplitStep {
    Digits,
    Pattern(&'static str),
}

/// Names and rules. The first names are those that the project promises; aliases follow the same rule to the letter.
const RULES: &[(&[&str], Rule)] = &[
    (
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"],
        Rule { splits: &[SplitStep::Digits, SplitStep::Pattern(GPT2)], ignore_merges: false, add_bos: false },
    ),
    (
        &["llama-bpe", "llama3", "llama-v3"],
        Rule { splits: &[SplitStep::Pattern(LLAMA3)], ignore_merges: true, add_bos: true },
    ),
    (&["smaug-bpe", "dbrx"], Rule { splits: &[SplitStep::Pattern(LLAMA3)], ignore_merges: false, add_bos: false }),
    (
        &["qwen2", "deepseek-r1-qwen", "stablelm2"],
        Rule { splits: &[SplitStep::Pattern(QWEN2)], ignore_merges: false, add_bos: false },
    ),
    (&["tekken"], Rule { splits: &[SplitStep::Pattern(TEKKEN)], ignore_merges: true, add_bos: true }),
    (
        &["gpt-2", "phi-2", "olmo", "mpt"],
        Rule { splits: &[SplitStep::Pattern(GPT2)], ignore_merges: false, add_bos: false },
    ),
    (
        &["default"],
        Rule {
            splits: &[
                SplitStep::Pattern(r"[\p{P}\$\+<=>\^~\|]+"),
                SplitStep::Pattern(GPT2),
                SplitStep::Pattern(r"\p{N}+"),
                SplitStep::Pattern("[0-9][0-9][0-9]"),
            ],
            ignore_merges: false,
            add_bos: false,
        },
    ),
];

/// The rule called `name`; `file` is for the error.
pub(crate) fn rule(name: &str, file: &str) -> Result<Rule, TokenizerError> {
    let found = RULES.iter().find(|(names, _)| names.contains(&name));
    found.map(|(_, rule)| *rule).ok_or_else(|| TokenizerError::UnsupportedPre {
        file: file.to_owned(),
        pre: name.to_owned(),
        supported: RULES.iter().flat_map(|(names, _)| *names).copied().collect::<Vec<_>>().join(", "),
    })
}

impl Rule {
    /// The pre-tokenizer: the rule's splits, then the byte alphabet. `add_prefix_space` puts a space in front of a text
    /// that has none.
    pub(crate) fn pre_tokenizer(&self, add_prefix_space: bool) -> Result<PreTokenizerWrapper, TokenizerError> {
        let mut steps: Vec<PreTokenizerWrapper> = Vec::with_capacity(self.splits.len() + 1);
        for step in self.splits {
            steps.push(match step {
                SplitStep::Digits => Digits::new(true).into(),
                SplitStep::Pattern(pattern) => {
                    let pattern = SplitPattern::Regex((*pattern).to_owned());
                    let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
                    split.map_err(|e| TokenizerError::Library(e.to_string()))?.into()
                }
            });
        }
        steps.push(ByteLevel::new(add_prefix_space, false, false).into());
        Ok(Sequence::new(steps).into())
    }
}
