//! Clients that send too slowly, read too slowly, come too many or stay too long; and an end that does not wait for them.

mod support;

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use server::{ServerConfig, bind, serve};
use support::{Fixture, assert_cancelled, busy, endless, idle, raw};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tower::ServiceExt;

/// Short for a client, long enough for the machine.
const SOON: Duration = Duration::from_millis(200);

/// A server on a socket of its own.
struct Running {
    fixture: Fixture,
    address: SocketAddr,
    drain: Option<oneshot::Sender<()>>,
    cancel: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Running {
    async fn start(config: ServerConfig) -> Self {
        let fixture = Fixture::new();
        let config = ServerConfig { port: 0, ..config };
        let listener = bind(&config).await.unwrap();
        let address = listener.local_addr().unwrap();
        let ((drain, draining), (cancel, cancelling)) = (oneshot::channel(), oneshot::channel());
        let wait = |signal: oneshot::Receiver<()>| async move {
            if signal.await.is_err() {
                std::future::pending().await
            }
        };
        let task = tokio::spawn(serve(listener, config, fixture.served.clone(), wait(draining), wait(cancelling)));
        Self { fixture, address, drain: Some(drain), cancel: Some(cancel), task }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends bytes on a connection of their own, and reads what comes until the server closes it.
    async fn exchange(&self, bytes: &[u8]) -> String {
        let mut client = self.connect().await;
        client.write_all(bytes).await.unwrap();
        rest(&mut client).await
    }
}

async fn rest(client: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    // A reset ends it too.
    let _ = client.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

fn impatient() -> ServerConfig {
    ServerConfig { client_timeout: SOON, ..ServerConfig::default() }
}

#[tokio::test]
async fn heads_and_bodies_that_do_not_come_are_not_waited_for() {
    let server = Running::start(impatient()).await;
    assert_eq!(server.exchange(b"").await, "");
    assert_eq!(server.exchange(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n").await, "");
    // An answer, then nothing more.
    let answer = server.exchange(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{\"prompt\"";
    let answer = server.exchange(head.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("\"timeout\""), "{answer}");
}

#[tokio::test]
async fn one_connection_too_many_is_told_so() {
    let server = Running::start(ServerConfig { max_connections: 1, ..ServerConfig::default() }).await;
    let health = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut first = server.connect().await;
    first.write_all(health).await.unwrap();
    first.read_exact(&mut [0; 12]).await.unwrap();
    let answer = server.exchange(health).await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("too_many_connections"), "{answer}");
    assert!(answer.contains("retry-after: 1"), "{answer}");
    drop(first);
    while !server.exchange(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.contains(" 200 ") {}
}

/// Asks for a long stream on a connection that takes little in, and reads none of it.
async fn never_reading(server: &Running) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut client = socket.connect(server.address).await.unwrap();
    let mut body = endless();
    body["logprobs"] = 20.into();
    client.write_all(&raw("/v1/completions", &body)).await.unwrap();
    busy(&server.fixture).await;
    idle(&server.fixture).await;
    client
}

#[tokio::test]
async fn what_is_not_read_is_bounded() {
    let server = Running::start(ServerConfig { backlog: 4, ..ServerConfig::default() }).await;
    let mut client = never_reading(&server).await;
    assert_cancelled(&server.fixture);
    let answer = rest(&mut client).await;
    assert!(answer.contains("not_read") && !answer.contains("[DONE]"), "{}", &answer[answer.len() - 500..]);
}

#[tokio::test]
async fn who_never_reads_is_left() {
    let server = Running::start(impatient()).await;
    let mut client = never_reading(&server).await;
    assert_cancelled(&server.fixture);
    assert!(!rest(&mut client).await.contains("[DONE]"));
}

#[tokio::test]
async fn a_request_has_its_time() {
    let config = ServerConfig { request_timeout: Some(Duration::from_millis(1)), ..ServerConfig::default() };
    let fixture = Fixture::with(config, 64);
    let mut body = endless();
    let answer = fixture.post("/v1/completions", body.clone()).await;
    let event = answer.body.split("\n\n").find(|event| event.contains("error")).unwrap().to_owned();
    let event: Value = serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(event["error"]["code"], "request_timeout");
    assert_eq!(event["error"]["request_id"], answer.headers["x-request-id"].to_str().unwrap());
    body["stream"] = false.into();
    let answer = fixture.post("/v1/completions", body).await;
    assert_eq!(answer.error(504)["code"], "request_timeout");
    assert_eq!(answer.headers["x-should-retry"], "false");
    idle(&fixture).await;
    assert_cancelled(&fixture);
}

#[tokio::test]
async fn a_stream_that_waits_is_kept_alive() {
    let fixture = Fixture::with(ServerConfig { keep_alive: Duration::from_millis(1), ..ServerConfig::default() }, 64);
    let request = |body: Value| Request::post("/v1/completions").body(Body::from(body.to_string())).unwrap();
    let others = fixture.router.clone().oneshot(request(endless())).await.unwrap();
    let body = json!({ "prompt": "Once", "max_tokens": 5, "ignore_eos": true, "stream": true, "priority": -1 });
    let mut stream = fixture.router.clone().oneshot(request(body)).await.unwrap();
    let first = stream.body_mut().frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(first, ": keep-alive\n\n");
    drop(others);
    let rest = stream.into_body().collect().await.unwrap().to_bytes();
    let rest = String::from_utf8(rest.to_vec()).unwrap();
    let events: Vec<&str> = rest.split_terminator("\n\n").filter(|event| *event != ": keep-alive").collect();
    assert!(events.iter().all(|event| event.starts_with("data: ")), "{rest}");
    assert_eq!(events.last(), Some(&"data: [DONE]"));
}

/// Reads a stream's beginning, lets `end` end the server, and returns the rest.
async fn cut(mut server: Running, end: impl FnOnce(&mut Running)) -> String {
    let mut client = server.connect().await;
    client.write_all(&raw("/v1/completions", &endless())).await.unwrap();
    client.read_exact(&mut [0; 64]).await.unwrap();
    let reader = tokio::spawn(async move { rest(&mut client).await });
    server.drain.take().unwrap().send(()).unwrap();
    end(&mut server);
    let answer = reader.await.unwrap();
    (&mut server.task).await.unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
    idle(&server.fixture).await;
    assert_cancelled(&server.fixture);
    answer
}

#[tokio::test]
async fn an_end_waits_for_answers_only_so_long() {
    let config = ServerConfig { drain_timeout: Duration::from_millis(1), ..ServerConfig::default() };
    let answer = cut(Running::start(config).await, |_| {}).await;
    assert!(answer.contains("the server is shutting down") && !answer.contains("[DONE]"));
}

#[tokio::test]
async fn a_second_word_ends_at_once() {
    let answer = cut(Running::start(ServerConfig::default()).await, |server| {
        server.cancel.take().unwrap().send(()).unwrap();
    });
    let answer = answer.await;
    assert!(answer.contains("the server is shutting down") && !answer.contains("[DONE]"));
}

#[tokio::test]
async fn a_server_whose_engine_has_stopped_is_alive_but_not_ready() {
    let Fixture { service, served, router } = Fixture::new();
    service.shutdown();
    let get = async |path: &str| {
        let request = Request::get(path).body(Body::empty()).unwrap();
        router.clone().oneshot(request).await.unwrap()
    };
    assert_eq!(get("/health").await.status(), 200);
    let ready = get("/ready").await;
    assert_eq!(ready.status(), 503);
    let body = ready.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&body).contains("engine_stopped"));
    drop(served);
}
