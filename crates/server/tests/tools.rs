//! Calls of tools: what the model is told, what it may write, and what the client gets, whole and streamed.

mod support;

use serde_json::{Value, json};
use support::{Fixture, TEMPLATE};

/// A template that knows tools, in short.
const TAGGED: &str = "{% if tools %}{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}\
    {% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>\n\
    {\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}\
    {{ '\n' }}{% endfor %}assistant:";

/// The same for calls without tags.
const BARE: &str = "{% if tools %}{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}\
    {% for m in messages %}{{ m.role }}:{% if m.tool_calls %}{\"name\": \"{{ m.tool_calls[0].function.name }}\", \
    \"parameters\": {{ m.tool_calls[0].function.arguments | tojson }}}{% else %}{{ m.content }}{% endif %}\
    {{ '\n' }}{% endfor %}assistant:";

fn tool(name: &str, parameters: Value) -> Value {
    json!({ "type": "function", "function": { "name": name, "description": "d", "parameters": parameters } })
}

fn tools() -> Value {
    let unit = json!({ "enum": ["°C", "\"F\""] });
    json!([
        tool("weather", json!({ "type": "object", "additionalProperties": false, "required": ["city", "unit"],
            "properties": { "city": { "type": "string", "maxLength": 8 }, "unit": unit } })),
        { "type": "function", "function": { "name": "now" } },
    ])
}

fn with(more: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "Hi"}], "seed": 1, "temperature": 1.5, "max_tokens": 1000,
        "tools": tools(),
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// What a client makes of the chunks of choice 0.
fn assembled(events: &[Value]) -> (Value, Value) {
    let (mut content, mut calls, mut finish) = (String::new(), Vec::<Value>::new(), Value::Null);
    for choice in events.iter().flat_map(|event| event["choices"].as_array().unwrap()) {
        assert!(finish.is_null(), "a chunk after the end");
        let delta = &choice["delta"];
        content.push_str(delta["content"].as_str().unwrap_or_default());
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap() as usize;
            if index == calls.len() {
                assert!(call["id"].is_string() && call["type"] == "function" && call["function"]["name"].is_string());
                let mut call = call.clone();
                call.as_object_mut().unwrap().remove("index");
                calls.push(call);
            } else {
                assert!(call.get("id").is_none() && call["function"].get("name").is_none());
                let more = call["function"]["arguments"].as_str().unwrap();
                let Value::String(arguments) = &mut calls[index]["function"]["arguments"] else { panic!() };
                arguments.push_str(more);
            }
        }
        finish = choice["finish_reason"].clone();
    }
    let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
        if message["content"] == "" {
            message["content"] = Value::Null;
        }
    }
    (message, finish)
}

