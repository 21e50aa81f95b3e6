//! Outputs under grammars: whatever the logits, what is finished is a sentence, and everything else that ends an output
//! keeps its meaning.

use engine::{
    CommitError, FinishReason, Grammar, GrammarCompiler, GrammarSource, Limits, Request, SampleError, Sampled,
    SamplingParams, Scratch,
};
use serde_json::{Value, json};
use testkit::{EOS, byte_tokenizer};

const CONTEXT: usize = 6000;

fn compiler() -> GrammarCompiler {
    GrammarCompiler::new(&byte_tokenizer()).unwrap()
}

fn schema(schema: Value) -> GrammarSource {
    GrammarSource::JsonSchema { schema, lenient: false }
}

fn compile(source: &GrammarSource) -> Grammar {
    compiler().compile(source).unwrap()
}

fn request(grammar: &Grammar, params: SamplingParams) -> Request {
    let limits = Limits { vocab: 256, context: CONTEXT, eos: vec![EOS] };
    let params = SamplingParams { grammar: Some(grammar.clone()), ..params };
    Request::new(&[1], params, 0, &limits, &byte_tokenizer()).unwrap()
}

/// Logits that know nothing, from 0 to 6.
fn noise(state: &mut u64) -> Vec<f32> {
    let mut next = || {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*state >> 40) as f32 / (1 << 24) as f32
    };
    (0..256).map(|_| next() * 6.0).collect()
}

/// The output of a request whose logits are noise.
fn walk(grammar: &Grammar, params: SamplingParams) -> (String, FinishReason) {
    let mut state = params.seed.wrapping_mul(77) + 5;
    let mut request = request(grammar, params);
    let (mut scratch, mut text) = (Scratch::new(), String::new());
    loop {
        let sampled = request.sample(&noise(&mut state), &mut scratch).unwrap();
        let committed = request.commit(sampled).unwrap();
        text.push_str(&committed.delta.text);
        if let Some(finish) = committed.finish {
            return (text, finish);
        }
    }
}

/// The output of a request whose model wants to write exactly this, and the end after it.
fn write(grammar: &Grammar, params: SamplingParams, want: &str) -> (String, FinishReason) {
    let mut request = request(grammar, params);
    let (mut scratch, mut text) = (Scratch::new(), String::new());
    let ids: Vec<u32> = want.bytes().map(u32::from).chain([EOS]).collect();
    loop {
        let mut row = vec![0.0; 256];
        row[*ids.get(request.outputs().len()).unwrap_or(&EOS) as usize] = 10.0;
        let sampled = request.sample(&row, &mut scratch).unwrap();
        let committed = request.commit(sampled).unwrap();
        text.push_str(&committed.delta.text);
        if let Some(finish) = committed.finish {
            return (text, finish);
        }
    }
}

/// Whether `value` is valid: the keywords that these tests use.
fn valid(value: &Value, schema: &Value, root: &Value) -> bool {
    if let Some(target) = schema["$ref"].as_str() {
        return valid(value, root.pointer(target.trim_start_matches('#')).unwrap(), root);
    }
    let is = |kind: &Value| match kind.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.as_f64().is_some_and(|n| n.fract() == 0.0),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("{other}"),
    };
    let count = |name: &str, most: usize| schema[name].as_u64().map_or(most, |n| n as usize);
    let number = |name: &str, most: f64| schema[name].as_f64().unwrap_or(most);
    let none = serde_json::Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&none);
    let member = |(name, value): (&String, &Value)| match properties.get(name) {
        Some(schema) => valid(value, schema, root),
        None => schema["additionalProperties"] != false,
    };
    (match &schema["type"] {
        Value::Null => true,
        Value::Array(kinds) => kinds.iter().any(is),
        kind => is(kind),
    }) && schema["enum"].as_array().is_none_or(|all| all.contains(value))
        && schema.get("const").is_none_or(|only| only == value)
        && schema["anyOf"].as_array().is_none_or(|any| any.iter().any(|schema| valid(value, schema, root)))
        && value.as_f64().is_none_or(|n| (number("minimum", f64::MIN)..=number("maximum", f64::MAX)).contains(&n))
        && value.as_array().is_none_or(|list| {
            (count("minItems", 0)..=count("maxItems", usize::MAX)).contains(&list.len())
                && list.iter().all(|item| schema.get("items").is_none_or(|items| valid(item, items, root)))
        })
        && value
            .as_str()
            .is_none_or(|text| (count("minLength", 0)..=count("maxLength", usize::MAX)).contains(&text.chars().count()))
        && value.as_object().is_none_or(|object| {
            object.iter().all(member)
                && schema["required"]
                    .as_array()
                    .is_none_or(|names| names.iter().all(|name| object.contains_key(name.as_str().unwrap())))
        })
}

