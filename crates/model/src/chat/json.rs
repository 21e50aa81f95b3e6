//! The filter `tojson`: JSON exactly as Python's `json.dumps(value, ensure_ascii=False)` writes it. Tool schemas are
//! part of the prompt, so a space too few makes other tokens than the model was trained on.

use std::io;

use minijinja::value::{Kwargs, Value as Jinja};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::Value;
use serde_json::ser::Formatter;

/// `tojson(indent=None, separators=None, sort_keys=False, ensure_ascii=False)`.
pub(super) fn tojson(value: Jinja, options: Kwargs) -> Result<String, Error> {
    let invalid = |reason: String| Error::new(ErrorKind::InvalidOperation, format!("tojson: {reason}"));
    if value.is_undefined() {
        return Err(invalid("the value is undefined".to_owned()));
    }
    let mut layout = Layout::new(options.get::<Option<usize>>("indent")?);
    if let Some(separators) = options.get::<Option<Vec<String>>>("separators")? {
        let [item, key] = <[String; 2]>::try_from(separators)
            .map_err(|s| invalid(format!("separators must be two texts, not {}", s.len())))?;
        (layout.item_separator, layout.key_separator) = (item, key);
    }
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let ensure_ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    options.assert_all_used()?;

    let mut value = serde_json::to_value(value).map_err(|e| invalid(e.to_string()))?;
    if sort_keys {
        value.sort_all_objects();
    }
    let text = dumps(&value, layout).map_err(|e| invalid(e.to_string()))?;
    Ok(if ensure_ascii { escape_non_ascii(&text) } else { text })
}

/// Bytes that a value takes as JSON.
pub(super) fn len(value: &impl Serialize) -> usize {
    serde_json::to_vec(value).map_or(0, |json| json.len())
}

fn dumps(value: &Value, layout: Layout) -> Result<String, serde_json::Error> {
    let mut out = Vec::new();
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, layout))?;
    String::from_utf8(out).map_err(serde::ser::Error::custom)
}

/// Outside strings JSON is ASCII, so every other character is inside one.
fn escape_non_ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    out
}

/// Python's layout of JSON.
struct Layout {
    indent: Option<usize>,
    item_separator: String,
    key_separator: String,
    depth: usize,
    has_items: bool,
}

impl Layout {
    fn new(indent: Option<usize>) -> Layout {
        let item_separator = if indent.is_some() { "," } else { ", " }.to_owned();
        Layout { indent, item_separator, key_separator: ": ".to_owned(), depth: 0, has_items: false }
    }

    fn line_break<W: ?Sized + io::Write>(&self, out: &mut W) -> io::Result<()> {
        let Some(indent) = self.indent else { return Ok(()) };
        write!(out, "\n{:width$}", "", width = indent * self.depth)
    }

    fn open<W: ?Sized + io::Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.has_items = false;
        out.write_all(bracket)
    }

    fn close<W: ?Sized + io::Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.has_items {
            self.line_break(out)?;
        }
        self.has_items = true;
        out.write_all(bracket)
    }

    fn item<W: ?Sized + io::Write>(&self, out: &mut W, first: bool) -> io::Result<()> {
        if !first {
            out.write_all(self.item_separator.as_bytes())?;
        }
        self.line_break(out)
    }
}

impl Formatter for Layout {
    fn begin_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"[")
    }
    fn end_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"]")
    }
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.item(out, first)
    }
    fn end_array_value<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_items = true;
        Ok(())
    }
    fn begin_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"{")
    }
    fn end_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"}")
    }
    fn begin_object_key<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.item(out, first)
    }
    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(self.key_separator.as_bytes())
    }
    fn end_object_value<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_items = true;
        Ok(())
    }
    fn write_f64<W: ?Sized + io::Write>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        out.write_all(python_float(value).as_bytes())
    }
}

/// A float as Python prints it: the shortest digits, and an exponent of two digits or more beyond 1e-4 and 1e16.
fn python_float(value: f64) -> String {
    let scientific = format!("{value:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", exponent.abs())
        }
        _ => format!("{value:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    // What Python 3.11's json.dumps(..., ensure_ascii=False) answers.
    #[test]
    fn the_layout_is_pythons() {
        let value = json!({"b": [1, 2.0, {"x": null}], "a": {}, "e": [], "t": "é\n\"/<'"});
        let compact = r#"{"b": [1, 2.0, {"x": null}], "a": {}, "e": [], "t": "é\n\"/<'"}"#;
        assert_eq!(dumps(&value, Layout::new(None)).unwrap(), compact);
        let value = json!({"a": [1, {"b": []}], "c": {}});
        let indented = "{\n  \"a\": [\n    1,\n    {\n      \"b\": []\n    }\n  ],\n  \"c\": {}\n}";
        assert_eq!(dumps(&value, Layout::new(Some(2))).unwrap(), indented);
    }

    #[test]
    fn floats_are_pythons() {
        let expected = [
            (1e16, "1e+16"),
            (123456789012345.0, "123456789012345.0"),
            (1.5e-5, "1.5e-05"),
            (0.0001, "0.0001"),
            (-2.0, "-2.0"),
            (1e300, "1e+300"),
            (0.1, "0.1"),
            (9999999999999998.0, "9999999999999998.0"),
        ];
        for (value, text) in expected {
            assert_eq!(python_float(value), text);
        }
        assert_eq!(escape_non_ascii("aé🙂"), "a\\u00e9\\ud83d\\ude42");
    }
}
