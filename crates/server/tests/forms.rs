//! Answers of a form: `response_format` and its relatives.

mod support;

use serde_json::{Value, json};
use support::{Fixture, TEMPLATE};

fn with(more: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "Hi"}], "seed": 1, "temperature": 1.5, "max_tokens": 2000,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn schema() -> Value {
    json!({ "type": "object", "additionalProperties": false, "required": ["name", "age"], "properties": {
        "name": { "type": "string", "maxLength": 12 }, "age": { "type": "integer", "minimum": 0, "maximum": 99 } } })
}

#[tokio::test]
async fn json_by_schema_and_by_its_relatives() {
    let fixture = Fixture::talking(TEMPLATE);
    let schema = schema();
    for form in [
        json!({ "response_format": {"type": "json_schema", "json_schema": {"name": "p", "strict": true, "schema": schema}} }),
        json!({ "response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": schema}} }),
        json!({ "guided_json": schema }),
        json!({ "guided_json": schema.to_string() }),
        json!({ "structured_outputs": {"json": schema} }),
    ] {
        for seed in 0..3 {
            let mut body = with(form.clone());
            body["seed"] = seed.into();
            let answer = fixture.post("/v1/chat/completions", body).await.ok();
            let choice = &answer["choices"][0];
            assert_eq!(choice["finish_reason"], "stop", "{answer}");
            let value: Value = serde_json::from_str(choice["message"]["content"].as_str().unwrap()).unwrap();
            assert!(value["name"].as_str().unwrap().chars().count() <= 12);
            assert!(value["age"].as_u64().unwrap() <= 99);
            assert_eq!(value.as_object().unwrap().len(), 2);
        }
    }
}

#[tokio::test]
async fn other_forms_on_both_addresses() {
    let fixture = Fixture::talking(TEMPLATE);
    for (form, allowed) in [
        (json!({ "guided_choice": ["left", "right"] }), vec!["left", "right"]),
        (json!({ "guided_regex": "[ab]c" }), vec!["ac", "bc"]),
        (json!({ "guided_grammar": "start: \"x\" (\"y\" | \"z\")" }), vec!["xy", "xz"]),
        (json!({ "structured_outputs": {"choice": ["left"]} }), vec!["left"]),
        (json!({ "structured_outputs": {"regex": "q{3}"} }), vec!["qqq"]),
    ] {
        let chat = fixture.post("/v1/chat/completions", with(form.clone())).await.ok();
        let chat = chat["choices"][0]["message"]["content"].clone();
        let mut body = json!({ "prompt": "a", "seed": 1 });
        body.as_object_mut().unwrap().extend(form.as_object().unwrap().clone());
        let plain = fixture.post("/v1/completions", body).await.ok()["choices"][0]["text"].clone();
        for text in [chat, plain] {
            assert!(allowed.contains(&text.as_str().unwrap()), "{text} for {form}");
        }
    }
    let form = json!({ "response_format": {"type": "json_object"}, "max_tokens": 8 });
    let cut = fixture.post("/v1/chat/completions", with(form)).await.ok();
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    assert!(cut["choices"][0]["message"]["content"].as_str().unwrap().starts_with('{'));
}

#[tokio::test]
async fn forms_that_cannot_be_are_refused_by_name() {
    let fixture = Fixture::new();
    let by_schema = |schema: Value, strict: bool| json!({ "response_format": {"type": "json_schema", "json_schema": {"schema": schema, "strict": strict}} });
    let unique = json!({ "type": "array", "uniqueItems": true });
    for (form, param, says) in [
        (by_schema(unique.clone(), true), "response_format", "uniqueItems"),
        (by_schema(json!({ "type": "integer", "minimum": 2, "maximum": 1 }), false), "response_format", "minimum"),
        (by_schema(json!({ "type": "array", "minItems": 100_000_000 }), false), "response_format", "minItems"),
        (by_schema(json!({ "$ref": "other.json" }), false), "response_format", "other.json"),
        (json!({ "response_format": {"type": "json_schema"} }), "response_format", "json_schema"),
        (
            json!({ "response_format": {"type": "json_schema", "json_schema": {"schema": 5}} }),
            "response_format",
            "schema",
        ),
        (json!({ "response_format": "json" }), "response_format", "object"),
        (json!({ "guided_regex": "(" }), "guided_regex", "guided_regex"),
        (json!({ "guided_choice": [] }), "guided_choice", "list"),
        (json!({ "guided_json": "{" }), "guided_json", "schema"),
        (json!({ "guided_grammar": "root ::= \"a\"" }), "guided_grammar", "guided_grammar"),
        (json!({ "guided_regex": "a", "guided_choice": ["a"] }), "guided_choice", "guided_regex"),
        (json!({ "structured_outputs": {"regex": "a", "choice": ["a"]} }), "structured_outputs", "choice"),
    ] {
        let error = fixture.post("/v1/chat/completions", with(form.clone())).await.error(400);
        assert_eq!(error["param"], param, "{form}");
        assert!(error["message"].as_str().unwrap().contains(says), "{error}");
    }
    let mut lenient = with(by_schema(unique, false));
    lenient["max_tokens"] = 2.into();
    fixture.post("/v1/chat/completions", lenient).await.ok();
}