fn schemas() -> Vec<Value> {
    let closed = |mut schema: Value| {
        schema["type"] = json!("object");
        schema["additionalProperties"] = json!(false);
        schema
    };
    vec![
        json!({ "type": "object" }),
        json!({ "type": "integer", "minimum": -3, "maximum": 120 }),
        json!({ "enum": ["a", "é\n\"", 5, null, {"x": [1]}] }),
        json!({ "type": ["string", "null"], "minLength": 2, "maxLength": 5 }),
        json!({ "type": "array", "minItems": 1, "maxItems": 3,
            "items": { "type": "array", "maxItems": 2, "items": { "type": "boolean" } } }),
        closed(json!({})),
        closed(json!({ "required": ["name", "age"], "properties": {
            "name": { "type": "string", "maxLength": 20 },
            "age": { "type": "integer", "minimum": 0, "maximum": 150 },
            "tags": { "type": "array", "maxItems": 4, "items": { "enum": ["x", "y"] } } } })),
        closed(json!({ "required": ["value", "next"],
            "$defs": { "node": closed(json!({ "required": ["value", "next"], "properties": {
                "value": { "const": "v" },
                "next": { "anyOf": [{ "type": "null" }, { "$ref": "#/$defs/node" }] } } })) },
            "properties": { "value": { "type": "number", "minimum": 0.5, "maximum": 2 },
                "next": { "$ref": "#/$defs/node" } } })),
    ]
}

#[test]
fn what_is_finished_is_valid_whatever_the_logits() {
    let compiler = compiler();
    for root in schemas() {
        let grammar = compiler.compile(&schema(root.clone())).unwrap();
        let mut finished = 0;
        for seed in 0..24 {
            let top_p = [1.0, 0.9][seed as usize % 2];
            let params = SamplingParams { temperature: 1.5, top_p, seed, max_tokens: Some(3000), ..Default::default() };
            let (text, finish) = walk(&grammar, params);
            if finish == FinishReason::Stop {
                finished += 1;
                match serde_json::from_str(&text) {
                    Ok(value) => assert!(valid(&value, &root, &root), "{text} for {root}"),
                    // JSON knows no largest number; this reader does.
                    Err(error) => assert!(error.to_string().contains("number out of range"), "{error}: {text}"),
                }
            }
        }
        assert!(finished >= 12, "{finished} of 24 came to an end: {root}");
    }
}

#[test]
fn a_cut_output_is_the_beginning_of_the_same_output() {
    let grammar = compile(&schema(schemas()[6].clone()));
    for seed in 0..8 {
        let params = |max| SamplingParams { temperature: 1.5, seed, max_tokens: Some(max), ..Default::default() };
        let (whole, _) = walk(&grammar, params(3000));
        let (cut, finish) = walk(&grammar, params(9));
        assert_eq!(finish, FinishReason::Length);
        assert!(whole.starts_with(&cut), "{cut} / {whole}");
    }
}

#[test]
fn expressions_choices_and_lark() {
    let regex = compile(&GrammarSource::Regex("[a-c]{2}/\\d+".into()));
    assert_eq!(write(&regex, SamplingParams::default(), "ab/12"), ("ab/12".into(), FinishReason::Stop));
    let texts = ["yes", "no \"way\"\n", "né"].map(str::to_owned);
    let choice = compile(&GrammarSource::Choice(texts.to_vec()));
    for text in &texts {
        assert_eq!(write(&choice, SamplingParams::default(), text), (text.clone(), FinishReason::Stop));
    }
    for seed in 0..20 {
        let (text, _) = walk(&choice, SamplingParams { temperature: 1.5, seed, ..Default::default() });
        assert!(texts.contains(&text), "{text}");
    }
    let lark = compile(&GrammarSource::Lark("start: \"a\" b+\nb: \"b\" | \"c\"".into()));
    assert_eq!(write(&lark, SamplingParams::default(), "abcb"), ("abcb".into(), FinishReason::Stop));
}

