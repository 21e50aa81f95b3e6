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
        ("tools", json!([{"type": "retrieval"}]), "tools[0].type"),
        ("tool_choice", json!({"type": "allowed_tools"}), "tool_choice"),
        ("functions", json!([{"name": "f"}]), "functions"),
        ("function_call", json!({"name": "f"}), "function_call"),
        ("response_format", json!({"type": "grammar"}), "response_format"),
        ("reasoning_effort", json!("low"), "reasoning_effort"),
        ("chat_template", json!("x"), "chat_template"),
        ("messages", message(json!({"role": "function", "content": "x"})), "messages[0].role"),
        ("messages", message(json!({"role": "user", "tool_calls": [{}], "content": ""})), "messages[0].tool_calls"),
        ("messages", message(json!({"role": "user", "content": [{"type": "image_url"}]})), "messages[0].content"),
    ] {
        let error = fixture.post("/v1/chat/completions", with(field, value)).await.error(400);
        assert_eq!((&error["param"], &error["code"]), (&json!(param), &json!("unsupported_parameter")), "{error}");
    }
    for (field, value) in [("echo", json!("yes")), ("suffix", json!("x")), ("best_of", json!(2)), ("tools", json!([1]))]
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
        ("stop_token_ids", json!([256])),
    ] {
        let error = fixture.post("/v1/chat/completions", with(field, value)).await.error(400);
        assert_eq!(error["type"], "invalid_request_error");
        assert!(error["message"].as_str().unwrap().contains(field), "{error}");
    }
    for n in [33, 1000] {
        let error = fixture.post("/v1/chat/completions", with("n", json!(n))).await.error(400);
        assert_eq!(error["message"], format!("n is {n}; it must be from 1 to 32"), "as many as run at once");
    }
    let error = fixture.post("/v1/chat/completions", with("stop_token_ids", json!([256]))).await.error(400);
    assert_eq!(error["param"], "stop_token_ids", "the client's name of it");
    let long = "x".repeat(CONTEXT);
    let chat = with("messages", json!([{"role": "user", "content": long}]));
    for (path, body, param) in
        [("/v1/completions", json!({ "prompt": long }), "prompt"), ("/v1/chat/completions", chat, "messages")]
    {
        let error = fixture.post(path, body).await.error(400);
        assert_eq!((&error["code"], &error["param"]), (&json!("context_length_exceeded"), &json!(param)), "{error}");
        assert!(error["message"].as_str().unwrap().contains("shorten the prompt by at least "), "{error}");
    }
    fixture.post("/v1/completions", json!({ "prompt": [100_000] })).await.error(400);
    fixture.post("/v1/completions", json!({ "prompt": "" })).await.error(400);
}

#[tokio::test]
async fn what_is_to_be_tokenized_is_given_once() {
    let fixture = Fixture::new();
    let error = fixture.post("/tokenize", json!({ "model": null })).await.error(400);
    assert_eq!((&error["param"], &error["message"]), (&json!("prompt"), &json!("prompt or messages is missing")));
    let mut both = hello();
    both["prompt"] = "Hi".into();
    both.as_object_mut().unwrap().retain(|name, _| name != "max_tokens");
    let error = fixture.post("/tokenize", both).await.error(400);
    assert_eq!(error["message"], "messages: prompt is given too; give one of them");
}

