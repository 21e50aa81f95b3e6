//! What is asked: the first turn of each prompt of a file, as the target's tokens.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use cli::prompts::{Encoder, Line};
use serde_json::{Value, json};

/// The category of prompts that have none.
const UNNAMED: &str = "prompts";

/// A prompt that fits.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Question {
    /// Its line of the file: keeps its noise apart from that of others.
    pub(crate) number: u64,
    pub(crate) id: String,
    pub(crate) category: String,
    pub(crate) tokens: Vec<u32>,
}

/// The prompts of a run.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    /// Those that fit, in the order of the file.
    pub(crate) all: Vec<Question>,
    /// Those that the context cannot hold: id, and tokens.
    pub(crate) too_long: Vec<(String, usize)>,
}

impl Questions {
    /// Encodes `lines`, of the named `categories` only if there are any. A prompt of `context` tokens or more leaves no
    /// room for an answer and is left out.
    ///
    /// # Errors
    /// When a category is in no line, a prompt cannot be encoded, or none is left.
    pub(crate) fn new(lines: &[Line], categories: &[String], encoder: &Encoder<'_>, context: usize) -> Result<Self> {
        let category = |line: &Line| line.category.clone().unwrap_or_else(|| UNNAMED.to_owned());
        let mut known: Vec<String> = lines.iter().map(category).collect();
        known.sort();
        known.dedup();
        if let Some(unknown) = categories.iter().find(|name| !known.contains(name)) {
            bail!("no prompt is of the category '{unknown}'; there are {}", known.join(", "));
        }
        let mut questions = Self::default();
        for line in lines {
            let category = category(line);
            if !categories.is_empty() && !categories.contains(&category) {
                continue;
            }
            let id = line.id.clone().unwrap_or_else(|| format!("line {}", line.number));
            let tokens = encoder.encode(&line.content).with_context(|| format!("prompt {id} cannot be asked"))?;
            match tokens.len() < context {
                true => questions.all.push(Question { number: line.number as u64, id, category, tokens }),
                false => questions.too_long.push((id, tokens.len())),
            }
        }
        if questions.all.is_empty() {
            bail!("all {} prompts are longer than the context of {context} tokens", questions.too_long.len());
        }
        Ok(questions)
    }

    /// The first `limit` prompts of each category, in the order of the file.
    pub(crate) fn first(&self, limit: Option<usize>) -> Vec<&Question> {
        let (mut taken, mut first) = (BTreeMap::<&str, usize>::new(), Vec::new());
        for question in &self.all {
            let taken = taken.entry(&question.category).or_default();
            *taken += 1;
            if limit.is_none_or(|limit| *taken <= limit) {
                first.push(question);
            }
        }
        first
    }

    /// `count` prompts, of every category in turn, so that any number is a mixture. Fewer if there are fewer.
    pub(crate) fn mixed(&self, count: usize) -> Vec<&Question> {
        let mut by_category: BTreeMap<&str, Vec<&Question>> = BTreeMap::new();
        for question in &self.all {
            by_category.entry(&question.category).or_default().push(question);
        }
        let longest = by_category.values().map(Vec::len).max().unwrap_or(0);
        let turns = (0..longest).flat_map(|at| by_category.values().filter_map(move |of| of.get(at).copied()));
        turns.take(count).collect()
    }

    /// What a report says of them.
    pub(crate) fn to_json(&self) -> Value {
        let mut fit: BTreeMap<&str, usize> = BTreeMap::new();
        self.all.iter().for_each(|question| *fit.entry(&question.category).or_default() += 1);
        let skipped = |(id, tokens): &(String, usize)| json!({ "id": id, "prompt_tokens": tokens });
        json!({ "fit": fit, "too_long": self.too_long.iter().map(skipped).collect::<Value>(), "turns": "the first only" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cli::prompts::Content;
    use testkit::byte_tokenizer;

    fn line(number: usize, category: Option<&str>, text: &str) -> Line {
        let category = category.map(str::to_owned);
        Line { number, id: None, category, content: Content::Text(text.to_owned()) }
    }

    fn lines() -> Vec<Line> {
        let tasks = [Some("qa"), Some("qa"), Some("qa"), Some("rag"), None];
        (1..).zip(tasks).map(|(number, task)| line(number, task, &"x".repeat(number))).collect()
    }

    fn questions(categories: &[&str], context: usize) -> Result<Questions> {
        let tokenizer = byte_tokenizer();
        let encoder = Encoder { tokenizer: &tokenizer, template: None };
        let categories: Vec<String> = categories.iter().map(|name| (*name).to_owned()).collect();
        Questions::new(&lines(), &categories, &encoder, context)
    }

    fn ids(questions: &[&Question]) -> Vec<String> {
        questions.iter().map(|question| question.id.clone()).collect()
    }

    #[test]
    fn prompts_are_limited_by_category_and_mixed_in_turns() {
        let questions = questions(&[], 100).unwrap();
        assert_eq!(questions.all[1].tokens, [120, 120]);
        assert_eq!(ids(&questions.first(Some(2))), ["line 1", "line 2", "line 4", "line 5"]);
        assert_eq!(questions.first(None).len(), 5);
        assert_eq!(ids(&questions.mixed(4)), ["line 5", "line 1", "line 4", "line 2"]);
        assert_eq!(questions.mixed(100).len(), 5);
        assert_eq!(questions.to_json()["fit"], json!({ "qa": 3, "rag": 1, "prompts": 1 }));
    }

    #[test]
    fn what_does_not_fit_is_left_out_and_counted() {
        let questions = questions(&["qa", "rag"], 4).unwrap();
        assert_eq!(ids(&questions.first(None)), ["line 1", "line 2", "line 3"]);
        assert_eq!(questions.too_long, [("line 4".to_owned(), 4)]);
    }

    #[test]
    fn what_cannot_be_asked_is_an_error_that_says_why() {
        for (categories, context, told) in
            [(&["math"][..], 100, "there are prompts, qa, rag"), (&[], 1, "longer than the context of 1 tokens")]
        {
            let error = questions(categories, context).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
        let tokenizer = byte_tokenizer();
        let encoder = Encoder { tokenizer: &tokenizer, template: None };
        let lines = [Line { content: Content::Messages(Vec::new()), ..line(7, None, "") }];
        let error = Questions::new(&lines, &[], &encoder, 10).unwrap_err();
        assert!(format!("{error:#}").contains("line 7") && format!("{error:#}").contains("--raw"));
    }
}
