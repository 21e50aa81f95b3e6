//! The load generator as a user meets it: against our own server with the tiny Llama of the fixtures, and against a
//! foreign one that is played here.

mod tiny;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use self::tiny::tiny_model;

fn bench(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_foretoken"));
    command.args(["bench", "serve"]).args(args).stdin(Stdio::null());
    command.env_remove("FORETOKEN_API_KEY").output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Runs with `--json` and more, must succeed, and gives what it printed and wrote.
fn measured(args: &[&str], json: &Path) -> (String, Value) {
    let output = bench(&[args, &["--json", json.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    (text(&output.stdout), json_of(json))
}

fn refusal(args: &[&str]) -> String {
    let output = bench(args);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    text(&output.stderr)
}

#[test]
fn counts_of_our_own_server_add_up() {
    let (model, out) = (tiny_model(), tempfile::tempdir().unwrap());
    let (json, html) = (out.path().join("run.json"), out.path().join("run.html"));
    let shape = ["--prompt-tokens", "20", "--max-tokens", "7", "--concurrency", "1,3", "--requests", "5"];
    let place = ["--model", model.path().to_str().unwrap(), "--threads", "1", "--html", html.to_str().unwrap()];
    let scenarios = ["--shared-prefix", "160", "--rounds", "1", "--label", "<tiny>"];
    let (stdout, report) = measured(&[&shape[..], &place, &scenarios].concat(), &json);

    let points = report["points"].as_array().unwrap();
    assert_eq!(points.len(), 2);
    for (point, clients) in points.iter().zip([1, 3]) {
        assert_eq!(point["concurrency"], clients);
        assert_eq!((&point["requests"], &point["answered"]), (&json!(5), &json!(5)), "{point}");
        assert_eq!(point["prompt_tokens"], 5 * 20);
        assert_eq!((&point["prompt_tokens_min"], &point["prompt_tokens_max"]), (&json!(20), &json!(20)));
        assert_eq!(point["cached_tokens"], 0);
        assert_eq!(point["output_tokens"], 5 * 7);
        assert_eq!(point["events"], 5 * 7);
        assert_eq!(point["finish_reasons"], json!({ "length": 5 }));
        assert_eq!(point["gap_ms"]["count"], 5 * 6);
        for name in ["ttft_ms", "e2e_ms"] {
            assert_eq!(point[name]["count"], 5, "{name}");
            assert!(point[name]["p50"].as_f64().unwrap() <= point[name]["max"].as_f64().unwrap(), "{name}");
        }
        let rate = point["output_tokens"].as_f64().unwrap() / point["seconds"].as_f64().unwrap();
        assert!((point["output_tokens_per_s"].as_f64().unwrap() / rate - 1.0).abs() < 1e-9);
    }
    let pair = &report["shared_prefix"]["rounds"][0];
    assert_eq!((&pair["prompt_tokens"], &pair["first_cached_tokens"]), (&json!(176), &json!(0)), "{pair}");
    assert_eq!(pair["second_cached_tokens"], 160);
    assert_eq!(report["server"]["threads"], 1);
    assert!(stdout.contains("5/5") && stdout.contains("two requests share 160 tokens"), "{stdout}");

    let page = std::fs::read_to_string(html).unwrap();
    assert!(page.contains("&lt;tiny&gt;") && !page.contains("<tiny>"));
    assert!(page.matches("<svg").count() == 7 && !page.contains("NaN"));
}

#[test]
fn a_long_prompt_is_measured_in_chunks_and_whole() {
    let (model, out) = (tiny_model(), tempfile::tempdir().unwrap());
    let (json, html) = (out.path().join("run.json"), out.path().join("run.html"));
    let args = [
        "--model",
        model.path().to_str().unwrap(),
        "--threads",
        "1",
        "--prompt-tokens",
        "12",
        "--max-tokens",
        "200",
        "--intruder-prompt-tokens",
        "300",
        "--row-budget",
        "64",
        "--rounds",
        "2",
        "--no-load",
        "--html",
        html.to_str().unwrap(),
    ];
    let (stdout, report) = measured(&args, &json);
    let settings = report["intruder"].as_array().unwrap();
    assert_eq!(settings.iter().map(|one| &one["row_budget"]).collect::<Vec<_>>(), [64, 316]);
    for setting in settings {
        let rounds = setting["rounds"].as_array().unwrap();
        assert_eq!(rounds.len(), 2);
        for round in rounds {
            assert_eq!(round["prompt_tokens"], 300);
            // The answers go on past their 200 tokens, to the end of the model's context of 512.
            assert_eq!(round["gaps_ms"].as_array().unwrap().len(), 8 * (512 - 12 - 1));
            assert!(round["gap_during_ms"].as_f64().unwrap() > 0.0);
        }
    }
    assert!(stdout.contains("in chunks (row budget 64)") && stdout.contains("whole (row budget 316)"), "{stdout}");
    assert!(std::fs::read_to_string(html).unwrap().contains("long prompt sent"));
}

/// Counts words as tokens, sends two tokens an event, and answers every fourth stream differently.
struct Foreign {
    url: String,
    streams: Arc<AtomicUsize>,
}

/// Before the first event of an answer.
const DELAY: Duration = Duration::from_millis(20);

impl Foreign {
    fn start(with_usage: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let streams = Arc::new(AtomicUsize::new(0));
        let counter = streams.clone();
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let counter = counter.clone();
                std::thread::spawn(move || answer(stream.unwrap(), &counter, with_usage));
            }
        });
        Self { url, streams }
    }
}

/// Answers one request. A client that has gone is no error.
fn answer(stream: TcpStream, streams: &AtomicUsize, with_usage: bool) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut line, mut length, mut head) = (String::new(), 0, String::new());
    while reader.read_line(&mut line).unwrap() > 2 {
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        head.push_str(&line);
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let mut out = stream;
    let prompt = body["prompt"].as_str().unwrap_or_default().split_whitespace().count();
    let usage = json!({ "prompt_tokens": prompt, "completion_tokens": 6 });
    let mut say = |status: &str, body: String| {
        let length = body.len();
        let _ = write!(out, "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
    };
    let route = head.split(' ').nth(1).unwrap();
    assert!(head.to_lowercase().contains("authorization: bearer secret\r\n"), "{head}");
    match route {
        "/v1/models" => say("200 OK", json!({ "data": [{ "id": "words", "owned_by": "else" }] }).to_string()),
        "/v1/completions" if body["stream"] == true => {
            assert_eq!((&body["model"], &body["ignore_eos"]), (&json!("words"), &json!(true)));
            assert!(body.get("cache_salt").is_none());
            match streams.fetch_add(1, Ordering::SeqCst) % 4 {
                1 => say("429 Too Many Requests", json!({ "error": { "message": "full" } }).to_string()),
                n => events(&mut out, n == 2, with_usage.then_some(usage)),
            }
        }
        "/v1/completions" => say("200 OK", json!({ "choices": [{ "text": "x" }], "usage": usage }).to_string()),
        _ => say("404 Not Found", "nothing here".to_owned()),
    }
}

fn events(out: &mut TcpStream, cut: bool, usage: Option<Value>) {
    let _ = write!(out, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n");
    let mut send = |event: &str| {
        let frame = format!("data: {event}\n\n");
        let _ = write!(out, "{:x}\r\n{frame}\r\n", frame.len());
    };
    std::thread::sleep(DELAY);
    for _ in 0..3 {
        send(&json!({ "choices": [{ "text": "two words", "finish_reason": null }], "usage": null }).to_string());
        std::thread::sleep(Duration::from_millis(2));
    }
    if !cut {
        send(&json!({ "choices": [{ "text": "", "finish_reason": "length" }] }).to_string());
        usage.into_iter().for_each(|usage| send(&json!({ "choices": [], "usage": usage }).to_string()));
        send("[DONE]");
        let _ = write!(out, "0\r\n\r\n");
    }
}

#[test]
fn a_foreign_server_is_measured_by_its_own_count_and_its_errors_by_kind() {
    let (server, out) = (Foreign::start(true), tempfile::tempdir().unwrap());
    let [first, second] = ["a.json", "b.json"].map(|name| out.path().join(name));
    let html = out.path().join("both.html");
    let shape = ["--url", &server.url, "--api-key", "secret", "--prompt-tokens", "9", "--warm-up", "0"];
    let (stdout, report) = measured(&[&shape[..], &["--concurrency", "2", "--requests", "8"]].concat(), &first);
    let point = &report["points"][0];
    assert_eq!((&point["requests"], &point["answered"]), (&json!(8), &json!(4)), "{point}");
    assert_eq!(point["errors"]["status 429"], 2);
    let broken: u64 = point["errors"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(broken, 4);
    assert_eq!((&point["prompt_tokens_min"], &point["prompt_tokens_max"]), (&json!(9), &json!(9)));
    assert_eq!((&point["output_tokens"], &point["events"]), (&json!(24), &json!(12)));
    // The server waits at least so long, whatever else the machine does.
    assert!(point["ttft_ms"]["p50"].as_f64().unwrap() >= DELAY.as_secs_f64() * 1e3);
    assert!(stdout.contains("2 of 8 requests failed (status 429: /v1/completions: {\"error\""), "{stdout}");
    let all = std::fs::read_to_string(&first).unwrap();
    assert!(!all.contains("secret") && !stdout.contains("secret"));

    // At a rate, and beside the first run on one page.
    let compare = ["--compare", first.to_str().unwrap(), "--html", html.to_str().unwrap(), "--label", "again"];
    let open = ["--rate", "200", "--requests", "4", "--seed", "5"];
    let (_, report) = measured(&[&shape[..], &open, &compare].concat(), &second);
    assert_eq!((&report["points"][0]["rate"], &report["points"][0]["requests"]), (&json!(200.0), &json!(4)));
    assert_eq!(server.streams.load(Ordering::SeqCst), 12);
    let page = std::fs::read_to_string(html).unwrap();
    assert!(page.contains("closed loop") && page.contains("open loop") && page.contains("again"));
}

#[test]
fn without_a_count_of_tokens_nothing_is_counted() {
    let (server, out) = (Foreign::start(false), tempfile::tempdir().unwrap());
    let prompts = out.path().join("prompts.jsonl");
    std::fs::write(&prompts, "{\"turns\": [\"one two three\"]}\n").unwrap();
    let place = ["--url", &server.url, "--api-key", "secret", "--prompts", prompts.to_str().unwrap()];
    let load = ["--endpoint", "completions", "--ignore-eos", "--concurrency", "1", "--requests", "1", "--warm-up", "0"];
    let (stdout, report) = measured(&[&place[..], &load].concat(), &out.path().join("run.json"));
    assert_eq!(report["points"][0]["errors"], json!({ "no usage": 1 }));
    assert_eq!(report["points"][0]["output_tokens"], 0);
    assert!(stdout.contains("include_usage"), "{stdout}");
}

#[test]
fn what_cannot_be_measured_is_one_line() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{nobody}");
    for (args, told) in [
        (&["--url", &url][..], "cannot connect"),
        (&["--url", "https://127.0.0.1"], "no TLS"),
        (&["--url", &url, "--concurrency", "0"], "must be above 0"),
        (&["--url", &url, "--rate", "0"], "must be above 0"),
        (&["--url", &url, "--no-load"], "nothing to measure"),
        (&["--url", &url, "--html", "x.html", "--compare", "absent.json"], "absent.json"),
    ] {
        let error = refusal(args);
        assert!(error.contains(told) && error.lines().count() == 1, "{error}");
    }
    let both = bench(&["--url", &url, "--threads", "2"]);
    assert_eq!(both.status.code(), Some(2));
}
