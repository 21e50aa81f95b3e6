//! What clients do to a server: most of it wrong, and what must come of it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

use crate::Counts;
use crate::http::{self, Answer};
use crate::server::{BODY_LIMIT, CONTEXT, Server, witness};

/// Connections that a client leaves open at a time.
const LEFT_OPEN: usize = 4;

/// What a client can do.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Behaviour {
    Whole,
    Stream,
    Witness,
    KeepAlive,
    SlowReader,
    Tokenise,
    TooLarge,
    BrokenJson,
    WrongField,
    LeaveAtOnce,
    LeaveMidStream,
    HalfHead,
    HalfBody,
    LeaveOpen,
    NoHttp,
    CloseOneSide,
}

pub(crate) const BEHAVIOURS: [Behaviour; 16] = [
    Behaviour::Whole,
    Behaviour::LeaveMidStream,
    Behaviour::Stream,
    Behaviour::LeaveAtOnce,
    Behaviour::Witness,
    Behaviour::TooLarge,
    Behaviour::KeepAlive,
    Behaviour::HalfBody,
    Behaviour::SlowReader,
    Behaviour::BrokenJson,
    Behaviour::Tokenise,
    Behaviour::HalfHead,
    Behaviour::WrongField,
    Behaviour::LeaveOpen,
    Behaviour::NoHttp,
    Behaviour::CloseOneSide,
];

/// A client, whose choices follow from its number alone.
pub(crate) struct Client {
    address: String,
    calm: Arc<Value>,
    random: u64,
    open: Vec<TcpStream>,
    pub(crate) counts: Counts,
}

