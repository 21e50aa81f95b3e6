//! Records the commit that the binary is built from, so that a measurement can say what it measured.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Git writes here at every commit and checkout. Absent (a source archive), the commit is unknown anyway.
    let log = "../../.git/logs/HEAD";
    if Path::new(log).exists() {
        println!("cargo:rerun-if-changed={log}");
    }
    let output = Command::new("git").args(["rev-parse", "--short", "HEAD"]).output();
    let commit = output.ok().filter(|output| output.status.success());
    let commit = commit.and_then(|output| String::from_utf8(output.stdout).ok());
    let commit = commit.as_deref().map(str::trim).filter(|name| !name.is_empty()).unwrap_or("unknown");
    println!("cargo:rustc-env=FORETOKEN_COMMIT={commit}");
}