#[tokio::test]
async fn no_tokens_at_all_are_refused_but_with_echo() {
    let fixture = Fixture::new();
    for field in ["max_tokens", "max_completion_tokens"] {
        let mut body = with(field, json!(0));
        body.as_object_mut().unwrap().retain(|name, _| name != "max_tokens" || field == "max_tokens");
        let error = fixture.post("/v1/chat/completions", body).await.error(400);
        assert_eq!(error["param"], field);
        assert!(error["message"].as_str().unwrap().contains("at least 1"), "{error}");
    }
    let long = "x".repeat(CONTEXT);
    for (body, param) in [
        (json!({ "max_tokens": 0 }), "max_tokens"),
        (json!({ "max_tokens": 0, "echo": false }), "max_tokens"),
        (json!({ "max_tokens": -2, "echo": true }), "max_tokens"),
        (json!({ "max_tokens": 0, "echo": true, "min_tokens": 1 }), "min_tokens"),
        (json!({ "max_tokens": 0, "echo": true, "logprobs": 0 }), "echo"),
        (json!({ "max_tokens": 0, "echo": true, "prompt": "" }), "prompt"),
        (json!({ "max_tokens": 0, "echo": true, "prompt": long }), "prompt"),
        (json!({ "max_tokens": 0, "echo": true, "prompt": [100_000] }), "prompt"),
        (json!({ "max_tokens": 0, "echo": true, "top_p": 2 }), "top_p"),
    ] {
        let mut asked = json!({ "prompt": "a" });
        asked.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        assert_eq!(fixture.post("/v1/completions", asked).await.error(400)["param"], param, "{body}");
    }
    let small = Fixture::with(ServerConfig { body_limit: 100, ..ServerConfig::default() }, 8);
    let body = json!({ "prompt": "sixteen letters!", "echo": true, "max_tokens": 0, "n": 7 });
    assert_eq!(small.post("/v1/completions", body).await.error(400)["param"], "echo");
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

#[tokio::test]
async fn fields_of_all_clients_are_honoured_or_change_nothing_or_are_refused() {
    let fixture = Fixture::new();
    let accepted: Value = serde_json::from_str(
        r#"{
        "user": "u", "metadata": {"a": "b"}, "store": true, "service_tier": "flex", "safety_identifier": "s",
        "prompt_cache_key": "k", "prompt_cache_retention": "24h", "parallel_tool_calls": true, "verbosity": "medium",
        "prediction": {"type": "content", "content": "x"}, "modalities": ["text"], "functions": [],
        "length_penalty": 1.0, "early_stopping": false, "bad_words": [], "logits_processors": [],
        "return_tokens_as_token_ids": false, "return_token_ids": false, "include_stop_str_in_output": false,
        "spaces_between_special_tokens": true, "mm_processor_kwargs": {"x": 1}, "documents": [], "request_id": "r",
        "priority": 1, "cache_salt": "s", "top_k": 5, "min_p": 0.1, "typical_p": 0.9, "min_tokens": 1,
        "cache_prompt": true, "id_slot": 3, "timings_per_token": true, "return_progress": true, "mirostat": 0,
        "dry_multiplier": 0.0, "xtc_probability": 0, "dynatemp_range": 0, "repeat_penalty": 1, "grammar": "",
        "keep_alive": "5m", "audio": null, "web_search_options": null, "reasoning_effort": null, "logit_bias": {}
    }"#,
    )
    .unwrap();
    let mut body = hello();
    body.as_object_mut().unwrap().extend(accepted.as_object().unwrap().clone());
    fixture.post("/v1/chat/completions", body).await.ok();
    for (field, value) in [
        ("audio", json!({"voice": "x", "format": "wav"})),
        ("web_search_options", json!({})),
        ("verbosity", json!("low")),
        ("length_penalty", json!(1.2)),
        ("bad_words", json!(["x"])),
        ("allowed_token_ids", json!([1])),
        ("truncate_prompt_tokens", json!(5)),
        ("prompt_logprobs", json!(1)),
        ("use_beam_search", json!(true)),
        ("kv_transfer_params", json!({"a": 1})),
        ("vllm_xargs", json!({"a": 1})),
        ("mirostat", json!(2)),
        ("samplers", json!(["top_k"])),
        ("repeat_penalty", json!(1.1)),
        ("dry_multiplier", json!(0.8)),
        ("n_predict", json!(5)),
        ("lora", json!([{"id": 0}])),
        ("think", json!(true)),
        ("options", json!({"num_ctx": 5})),
    ] {
        let error = fixture.post("/v1/chat/completions", with(field, value)).await.error(400);
        assert_eq!((&error["param"], &error["code"]), (&json!(field), &json!("unsupported_parameter")), "{error}");
    }
}

