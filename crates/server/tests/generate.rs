//! What `/v1/chat/completions` and `/v1/completions` answer, whole and streamed.

mod support;

use serde_json::{Value, json};
use support::{CONTEXT, Fixture};

fn chat(more: Value) -> Value {
    let mut body = json!({
        "model": "model", "messages": [{"role": "user", "content": "Hi"}], "seed": 3, "max_tokens": 12, "ignore_eos": true,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn plain(more: Value) -> Value {
    let mut body = json!({ "prompt": "Once", "seed": 3, "max_tokens": 12, "ignore_eos": true });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Texts of the choices of a stream, put together, and why they ended.
fn assembled(events: &[Value], n: usize) -> Vec<(String, Value)> {
    let mut choices = vec![(String::new(), Value::Null); n];
    for choice in events.iter().flat_map(|event| event["choices"].as_array().unwrap()) {
        let (text, finish) = &mut choices[choice["index"].as_u64().unwrap() as usize];
        assert!(finish.is_null(), "a chunk after the end");
        text.push_str(choice["text"].as_str().or(choice["delta"]["content"].as_str()).unwrap_or_default());
        *finish = choice["finish_reason"].clone();
    }
    choices
}

#[tokio::test]
async fn a_chat_is_answered() {
    let fixture = Fixture::new();
    let answer = fixture.post("/v1/chat/completions", chat(json!({}))).await;
    let answer = answer.ok();
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "model");
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    assert!(!choice["message"]["content"].as_str().unwrap().is_empty());
    assert_eq!((&choice["finish_reason"], &choice["logprobs"]), (&json!("length"), &Value::Null));
    // "user:Hi\nassistant:"
    let usage = &answer["usage"];
    assert_eq!(usage["prompt_tokens"], 18);
    assert_eq!((&usage["completion_tokens"], &usage["total_tokens"]), (&json!(12), &json!(30)));
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
    let details = json!({ "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0 });
    assert_eq!(usage["completion_tokens_details"], details);
}

#[tokio::test]
async fn a_stream_holds_what_the_whole_answer_holds() {
    let fixture = Fixture::new();
    for (path, body) in [("/v1/chat/completions", chat(json!({}))), ("/v1/completions", plain(json!({})))] {
        let whole = fixture.post(path, body.clone()).await.ok();
        let mut streamed = body;
        streamed["stream"] = true.into();
        let events = fixture.post(path, streamed.clone()).await.events();
        assert!(events.iter().all(|event| event.get("usage").is_none()));
        let choice = &whole["choices"][0];
        let text = choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap();
        assert_eq!(assembled(&events, 1), [(text.to_owned(), json!("length"))]);
        if path.contains("chat") {
            assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
            assert_eq!(events[0]["object"], "chat.completion.chunk");
        }
        streamed["stream_options"] = json!({ "include_usage": true });
        let events = fixture.post(path, streamed).await.events();
        let (last, others) = events.split_last().unwrap();
        assert!(others.iter().all(|event| event["usage"].is_null() && event.get("usage").is_some()));
        assert_eq!(last["choices"], json!([]));
        assert_eq!(last["usage"]["completion_tokens"], 12);
        assert_eq!(last["usage"]["prompt_tokens"], whole["usage"]["prompt_tokens"]);
    }
}

#[tokio::test]
async fn the_seed_decides_and_choices_differ() {
    let fixture = Fixture::new();
    let texts = |answer: Value| -> Vec<String> {
        let choices = answer["choices"].as_array().unwrap();
        choices.iter().map(|choice| choice["message"]["content"].as_str().unwrap().to_owned()).collect()
    };
    let three = texts(fixture.post("/v1/chat/completions", chat(json!({ "n": 3 }))).await.ok());
    assert_eq!(texts(fixture.post("/v1/chat/completions", chat(json!({ "n": 3 }))).await.ok()), three);
    assert!(three[0] != three[1] && three[1] != three[2]);
    let one = texts(fixture.post("/v1/chat/completions", chat(json!({}))).await.ok());
    assert_eq!(one[0], three[0]);
    let events = fixture.post("/v1/chat/completions", chat(json!({ "n": 3, "stream": true }))).await.events();
    assert_eq!(assembled(&events, 3).into_iter().map(|(text, _)| text).collect::<Vec<_>>(), three);
    let unseeded = || chat(json!({ "seed": null, "max_tokens": 30 }));
    let first = texts(fixture.post("/v1/chat/completions", unseeded()).await.ok());
    assert_ne!(texts(fixture.post("/v1/chat/completions", unseeded()).await.ok()), first);
}

#[tokio::test]
async fn several_prompts_are_numbered_through() {
    let fixture = Fixture::new();
    let alone = fixture.post("/v1/completions", plain(json!({ "prompt": "Twice" }))).await.ok();
    let body = plain(json!({ "prompt": ["Once", "Twice"], "n": 2 }));
    let answer = fixture.post("/v1/completions", body).await.ok();
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.iter().map(|choice| &choice["index"]).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(choices[2]["text"], alone["choices"][0]["text"]);
    assert_eq!((&answer["usage"]["prompt_tokens"], &answer["usage"]["completion_tokens"]), (&json!(9), &json!(48)));
    // The bytes are the tokens.
    let tokens = fixture.post("/v1/completions", plain(json!({ "prompt": b"Twice".to_vec() }))).await.ok();
    assert_eq!(tokens["choices"][0]["text"], alone["choices"][0]["text"]);
}

#[tokio::test]
async fn log_probabilities_of_every_token() {
    let fixture = Fixture::new();
    let more = json!({ "logprobs": true, "top_logprobs": 2, "temperature": 0 });
    let answer = fixture.post("/v1/chat/completions", chat(more.clone())).await.ok();
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(content.len(), 12);
    for token in &content {
        assert!(token["logprob"].as_f64().unwrap() <= 0.0);
        assert_eq!(token["bytes"].as_array().unwrap().len(), 1);
        let top = token["top_logprobs"].as_array().unwrap();
        // Greedy: the token is the likeliest.
        assert_eq!((top.len(), &top[0]["bytes"]), (2, &token["bytes"]));
    }
    let mut streamed = chat(more);
    streamed["stream"] = true.into();
    let events = fixture.post("/v1/chat/completions", streamed).await.events();
    let chunks = events.iter().filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array());
    assert_eq!(chunks.flatten().cloned().collect::<Vec<_>>(), content);

    let answer = fixture.post("/v1/completions", plain(json!({ "logprobs": 3, "temperature": 0 }))).await.ok();
    let logprobs = &answer["choices"][0]["logprobs"];
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(logprobs[list].as_array().unwrap().len(), 12, "{list}");
    }
    assert_eq!((&logprobs["text_offset"][0], &logprobs["text_offset"][11]), (&json!(0), &json!(11)));
}

#[tokio::test]
async fn a_stop_string_ends_the_text() {
    let fixture = Fixture::new();
    let body = plain(json!({ "temperature": 0, "max_tokens": 40, "logit_bias": {"65": 100} }));
    let text = fixture.post("/v1/completions", body.clone()).await.ok()["choices"][0]["text"].clone();
    assert_eq!(text, "A".repeat(40), "the bias decides");
    let mut stopped = body;
    stopped["stop"] = json!(["AAA"]);
    let answer = fixture.post("/v1/completions", stopped).await.ok();
    assert_eq!((&answer["choices"][0]["text"], &answer["choices"][0]["finish_reason"]), (&json!(""), &json!("stop")));
    assert_eq!(answer["usage"]["completion_tokens"], 3);
}

#[tokio::test]
async fn parts_of_text_are_one_text() {
    let fixture = Fixture::new();
    let whole = fixture.post("/tokenize", json!({ "messages": [{"role": "system", "content": "a\nb"}] })).await.ok();
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    let parts = json!({ "messages": [{"role": "developer", "content": parts}] });
    assert_eq!(fixture.post("/tokenize", parts).await.ok(), whole);
    let text = fixture.post("/detokenize", json!({ "tokens": whole["tokens"] })).await.ok();
    assert_eq!(text["prompt"], "system:a\nb\nassistant:");
    let answer = fixture.post("/tokenize", json!({ "prompt": "Hé", "return_token_strs": true })).await.ok();
    assert_eq!(answer["tokens"], json!([72, 195, 169]));
    assert_eq!((&answer["count"], &answer["max_model_len"]), (&json!(3), &json!(CONTEXT)));
    assert_eq!(answer["token_strs"][0], "<0x48>");
}

#[tokio::test]
async fn an_echo_is_the_prompt_and_what_follows_it() {
    let fixture = Fixture::new();
    let of = |more: Value| {
        let mut body = plain(json!({ "n": 2, "temperature": 1 }));
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let texts = |answer: &Value| -> Vec<String> {
        answer["choices"].as_array().unwrap().iter().map(|choice| choice["text"].as_str().unwrap().into()).collect()
    };
    let prompts = json!(["Once", "Twice"]);
    let bare = fixture.post("/v1/completions", of(json!({ "prompt": prompts }))).await.ok();
    let leads = ["Once", "Once", "Twice", "Twice"];
    let want: Vec<String> = leads.iter().zip(texts(&bare)).map(|(lead, text)| format!("{lead}{text}")).collect();
    let echoed = fixture.post("/v1/completions", of(json!({ "prompt": prompts, "echo": true }))).await.ok();
    assert_eq!((texts(&echoed), &echoed["usage"]), (want.clone(), &bare["usage"]));
    let stream = of(json!({ "prompt": prompts, "echo": true, "stream": true }));
    let events = fixture.post("/v1/completions", stream).await.events();
    assert_eq!(assembled(&events, 4).into_iter().map(|(text, _)| text).collect::<Vec<_>>(), want);

    // Nothing but the prompt, from a text and from tokens.
    for prompt in [json!("Twice"), json!([84, 119, 105, 99, 101])] {
        let nothing = json!({ "prompt": prompt, "echo": true, "max_tokens": 0 });
        let answer = fixture.post("/v1/completions", of(nothing.clone())).await.ok();
        assert_eq!(texts(&answer), ["Twice", "Twice"]);
        assert_eq!(answer["choices"][1]["finish_reason"], "length");
        assert_eq!((&answer["usage"]["prompt_tokens"], &answer["usage"]["total_tokens"]), (&json!(5), &json!(5)));
        let mut stream = of(nothing);
        stream["stream"] = true.into();
        let events = fixture.post("/v1/completions", stream).await.events();
        assert_eq!(assembled(&events, 2), [("Twice".into(), json!("length")), ("Twice".into(), json!("length"))]);
    }
}

#[tokio::test]
async fn hints_about_caching_and_what_templates_do_anyway_change_nothing() {
    let fixture = Fixture::new();
    let answer = async |more: Value| fixture.post("/v1/chat/completions", chat(more)).await.ok()["choices"].clone();
    let part = json!({ "type": "text", "text": "Hi", "cache_control": { "type": "ephemeral" } });
    let message = json!({ "role": "user", "content": [part], "cache_control": { "type": "ephemeral" } });
    let hints = json!({ "messages": [message], "add_special_tokens": false });
    assert_eq!(answer(hints).await, answer(json!({})).await);
}

#[tokio::test]
async fn a_limit_of_minus_one_is_the_context() {
    let fixture = Fixture::new();
    let answer = fixture.post("/v1/completions", plain(json!({ "max_tokens": -1 }))).await.ok();
    assert_eq!(answer["usage"]["total_tokens"], CONTEXT);
    let more = json!({ "max_tokens": null, "max_completion_tokens": -1 });
    let answer = fixture.post("/v1/chat/completions", chat(more)).await.ok();
    assert_eq!(answer["usage"]["total_tokens"], CONTEXT);
}
