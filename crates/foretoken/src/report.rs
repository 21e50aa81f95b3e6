//! The JSON file that a bench writes: what it printed, with what is needed to judge it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use crate::machine;

/// One bench's results under the conditions they were measured in.
pub(crate) struct Report {
    fields: Map<String, Value>,
}

impl Report {
    /// A report of the bench `name`, with machine, version and commit filled in.
    pub(crate) fn new(name: &str) -> Self {
        let mut report = Self { fields: Map::new() };
        report.set("bench", name);
        report.set("machine", machine::describe());
        report.set("version", env!("CARGO_PKG_VERSION"));
        report.set("commit", commit());
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
    pub(crate) fn write(self, path: Option<&Path>) -> Result<()> {
        let Some(path) = path else { return Ok(()) };
        let text = format!("{:#}\n", json!(self.fields));
        fs::write(path, text).with_context(|| format!("cannot write the report to '{}'", path.display()))
    }
}

/// The commit that this binary was built from.
pub(crate) fn commit() -> &'static str {
    env!("FORETOKEN_COMMIT")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_what_and_where_it_measured() {
        let mut report = Report::new("kernels");
        report.set("threads", 2);
        for name in ["bench", "machine", "version", "commit", "threads"] {
            assert!(report.fields.contains_key(name), "{name}");
        }
        let error = report.write(Some(Path::new("no/such/directory/report.json"))).unwrap_err();
        assert!(error.to_string().contains("report.json"));
    }
}
