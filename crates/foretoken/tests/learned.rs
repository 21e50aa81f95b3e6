//! `--draft` with drafters that were trained for a target.

mod tiny;

use std::path::Path;
use std::process::{Command, Output};

use tiny::{tiny, tiny_model};

fn run(model: &Path, draft: &str, arguments: &[&str]) -> Output {
    let draft = format!("{}/../../fixtures/drafts/{draft}", env!("CARGO_MANIFEST_DIR"));
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("learned-cache");
    let mut command = Command::new(env!("CARGO_BIN_EXE_foretoken"));
    command.args(["run", "Vt.JJD6567", "--raw", "--max-tokens", "60", "--ignore-eos", "--draft", &draft, "--model"]);
    command.arg(model).args(arguments).env("FORETOKEN_CACHE", cache).output().unwrap()
}

#[test]
fn a_trained_drafter_says_what_its_target_says() {
    let model = tiny("drafts/qwen3-target");
    for draft in ["dspark-markov", "dspark-gated", "dspark-rnn", "dflash-deepspec", "dflash-zlab", "eagle3-deepspec"] {
        let drafted = run(model.path(), draft, &["--compare"]);
        let (text, notes) = (String::from_utf8_lossy(&drafted.stdout), String::from_utf8_lossy(&drafted.stderr));
        assert!(drafted.status.success(), "{draft}: {notes}");
        let plain = run(model.path(), draft, &["--no-speculation"]);
        assert_eq!(text, String::from_utf8_lossy(&plain.stdout), "{draft}");
        assert!(notes.contains("same tokens"), "{draft}: {notes}");
    }
}

#[test]
fn a_drafter_of_another_target_is_refused_with_what_differs() {
    let refused = run(tiny_model().path(), "dspark-markov", &[]);
    let notes = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{notes}");
    assert!(notes.contains("at least as many layers as 6, and this one has 4"), "{notes}");
}

#[test]
fn the_audit_proves_that_trained_drafters_change_nothing() {
    let model = tiny("drafts/qwen3-target");
    let names = ["dspark-markov", "dspark-gated", "dspark-rnn", "dflash-deepspec", "dflash-zlab", "eagle3-deepspec"];
    let drafters = names.map(|name| format!("{}/../../fixtures/drafts/{name}", env!("CARGO_MANIFEST_DIR"))).join(",");
    let mut command = Command::new(env!("CARGO_BIN_EXE_foretoken"));
    command.args(["audit", "--only", "identity", "--quick", "--drafters", &drafters, "--model"]).arg(model.path());
    let audit = command.output().unwrap();
    let (table, notes) = (String::from_utf8_lossy(&audit.stdout), String::from_utf8_lossy(&audit.stderr));
    assert!(audit.status.success(), "{table}{notes}");
    assert!(table.matches("identical").count() >= 2 * names.len(), "{table}");
}

#[test]
fn a_drafter_that_nobody_trained_can_be_timed() {
    let model = tiny("drafts/qwen3-target");
    let mut command = Command::new(env!("CARGO_BIN_EXE_foretoken"));
    command.args([
        "bench",
        "draft",
        "--drafts",
        "2,4",
        "--context",
        "40",
        "--passes",
        "2",
        "--rank",
        "32",
        "--q8",
        "--model",
    ]);
    let bench = command.arg(model.path()).output().unwrap();
    let (table, notes) = (String::from_utf8_lossy(&bench.stdout), String::from_utf8_lossy(&bench.stderr));
    assert!(bench.status.success(), "{table}{notes}");
    for name in ["dspark", "dflash", "eagle3"] {
        assert_eq!(table.lines().filter(|line| line.starts_with(name)).count(), 2, "{table}");
    }
}
