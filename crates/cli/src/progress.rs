//! Shows downloads and long measurements on stderr: a bar on a terminal, a line elsewhere.

use std::cell::RefCell;
use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressStyle};
use model::source::Progress;

/// A bar over `total` answers or the like, which says how long the rest will take. Nothing where stderr is no terminal.
pub fn steps(label: &str, total: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {elapsed}, {eta} to go");
    let bar = ProgressBar::new(total).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(label.to_owned());
    bar
}

/// A bar for one download after another.
pub struct Bar {
    bar: RefCell<ProgressBar>,
}

impl Default for Bar {
    fn default() -> Self {
        Self::new()
    }
}

impl Bar {
    /// Shows nothing until something starts.
    pub fn new() -> Self {
        Self { bar: RefCell::new(ProgressBar::hidden()) }
    }
}

impl Progress for Bar {
    fn start(&self, label: &str, total: Option<u64>) {
        if !io::stderr().is_terminal() {
            let size = total.map(|bytes| format!(" ({:.1} MB)", bytes as f64 / 1e6)).unwrap_or_default();
            eprintln!("{label}{size} ...");
            return;
        }
        let (bar, template) = match total {
            Some(total) => (ProgressBar::new(total), "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}"),
            None => (ProgressBar::new_spinner(), "{msg} {spinner} {bytes} {bytes_per_sec}"),
        };
        // The default style stands in if a template should not parse: a bar is no reason to fail a download.
        let bar =
            bar.with_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(label.to_owned());
        self.bar.replace(bar);
    }

    fn advance(&self, bytes: u64) {
        self.bar.borrow().inc(bytes);
    }

    fn finish(&self) {
        self.bar.borrow().finish_and_clear();
    }
}