fn check_call(call: &Value) {
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    match call["function"]["name"].as_str().unwrap() {
        "weather" => {
            assert!(arguments["city"].as_str().unwrap().chars().count() <= 8);
            assert!(["°C", "\"F\""].contains(&arguments["unit"].as_str().unwrap()));
        }
        "now" => assert_eq!(arguments, json!({})),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn required_calls_are_valid_and_streamed_as_they_are() {
    for template in [TAGGED, BARE, TEMPLATE] {
        let fixture = Fixture::talking(template);
        let mut names = Vec::new();
        for seed in 0..6 {
            // Left to itself this model likes one of them.
            let named = json!({ "type": "function", "function": { "name": "weather" } });
            let choice = if seed % 2 == 0 { json!("required") } else { named };
            let body = with(json!({ "seed": seed, "tool_choice": choice }));
            let answer = fixture.post("/v1/chat/completions", body.clone()).await.ok();
            let choice = &answer["choices"][0];
            let message = &choice["message"];
            assert_eq!(
                (&choice["finish_reason"], &message["content"]),
                (&json!("tool_calls"), &Value::Null),
                "{answer}"
            );
            for call in message["tool_calls"].as_array().unwrap() {
                check_call(call);
                names.push(call["function"]["name"].clone());
            }
            let mut streamed = body;
            streamed["stream"] = true.into();
            let events = fixture.post("/v1/chat/completions", streamed).await.events();
            let (mut streamed, finish) = assembled(&events);
            // The ids are of the request.
            for (streamed, whole) in
                streamed["tool_calls"].as_array_mut().unwrap().iter_mut().zip(message["tool_calls"].as_array().unwrap())
            {
                assert_ne!(streamed["id"], whole["id"]);
                streamed["id"] = whole["id"].clone();
            }
            assert_eq!((&streamed, finish), (message, json!("tool_calls")));
        }
        assert!(names.contains(&json!("weather")) && names.contains(&json!("now")), "{names:?}");
    }
}

#[tokio::test]
async fn a_named_function_is_called_once_and_a_cut_call_is_cut_everywhere() {
    let fixture = Fixture::talking(TAGGED);
    let named = json!({ "tool_choice": {"type": "function", "function": {"name": "now"}} });
    for seed in 0..3 {
        let mut body = with(named.clone());
        body["seed"] = seed.into();
        let answer = fixture.post("/v1/chat/completions", body).await.ok();
        let calls = answer["choices"][0]["message"]["tool_calls"].as_array().unwrap();
        assert_eq!((calls.len(), &calls[0]["function"]["name"]), (1, &json!("now")));
        check_call(&calls[0]);
    }
    let named = json!({ "tool_choice": {"type": "function", "function": {"name": "weather"}}, "max_tokens": 50 });
    let answer = fixture.post("/v1/chat/completions", with(named.clone())).await.ok();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    let arguments = &choice["message"]["tool_calls"][0]["function"]["arguments"];
    assert!(arguments.as_str().unwrap().starts_with('{'));
    let mut body = with(named);
    body["stream"] = true.into();
    let (message, finish) = assembled(&fixture.post("/v1/chat/completions", body).await.events());
    assert_eq!((&message["tool_calls"][0]["function"]["arguments"], finish), (arguments, json!("length")));
}

#[tokio::test]
async fn parallel_calls_are_as_many_as_may_be() {
    let fixture = Fixture::talking(TAGGED);
    let mut most = 0;
    for seed in 0..8 {
        let body = |parallel: bool| {
            with(json!({ "seed": seed, "tool_choice": "required", "parallel_tool_calls": parallel,
                "tools": [{ "type": "function", "function": { "name": "now" } }], "logit_bias": {"10": 8} }))
        };
        let calls = |answer: Value| answer["choices"][0]["message"]["tool_calls"].as_array().unwrap().len();
        most = most.max(calls(fixture.post("/v1/chat/completions", body(true)).await.ok()));
        assert_eq!(calls(fixture.post("/v1/chat/completions", body(false)).await.ok()), 1);
    }
    assert!(most > 1);
}

#[tokio::test]
async fn free_to_answer_or_to_call() {
    for template in [TAGGED, BARE, TEMPLATE] {
        let fixture = Fixture::talking(template);
        // Nothing of noise opens a call: the whole is text, and so is the stream.
        let body = with(json!({ "max_tokens": 60 }));
        let answer = fixture.post("/v1/chat/completions", body.clone()).await.ok();
        let message = &answer["choices"][0]["message"];
        assert!(message.get("tool_calls").is_none() && message["content"].is_string(), "{answer}");
        let mut streamed = body;
        streamed["stream"] = true.into();
        let (streamed, _) = assembled(&fixture.post("/v1/chat/completions", streamed).await.events());
        assert_eq!(&streamed, message);
    }
    let fixture = Fixture::talking(TAGGED);
    // A form for the answer: it has the form, or calls.
    let form = json!({ "response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": ["no"]}}} });
    let answer = fixture.post("/v1/chat/completions", with(form)).await.ok();
    let message = &answer["choices"][0]["message"];
    assert!(message["content"] == "\"no\"" || !message["tool_calls"][0].is_null(), "{answer}");
    // With no tool to be called nothing is looked for.
    let body = with(json!({ "tool_choice": "none", "guided_choice": ["<tool_call>\n{\"name\": \"now\", "] }));
    let answer = fixture.post("/v1/chat/completions", body).await.ok();
    assert_eq!(answer["choices"][0]["message"]["content"], "<tool_call>\n{\"name\": \"now\", ");
}

async fn prompt(fixture: &Fixture, body: Value) -> String {
    let tokens = fixture.post("/tokenize", body).await.ok()["tokens"].clone();
    let text = fixture.post("/detokenize", json!({ "tokens": tokens })).await.ok()["prompt"].clone();
    // How this vocabulary spells spaces.
    text.as_str().unwrap().replace('▁', " ")
}