impl Client {
    pub(crate) fn new(server: &Server, calm: &Arc<Value>, number: u64) -> Client {
        // An odd multiplier keeps every state apart and none 0.
        let random = (2 * number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Client {
            address: server.address.clone(),
            calm: Arc::clone(calm),
            random,
            open: Vec::new(),
            counts: Counts::new(),
        }
    }

    /// A number below `n` (xorshift).
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 33) as usize % n
    }

    fn one_of<const N: usize>(&mut self, numbers: [f64; N]) -> f64 {
        numbers[self.below(N)]
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Does it once.
    ///
    /// # Panics
    /// When the server answers what it must not, or not at all: two minutes are more than any answer takes.
    pub(crate) async fn behave(&mut self, behaviour: Behaviour) {
        let done = timeout(Duration::from_secs(120), self.dispatch(behaviour)).await;
        match done {
            Ok(Ok(())) => {}
            Ok(Err(error)) => panic!("{behaviour:?}: {error}"),
            Err(_) => panic!("{behaviour:?}: no answer"),
        }
    }

    async fn dispatch(&mut self, behaviour: Behaviour) -> std::io::Result<()> {
        match behaviour {
            Behaviour::Whole => self.whole().await,
            Behaviour::Stream => self.stream().await,
            Behaviour::Witness => self.witness().await,
            Behaviour::KeepAlive => self.keep_alive().await,
            Behaviour::SlowReader => self.slow_reader().await,
            Behaviour::Tokenise => self.tokenise().await,
            Behaviour::TooLarge => self.too_large().await,
            Behaviour::BrokenJson => self.broken_json().await,
            Behaviour::WrongField => self.wrong_field().await,
            Behaviour::LeaveAtOnce => self.leave_at_once().await,
            Behaviour::LeaveMidStream => self.leave_mid_stream().await,
            Behaviour::HalfHead => self.half_head().await,
            Behaviour::HalfBody => self.half_body().await,
            Behaviour::LeaveOpen => self.leave_open().await,
            Behaviour::NoHttp => self.no_http().await,
            Behaviour::CloseOneSide => self.close_one_side().await,
        }
    }

    /// A request that can be honoured, of one of the two APIs: its path, its body, and how many choices it asks for.
    fn request(&mut self, max_tokens: usize) -> (&'static str, Value, usize) {
        // Prompts begin alike and end apart, so that pages are shared and forked.
        let begin = "The wind blows and the rain falls on every roof. ".repeat(self.below(4));
        let prompt = format!("{begin}{}", self.below(1000));
        let n = 1 + self.below(3);
        let mut body = json!({
            "n": n,
            "max_tokens": 1 + self.below(max_tokens),
            "seed": self.below(5),
            "temperature": self.one_of([0.0, 0.7, 1.3]),
            "top_p": self.one_of([1.0, 0.8]),
            "ignore_eos": self.below(2) == 0,
            "frequency_penalty": self.one_of([0.0, 0.5]),
        });
        if self.below(4) == 0 {
            body["stop"] = json!(["e", "th"]);
        }
        if self.below(2) == 0 {
            let rule = ["keyed", "ratio", "typical"][self.below(3)];
            let (enabled, most) = (self.below(4) > 0, self.below(9));
            body["speculation"] = json!({ "enabled": enabled, "max_draft": most, "acceptance": rule });
        }
        if self.below(2) == 0 {
            body["prompt"] = prompt.into();
            body["logprobs"] = self.below(3).into();
            return ("/v1/completions", body, n);
        }
        if self.below(2) == 0 {
            body["prediction"] = json!({ "type": "content", "content": "e".repeat(self.below(1000)) });
        }
        body["messages"] = json!([{ "role": "user", "content": prompt }]);
        body["logprobs"] = (self.below(2) == 0).into();
        ("/v1/chat/completions", body, n)
    }

    /// Checks an answer to a request that could be honoured, and answers whether it was.
    fn accepted(&mut self, answer: &Answer) -> bool {
        if answer.status == 429 {
            let wait = http::header(&answer.head, "retry-after").and_then(|seconds| seconds.parse::<u32>().ok());
            assert!(wait.is_some(), "429 without retry-after: {answer:?}");
            self.count("refused for the queue");
            return false;
        }
        assert_eq!(answer.status, 200, "{answer:?}");
        true
    }

    async fn whole(&mut self) -> std::io::Result<()> {
        let (path, body, n) = self.request(60);
        let answer = http::ask(&self.address, &http::post(path, &body.to_string())).await?;
        if self.accepted(&answer) {
            assert_whole(&answer.json(), n);
            self.count("answered whole");
        }
        Ok(())
    }

    async fn stream(&mut self) -> std::io::Result<()> {
        let (path, mut body, n) = self.request(60);
        body["stream"] = true.into();
        let answer = http::ask(&self.address, &http::post(path, &body.to_string())).await?;
        if self.accepted(&answer) {
            assert_streamed(&answer, n);
            self.count("answered as a stream");
        }
        Ok(())
    }

    /// Takes a long answer in small sips, so that the server has to keep what it has written.
    async fn slow_reader(&mut self) -> std::io::Result<()> {
        let (path, mut body, n) = self.request(250);
        body["stream"] = true.into();
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(4096)?;
        let mut stream = socket.connect(self.address.parse().expect("an address with a port")).await?;
        stream.write_all(&http::post(path, &body.to_string())).await?;
        let mut sips = Vec::new();
        for _ in 0..50 {
            sleep(Duration::from_millis(5)).await;
            let mut sip = [0; 256];
            let length = stream.read(&mut sip).await?;
            sips.extend_from_slice(&sip[..length]);
        }
        stream.read_to_end(&mut sips).await?;
        let answer = http::parse(sips)?;
        if self.accepted(&answer) {
            assert_streamed(&answer, n);
            self.count("answered a slow reader");
        }
        Ok(())
    }

    /// The answer is the one that the server gave when nobody else asked.
    async fn witness(&mut self) -> std::io::Result<()> {
        let salt = self.below(3).to_string();
        match witness(&self.address, &salt).await {
            Some(answer) => {
                assert_eq!(answer, *self.calm, "others have changed an answer");
                self.count("answered as without the storm");
            }
            None => self.count("refused for the queue"),
        }
        Ok(())
    }

    async fn keep_alive(&mut self) -> std::io::Result<()> {
        let mut stream = TcpStream::connect(&self.address).await?;
        let mut answered = true;
        for _ in 0..3 {
            let (path, body, n) = self.request(10);
            stream.write_all(&http::message(path, &body.to_string(), "")).await?;
            let answer = http::read_one(&mut stream).await?;
            if self.accepted(&answer) {
                assert_whole(&answer.json(), n);
            } else {
                answered = false;
            }
        }
        if answered {
            self.count("answered several on one connection");
        }
        Ok(())
    }

    async fn tokenise(&mut self) -> std::io::Result<()> {
        let text = format!("Stürme {}", self.below(1000));
        let body = json!({ "prompt": text }).to_string();
        let answer = http::ask(&self.address, &http::post("/tokenize", &body)).await?;
        let tokens = answer.json()["tokens"].take();
        assert_eq!(tokens.as_array().map(Vec::len), Some(text.len()), "{answer:?}");
        let body = json!({ "tokens": tokens }).to_string();
        let answer = http::ask(&self.address, &http::post("/detokenize", &body)).await?;
        assert_eq!(answer.json()["prompt"], text);
        self.count("tokenised and back");
        Ok(())
    }

    /// The server may close before all has been sent.
    async fn too_large(&mut self) -> std::io::Result<()> {
        let body = json!({ "prompt": "x".repeat(BODY_LIMIT + self.below(1 << 20)) }).to_string();
        let request = match self.below(2) {
            0 => http::post("/v1/completions", &body),
            _ => {
                let head = "POST /v1/completions HTTP/1.1\r\nhost: storm\r\ntransfer-encoding: chunked\r\n";
                format!("{head}connection: close\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len()).into_bytes()
            }
        };
        let mut stream = TcpStream::connect(&self.address).await?;
        let sent = stream.write_all(&request).await;
        match (sent, http::read_to_end(&mut stream).await) {
            (_, Ok(answer)) => {
                assert_eq!(answer.status, 413, "{answer:?}");
                self.count("refused for the body's size");
            }
            (_, Err(_)) => self.count("cut off for the body's size"),
        }
        Ok(())
    }

    async fn broken_json(&mut self) -> std::io::Result<()> {
        let (path, body, _) = self.request(10);
        let mut body = body.to_string();
        body.truncate(1 + self.below(body.len() - 1));
        self.refused(&http::post(path, &body), "refused for its JSON").await
    }

    async fn wrong_field(&mut self) -> std::io::Result<()> {
        let (path, mut body, _) = self.request(10);
        match self.below(5) {
            0 => body["temperature"] = json!(-1),
            1 => body["n"] = json!(1000),
            2 => body["no_such_field"] = json!(1),
            3 => body["logit_bias"] = json!({ "100000": 1 }),
            _ => body["prompt"] = json!("x".repeat(CONTEXT)),
        }
        self.refused(&http::post(path, &body.to_string()), "refused for a field").await
    }

    async fn refused(&mut self, request: &[u8], what: &'static str) -> std::io::Result<()> {
        let answer = http::ask(&self.address, request).await?;
        assert_eq!(answer.status, 400, "{answer:?}");
        assert!(answer.json()["error"]["message"].is_string(), "{answer:?}");
        self.count(what);
        Ok(())
    }

    async fn leave_at_once(&mut self) -> std::io::Result<()> {
        let (path, mut body, _) = self.request(300);
        body["stream"] = (self.below(2) == 0).into();
        let mut stream = TcpStream::connect(&self.address).await?;
        stream.write_all(&http::post(path, &body.to_string())).await?;
        sleep(Duration::from_millis(self.below(30) as u64)).await;
        self.drop_connection(stream)?;
        self.count("left before the answer");
        Ok(())
    }

    async fn leave_mid_stream(&mut self) -> std::io::Result<()> {
        let (path, mut body, _) = self.request(10);
        body["stream"] = true.into();
        body["max_tokens"] = 250.into();
        body["ignore_eos"] = true.into();
        let mut stream = TcpStream::connect(&self.address).await?;
        stream.write_all(&http::post(path, &body.to_string())).await?;
        let wanted = 400 + self.below(4000);
        let mut seen = Vec::new();
        while seen.len() < wanted && stream.read_buf(&mut seen).await? > 0 {}
        let seen = String::from_utf8_lossy(&seen);
        if seen.contains("data: {") && !seen.contains("[DONE]") {
            self.count("left in mid-stream");
        }
        self.drop_connection(stream)
    }

    /// By a word of farewell, or without one.
    fn drop_connection(&mut self, stream: TcpStream) -> std::io::Result<()> {
        if self.below(2) == 0 {
            stream.set_zero_linger()?;
        }
        Ok(())
    }

    async fn half_head(&mut self) -> std::io::Result<()> {
        let request = http::post("/v1/completions", "{}");
        self.part(&request, 50, "left in the head").await
    }

    async fn half_body(&mut self) -> std::io::Result<()> {
        let (path, body, _) = self.request(10);
        let request = http::post(path, &body.to_string());
        self.part(&request, request.len() - 2, "left in the body").await
    }

    /// Sends the first `bytes` of a request and goes after a while.
    async fn part(&mut self, request: &[u8], bytes: usize, what: &'static str) -> std::io::Result<()> {
        let mut stream = TcpStream::connect(&self.address).await?;
        stream.write_all(&request[..bytes]).await?;
        sleep(Duration::from_millis(self.below(100) as u64)).await;
        self.drop_connection(stream)?;
        self.count(what);
        Ok(())
    }

    async fn leave_open(&mut self) -> std::io::Result<()> {
        let mut stream = TcpStream::connect(&self.address).await?;
        if self.below(2) == 0 {
            stream.write_all(b"GET /v1/models HTTP/1.1\r\nhost: ").await?;
        }
        self.open.push(stream);
        if self.open.len() > LEFT_OPEN {
            self.open.remove(0);
        }
        self.count("left a connection open");
        Ok(())
    }

    async fn no_http(&mut self) -> std::io::Result<()> {
        let mut stream = TcpStream::connect(&self.address).await?;
        let nonsense: Vec<u8> = (0..64).map(|_| self.below(256) as u8).chain(*b"\r\n\r\n").collect();
        stream.write_all(&nonsense).await?;
        // An answer or an end, as the server likes.
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert!(!answer.starts_with(b"HTTP/1.1 2") && !answer.starts_with(b"HTTP/1.1 5"), "{answer:?}");
        self.count("sent what is no HTTP");
        Ok(())
    }

    /// To some servers this is a client that has gone, to others one that waits: nothing may be left in either case.
    async fn close_one_side(&mut self) -> std::io::Result<()> {
        let (path, body, _) = self.request(30);
        let mut stream = TcpStream::connect(&self.address).await?;
        stream.write_all(&http::post(path, &body.to_string())).await?;
        stream.shutdown().await?;
        if let Ok(answer) = http::read_to_end(&mut stream).await {
            self.accepted(&answer);
        }
        self.count("closed its side after asking");
        Ok(())
    }
}

fn assert_whole(answer: &Value, n: usize) {
    let choices = answer["choices"].as_array().map(Vec::as_slice).unwrap_or_default();
    assert_eq!(choices.len(), n, "{answer}");
    assert!(choices.iter().all(|choice| choice["finish_reason"].is_string()), "{answer}");
}

fn assert_streamed(answer: &Answer, n: usize) {
    assert!(answer.body.ends_with("data: [DONE]\n\n"), "{answer:?}");
    assert_eq!(answer.body.matches("\"finish_reason\":\"").count(), n, "{answer:?}");
}
