//! What changes while requests run: clients that go away, queues that fill, figures, and the end of a server.

mod support;

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use serde_json::json;
use server::{ServerConfig, bind, serve};
use support::{Fixture, assert_cancelled, busy, endless, idle, raw};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tower::ServiceExt;

#[tokio::test]
async fn a_client_that_goes_cancels_its_request() {
    let fixture = Fixture::new();
    let request = Request::post("/v1/completions").body(Body::from(endless().to_string())).unwrap();
    let mut response = fixture.router.clone().oneshot(request).await.unwrap();
    response.body_mut().frame().await.unwrap().unwrap();
    drop(response);
    idle(&fixture).await;
    assert_cancelled(&fixture);
}

#[tokio::test]
async fn a_full_queue_says_when_to_come_back_and_keeps_nothing() {
    let fixture = Fixture::with(ServerConfig::default(), 1);
    let answer = fixture.post("/v1/completions", endless()).await;
    let error = answer.error(429);
    assert_eq!(error["code"], "queue_full");
    assert_eq!(answer.headers["retry-after"], "1");
    idle(&fixture).await;
    assert_cancelled(&fixture);
    fixture.post("/v1/completions", json!({ "prompt": "a", "max_tokens": 1 })).await.ok();
}

#[tokio::test]
async fn a_service_that_stops_is_unavailable() {
    let Fixture { service, router, .. } = Fixture::new();
    service.shutdown();
    let request = Request::post("/v1/completions").body(Body::from(json!({ "prompt": "a" }).to_string())).unwrap();
    let response = router.oneshot(request).await.unwrap();
    assert_eq!(response.status(), 503);
    assert!(response.headers().contains_key("retry-after"));
}

#[tokio::test]
async fn figures_count_what_was_done() {
    let fixture = Fixture::new();
    let body = json!({ "prompt": "Once", "max_tokens": 7, "ignore_eos": true, "n": 2 });
    fixture.post("/v1/completions", body).await.ok();
    fixture.get("/nowhere").await.error(404);
    let text = fixture.get("/metrics").await;
    assert!(text.headers["content-type"].to_str().unwrap().starts_with("application/openmetrics-text"));
    for line in [
        "foretoken_generation_tokens_total 14.0",
        "foretoken_prompt_tokens_total 4.0",
        "foretoken_requests_running 0.0",
        "vllm:num_requests_waiting 0.0",
        "vllm:kv_cache_usage_perc 0.0",
        "foretoken_time_to_first_token_seconds_count 1",
        "foretoken_time_per_output_token_seconds_count 2",
        "foretoken_request_seconds_count 2",
        "foretoken_choices_total{reason=\"length\"} 2",
        "foretoken_rejected_total{kind=\"not_found\"} 1",
        "foretoken_connections 0",
        "foretoken_http_requests_total{route=\"/v1/completions\",status=\"200\"} 1",
    ] {
        assert!(text.body.lines().any(|found| found == line), "{line} in\n{}", text.body);
    }
    assert!(text.body.ends_with("# EOF\n"));
    let figure = |name: &str| -> f64 {
        let line = text.body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} in\n{}", text.body)).parse().unwrap()
    };
    // The prompt's rows, and one for each choice in the six steps after it; all its steps are in the last bucket.
    assert_eq!(figure("foretoken_step_rows_sum"), 4.0 + 12.0);
    for (name, first) in [("rows", "2.0"), ("seconds", "8.192")] {
        let steps = figure(&format!("foretoken_step_{name}_count"));
        assert_eq!(steps, 7.0);
        assert_eq!(figure(&format!("foretoken_step_{name}_bucket{{le=\"+Inf\"}}")), steps);
        assert!(figure(&format!("foretoken_step_{name}_bucket{{le=\"{first}\"}}")) >= 6.0, "{}", text.body);
    }
    assert!(figure("foretoken_step_seconds_sum") > 0.0);
}

#[tokio::test]
async fn on_a_socket_a_client_goes_and_a_server_ends() {
    let fixture = Fixture::new();
    let config = ServerConfig { port: 0, ..ServerConfig::default() };
    let listener = bind(&config).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let drain = async { stopped.await.unwrap_or_default() };
    let server = tokio::spawn(serve(listener, config, fixture.served.clone(), drain, std::future::pending()));

    // One that waits for a whole answer and goes.
    let mut whole = endless();
    whole["stream"] = false.into();
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(&raw("/v1/completions", &whole)).await.unwrap();
    busy(&fixture).await;
    drop(client);
    idle(&fixture).await;
    assert_cancelled(&fixture);

    // One that is being answered when the server is told to stop.
    let body = json!({ "prompt": "Once", "max_tokens": 200, "ignore_eos": true, "stream": true });
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(&raw("/v1/completions", &body)).await.unwrap();
    let mut answer = vec![0; 64];
    client.read_exact(&mut answer).await.unwrap();
    stop.send(()).unwrap();
    client.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("data: [DONE]"), "{answer}");
    server.await.unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}
