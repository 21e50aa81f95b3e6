//! `--draft` with drafters that were trained for a target.

mod tiny;

use std::path::Path;
use std::process::{Command, Output};

use tiny::{tiny, tiny_model};

fn run(model: &Path, draft: &str, arguments: &[&str]) -> Output {
    let draft = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/drafts").join(draft);
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("learned-cache");
    let mut command = Command::new(env!("CARGO_BIN_EXE_foretoken"));
    command.args(["run", "Vt.JJD6567", "--raw", "--max-tokens", "60", "--ignore-eos", "--draft"]);
    command.arg(draft).arg("--model").arg(model).args(arguments).env("FORETOKEN_CACHE", cache).output().unwrap()
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

/// A copy of a fixture whose norms are all 1: every tensor of f32 with a name that says so.
fn untrained(draft: &str) -> tempfile::TempDir {
    let (from, to) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/drafts").join(draft), tempfile::tempdir().unwrap());
    std::fs::copy(from.join("config.json"), to.path().join("config.json")).unwrap();
    let mut bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let tensors: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    for (_, tensor) in tensors.iter().filter(|(name, _)| name.ends_with("norm.weight")) {
        let [start, end] = [0, 1].map(|at| tensor["data_offsets"][at].as_u64().unwrap() as usize + 8 + header);
        bytes[start..end].chunks_exact_mut(4).for_each(|value| value.copy_from_slice(&1f32.to_le_bytes()));
    }
    std::fs::write(to.path().join("model.safetensors"), bytes).unwrap();
    to
}

#[test]
fn a_drafter_that_was_published_untrained_is_warned_of() {
    let model = tiny("drafts/qwen3-target");
    let notes = |draft: &str| String::from_utf8_lossy(&run(model.path(), draft, &[]).stderr).into_owned();
    let dir = untrained("eagle3-deepspec");
    let warned = notes(dir.path().to_str().unwrap());
    assert!(warned.contains("warning: every norm of ") && warned.contains("looks untrained"), "{warned}");
    let trained = notes("eagle3-deepspec");
    assert!(!trained.contains("warning"), "{trained}");
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
