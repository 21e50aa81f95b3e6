//! Tokenizers from model directories: `tokenizer.json` and its side files.

use std::path::Path;

use model::tokenizer::{Specials, Tokenizer, TokenizerError};
use serde_json::{Value, json};

fn golden() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/text_byte_level.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn added(id: usize, content: &str, special: bool) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        "special": special})
}

/// The golden vocabulary as a `tokenizer.json` of the Llama 3 family, with a begin-of-text token by its post-processor.
fn llama3() -> Value {
    let golden = golden();
    let tokens: Vec<&str> = golden["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    let types: Vec<i64> = golden["token_types"].as_array().unwrap().iter().map(|t| t.as_i64().unwrap()).collect();
    let vocab: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(id, t)| ((*t).to_owned(), json!(id))).collect();
    let added: Vec<Value> =
        (0..tokens.len()).filter(|&id| types[id] != 1).map(|id| added(id, tokens[id], types[id] == 3)).collect();
    let bos = tokens.iter().position(|t| *t == "<|im_start|>").unwrap();
    let pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    json!({
        "version": "1.0",
        // Both would change what comes out; neither may have an effect.
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 512}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
            "pad_type_id": 0, "pad_token": "!"},
        "added_tokens": added,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [bos], "tokens": ["<|im_start|>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "ignore_merges": true, "vocab": vocab, "merges": golden["merges"]},
    })
}

struct Directory(tempfile::TempDir);

impl Directory {
    fn new(files: &[(&str, Value)]) -> Directory {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            std::fs::write(dir.path().join(name), content.to_string()).unwrap();
        }
        Directory(dir)
    }

    fn load(&self) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::from_dir(self.0.path())
    }
}

fn load(files: &[(&str, Value)]) -> Tokenizer {
    Directory::new(files).load().unwrap()
}

#[test]
fn a_tokenizer_file_gives_the_golden_ids() {
    let tokenizer = load(&[("tokenizer.json", llama3())]);
    let golden = golden();
    let case = &golden["cases"]["llama-bpe"];
    for (i, text) in golden["texts"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).enumerate() {
        for (specials, name) in [(Specials::Parse, "parse"), (Specials::Plain, "plain")] {
            let ids = tokenizer.encode(text, specials).unwrap();
            assert_eq!(json!(ids), case[name][i], "{specials:?} {text:?}");
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
        }
    }
}

#[test]
fn begin_and_end_tokens_come_from_the_side_files() {
    let file = llama3();
    let bare = load(&[("tokenizer.json", file.clone())]);
    let id = |text: &str| bare.id(text).unwrap();
    let (start, end, text_end) = (id("<|im_start|>"), id("<|im_end|>"), id("<|endoftext|>"));
    assert_eq!((bare.bos(), bare.adds_bos(), bare.eos()), (Some(start), true, [].as_slice()));
    assert_eq!(bare.encode_prompt("a").unwrap()[0], start);
    assert_eq!(bare.encode_prompt("<|im_start|>a").unwrap(), bare.encode_prompt("a").unwrap());

    let config = json!({"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>", "add_bos_token": false});
    let generation = json!({"eos_token_id": [end, text_end, 99999]});
    let full = load(&[
        ("tokenizer.json", file.clone()),
        ("tokenizer_config.json", config),
        ("generation_config.json", generation),
        ("config.json", json!({"eos_token_id": 0})),
    ]);
    assert_eq!((full.bos(), full.adds_bos(), full.eos()), (Some(start), false, [end, text_end, 0].as_slice()));
    assert_eq!(full.encode_prompt("a").unwrap().len(), 1);

    let map = load(&[("tokenizer.json", file), ("special_tokens_map.json", json!({"eos_token": "<|im_end|>"}))]);
    assert_eq!(map.eos(), [end]);
}

#[test]
fn flags_of_added_tokens_count() {
    let mut file = llama3();
    let next = golden()["tokens"].as_array().unwrap().len();
    for (i, (content, flag)) in [("<l>", "lstrip"), ("<r>", "rstrip"), ("<w>", "single_word")].into_iter().enumerate() {
        let mut token = added(next + i, content, false);
        token[flag] = json!(true);
        file["added_tokens"].as_array_mut().unwrap().push(token);
    }
    let tokenizer = load(&[("tokenizer.json", file)]);
    assert_eq!(tokenizer.vocab_size(), next + 3);
    let spell = |text: &str| {
        let ids = tokenizer.encode(text, Specials::Parse).unwrap();
        ids.into_iter().map(|id| tokenizer.token(id).unwrap()).collect::<Vec<_>>().join("|")
    };
    assert_eq!(spell("!  <l>!"), "!|<l>|!");
    assert_eq!(spell("!<r>  !"), "!|<r>|!");
    assert_eq!(spell("! <w> !").matches("<w>").count(), 1);
    assert_eq!(spell("a<w>a").matches("<w>").count(), 0);
}

/// Merges that spell a control token, as vocabularies converted from SentencePiece have them.
#[test]
fn merges_cannot_spell_a_control_token_in_user_text() {
    let file = json!({"version": "1.0", "added_tokens": [added(0, "<s>", true)], "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "vocab": {"<s>": 0, "<": 1, "s": 2, ">": 3, "<s": 4, "s>": 5, "x": 6},
            "merges": ["< s", "<s >", "s >"]}});
    let tokenizer = load(&[("tokenizer.json", file)]);
    assert_eq!(tokenizer.encode("x<s>", Specials::Parse).unwrap(), [6, 0]);
    for text in ["<s>", "x<s><s>x", "<<s>>", "<s", "s><s>"] {
        let ids = tokenizer.encode(text, Specials::Plain).unwrap();
        assert!(!ids.contains(&0), "{text}: {ids:?}");
        assert_eq!(tokenizer.decode(&ids, true).unwrap(), text);
    }
    let long = "<s>".repeat(20_000);
    let ids = tokenizer.encode(&long, Specials::Plain).unwrap();
    assert!(!ids.contains(&0));
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), long);
}

#[test]
fn bad_files_are_named_and_never_panic() {
    let good = llama3();
    let mut bad_merge = good.clone();
    bad_merge["model"]["merges"] = json!(["ꙮ a"]);
    let mut long_merge = good.clone();
    let long = "!".repeat(99);
    long_merge["model"]["vocab"][&long] = json!(999);
    long_merge["model"]["merges"] = json!([format!("{long} {long}")]);
    let mut high_id = good.clone();
    high_id["model"]["vocab"]["zz"] = json!(u32::MAX);
    let empty = json!({"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}});
    for file in [json!(5), json!({}), json!({"model": {"type": "Frob"}}), empty, bad_merge, long_merge, high_id] {
        let error = Directory::new(&[("tokenizer.json", file)]).load().unwrap_err().to_string();
        assert!(error.contains("tokenizer.json"), "{error}");
    }
    assert!(Directory::new(&[]).load().unwrap_err().to_string().contains("tokenizer.json"));
    for name in ["tokenizer_config.json", "generation_config.json", "special_tokens_map.json"] {
        let error =
            Directory::new(&[("tokenizer.json", good.clone()), (name, json!([]))]).load().unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
}
