//! What is refused, with which status and in which shape; and who may ask.

mod support;

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use server::ServerConfig;
use support::{CONTEXT, Fixture};

fn hello() -> Value {
    json!({ "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2 })
}

fn with(field: &str, value: Value) -> Value {
    let mut body = hello();
    body[field] = value;
    body
}

#[tokio::test]
async fn fields_that_would_change_the_output_are_refused_by_name() {
    let fixture = Fixture::new();
    let message = |message: Value| json!([message]);
    for (field, value, param) in [
        ("tools", json!([{"type": "function"}]), "tools"),
        ("response_format", json!({"type": "json_object"}), "response_format"),
        ("reasoning_effort", json!("low"), "reasoning_effort"),
        ("chat_template", json!("x"), "chat_template"),
        ("messages", message(json!({"role": "tool", "content": "x"})), "messages[0].role"),
        (
            "messages",
            message(json!({"role": "assistant", "tool_calls": [{}], "content": ""})),
            "messages[0].tool_calls",
        ),
        ("messages", message(json!({"role": "user", "content": [{"type": "image_url"}]})), "messages[0].content"),
    ] {
        let error = fixture.post("/v1/chat/completions", with(field, value)).await.error(400);
        assert_eq!((&error["param"], &error["code"]), (&json!(param), &json!("unsupported_parameter")), "{error}");
    }
    for (field, value) in [("echo", json!(true)), ("suffix", json!("x")), ("best_of", json!(2)), ("tools", json!([1]))]
    {
        let error = fixture.post("/v1/completions", json!({ "prompt": "a", field: value })).await.error(400);
        assert_eq!(error["param"], field);
    }
}

#[tokio::test]
async fn values_out_of_range_are_refused() {
    let fixture = Fixture::new();
    for (field, value) in [
        ("temperature", json!(-1)),
        ("top_p", json!(0)),
        ("max_tokens", json!(0)),
        ("top_logprobs", json!(3)),
        ("max_completion_tokens", json!(3)),
        ("messages", json!([])),
        ("n", json!(1000)),
    ] {
        let error = fixture.post("/v1/chat/completions", with(field, value)).await.error(400);
        assert_eq!(error["type"], "invalid_request_error");
        assert!(error["message"].as_str().unwrap().contains(field), "{error}");
    }
    let error = fixture.post("/v1/completions", json!({ "prompt": "x".repeat(CONTEXT) })).await.error(400);
    assert_eq!(error["code"], "context_length_exceeded");
    fixture.post("/v1/completions", json!({ "prompt": [100_000] })).await.error(400);
    fixture.post("/v1/completions", json!({ "prompt": "" })).await.error(400);
}

#[tokio::test]
async fn bodies_that_are_no_requests() {
    let fixture = Fixture::with(ServerConfig { body_limit: 1000, ..ServerConfig::default() }, 8);
    for body in ["", "{", "[]", "null", "\"x\"", "\u{0}", "{\"messages\": 5}"] {
        let request = Request::post("/v1/chat/completions").body(Body::from(body)).unwrap();
        fixture.send(request).await.error(400);
    }
    let nested = Request::post("/v1/completions").body(Body::from("[".repeat(900))).unwrap();
    fixture.send(nested).await.error(400);
    let error = fixture.post("/v1/completions", json!({ "prompt": "x".repeat(2000) })).await.error(413);
    assert!(error["message"].as_str().unwrap().contains("1000"));
}

#[tokio::test]
async fn addresses_and_models_that_are_not_there() {
    let names = vec!["org/name".to_owned(), "alias".to_owned()];
    let fixture = Fixture::with(ServerConfig { served_model_names: names, ..ServerConfig::default() }, 8);
    assert_eq!(fixture.get("/v2/chat").await.error(404)["code"], "not_found");
    assert_eq!(fixture.get("/v1/chat/completions").await.error(405)["code"], "method_not_allowed");
    let error = fixture.post("/v1/chat/completions", with("model", json!("gpt"))).await.error(404);
    assert_eq!((&error["code"], &error["param"]), (&json!("model_not_found"), &json!("model")));
    assert_eq!(fixture.post("/v1/chat/completions", with("model", json!("alias"))).await.ok()["model"], "alias");
    assert_eq!(fixture.post("/v1/chat/completions", hello()).await.ok()["model"], "org/name");
    let list = fixture.get("/v1/models").await.ok();
    assert_eq!((&list["object"], &list["data"][1]["id"]), (&json!("list"), &json!("alias")));
    assert_eq!(fixture.get("/v1/models/org/name").await.ok()["id"], "org/name");
    fixture.get("/v1/models/other").await.error(404);
}

#[tokio::test]
async fn a_key_opens_the_door() {
    let fixture = Fixture::with(ServerConfig { api_key: Some("secret".into()), ..ServerConfig::default() }, 8);
    let ask = |key: &str| Request::get("/v1/models").header("authorization", key).body(Body::empty()).unwrap();
    for wrong in ["", "Bearer", "Bearer ", "Bearer secre", "Bearer secrets", "Basic secret", "secret"] {
        let answer = fixture.send(ask(wrong)).await;
        assert_eq!(answer.error(401)["code"], "invalid_api_key", "{wrong}");
        assert_eq!(answer.headers["www-authenticate"], "Bearer");
    }
    fixture.get("/metrics").await.error(401);
    fixture.send(ask("Bearer secret")).await.ok();
    fixture.get("/health").await.ok();
    fixture.get("/ready").await.ok();
}

#[tokio::test]
async fn browsers_are_let_in_where_it_was_said() {
    let preflight = || {
        let request = Request::options("/v1/models").header("access-control-request-method", "POST");
        request.header("origin", "http://a.example").body(Body::empty()).unwrap()
    };
    assert!(!Fixture::new().send(preflight()).await.headers.contains_key("access-control-allow-origin"));
    let config = ServerConfig { cors: Some("*".into()), api_key: Some("k".into()), ..ServerConfig::default() };
    let fixture = Fixture::with(config, 8);
    let answer = fixture.send(preflight()).await;
    assert_eq!((answer.status.as_u16(), &answer.headers["access-control-allow-origin"]), (204, &"*".parse().unwrap()));
    // An error too must be readable to the page.
    let answer = fixture.get("/v1/models").await;
    answer.error(401);
    assert_eq!(answer.headers["access-control-allow-origin"], "*");
}

#[tokio::test]
async fn every_answer_has_an_id() {
    let fixture = Fixture::new();
    let with_id = |id: &str| Request::get("/health").header("x-request-id", id).body(Body::empty()).unwrap();
    assert_eq!(fixture.send(with_id("mine-1")).await.headers["x-request-id"], "mine-1");
    let long = "x".repeat(500);
    for strange in ["", "a b", long.as_str()] {
        let own = fixture.send(with_id(strange)).await.headers["x-request-id"].clone();
        assert_eq!(own.len(), 16, "{own:?}");
    }
    assert!(fixture.get("/nowhere").await.headers.contains_key("x-request-id"));
}
