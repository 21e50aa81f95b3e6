//! A server that drafts: the same answers, what clients may say about drafts, and what is counted of them.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use draft::{Ngram, Predicted};
use serde_json::{Value, json};
use support::{Answer, Fixture};

fn ngram() -> Fixture {
    Fixture::drafting(Box::new(Ngram::default()))
}

fn predicted() -> Fixture {
    Fixture::drafting(Box::new(Predicted))
}

/// `body` with more members.
fn with(mut body: Value, more: &Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// A chat whose answer is all of the letters a to d: text that repeats itself.
fn letters(more: &Value) -> Value {
    let bias: BTreeMap<String, i32> = (b'a'..=b'd').map(|byte| (byte.to_string(), 40)).collect();
    let body = json!({
        "messages": [{"role": "user", "content": "abcd abcd abcd"}], "seed": 3, "max_tokens": 40, "ignore_eos": true,
        "logit_bias": bias,
    });
    with(body, more)
}

/// A completion that is all A.
fn same(more: &Value) -> Value {
    let body = json!({ "prompt": "AAAA", "max_tokens": 40, "temperature": 0, "logit_bias": {"65": 100} });
    with(body, more)
}

fn text(answer: &Value) -> &str {
    let choice = &answer["choices"][0];
    choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap()
}

/// Accepted and rejected drafts.
fn drafts(answer: &Value) -> (u64, u64) {
    let details = &answer["usage"]["completion_tokens_details"];
    (details["accepted_prediction_tokens"].as_u64().unwrap(), details["rejected_prediction_tokens"].as_u64().unwrap())
}

/// What must not depend on drafts.
fn substance(answer: &Value) -> Value {
    json!([answer["choices"], answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]])
}

/// The events without what names their answer.
fn events(answer: &Answer) -> Vec<Value> {
    answer.events().into_iter().map(|event| event["choices"].clone()).collect()
}

/// All samples of `/metrics` by name and labels.
async fn metrics(fixture: &Fixture) -> BTreeMap<String, f64> {
    let text = fixture.get("/metrics").await.body;
    let sample = |line: &str| line.rsplit_once(' ').map(|(name, value)| (name.to_owned(), value.parse().unwrap()));
    text.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect()
}

/// The sum over all labels.
fn sum(metrics: &BTreeMap<String, f64>, name: &str) -> f64 {
    metrics.iter().filter(|(key, _)| key.split('{').next() == Some(name)).map(|(_, value)| value).sum()
}

#[tokio::test]
async fn drafts_change_no_answer() {
    let (plain, drafting) = (Fixture::new(), ngram());
    let schema = json!({ "type": "json_schema", "json_schema": { "schema": {
        "type": "object", "properties": { "a": { "type": "array", "items": { "enum": [1, 2] }, "minItems": 20 } },
        "required": ["a"], "additionalProperties": false } } });
    let bodies = [
        ("/v1/chat/completions", letters(&json!({ "temperature": 0.9, "n": 3, "logprobs": true, "top_logprobs": 2 }))),
        (
            "/v1/chat/completions",
            letters(&json!({ "temperature": 0, "frequency_penalty": 0.5, "presence_penalty": 1 })),
        ),
        ("/v1/chat/completions", letters(&json!({ "temperature": 1, "stop": ["ab", "cc"], "min_tokens": 9 }))),
        ("/v1/chat/completions", letters(&json!({ "temperature": 0.5, "ignore_eos": false, "max_tokens": 200 }))),
        ("/v1/chat/completions", letters(&json!({ "response_format": schema, "max_tokens": 90, "logit_bias": null }))),
        ("/v1/completions", same(&json!({ "logprobs": 1, "n": 2 }))),
        ("/v1/completions", same(&json!({ "stop": ["AAAAA"], "logprobs": 0 }))),
        ("/v1/completions", same(&json!({ "stop_token_ids": [65] }))),
        ("/v1/completions", same(&json!({ "max_tokens": 1 }))),
        ("/v1/completions", same(&json!({ "prompt": ["AAAA", "BA"], "max_tokens": 7, "repetition_penalty": 1.1 }))),
        // To the end of the context.
        ("/v1/completions", same(&json!({ "max_tokens": 10_000, "ignore_eos": true }))),
    ];
    for (path, body) in bodies {
        let whole = plain.post(path, body.clone()).await.ok();
        let streamed = events(&plain.post(path, with(body.clone(), &json!({ "stream": true }))).await);
        for speculation in
            [json!(null), json!({ "enabled": false }), json!({ "max_draft": 1 }), json!({ "max_draft": 3 })]
        {
            let body = with(body.clone(), &json!({ "speculation": speculation }));
            assert_eq!(substance(&drafting.post(path, body.clone()).await.ok()), substance(&whole), "{body}");
            let stream = drafting.post(path, with(body.clone(), &json!({ "stream": true }))).await;
            // Choices take turns by the step, so that only each by itself comes in the same order.
            if body["n"].is_null() && !body["prompt"].is_array() {
                assert_eq!(events(&stream), streamed, "{body}");
            }
        }
    }
    let metrics = metrics(&drafting).await;
    assert!(metrics["foretoken_accepted_tokens_total"] > 100.0 && metrics["foretoken_rejected_tokens_total"] > 0.0);
}