/// Values that are JSON, but of nothing that can be meant.
#[tokio::test]
async fn bytes_that_are_no_sane_request_are_the_clients_fault() {
    let fixture = Fixture::new();
    let bodies: [&[u8]; 14] = [
        b"{\"prompt\": \"a\", \"prompt\": \"b\"}",
        b"{\"prompt\": \"a\", \"temperature\": 1e400}",
        b"{\"prompt\": \"a\", \"temperature\": 1e39}",
        b"{\"prompt\": \"a\", \"temperature\": NaN}",
        b"{\"prompt\": \"a\", \"max_tokens\": 99999999999999999999}",
        b"{\"prompt\": \"a\", \"max_tokens\": 1.5}",
        b"{\"prompt\": \"a\", \"seed\": 1e30}",
        b"{\"prompt\": \"\xff\xfe\"}",
        b"{\"prompt\": \"\\ud800\"}",
        b"{\"prompt\": \"\\udc00\\ud800\"}",
        b"{\"prompt\": \"a\"} trailing",
        b"{\"prompt\": \"a\", \"logit_bias\": {\"99999999999\": 1}}",
        b"{\"prompt\": \"a\", \"stop\": [\"\"]}",
        b"\xef\xbb\xbf",
    ];
    for body in bodies {
        let request = Request::post("/v1/completions").body(Body::from(body)).unwrap();
        let error = fixture.send(request).await.error(400);
        assert_eq!(error["type"], "invalid_request_error", "{}", String::from_utf8_lossy(body));
        assert!(error["request_id"].is_string());
    }
}

#[tokio::test]
async fn the_head_says_what_the_body_is() {
    let fixture = Fixture::new();
    let post = |headers: &[(&str, &str)]| {
        let mut request = Request::post("/v1/completions");
        for &(name, value) in headers {
            request = request.header(name, value);
        }
        request.body(Body::from(json!({ "prompt": "a", "max_tokens": 1 }).to_string())).unwrap()
    };
    let form = ("content-type", "application/x-www-form-urlencoded");
    for right in [
        vec![],
        vec![("content-type", "application/json; charset=utf-8")],
        vec![("content-type", "Application/JSON"), ("content-encoding", "identity")],
        vec![form],
    ] {
        fixture.send(post(&right)).await.ok();
    }
    for wrong in [
        vec![("content-type", "text/plain")],
        vec![("content-type", "multipart/form-data; boundary=x")],
        vec![form, ("origin", "http://a.example")],
        vec![("content-type", "application/json"), ("content-encoding", "gzip")],
    ] {
        assert_eq!(fixture.send(post(&wrong)).await.error(415)["code"], "unsupported_media_type", "{wrong:?}");
    }
}

#[tokio::test]
async fn methods_and_addresses_have_their_answers() {
    let names = vec!["org/a b".to_owned()];
    let fixture = Fixture::with(ServerConfig { served_model_names: names, ..ServerConfig::default() }, 8);
    let ask = |method: &str, path: &str| Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
    let head = fixture.send(ask("HEAD", "/health")).await;
    assert_eq!((head.status.as_u16(), head.body.as_str()), (200, ""));
    for (method, path, status) in [
        ("OPTIONS", "/v1/models", 405),
        ("PUT", "/v1/chat/completions", 405),
        ("GET", "/v1/models/", 404),
        ("GET", "/v1//models", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("GET", "/v1/models/%ff", 400),
        ("POST", "/v1/chat/completions", 400),
    ] {
        fixture.send(ask(method, path)).await.error(status);
    }
    assert_eq!(fixture.get("/v1/models/org%2Fa%20b").await.ok()["id"], "org/a b");
    assert_eq!(fixture.get("/v1/models/org/a%20b").await.ok()["id"], "org/a b");
}
