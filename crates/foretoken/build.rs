//! Records the commit that the binary is built from, so that a measurement can say what it measured.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Git writes here at every commit and checkout, in a linked worktree elsewhere than in the first. Absent (a source
    // archive), the commit is unknown anyway.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"]);
    if let Some(log) = log.filter(|log| Path::new(log).exists()) {
        println!("cargo:rerun-if-changed={log}");
    }
    let commit = git(&["rev-parse", "--short", "HEAD"]).unwrap_or("unknown".into());
    println!("cargo:rustc-env=FORETOKEN_COMMIT={commit}");
}

/// What git answers, if it answers anything.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    let answer = String::from_utf8(output.stdout).ok()?;
    Some(answer.trim().to_owned()).filter(|answer| !answer.is_empty())
}