#[tokio::test]
async fn every_token_is_an_event_of_its_own() {
    let fixture = ngram();
    let answer = fixture.post("/v1/completions", same(&json!({ "ignore_eos": true }))).await.ok();
    assert!(drafts(&answer).0 > 10, "{answer}");
    let stream = fixture.post("/v1/completions", same(&json!({ "ignore_eos": true, "stream": true }))).await;
    let texts = events(&stream).into_iter().map(|choices| choices[0]["text"].clone());
    assert_eq!(texts.filter(|text| text == "A").count(), 40);
}

#[tokio::test]
async fn usage_has_the_drafts_of_all_choices_whole_and_streamed() {
    let fixture = ngram();
    let one = fixture.post("/v1/completions", same(&json!({}))).await.ok();
    let (accepted, rejected) = drafts(&one);
    assert!(accepted > 0);
    // The same three times over, as choices and as prompts.
    let choices = fixture.post("/v1/completions", same(&json!({ "n": 3 }))).await.ok();
    let prompts = fixture.post("/v1/completions", same(&json!({ "prompt": ["AAAA", "AAAA", "AAAA"] }))).await.ok();
    let stream = json!({ "n": 3, "stream": true, "stream_options": { "include_usage": true } });
    let streamed = fixture.post("/v1/completions", same(&stream)).await.events().pop().unwrap();
    for answer in [choices, prompts, streamed] {
        assert_eq!(answer["usage"]["completion_tokens"], 120);
        let (all, _) = drafts(&answer);
        assert!(all > accepted && all < 120, "{answer}");
    }
    assert_eq!(rejected, 0, "{one}");
    let off = fixture.post("/v1/completions", same(&json!({ "speculation": { "max_draft": 0 } }))).await.ok();
    assert_eq!(drafts(&off), (0, 0));
}

