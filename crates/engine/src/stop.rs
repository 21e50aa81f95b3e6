//! Stop strings: where a text that arrives in pieces has to end.

/// Finds the first stop string to complete in a text that arrives piece by piece, and holds back what may yet turn out
/// to be part of one.
///
/// "First" is said character by character: the text ends as soon as some stop string completes, before the longest one
/// that completes there. So the answer depends on the text alone and not on how it was split into pieces.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<String>,
    /// The longest end of the text so far that a stop string begins with.
    held: String,
}

/// What a piece of text amounts to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Released {
    /// Text that is now sure to stay, whatever follows.
    pub text: String,
    /// A stop string completed: `text` ends just before it, and nothing may follow.
    pub stopped: bool,
}

impl StopMatcher {
    /// A matcher for these strings; empty ones are ignored.
    pub fn new(stops: &[String]) -> Self {
        Self { stops: stops.iter().filter(|stop| !stop.is_empty()).cloned().collect(), held: String::new() }
    }

    /// Takes the next `piece` of the text. With `armed` false no stop string may complete within the piece (the first
    /// `min_tokens` tokens); one that begins in it and completes in a later piece still does.
    pub fn push(&mut self, piece: &str, armed: bool) -> Released {
        if self.stops.is_empty() {
            return Released { text: piece.to_owned(), stopped: false };
        }
        let mut text = std::mem::take(&mut self.held);
        let seen = text.len();
        text.push_str(piece);
        if armed && let Some(start) = self.first_completion(text.as_bytes(), seen) {
            text.truncate(start);
            return Released { text, stopped: true };
        }
        self.held = text.split_off(self.held_start(&text));
        Released { text, stopped: false }
    }

    /// The text has ended: gives what was held back.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Start of the longest stop string at the first end beyond `seen` where one completes.
    fn first_completion(&self, text: &[u8], seen: usize) -> Option<usize> {
        // Bytes will do: whole UTF-8 strings match each other only at the boundaries of characters.
        (seen + 1..=text.len()).find_map(|end| {
            let completed = self.stops.iter().filter(|stop| text[..end].ends_with(stop.as_bytes()));
            completed.map(|stop| end - stop.len()).min()
        })
    }

    /// Start of the longest end of `text` that is a beginning of a stop string, but not all of it.
    fn held_start(&self, text: &str) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(1) - 1;
        let earliest = text.len().saturating_sub(longest);
        let begins_a_stop = |start: usize| {
            let end = &text.as_bytes()[start..];
            self.stops.iter().any(|stop| stop.len() > end.len() && stop.as_bytes().starts_with(end))
        };
        (earliest..text.len()).find(|&start| text.is_char_boundary(start) && begins_a_stop(start)).unwrap_or(text.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matcher(stops: &[&str]) -> StopMatcher {
        StopMatcher::new(&stops.iter().map(|&stop| stop.to_owned()).collect::<Vec<_>>())
    }

    fn released(text: &str) -> Released {
        Released { text: text.to_owned(), stopped: false }
    }

    #[test]
    fn holds_back_only_what_may_become_a_stop_string() {
        let mut stops = matcher(&["\n\nUser:"]);
        assert_eq!(stops.push("Hello.\n", true), released("Hello."));
        assert_eq!(stops.push("More.", true), released("\nMore."));
        assert_eq!(stops.push("\n\nUs", true), released(""));
        assert_eq!(stops.push("er", true), released(""));
        assert_eq!(stops.push(": hi", true), Released { text: String::new(), stopped: true });
    }

    #[test]
    fn finish_gives_what_was_held() {
        let mut stops = matcher(&["abc"]);
        assert_eq!(stops.push("xab", true), released("x"));
        assert_eq!(stops.finish(), "ab");
        assert_eq!(stops.finish(), "");
    }

    #[test]
    fn an_unarmed_piece_completes_nothing_but_may_begin() {
        let mut stops = matcher(&["abc", "aa"]);
        assert_eq!(stops.push("xabc", false), released("xabc"));
        assert_eq!(stops.push("aa", false), released("a"));
        assert_eq!(stops.push("a", true), Released { text: String::new(), stopped: true });
    }

    #[test]
    fn the_longest_of_those_that_complete_together_is_cut() {
        let mut stops = matcher(&["bc", "abc"]);
        assert_eq!(stops.push("xabcd", true), Released { text: "x".into(), stopped: true });
    }

    /// The definition: the first end at which a stop string completes, and the earliest start of those that do.
    fn naive(text: &str, stops: &[String]) -> Option<usize> {
        (0..=text.len()).filter(|&end| text.is_char_boundary(end)).find_map(|end| {
            let starts = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str())).map(|stop| end - stop.len());
            starts.min()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn any_split_of_a_text_gives_what_the_whole_gives(
            pieces in prop::collection::vec("[abé日]{0,4}", 0..12),
            stops in prop::collection::vec("[abé日]{1,5}", 0..4),
        ) {
            let text = pieces.concat();
            let mut stops_matcher = StopMatcher::new(&stops);
            let (mut out, mut stopped) = (String::new(), false);
            for piece in &pieces {
                let released = stops_matcher.push(piece, true);
                out.push_str(&released.text);
                if released.stopped {
                    stopped = true;
                    break;
                }
            }
            match naive(&text, &stops) {
                Some(start) => prop_assert!(stopped && out == text[..start]),
                None => {
                    prop_assert!(!stopped);
                    // What is held must really be able to become a stop string.
                    let held = stops_matcher.held.clone();
                    prop_assert!(held.is_empty() || stops.iter().any(|stop| stop.starts_with(&held)));
                    out.push_str(&stops_matcher.finish());
                    prop_assert_eq!(out, text);
                }
            }
        }
    }
}
