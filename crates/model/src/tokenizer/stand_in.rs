//! Control tokens that somebody wrote out in a text which is to be rendered among the template's own.
//!
//! The first character of each is replaced by a private one that occurs nowhere else: no control token is found there,
//! and when those of the template have been found, the character is put back. All else stays as it is, so that texts
//! without control tokens are rendered and encoded as if nothing of this existed.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde_json::Value;

use super::added::AddedTokens;

/// Unicode's second and third area for private use: no text has these characters but by somebody's own agreement.
const PRIVATE: [std::ops::RangeInclusive<char>; 2] = ['\u{F0000}'..='\u{FFFFD}', '\u{100000}'..='\u{10FFFD}'];

/// What stands for the first characters of control tokens that are none.
#[derive(Debug, Default)]
pub(crate) struct StandIns {
    /// By the character that they stand for.
    stand_ins: BTreeMap<char, char>,
}

impl StandIns {
    /// Those that `values` need; `None` when their texts leave no private character free.
    pub(crate) fn new(controls: &AddedTokens, values: &[&Value]) -> Option<StandIns> {
        let (mut firsts, mut taken) = (BTreeSet::new(), HashSet::new());
        for value in values {
            each_text(value, &mut |text| {
                firsts.extend(controls.starts(text).filter_map(|at| text[at..].chars().next()));
            });
        }
        if firsts.is_empty() {
            return Some(StandIns::default());
        }
        for value in values {
            each_text(value, &mut |text| taken.extend(text.chars().filter(|c| *c >= '\u{F0000}')));
        }
        let mut free = PRIVATE.into_iter().flatten().filter(|c| !taken.contains(c));
        let stand_ins: Option<_> = firsts.into_iter().map(|first| Some((first, free.next()?))).collect();
        Some(StandIns { stand_ins: stand_ins? })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.stand_ins.is_empty()
    }

    /// Pairs of a stand-in and what it stands for.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (char, char)> + '_ {
        self.stand_ins.iter().map(|(&first, &stand_in)| (stand_in, first))
    }

    /// `value` with stand-ins in all of its texts.
    pub(crate) fn put(&self, controls: &AddedTokens, value: &Value) -> Value {
        match value {
            Value::String(text) => self.put_text(controls, text).into(),
            Value::Array(list) => list.iter().map(|value| self.put(controls, value)).collect(),
            Value::Object(map) => {
                map.iter().map(|(name, value)| (self.put_text(controls, name), self.put(controls, value))).collect()
            }
            other => other.clone(),
        }
    }

    fn put_text(&self, controls: &AddedTokens, text: &str) -> String {
        let (mut out, mut done) = (String::with_capacity(text.len() + 8), 0);
        for at in controls.starts(text) {
            // A character that begins a control token has a stand-in.
            let Some(first) = text[at..].chars().next() else { continue };
            let Some(&stand_in) = self.stand_ins.get(&first) else { continue };
            out.push_str(&text[done..at]);
            out.push(stand_in);
            done = at + first.len_utf8();
        }
        out.push_str(&text[done..]);
        out
    }

    /// `text` as it was written.
    pub(crate) fn take_out<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if self.is_empty() {
            return Cow::Borrowed(text);
        }
        let back: BTreeMap<char, char> = self.pairs().collect();
        text.chars().map(|c| back.get(&c).copied().unwrap_or(c)).collect::<String>().into()
    }
}

/// Calls `see` with every text in `value`, names of members included.
fn each_text<'v>(value: &'v Value, see: &mut impl FnMut(&'v str)) {
    match value {
        Value::String(text) => see(text),
        Value::Array(list) => list.iter().for_each(|value| each_text(value, see)),
        Value::Object(map) => map.iter().for_each(|(name, value)| {
            see(name);
            each_text(value, see);
        }),
        _ => {}
    }
}