#[test]
fn a_complete_grammar_needs_no_end_token() {
    let grammar = compile(&GrammarSource::Choice(vec!["yes".into()]));
    for params in [
        SamplingParams::default(),
        SamplingParams { ignore_eos: true, ..Default::default() },
        SamplingParams { min_tokens: 10, max_tokens: Some(20), ..Default::default() },
        SamplingParams { max_tokens: Some(3), ..Default::default() },
    ] {
        assert_eq!(write(&grammar, params, "no"), ("yes".into(), FinishReason::Stop));
    }
}

#[test]
fn end_tokens_wait_for_the_grammar_and_for_min_tokens() {
    let grammar = compile(&GrammarSource::Regex("a{2,6}".into()));
    let write = |params| write(&grammar, params, "").0;
    assert_eq!(write(SamplingParams::default()), "aa");
    assert_eq!(write(SamplingParams { min_tokens: 4, ..Default::default() }), "aaaa");
    assert_eq!(write(SamplingParams { ignore_eos: true, ..Default::default() }), "aaaaaa");
    // The other control token ends the output where it is asked to, and is no text.
    let biased = SamplingParams { logit_bias: [(255, 50.0)].into(), ..Default::default() };
    assert_eq!(write(biased.clone()), "aa");
    assert_eq!(write(SamplingParams { stop_tokens: vec![255], ..biased }), "aa");
}

#[test]
fn stop_strings_and_stop_tokens_of_text_cut_as_ever() {
    let grammar = compile(&schema(json!({ "type": "string" })));
    let stop = SamplingParams { stop: vec!["END".into()], ..Default::default() };
    assert_eq!(write(&grammar, stop, "\"abEND\""), ("\"ab".into(), FinishReason::StopString));
    let stop = SamplingParams { stop_tokens: vec![b'b'.into()], ..Default::default() };
    assert_eq!(write(&grammar, stop, "\"abc\""), ("\"a".into(), FinishReason::Stop));
}

#[test]
fn an_empty_sentence_is_the_end_at_once() {
    let grammar = compile(&GrammarSource::Regex("(a)?".into()));
    assert_eq!(write(&grammar, SamplingParams::default(), ""), (String::new(), FinishReason::Stop));
    assert_eq!(write(&grammar, SamplingParams::default(), "a"), ("a".into(), FinishReason::Stop));
}

#[test]
fn a_forbidden_token_is_not_committed() {
    let mut request = request(&compile(&GrammarSource::Regex("ab".into())), SamplingParams::default());
    let commit = |request: &mut Request, token| request.commit(Sampled { token, logprob: None, top: vec![] });
    commit(&mut request, b'a'.into()).unwrap();
    assert!(matches!(commit(&mut request, b'a'.into()), Err(CommitError::Grammar { token: 97 })));
    assert_eq!((request.outputs().len(), request.finish()), (1, Some(FinishReason::Error)));
}

#[test]
fn logits_that_leave_nothing_are_an_error_and_a_nan_is_found() {
    let grammar = compile(&GrammarSource::Regex("ab".into()));
    let mut row = vec![0.0; 256];
    row[usize::from(b'a')] = f32::NEG_INFINITY;
    let sample = |row: &[f32]| request(&grammar, SamplingParams::default()).sample(row, &mut Scratch::new());
    assert_eq!(sample(&row), Err(SampleError::NoGrammarToken));
    row[3] = f32::NAN;
    assert!(matches!(sample(&row), Err(SampleError::NotFinite { token: 3, .. })));
}

#[test]
fn log_probabilities_stay_the_models_own() {
    let grammar = compile(&GrammarSource::Regex("ab".into()));
    let params = SamplingParams { logprobs: Some(1), ..Default::default() };
    let mut row = vec![0.0; 256];
    row[7] = 3.0;
    let sampled = request(&grammar, params).sample(&row, &mut Scratch::new()).unwrap();
    let total = (255.0 + 3f32.exp()).ln();
    assert_eq!((sampled.token, sampled.top[0].0), (97, 7));
    assert!((sampled.logprob.unwrap() + total).abs() < 1e-4 && (sampled.top[0].1 - 3.0 + total).abs() < 1e-4);
}

