use std::collections::{BTreeMap, BTreeSet};

use axum::body::Body;
use axum::http::{Method, Request};
use serde_json::{Map, Value, json};

use super::DOCUMENT;
use crate::ServerConfig;
use crate::app::addresses;
use crate::fields::{self, WITHOUT_EFFECT};
use crate::support::{Fixture, TEMPLATE};

fn document() -> Value {
    serde_json::from_str(DOCUMENT).unwrap()
}

/// Method, path and description of every operation.
fn operations(document: &Value) -> Vec<(Method, String, Value)> {
    let paths = document["paths"].as_object().unwrap();
    let of_path = |(path, operations): (&String, &Value)| {
        let of_method = |(method, operation): (&String, &Value)| {
            (method.to_uppercase().parse().unwrap(), path.clone(), operation.clone())
        };
        operations.as_object().unwrap().iter().map(of_method).collect::<Vec<_>>()
    };
    paths.iter().flat_map(of_path).collect()
}

fn request(method: &Method, path: &str, body: &Value) -> Request<Body> {
    let path = path.replace("{name}", "model");
    Request::builder().method(method).uri(path).body(Body::from(body.to_string())).unwrap()
}

fn resolve<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(to) => document.pointer(to.trim_start_matches('#')).unwrap_or_else(|| panic!("{to} is nowhere")),
        None => schema,
    }
}

/// All fields of a request's schema, those of its parts included; a field's own description wins over a part's.
fn properties(document: &Value, schema: &Value) -> Map<String, Value> {
    let schema = resolve(document, schema);
    let parts = schema["allOf"].as_array().into_iter().flatten();
    let mut all: Map<String, Value> = parts.flat_map(|part| properties(document, part)).collect();
    all.extend(schema["properties"].as_object().cloned().unwrap_or_default());
    all
}

/// The fields of every request that has some, by path.
fn documented(document: &Value) -> BTreeMap<String, Map<String, Value>> {
    let with_body = |(_, path, operation): (Method, String, Value)| {
        let schema = operation.pointer("/requestBody/content/application~1json/schema")?;
        Some((path, properties(document, schema)))
    };
    operations(document).into_iter().filter_map(with_body).collect()
}

/// Requests that each path answers, together taking every field that it knows.
fn plain(path: &str) -> Vec<Value> {
    let chat = json!({ "messages": [{"role": "user", "content": "Hi"}] });
    let text = json!({ "prompt": "Hi" });
    match path {
        "/v1/chat/completions" => vec![json!({ "messages": chat["messages"], "max_tokens": 4, "logprobs": true })],
        "/v1/completions" => vec![json!({ "prompt": "Hi", "max_tokens": 4 })],
        "/tokenize" => vec![text, chat],
        "/detokenize" => vec![json!({ "tokens": [72] })],
        _ => panic!("say what {path} is to be asked"),
    }
}

#[test]
fn the_document_is_of_this_version() {
    let document = document();
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(document["openapi"], "3.1.0");
}

#[test]
fn every_reference_leads_somewhere_and_every_component_is_used() {
    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(map) => {
                found.extend(map.get("$ref").and_then(Value::as_str).map(str::to_owned));
                map.values().for_each(|value| references(value, found));
            }
            Value::Array(list) => list.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }
    let document = document();
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    let mut known = BTreeSet::new();
    for (kind, components) in
        document["components"].as_object().unwrap().iter().filter(|(kind, _)| *kind != "securitySchemes")
    {
        known.extend(components.as_object().unwrap().keys().map(|name| format!("#/components/{kind}/{name}")));
    }
    assert_eq!(found, known);
}

#[test]
fn every_route_is_in_the_document_and_every_path_has_a_route() {
    let routes: BTreeSet<String> = addresses().iter().map(|(path, _)| path.replace("{*", "{")).collect();
    let paths: BTreeSet<String> = document()["paths"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(routes, paths);
}

#[tokio::test]
async fn every_operation_is_answered_by_its_method_alone_and_asks_for_the_key_as_it_says() {
    let document = document();
    let locked = Fixture::with(ServerConfig { api_key: Some("sesame".into()), ..ServerConfig::default() }, 1);
    let open = Fixture::new();
    for (method, path, operation) in operations(&document) {
        let needs_key = operation["security"].as_array().is_none_or(|ways| !ways.is_empty());
        let answer = locked.send(request(&method, &path, &json!({}))).await;
        assert_eq!(answer.status == 401, needs_key, "{method} {path}");
        let responses = operation["responses"].as_object().unwrap();
        assert_eq!(responses.contains_key("401"), needs_key, "{method} {path}");
        let answer = open.send(request(&method, &path, &json!({}))).await;
        assert!(responses.contains_key(answer.status.as_str()), "{method} {path}: {}", answer.status);
        let other = if method == Method::GET { Method::POST } else { Method::GET };
        open.send(request(&other, &path, &json!({}))).await.error(405);
    }
}

#[tokio::test]
async fn every_documented_field_is_described_and_accepted() {
    let fixture = Fixture::talking(TEMPLATE);
    let mut refused = Vec::new();
    for (path, fields) in documented(&document()) {
        for (name, schema) in fields {
            assert!(schema["description"].is_string(), "{path}: {name}");
            let example = schema["examples"].as_array().and_then(|examples| examples.first());
            let example = example.unwrap_or_else(|| panic!("{path}: {name} has no example"));
            let mut answers = Vec::new();
            for mut body in plain(&path) {
                body["stream"] = (name == "stream_options" || name == "stream").then_some(true).into();
                body[&name] = example.clone();
                answers.push(fixture.post(&path, body).await);
            }
            let refusals: Vec<&str> = answers.iter().map(|answer| answer.body.as_str()).collect();
            if !answers.iter().any(|answer| answer.status == 200) {
                refused.push(format!("{path}: {name}: {refusals:?}"));
            }
        }
    }
    assert!(refused.is_empty(), "{refused:#?}");
}

#[tokio::test]
async fn every_field_that_the_server_takes_is_documented() {
    let fixture = Fixture::new();
    for (path, documented) in documented(&document()) {
        fields::taken::clear();
        for body in plain(&path) {
            fixture.post(&path, body).await.ok();
        }
        let known = fields::taken::names().into_iter().chain(WITHOUT_EFFECT.map(str::to_owned));
        let missing: Vec<String> = known.filter(|name| !documented.contains_key(name)).collect();
        assert!(missing.is_empty(), "{path} takes {missing:?}");
    }
}
