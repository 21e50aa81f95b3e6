//! Tokens that are found in a text before anything else is done with it: control tokens and tokens that a user added.

use super::Specials;

#[derive(Debug)]
struct AddedToken {
    text: String,
    id: u32,
    special: bool,
}

/// A set of added tokens, for finding them in a text: leftmost first, the longest of those that start there.
#[derive(Debug)]
pub(crate) struct AddedTokens {
    /// By first byte, longest first. Vocabularies have some hundred of them, nearly all starting with `<` or `[`.
    by_first_byte: Vec<Vec<AddedToken>>,
}

/// A part of a text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part<'t> {
    /// An added token.
    Token(u32),
    /// Text between added tokens; not empty.
    Text(&'t str),
}

impl AddedTokens {
    /// From texts, ids, and whether they are control tokens. Empty texts are left out.
    pub(crate) fn new(tokens: impl IntoIterator<Item = (String, u32, bool)>) -> AddedTokens {
        let mut by_first_byte: Vec<Vec<AddedToken>> = Vec::new();
        by_first_byte.resize_with(256, Vec::new);
        for (text, id, special) in tokens {
            if let Some(&first) = text.as_bytes().first() {
                by_first_byte[first as usize].push(AddedToken { text, id, special });
            }
        }
        for tokens in &mut by_first_byte {
            tokens.sort_by(|a, b| b.text.len().cmp(&a.text.len()).then(a.id.cmp(&b.id)));
        }
        AddedTokens { by_first_byte }
    }

    /// The id of an added token.
    pub(crate) fn id(&self, text: &str) -> Option<u32> {
        let first = *text.as_bytes().first()?;
        self.by_first_byte[first as usize].iter().find(|t| t.text == text).map(|t| t.id)
    }

    /// The places of a text where one of the tokens begins, even inside another one.
    pub(crate) fn starts<'t>(&'t self, text: &'t str) -> impl Iterator<Item = usize> + 't {
        let begins = |token: &AddedToken, at: usize| text.as_bytes()[at..].starts_with(token.text.as_bytes());
        let any = move |(at, byte): (usize, u8)| {
            let begun = self.by_first_byte[byte as usize].iter().any(|token| begins(token, at));
            begun.then_some(at)
        };
        text.bytes().enumerate().filter_map(any)
    }

    /// Cuts a text at the added tokens in it.
    pub(crate) fn split<'t>(&self, text: &'t str, specials: Specials) -> Vec<Part<'t>> {
        let (mut parts, mut done, mut at) = (Vec::new(), 0, 0);
        while let Some(&byte) = text.as_bytes().get(at) {
            let here = &text.as_bytes()[at..];
            let wanted =
                |t: &&AddedToken| (specials == Specials::Parse || !t.special) && here.starts_with(t.text.as_bytes());
            let Some(token) = self.by_first_byte[byte as usize].iter().find(wanted) else {
                at += 1;
                continue;
            };
            if done < at {
                parts.push(Part::Text(&text[done..at]));
            }
            parts.push(Part::Token(token.id));
            at += token.text.len();
            done = at;
        }
        if done < text.len() {
            parts.push(Part::Text(&text[done..]));
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_token_at_the_leftmost_place_wins() {
        let tokens = [("<a>", 1, true), ("<a><b>", 2, true), ("é", 3, false), ("", 4, false)];
        let added = AddedTokens::new(tokens.map(|(t, id, s)| (t.to_owned(), id, s)));
        let parsed = added.split("xé<a><b><a>y", Specials::Parse);
        assert_eq!(parsed, [Part::Text("x"), Part::Token(3), Part::Token(2), Part::Token(1), Part::Text("y")]);
        assert_eq!(added.split("xé<a>", Specials::Plain), [Part::Text("x"), Part::Token(3), Part::Text("<a>")]);
        assert_eq!(added.split("", Specials::Parse), []);
        assert_eq!((added.id("<a>"), added.id("<b>"), added.id("")), (Some(1), None, None));
    }
}