#[tokio::test]
async fn metrics_add_up() {
    let fixture = ngram();
    let at_start = metrics(&fixture).await;
    for name in ["drafts", "drafted_tokens", "accepted_tokens", "rejected_tokens", "decodes", "propose_seconds"] {
        assert_eq!(at_start[&format!("foretoken_{name}_total")], 0.0, "{name} is there from the beginning");
    }
    for reason in engine::batch::Reason::ALL.map(engine::batch::Reason::name) {
        assert_eq!(at_start[&format!("foretoken_undrafted_total{{reason=\"{reason}\"}}")], 0.0);
    }
    let (mut accepted, mut rejected) = (0, 0);
    let of_letters = [json!({ "temperature": 0.9, "n": 2 }), json!({ "temperature": 0 }), json!({ "max_tokens": 1 })];
    let bodies = of_letters.map(|more| ("/v1/chat/completions", letters(&more)));
    let more = [json!({}), json!({ "speculation": { "enabled": false } })].map(|more| ("/v1/completions", same(&more)));
    for (path, body) in bodies.into_iter().chain(more) {
        let answer = fixture.post(path, body).await.ok();
        accepted += drafts(&answer).0;
        rejected += drafts(&answer).1;
    }
    let now = metrics(&fixture).await;
    let total = |name: &str| sum(&now, &format!("foretoken_{name}_total"));
    assert!(accepted > 0 && rejected > 0, "{accepted} {rejected}");
    assert_eq!((total("accepted_tokens"), total("rejected_tokens")), (accepted as f64, rejected as f64));
    assert_eq!(total("drafted_tokens"), (accepted + rejected) as f64);
    // The drafts are chains: one for each position.
    assert_eq!(total("drafted_tokens_by_position"), total("drafted_tokens"));
    assert_eq!(total("accepted_tokens_by_position"), total("accepted_tokens"));
    assert_eq!(now["foretoken_drafted_tokens_by_position_total{position=\"1\"}"], total("drafts"));
    assert_eq!(total("decodes"), total("drafts") + total("undrafted"));
    assert!(now["foretoken_undrafted_total{reason=\"disabled\"}"] >= 39.0);
    assert!(now["foretoken_undrafted_total{reason=\"last_token\"}"] >= 1.0);
    assert!(now["foretoken_draft_budget"] > 0.0 && now["foretoken_draft_budget"] < 8.0);
    assert!(total("judged_tokens") >= total("accepted_tokens"));
    for share in ["calibration_error", "brier"] {
        assert!((0.0..=1.0).contains(&now[&format!("foretoken_draft_{share}")]), "{share}");
    }
    let parts = total("propose_seconds") + total("forward_seconds") + total("commit_seconds");
    assert!(parts > 0.0 && parts <= now["foretoken_step_seconds_sum"]);
    assert!(total("step_predicted_seconds") > 0.0);
    for (name, own) in [
        ("num_drafts", "drafts"),
        ("num_draft_tokens", "drafted_tokens"),
        ("num_accepted_tokens", "accepted_tokens"),
        ("num_accepted_tokens_per_pos", "accepted_tokens_by_position"),
    ] {
        assert_eq!(sum(&now, &format!("vllm:spec_decode_{name}_total")), total(own));
    }
    let first = "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"}";
    assert_eq!(now[first], now["foretoken_accepted_tokens_by_position_total{position=\"1\"}"]);
}

#[tokio::test]
async fn a_server_without_drafts_takes_the_fields_and_has_no_figures_of_drafts() {
    let fixture = Fixture::new();
    let plain = fixture.post("/v1/chat/completions", letters(&json!({}))).await.ok();
    let more = json!({
        "speculation": { "enabled": true, "max_draft": 4, "acceptance": "typical" },
        "prediction": { "type": "content", "content": text(&plain) },
    });
    let answer = fixture.post("/v1/chat/completions", letters(&more)).await.ok();
    assert_eq!(substance(&answer), substance(&plain));
    assert_eq!((drafts(&answer), answer.get("speculation")), ((0, 0), None));
    let metrics = fixture.get("/metrics").await.body;
    assert!(!metrics.contains("draft") && metrics.contains("foretoken_forward_seconds_total"), "{metrics}");
}

#[tokio::test]
async fn a_prediction_is_checked_and_changes_no_answer() {
    let fixture = predicted();
    for more in [json!({ "temperature": 0 }), json!({ "temperature": 0.9 }), json!({ "temperature": 0.9, "n": 2 })] {
        let plain = fixture.post("/v1/chat/completions", letters(&more)).await.ok();
        assert_eq!(drafts(&plain), (0, 0));
        let expected = text(&plain);
        let changed = expected.replacen(&expected[10..14], "zzzz", 1);
        let parts = json!([{ "type": "text", "text": &expected[..7] }, { "type": "text", "text": &expected[7..] }]);
        let cases = [(json!(expected), 30), (parts, 30), (json!(changed), 15), (json!("zzzz"), 0), (json!(""), 0)];
        for (content, least) in cases {
            let prediction = json!({ "prediction": { "type": "content", "content": content } });
            let answer = fixture.post("/v1/chat/completions", with(letters(&more), &prediction)).await.ok();
            assert_eq!(substance(&answer), substance(&plain), "{content}");
            assert!(drafts(&answer).0 >= least, "{content}: {answer}");
            let off = with(prediction, &json!({ "speculation": { "enabled": false } }));
            let answer = fixture.post("/v1/chat/completions", with(letters(&more), &off)).await.ok();
            assert_eq!((substance(&answer), drafts(&answer)), (substance(&plain), (0, 0)));
        }
    }
    // Longer than any answer can be; and what ends a turn is ten letters here.
    let long = json!({ "prediction": { "type": "content", "content": "ab</s>".repeat(100_000) } });
    fixture.post("/v1/chat/completions", letters(&long)).await.ok();
}

