//! `foretoken bench spec` as a user meets it, with the tiny Llama of the fixtures.

mod tiny;

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use self::tiny::tiny_model;

fn bench(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_foretoken"));
    command.args(["bench", "spec", "--raw", "--threads", "1"]).args(args).stdin(Stdio::null());
    command.output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// Six prompts of two categories, and one that no context of 400 holds.
fn prompts(dir: &Path) -> String {
    let mut lines = String::new();
    for number in 0..6u8 {
        let letter = char::from(b'a' + number);
        let category = ["copying", "<other>"][usize::from(number % 2)];
        let turns = [format!("{letter}bcd{letter}bcd{letter}b"), "never asked".to_owned()];
        writeln!(lines, "{}", json!({ "question_id": number, "category": category, "turns": turns })).unwrap();
    }
    writeln!(lines, "{}", json!({ "id": "long", "category": "copying", "prompt": "!".repeat(500) })).unwrap();
    let path = dir.join("prompts.jsonl");
    fs::write(&path, lines).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn figures_add_up_and_no_token_changes() {
    let (model, out) = (tiny_model(), tempfile::tempdir().unwrap());
    let (json, html) = (out.path().join("run.json"), out.path().join("run.html"));
    let file = prompts(out.path());
    let what = ["--drafters", "ngram,none,suffix,auto,ngram", "--synthetic-acceptance", "0.8", "--temperatures", "0,1"];
    let much = ["--prompts", &file, "--limit", "2", "--max-tokens", "24", "--ignore-eos", "--context", "400"];
    let load = ["--concurrency", "1,3", "--requests", "5", "--model", model.path().to_str().unwrap()];
    let files = ["--json", json.to_str().unwrap(), "--html", html.to_str().unwrap()];
    let output = bench(&[&what[..], &much, &load, &files].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    let report: Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();

    assert_eq!(report["drafters"], json!(["ngram", "suffix", "auto", "synthetic 0.8"]));
    assert_eq!(report["prompts"]["fit"], json!({ "copying": 3, "<other>": 3 }));
    assert_eq!(report["prompts"]["too_long"], json!([{ "id": "long", "prompt_tokens": 500 }]));
    // One at a time: four prompts, ten answers each; in crowds: five, ten answers at each of two points. One is the first.
    let of_temperature = 4 * 10 - 4 + 2 * 5 * 10 - 1;
    assert_eq!((&report["answers_compared"], &report["differences"]), (&json!(2 * of_temperature), &json!([])));

    let singles = report["one_at_a_time"].as_array().unwrap();
    assert_eq!(singles.len(), 2);
    for single in singles {
        let categories = single["categories"].as_array().unwrap();
        assert_eq!(categories.len(), 4 * 3);
        assert_eq!(single["prompts"].as_array().unwrap().len(), 4);
        for summary in categories {
            let drafted = &summary["drafted"];
            let count = |name: &str| drafted[name].as_f64().unwrap();
            assert_eq!(count("decode_tokens"), count("request_steps") + count("accepted"), "{summary}");
            assert!((drafted["tau"].as_f64().unwrap() - count("decode_tokens") / count("request_steps")).abs() < 1e-12);
            assert_eq!(summary["plain"]["tau"], 1.0);
            assert_eq!(summary["plain"]["output_tokens"], drafted["output_tokens"]);
            let total = summary["plain"]["decode_seconds"].as_f64().unwrap() / count("decode_seconds");
            assert!((summary["decode_speed_up"]["total"].as_f64().unwrap() - total).abs() < 1e-9);
        }
    }
    let points = report["many_at_once"].as_array().unwrap();
    assert_eq!(points.len(), 4);
    for (point, clients) in points.iter().zip([1, 3, 1, 3]) {
        assert_eq!((&point["clients"], &point["requests"]), (&json!(clients), &json!(5)));
        assert_eq!((&point["off"]["output_tokens"], &point["off"]["tau"]), (&json!(2 * 5 * 24), &json!(1.0)));
        assert_eq!(point["on"].as_array().unwrap().len(), 4);
    }
    assert!(stdout.contains("synthetic 0.8") && stdout.contains("token by token: 0 differ"), "{stdout}");
    assert!(stdout.contains("6 prompts, first turns only") && stdout.contains("1 more are longer"), "{stdout}");

    let page = fs::read_to_string(html).unwrap();
    assert!(page.contains("&lt;other&gt;") && !page.contains("<other>"));
    assert!(page.matches("<svg").count() == 2 * 9 && !page.contains("NaN"));
}

#[test]
fn what_makes_no_measurement_is_refused_with_the_reason() {
    let (model, out) = (tiny_model(), tempfile::tempdir().unwrap());
    let (file, model) = (prompts(out.path()), model.path().to_str().unwrap().to_owned());
    for (args, told) in [
        (&["--drafters", "none"][..], "nobody drafts"),
        (&["--temperatures", "-1"], "--temperatures has -1"),
        (&["--temperatures", "NaN"], "--temperatures has NaN"),
        (&["--temperatures", "0,1,0"], "--temperatures has 0 twice"),
        (&["--json", "no/such/place.json"], "no/such/place.json"),
        (&["--synthetic-acceptance", "1.5"], "--synthetic-acceptance is 1.5"),
        (&["--concurrency", "0"], "above 0"),
        (&["--one-at-a-time", "false"], "nothing is to be measured"),
        (&["--concurrency", "4", "--requests", "3"], "less than --concurrency 4"),
        (&["--concurrency", "4"], "want 8 different prompts, and there are 7"),
        (&["--categories", "copying,sums"], "'sums'; there are <other>, copying"),
        (&["--context", "5"], "longer than the context of 5"),
        (&["--context", "100000"], "--context is 100000"),
    ] {
        let output = bench(&[&["--prompts", &file, "--model", &model], args].concat());
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let stderr = text(&output.stderr);
        assert!(stderr.starts_with("error: ") && stderr.lines().count() == 1 && stderr.contains(told), "{stderr}");
    }
    let output = bench(&["--prompts", "absent.jsonl", "--model", &model]);
    assert!(text(&output.stderr).contains("absent.jsonl"));
    assert_eq!(bench(&["--model", &model]).status.code(), Some(2), "without prompts");
    assert_eq!(bench(&["--prompts", &file, "--drafters", "wizard"]).status.code(), Some(2));
}