#[tokio::test]
async fn a_conversation_with_calls_and_results_reaches_the_template() {
    let call = |arguments: Value| json!([{ "id": "call_1", "type": "function", "function": { "name": "now", "arguments": arguments } }]);
    let messages = |arguments: &str| {
        json!([
            { "role": "user", "content": "q" },
            { "role": "assistant", "content": null, "tool_calls": call(json!(arguments)) },
            { "role": "tool", "tool_call_id": "call_1", "content": [{ "type": "text", "text": "r1" }] },
            { "role": "tool", "tool_call_id": null, "content": "r2" },
        ])
    };
    let fixture = Fixture::talking(TAGGED);
    let body =
        json!({ "messages": messages("{\"ü\": [1, \"\\n\"]}"), "tools": [tool("now", json!({"type": "object"}))] });
    let text = prompt(&fixture, body.clone()).await;
    assert!(text.starts_with("{\"type\": \"function\", \"function\": {\"name\": \"now\""), "{text}");
    let called =
        "user:q\nassistant:<tool_call>\n{\"name\": \"now\", \"arguments\": {\"ü\": [1, \"\\n\"]}}\n</tool_call>\n";
    assert!(text.ends_with(&format!("{called}tool:r1\ntool:r2\nassistant:")), "{text}");

    // A template that leaves tools out: they are told in words.
    let fixture = Fixture::talking(TEMPLATE);
    let text = prompt(&fixture, body).await;
    assert!(text.starts_with("system:") && text.contains("{\"name\":\"now\",\"description\":\"d\","), "{text}");
    assert!(
        text.contains("\nassistant:<tool_call>\n{\"name\": \"now\", \"arguments\": {\"ü\":[1,\"\\n\"]}}"),
        "{text}"
    );
    let results = "user:<tool_response>\nr1\n</tool_response>\n<tool_response>\nr2\n</tool_response>\nassistant:";
    assert!(text.ends_with(results), "{text}");
    let system = json!([{ "role": "system", "content": "Be kind." }, { "role": "user", "content": "q" }]);
    let text = prompt(&fixture, json!({ "messages": system, "tools": tools() })).await;
    assert!(text.starts_with("system:Be kind.\n\n") && text.ends_with("\nuser:q\nassistant:"), "{text}");
    let text = prompt(&fixture, json!({ "messages": system, "tools": tools(), "tool_choice": "none" })).await;
    assert_eq!(text, "system:Be kind.\nuser:q\nassistant:");

    let bad = json!({ "messages": messages("{"), "max_tokens": 1 });
    let error = fixture.post("/v1/chat/completions", bad).await.error(400);
    assert_eq!(error["param"], "messages[1].tool_calls[0].function");
}

#[tokio::test]
async fn tools_that_are_none_are_refused_by_name() {
    let fixture = Fixture::talking(TAGGED);
    let named = |name: &str| json!({ "type": "function", "function": { "name": name } });
    let strict = json!({ "type": "function", "function": { "name": "f", "strict": true,
        "parameters": { "type": "object", "properties": { "a": { "type": "array", "uniqueItems": true } } } } });
    for (more, param, says) in [
        (json!({ "tools": [named("a b")] }), "tools[0].function.name", "letters"),
        (json!({ "tools": [named("f"), named("f")] }), "tools", "twice"),
        (json!({ "tools": [tool("f", json!({ "type": "array" }))] }), "tools[0].function.parameters", "object"),
        (json!({ "tools": [named("g"), strict] }), "tools[1].function.parameters", "uniqueItems"),
        (json!({ "tools": "f" }), "tools", "list"),
        (json!({ "tools": [], "tool_choice": "required" }), "tool_choice", "no tools"),
        (json!({ "tool_choice": {"type": "function", "function": {"name": "other"}} }), "tool_choice", "other"),
        (json!({ "tool_choice": "any" }), "tool_choice", "required"),
        (json!({ "guided_regex": "a" }), "guided_regex", "together"),
    ] {
        let error = fixture.post("/v1/chat/completions", with(more.clone())).await.error(400);
        assert_eq!(error["param"], param, "{more}");
        assert!(error["message"].as_str().unwrap().contains(says), "{error}");
    }
}