#[tokio::test]
async fn a_lossy_rule_is_announced_in_the_answer_and_others_are_not() {
    let fixture = ngram();
    let stream = json!({ "stream": true, "stream_options": { "include_usage": true } });
    for (acceptance, notice) in
        [("keyed", None), ("ratio", None), ("typical", Some(json!({ "acceptance": "typical", "lossless": false })))]
    {
        let more = json!({ "speculation": { "acceptance": acceptance }, "temperature": 0.8 });
        for (path, body) in [("/v1/chat/completions", letters(&more)), ("/v1/completions", same(&more))] {
            let answer = fixture.post(path, body.clone()).await.ok();
            assert_eq!(answer.get("speculation"), notice.as_ref(), "{acceptance}");
            assert_eq!(answer["usage"]["completion_tokens"], 40);
            let events = fixture.post(path, with(body, &stream)).await.events();
            assert!(events.iter().all(|event| event.get("speculation") == notice.as_ref()), "{acceptance}");
        }
        // Without chance there is one answer, whatever the rule.
        let greedy = with(letters(&more), &json!({ "temperature": 0 }));
        let plain = fixture.post("/v1/chat/completions", letters(&json!({ "temperature": 0 }))).await.ok();
        let answer = fixture.post("/v1/chat/completions", greedy).await.ok();
        assert_eq!(substance(&answer), substance(&plain), "{acceptance}");
        assert_eq!(answer.get("speculation"), None);
    }
}

#[tokio::test]
async fn what_is_wrong_in_the_fields_is_refused_by_name() {
    let fixture = ngram();
    for (more, param) in [
        (json!({ "speculation": 5 }), "speculation"),
        (json!({ "speculation": { "enabled": "yes" } }), "speculation.enabled"),
        (json!({ "speculation": { "max_draft": -1 } }), "speculation.max_draft"),
        (json!({ "speculation": { "acceptance": "strict" } }), "speculation.acceptance"),
        (json!({ "speculation": { "drafter": "ngram" } }), "speculation.drafter"),
    ] {
        for (path, body) in [("/v1/chat/completions", letters(&more)), ("/v1/completions", same(&more))] {
            assert_eq!(fixture.post(path, body).await.error(400)["param"], param);
        }
    }
    let prediction = json!({ "prediction": { "type": "text", "content": "a" } });
    let error = fixture.post("/v1/chat/completions", letters(&prediction)).await.error(400);
    assert_eq!(error["param"], "prediction.type");
    let prediction = json!({ "prediction": { "type": "content", "content": "a" } });
    let error = fixture.post("/v1/completions", same(&prediction)).await.error(400);
    assert_eq!(error["param"], "prediction");
}

#[tokio::test]
async fn thirty_two_answers_by_schema_at_once_are_valid_with_drafts() {
    let fixture = Arc::new(ngram());
    let schema = json!({ "type": "object", "additionalProperties": false, "required": ["left", "right"], "properties": {
        "left": { "enum": ["this", "that"] }, "right": { "type": "integer", "minimum": 0, "maximum": 999 } } });
    let answer = |seed: u64| {
        let (fixture, schema) = (Arc::clone(&fixture), schema.clone());
        let messages = json!([{ "role": "user", "content": "As JSON: {\"left\": \"this\", \"right\": 17}" }]);
        let body = json!({ "messages": messages, "guided_json": schema, "seed": seed, "temperature": 1.0 });
        tokio::spawn(async move { fixture.post("/v1/chat/completions", body).await.ok() })
    };
    let tasks: Vec<_> = (0..32).map(answer).collect();
    for task in tasks {
        let answer = task.await.unwrap();
        let value: Value = serde_json::from_str(text(&answer)).unwrap_or_else(|error| panic!("{error}: {answer}"));
        assert!(["this", "that"].contains(&value["left"].as_str().unwrap()));
        assert!(value["right"].as_u64().unwrap() <= 999 && answer["choices"][0]["finish_reason"] == "stop");
    }
    assert!(fixture.served.handle.stats().drafts.checked > 0);
}