#[test]
fn what_cannot_be_compiled_says_why() {
    let compiler = compiler();
    let error = |source: &GrammarSource| compiler.compile(source).unwrap_err().to_string();
    let unique = json!({ "type": "array", "uniqueItems": true });
    assert!(error(&schema(unique.clone())).contains("uniqueItems"));
    compiler.compile(&GrammarSource::JsonSchema { schema: unique, lenient: true }).unwrap();
    assert!(error(&schema(json!({ "$ref": "#/$defs/no" }))).contains("no"));
    assert!(error(&schema(json!({ "$ref": "http://example.org/schema" }))).contains("$ref"));
    assert!(error(&schema(json!({ "type": "text" }))).contains("text"));
    assert!(error(&schema(json!({ "type": "integer", "minimum": 5, "maximum": 4 }))).contains("minimum"));
    for regex in ["(", "a{2", "[", "(?=a)b"] {
        assert!(!error(&GrammarSource::Regex(regex.into())).is_empty(), "{regex}");
    }
    for lark in ["", "start: other", "start: \"a", "begin: \"a\""] {
        assert!(!error(&GrammarSource::Lark(lark.into())).is_empty(), "{lark}");
    }
}

#[test]
fn hostile_grammars_are_refused_or_followed_within_bounds() {
    let compiler = compiler();
    let deep = (0..100).fold(json!({ "type": "null" }), |schema, _| json!({ "type": "array", "items": schema }));
    let chain: serde_json::Map<String, Value> = (0..3000)
        .map(|n| (format!("d{n}"), json!({ "allOf": [{ "$ref": format!("#/$defs/d{}", n + 1) }] })))
        .chain([("d3000".to_owned(), json!({ "type": "null" }))])
        .collect();
    let many: Vec<Value> =
        (0..400).map(|n| json!({ "type": "string", "pattern": format!("^(a|b){{{n}}}.*c$") })).collect();
    let doubling: serde_json::Map<String, Value> = (0..24)
        .map(|n| {
            (
                format!("d{n}"),
                json!({ "anyOf": [{ "$ref": format!("#/$defs/d{}", n + 1) },
            { "type": "array", "items": { "$ref": format!("#/$defs/d{}", n + 1) } }] }),
            )
        })
        .chain([("d24".to_owned(), json!({ "type": "null" }))])
        .collect();
    let sources = [
        schema(json!({ "type": "array", "minItems": 1_000_000_000 })),
        schema(json!({ "type": "string", "minLength": 1e30, "maxLength": 1e31 })),
        schema(json!({ "type": "string", "pattern": "((a{1,500}){1,500}){1,500}" })),
        schema(json!({ "type": "string", "pattern": "(.*a){30}.*b(.*c){30}" })),
        schema(json!({ "$ref": "#" })),
        schema(json!({ "allOf": [{ "$ref": "#" }, { "$ref": "#" }] })),
        schema(json!({ "$defs": chain, "$ref": "#/$defs/d0" })),
        schema(json!({ "$defs": doubling, "$ref": "#/$defs/d0" })),
        schema(json!({ "anyOf": many })),
        schema(deep),
        GrammarSource::Regex("((a{1,900}){1,900}){1,900}".into()),
        GrammarSource::Regex("(a?){4000}a{4000}".into()),
        GrammarSource::Lark("start: start start | \"a\" | \"\"".into()),
        GrammarSource::Lark(format!("start: {}", "(\"a\" | ".repeat(3000) + "\"b\"" + &")".repeat(3000))),
        GrammarSource::Lark("start: \"a\"{1000000000}".into()),
        GrammarSource::Choice(vec!["x".repeat(300_000)]),
    ];
    for source in &sources {
        let grammar = match compiler.compile(source) {
            Ok(grammar) => grammar,
            Err(error) => {
                assert!(error.to_string().len() < 600, "{error}");
                continue;
            }
        };
        let mut request = request(&grammar, SamplingParams { temperature: 1.5, ..Default::default() });
        let (mut scratch, mut state) = (Scratch::new(), 1);
        while request.finish().is_none() && request.outputs().len() < 60 {
            let Ok(sampled) = request.sample(&noise(&mut state), &mut scratch) else { break };
            request.commit(sampled).unwrap();
        }
    }
}
