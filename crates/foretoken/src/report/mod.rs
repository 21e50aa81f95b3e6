//! What a bench leaves behind: a JSON file of all that it printed, with what is needed to judge it, and HTML pages with
//! charts and tables. Drawing and layout live here; what is measured and what it means may not enter.

mod axis;
mod chart;
mod page;

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

pub(crate) use axis::{Scale, number};
pub(crate) use chart::{Axis, Chart, Mark, Point, Series};
pub(crate) use page::Page;

use cli::machine;

/// One bench's results under the conditions they were measured in.
pub(crate) struct Report {
    fields: Map<String, Value>,
}

impl Report {
    /// A report of the bench `name`, with machine, version, commit, date and command filled in.
    pub(crate) fn new(name: &str) -> Self {
        let mut report = Self { fields: Map::new() };
        report.set("bench", name);
        report.set("machine", machine::describe());
        report.set("version", env!("CARGO_PKG_VERSION"));
        report.set("commit", commit());
        report.set("date", date(SystemTime::now()));
        report.set("command", command(std::env::args()));
        report
    }

    /// Adds a condition or a result.
    pub(crate) fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.fields.insert(name.to_owned(), value.into());
    }

    /// Writes the report, if a file was asked for.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn write(&self, path: Option<&Path>) -> Result<()> {
        let Some(path) = path else { return Ok(()) };
        save(path, &format!("{:#}\n", json!(self.fields)))
    }

    /// The report as it would be read back.
    pub(crate) fn to_json(&self) -> Value {
        json!(self.fields)
    }
}

/// Writes a report's text.
///
/// # Errors
/// When the file cannot be written.
pub(crate) fn save(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write the report to '{}'", path.display()))
}

/// The commit that this binary was built from.
pub(crate) fn commit() -> &'static str {
    env!("FORETOKEN_COMMIT")
}

/// Day and minute in UTC, as ISO 8601 has it.
fn date(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, minutes) = (seconds / 86_400, seconds / 60 % 1440);
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut day) = (1970, days);
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}T{:02}:{:02}Z", day + 1, minutes / 60, minutes % 60)
}

/// The arguments of this process as a line, without where the program lies and without the key that nobody may read.
fn command(arguments: impl Iterator<Item = String>) -> String {
    let mut words = vec!["foretoken".to_owned()];
    let mut secret = false;
    for argument in arguments.skip(1) {
        let word = match argument.split_once('=') {
            _ if secret => "...".to_owned(),
            Some(("--api-key", _)) => "--api-key=...".to_owned(),
            _ if argument.is_empty() || argument.contains(char::is_whitespace) => format!("'{argument}'"),
            _ => argument.clone(),
        };
        secret = argument == "--api-key";
        words.push(word);
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_what_and_where_it_measured() {
        let mut report = Report::new("kernels");
        report.set("threads", 2);
        for name in ["bench", "machine", "version", "commit", "date", "command", "threads"] {
            assert!(report.fields.contains_key(name), "{name}");
        }
        let error = report.write(Some(Path::new("no/such/directory/report.json"))).unwrap_err();
        assert!(error.to_string().contains("report.json"));
    }

    #[test]
    fn a_date_is_the_calendar_s() {
        let at = |seconds| date(UNIX_EPOCH + std::time::Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00Z");
        assert_eq!(at(1_798_761_600), "2027-01-01T00:00Z");
    }

    #[test]
    fn a_command_keeps_the_key_to_itself() {
        let words = ["/some/where/foretoken", "bench", "--api-key", "k1", "--api-key=k2", "--label", "two words"];
        let line = command(words.into_iter().map(str::to_owned));
        assert_eq!(line, "foretoken bench --api-key ... --api-key=... --label 'two words'");
    }
}
