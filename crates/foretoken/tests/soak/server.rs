//! The program under test, what it takes of the machine, and what it writes into its log.

use std::collections::HashMap;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::http;

/// Largest body that the server takes.
pub(crate) const BODY_LIMIT: usize = 20_000;

/// Positions of the model.
pub(crate) const CONTEXT: usize = 512;

/// What the server has of the machine.
pub(crate) struct Resources {
    pub(crate) rss_kib: u64,
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} KiB, {} descriptors, {} threads", self.rss_kib, self.descriptors, self.threads)
    }
}

/// A running server, ended with the test whatever happens.
pub(crate) struct Server {
    process: Child,
    /// HOST:PORT.
    pub(crate) address: String,
    /// Lines of the log that must not be there.
    complaints: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// A server that drafts, with 1 MiB for keys and values: 128 pages, which 32 choices want more of than there are. What
    /// it keeps of past answers is full within seconds, so that whatever grows later is a leak.
    pub(crate) fn start() -> Server {
        let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("soak-cache");
        Server::launch(&cache).end();
        make_drafts_free(&cache);
        Server::launch(&cache)
    }

    fn launch(cache: &Path) -> Server {
        let limit = BODY_LIMIT.to_string();
        let mut process = Command::new(env!("CARGO_BIN_EXE_foretoken"))
            .args(["serve", "--port", "0", "--log-format", "json", "--kv-memory", "1", "--threads", "2"])
            .args(["--draft", "suffix", "--draft-history", "10000"])
            .args(["--max-running", "32", "--max-waiting", "8", "--body-limit", &limit, "--model"])
            .arg(model())
            .env("FORETOKEN_CACHE", cache)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap()).lines().map(Result::unwrap);
        let address = log.by_ref().find_map(|line| {
            let event: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("no log line: {line}"));
            let fields = &event["fields"];
            let ready = (fields["message"] == "ready").then(|| fields["address"].as_str().unwrap().to_owned());
            ready.map(|url| url.trim_start_matches("http://").to_owned())
        });
        let complaints = Arc::<Mutex<Vec<String>>>::default();
        let found = Arc::clone(&complaints);
        std::thread::spawn(move || {
            log.filter(|line| is_complaint(line)).for_each(|line| found.lock().unwrap().push(line))
        });
        Server { process, address: address.expect("the server gets ready"), complaints }
    }

    /// The engine's figures by name, without the prefix.
    pub(crate) async fn figures(&self) -> HashMap<String, f64> {
        let text = http::get(&self.address, "/metrics").await.unwrap().body;
        let figure = |line: &str| {
            let (name, value) = line.strip_prefix("foretoken_")?.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        text.lines().filter_map(figure).collect()
    }

    /// Waits until nothing runs, waits or holds a page.
    pub(crate) async fn wait_idle(&self) -> HashMap<String, f64> {
        let mut figures = HashMap::new();
        for _ in 0..600 {
            figures = self.figures().await;
            if ["requests_running", "requests_waiting", "kv_pages_used"].iter().all(|name| figures[*name] == 0.0) {
                return figures;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("something is left of requests whose clients have gone: {figures:?}");
    }

    pub(crate) async fn is_ready(&self) -> bool {
        let answer = http::get(&self.address, "/ready").await.unwrap();
        answer.status == 200 && answer.json()["status"] == "ready"
    }

    pub(crate) fn resources(&self) -> Resources {
        let proc = PathBuf::from(format!("/proc/{}", self.process.id()));
        let status = std::fs::read_to_string(proc.join("status")).unwrap();
        let number = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().next().unwrap().parse().unwrap()
        };
        Resources {
            rss_kib: number("VmRSS:"),
            descriptors: std::fs::read_dir(proc.join("fd")).unwrap().count(),
            threads: number("Threads:") as usize,
        }
    }

    /// Ends the server as a supervisor does.
    ///
    /// # Panics
    /// When it does not end well, or its log tells of a panic or a failure.
    pub(crate) fn end(mut self) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        assert!(self.process.wait().unwrap().success());
        let complaints = self.complaints.lock().unwrap();
        assert!(complaints.is_empty(), "{} lines like {}", complaints.len(), complaints[0]);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A row of the tiny model costs as much as a step, so that by its true costs hardly anything would be drafted: here each
/// is free, until the server has learnt better.
fn make_drafts_free(cache: &Path) {
    for file in std::fs::read_dir(cache.join("costs")).unwrap() {
        let path = file.unwrap().path();
        let mut costs: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        (costs["rows"], costs["contexts"], costs["seconds"]) = (json!([1, 128]), json!([0]), json!([0.01, 0.01]));
        std::fs::write(&path, costs.to_string()).unwrap();
    }
}

/// A panic's message is no JSON; a failed request has the status 500.
fn is_complaint(line: &str) -> bool {
    let Ok(event) = serde_json::from_str::<Value>(line) else { return true };
    event["level"] == "ERROR" || event["fields"]["status"] == 500
}

/// Asks the same at any time, with all that could differ but must not: choices, seeds, log-probabilities. The answer is
/// without its time, what was found in the cache and what became of drafts; `None` when the queue is full.
pub(crate) async fn witness(address: &str, salt: &str) -> Option<Value> {
    let body = json!({
        "messages": [{"role": "user", "content": "What does a storm change?"}], "seed": 5, "n": 2, "max_tokens": 40,
        "temperature": 0.9, "logprobs": true, "top_logprobs": 2, "ignore_eos": true, "cache_salt": salt,
    });
    let request = http::message("/v1/chat/completions", &body.to_string(), "connection: close\r\nx-request-id: w\r\n");
    let answer = http::ask(address, &request).await.expect("a witness is answered");
    if answer.status == 429 {
        return None;
    }
    assert_eq!(answer.status, 200, "{answer:?}");
    let mut json = answer.json();
    json["created"].take();
    json["usage"]["prompt_tokens_details"].take();
    json["usage"]["completion_tokens_details"].take();
    Some(json)
}

/// A directory with the tiny Llama of the fixtures and a tokenizer whose tokens are bytes.
fn model() -> PathBuf {
    let fixture = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/targets/llama");
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("soak-model");
    std::fs::create_dir_all(&dir).unwrap();
    for file in ["config.json", "generation_config.json", "model.safetensors"] {
        std::fs::copy(fixture.join(file), dir.join(file)).unwrap();
    }
    let mut vocab: HashMap<String, u32> = (0..254).map(|byte| (format!("<0x{byte:02X}>"), byte)).collect();
    vocab.extend([("</s>".to_owned(), 254), ("<s>".to_owned(), 255)]);
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [special(254, "</s>"), special(255, "<s>")],
        // Words of one character, as real tokenizers split texts into words: the library keeps the tokens of whole words.
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": false},
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "byte_fallback": true, "vocab": vocab, "merges": []},
    });
    let template = "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}assistant:";
    std::fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(dir.join("tokenizer_config.json"), json!({ "chat_template": template }).to_string()).unwrap();
    dir
}
