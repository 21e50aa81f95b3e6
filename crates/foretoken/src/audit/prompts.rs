//! What the audit asks: texts in which drafters find much, little and nothing to copy.

use std::path::Path;

use anyhow::Result;

use cli::prompts::{self, Content, Line};

/// The prompts of an audit that is given none.
const BUILT_IN: [&str; 8] = [
    "Repeat this line five times, exactly: the quick brown fox jumps over the lazy dog",
    "Return this JSON with every price doubled, and nothing else: [{\"name\": \"apple\", \"price\": 3}, {\"name\": \
     \"pear\", \"price\": 5}, {\"name\": \"plum\", \"price\": 7}]",
    "Rename the variable `total` to `amount` in this code:\n\ndef total_price(items):\n    total = 0\n    for item in \
     items:\n        total = total + item.price\n    return total\n",
    "Count from 1 to 40, each number on a line of its own.",
    "Summarise in one sentence: The tide had gone out, and the harbour lay dry. Boats leaned on their sides in the mud. \
     A heron stood in the last pool, as it had stood there on every day of the week, and waited for the water, which \
     came back at noon as it always did, and lifted the boats, and sent the heron home.",
    "Write the first paragraph of a story about a lighthouse.",
    "Übersetze ins Deutsche, Wort für Wort: “Good morning! How are you? ☕ – Fine, thanks.”",
    "Hi",
];

/// The prompts of a file, or the built-in ones.
///
/// # Errors
/// When the file cannot be read, has no prompts, or a line is none.
pub(super) fn lines(file: Option<&Path>) -> Result<Vec<Line>> {
    if let Some(path) = file {
        return prompts::read(path);
    }
    let line = |(number, text): (usize, &str)| Line {
        number,
        id: None,
        category: None,
        content: Content::Text(text.to_owned()),
    };
    Ok((1..).zip(BUILT_IN).map(line).collect())
}
