//! Words that a server's tokenizer makes one token each, and texts of an exact number of tokens.

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::client::{Client, Failure};
use super::workload::Endpoint;
use crate::bench::random::Random;

/// What texts begin with: so that every word has a space before it, as in running text.
const HEAD: &str = "Words:";

/// Frequent in English, so that most tokenizers have them whole; letters for those that have hardly more.
const CANDIDATES: &str = "the of and to in is that for it as was with be by on not he his but at are this have from or \
    had an they which one you were all her she there would their we him been has when who will no more if out so up \
    said what its about than into them can only other time new some could these two may first then do any like my now \
    over such our man me even most made after also did many off before must well back through years much where your \
    way down should because long each just state people world life house work day place water number part three four \
    five great small large a b c d e f g h i j k l m n o p q r s t u v w x y z";

/// Fewer words than this make texts that begin alike.
const LEAST: usize = 16;

/// Words of one token each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Words {
    words: Vec<&'static str>,
    /// Tokens of a text without any word: its head, and what a chat template puts around it.
    overhead: usize,
}

impl Words {
    /// Finds the words by asking the server: its `/tokenize`, or where it has none by the prompt tokens in the usage of
    /// answers of one token.
    ///
    /// # Errors
    /// When the server does not answer, or its tokenizer has too few such words.
    pub(crate) async fn find(client: &Client, model: &str, endpoint: Endpoint) -> Result<Self> {
        let counter = Counter::new(client, model, endpoint).await?;
        let overhead = counter.count(HEAD).await?;
        let mut words = Vec::new();
        let mut groups = vec![CANDIDATES.split_whitespace().collect::<Vec<_>>()];
        while let Some(mut group) = groups.pop() {
            let tokens = counter.count(&format!("{HEAD} {}", group.join(" "))).await?.saturating_sub(overhead);
            // Every word has at least one token: as many tokens as words, and each has one.
            match tokens == group.len() {
                true => words.extend(group),
                false if group.len() > 1 => {
                    groups.push(group.split_off(group.len() / 2));
                    groups.push(group);
                }
                false => {}
            }
        }
        if words.len() < LEAST {
            bail!(
                "the server's tokenizer has too few words of one token to make prompts of an exact length: \
                 give prompts with --prompts FILE"
            );
        }
        Ok(Self { words, overhead })
    }

    /// Tokens of the shortest text.
    pub(crate) fn shortest(&self) -> usize {
        self.overhead
    }

    /// A text of `tokens` tokens whose first words are `number` written in words: up to some tens of thousands, numbers
    /// begin in different ways.
    pub(crate) fn unique(&self, tokens: usize, number: u64, random: &mut Random) -> String {
        self.extended(HEAD.to_owned(), tokens.saturating_sub(self.overhead), number, random)
    }

    /// `text` and `tokens` more tokens, whose first words are `number` written in words.
    pub(crate) fn extended(&self, mut text: String, tokens: usize, number: u64, random: &mut Random) -> String {
        let base = self.words.len() as u64;
        let mut rest = number;
        for at in 0..tokens {
            let word = match at {
                0..4 => (rest % base) as usize,
                _ => random.below(self.words.len()),
            };
            rest /= base;
            text.push(' ');
            text.push_str(self.words[word]);
        }
        text
    }
}

/// Counts the tokens of texts as the server would.
struct Counter<'a> {
    client: &'a Client,
    model: &'a str,
    endpoint: Endpoint,
    /// Whether the server has `/tokenize`.
    tokenize: bool,
}

impl<'a> Counter<'a> {
    async fn new(client: &'a Client, model: &'a str, endpoint: Endpoint) -> Result<Self> {
        let mut counter = Self { client, model, endpoint, tokenize: true };
        // Others have the address with other fields, which then say nothing of this text.
        let [short, long] = [counter.count(HEAD).await, counter.count(&format!("{HEAD} {HEAD}")).await];
        counter.tokenize = matches!((short, long), (Ok(short), Ok(long)) if long > short);
        Ok(counter)
    }

    async fn count(&self, text: &str) -> Result<usize> {
        let mut body = json!({ "model": self.model });
        self.endpoint.prompt(text).set(&mut body);
        let answer = match self.tokenize {
            true => self.client.post("/tokenize", &body).await.map(|answer| answer["count"].as_u64()),
            false => self.usage(body).await,
        };
        let count = answer.map_err(|failure| anyhow::anyhow!("{}: {}", failure.kind, failure.message))?;
        match count {
            Some(count) => Ok(count as usize),
            None => bail!("the server does not say how many tokens a prompt has: give prompts with --prompts FILE"),
        }
    }

    async fn usage(&self, mut body: Value) -> Result<Option<u64>, Failure> {
        body["max_tokens"] = 1.into();
        let answer = self.client.post(self.endpoint.path(), &body).await?;
        Ok(answer["usage"]["prompt_tokens"].as_u64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Words {
        Words { words: CANDIDATES.split_whitespace().collect(), overhead: 3 }
    }

    #[test]
    fn candidates_are_different_words() {
        let mut all = words().words;
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn texts_have_their_words_and_begin_differently() {
        let words = words();
        let texts: Vec<String> = (0..2000).map(|n| words.unique(13, n, &mut Random::new(n))).collect();
        assert!(texts.iter().all(|text| text.split(' ').count() == 1 + 10));
        let mut heads: Vec<Vec<&str>> = texts.iter().map(|text| text.split(' ').take(5).collect()).collect();
        heads.sort_unstable();
        heads.dedup();
        assert_eq!(heads.len(), 2000);
        assert_eq!(words.unique(13, 7, &mut Random::new(7)), texts[7]);
    }

    #[test]
    fn an_extension_leaves_what_it_extends() {
        let words = words();
        let prefix = words.unique(8, 1, &mut Random::new(1));
        let [a, b] = [0, 1].map(|n| words.extended(prefix.clone(), 4, n, &mut Random::new(n)));
        assert!(a.starts_with(&prefix) && b.starts_with(&prefix) && a != b);
        assert_eq!(a.split(' ').count(), prefix.split(' ').count() + 4);
    }
}
