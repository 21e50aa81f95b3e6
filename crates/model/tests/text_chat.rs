//! Chat templates against Jinja2 3.1.6 set up as the transformers library sets it up, and what happens to templates that
//! cannot render.

use std::collections::BTreeMap;
use std::path::Path;

use model::chat::{ChatTemplate, Message, RenderOptions, TemplateError};
use serde_json::{Map, Value, json};

fn specials() -> BTreeMap<String, String> {
    [("bos_token", "<s>"), ("eos_token", "</s>")].map(|(name, text)| (name.to_owned(), text.to_owned())).into()
}

fn render(source: &str, messages: &[Message]) -> Result<String, TemplateError> {
    ChatTemplate::new(source, &specials())?.render(messages, &RenderOptions::default())
}

#[test]
fn templates_render_as_in_python() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/text_chat.json");
    let cases: Vec<Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut wrong = Vec::new();
    for case in &cases {
        let options = RenderOptions {
            add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
            tools: Some(case["tools"].clone()).filter(|tools| !tools.is_null()),
            extra: case["extra"].as_object().unwrap().clone(),
        };
        let template = ChatTemplate::new(case["template"].as_str().unwrap(), &specials());
        let text = template.and_then(|t| t.render_values(case["messages"].as_array().unwrap(), &options));
        let text = text.unwrap_or_else(|e| format!("error: {e}"));
        if text != case["expected"].as_str().unwrap() {
            wrong.push(format!(
                "{}\n  is       {text:?}\n  expected {:?}",
                case["name"],
                case["expected"].as_str().unwrap()
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_template_that_refuses_is_quoted() {
    let source = "{% for m in messages %}\n{% if m.role == 'tool' %}\n{{ raise_exception('no ' + m.role) }}{% endif %}{% endfor %}";
    assert_eq!(render(source, &[Message::new("user", "a")]).unwrap(), "");
    let error = render(source, &[Message::new("tool", "a")]).unwrap_err();
    assert!(matches!(&error, TemplateError::Refused { line: 3, message } if message == "no tool"), "{error:?}");
    let nested = "{% macro check(m) %}{{ raise_exception('nested') }}{% endmacro %}\n{{ check(1) }}";
    assert!(matches!(render(nested, &[]).unwrap_err(), TemplateError::Refused { message, .. } if message == "nested"));
}

#[test]
fn a_template_that_cannot_render_says_where_and_why() {
    let syntax = ["{% if %}", "{{ x", "{% for m in messages %}", "{% nonsense %}", "{{ 'open }}"];
    for source in syntax {
        let error = render(&format!("line one\n{source}"), &[]).unwrap_err();
        assert!(matches!(error, TemplateError::Syntax { line, .. } if line >= 2), "{source}: {error}");
    }
    let fails = [
        "{{ x | frobnicate }}",
        "{{ x.y.z }}",
        "{{ messages.frob() }}",
        "{{ 1 + 'a' }}",
        "{% include 'other' %}",
        "{{ nothing | tojson }}",
        "{{ strftime_now('%Q') }}",
        "{{ [] | tojson(separators=[1]) }}",
        "{{ x is frob }}",
    ];
    for source in fails {
        let error = render(&format!("line one\n{source}"), &[]).unwrap_err().to_string();
        assert!(error.contains("line 2"), "{source}: {error}");
    }
}

#[test]
fn a_template_cannot_run_forever_or_eat_the_memory() {
    let hostile = [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% set ns = namespace(x='aaaaaaaa') %}{% for a in range(99999) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{{ 'x' * 999999999999 }}",
        "{{ range(999999999999) | list | length }}",
        "{% for m in messages %}{% for n in range(99999) %}{{ 'x' * 99999 }}{% endfor %}{% endfor %}",
    ];
    for source in hostile {
        let error = render(source, &[Message::new("user", "a")]).unwrap_err();
        assert!(matches!(error, TemplateError::Render { .. }), "{source}: {error:?}");
    }
    let deep = format!("{}1{}", "(".repeat(10_000), ")".repeat(10_000));
    assert!(render(&format!("{{{{ {deep} }}}}"), &[]).is_err());
}

fn write(dir: &Path, name: &str, text: &str) {
    std::fs::write(dir.join(name), text).unwrap();
}

#[test]
fn directories_are_searched_in_transformers_order() {
    let dir = tempfile::tempdir().unwrap();
    let text = |options: &RenderOptions| {
        ChatTemplate::from_dir(dir.path()).unwrap().unwrap().render(&[Message::new("user", "hi")], options).unwrap()
    };
    let plain = RenderOptions::default();
    let tools = RenderOptions { tools: Some(json!([{"b": 1, "a": 2}])), ..RenderOptions::default() };
    assert!(ChatTemplate::from_dir(dir.path()).unwrap().is_none());

    write(dir.path(), "tokenizer_config.json", r#"{"bos_token": "<s>", "chat_template": null}"#);
    assert!(ChatTemplate::from_dir(dir.path()).unwrap().is_none());

    let config = json!({"bos_token": {"content": "<b>"}, "eos_token": "<e>", "chat_template": [
        {"name": "default", "template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"},
        {"name": "tool_use", "template": "{{ tools | tojson }}"}]});
    write(dir.path(), "tokenizer_config.json", &config.to_string());
    assert_eq!(text(&plain), "<b>hi<e>");
    assert_eq!(text(&tools), r#"[{"b": 1, "a": 2}]"#);
    let extra = Map::from_iter([("bos_token".to_owned(), json!("<other>"))]);
    assert_eq!(text(&RenderOptions { extra, ..RenderOptions::default() }), "<other>hi<e>");

    write(dir.path(), "chat_template.json", r#"{"chat_template": "from json"}"#);
    assert_eq!(text(&plain), "from json");
    write(dir.path(), "chat_template.jinja", "from jinja {{ bos_token }}\n");
    assert_eq!(text(&plain), "from jinja <b>");
}

#[test]
fn files_that_are_no_templates_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = || ChatTemplate::from_dir(dir.path()).unwrap_err().to_string();
    for content in [r#"{"chat_template": 5}"#, r#"{"chat_template": [{"name": "x", "template": "y"}]}"#, "{", "[]"] {
        write(dir.path(), "tokenizer_config.json", content);
        assert!(error().contains("tokenizer_config.json"), "{content}: {}", error());
    }
    write(dir.path(), "tokenizer_config.json", "{}");
    std::fs::write(dir.path().join("chat_template.jinja"), [0xFF, 0xFE]).unwrap();
    assert!(error().contains("chat_template.jinja"), "{}", error());
}
