//! The commit function: where a request ends, and what text, tokens and usage are then.

use engine::{
    CommitError, Committed, FinishReason, Limits, Request, RequestError, Sampled, SamplingParams, Scratch, Usage,
};
use proptest::prelude::*;
use testkit::{EOS, byte_tokenizer};

const CONTEXT: usize = 64;

fn limits() -> Limits {
    Limits { vocab: 256, context: CONTEXT, eos: vec![EOS] }
}

fn request(params: SamplingParams) -> Request {
    Request::new(b"Hi".map(u32::from).as_slice(), params, 0, &limits(), &byte_tokenizer()).unwrap()
}

fn commit(request: &mut Request, token: u32) -> Committed {
    request.commit(Sampled { token, logprob: None, top: vec![] }).unwrap()
}

/// Commits bytes (and other ids) until the request ends: the texts given out, and the reason.
fn run(request: &mut Request, tokens: &[u32]) -> (Vec<String>, Option<FinishReason>) {
    let mut texts = vec![];
    for &token in tokens {
        let committed = commit(request, token);
        texts.push(committed.delta.text);
        assert_eq!(committed.finish, request.finish());
        if committed.finish.is_some() {
            break;
        }
    }
    (texts, request.finish())
}

fn ids(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

fn with_eos(text: &str) -> Vec<u32> {
    [ids(text), vec![EOS]].concat()
}

#[test]
fn eos_ends_the_request_counts_and_has_no_text() {
    for skip_special_tokens in [true, false] {
        let mut request = request(SamplingParams { skip_special_tokens, ..Default::default() });
        let (texts, finish) = run(&mut request, &with_eos("ok"));
        assert_eq!((texts.concat().as_str(), finish), ("ok", Some(FinishReason::Stop)));
        assert_eq!(request.usage(), Usage { prompt_tokens: 2, output_tokens: 3, cached_tokens: 0, ..Usage::default() });
        assert!(matches!(
            request.commit(Sampled { token: 5, logprob: None, top: vec![] }),
            Err(CommitError::Ended { token: 5 })
        ));
        assert_eq!(request.outputs().len(), 3);
    }
}

#[test]
fn a_stop_token_ends_the_request_even_when_eos_is_ignored() {
    let stop_tokens = vec![u32::from(b'!')];
    let mut request = request(SamplingParams { stop_tokens, ignore_eos: true, ..Default::default() });
    let tokens = [with_eos("a"), ids("b!c")].concat();
    let (texts, finish) = run(&mut request, &tokens);
    assert_eq!((texts.concat().as_str(), finish), ("ab", Some(FinishReason::Stop)));
    assert_eq!(request.outputs(), &tokens[..4]);
}

#[test]
fn nothing_stops_within_min_tokens() {
    let params = SamplingParams {
        min_tokens: 4,
        stop: vec!["ab".into()],
        stop_tokens: vec![u32::from(b'!')],
        ..Default::default()
    };
    let mut first = request(params.clone());
    // The fourth token completes "ab" too early, the sixth one does not.
    assert_eq!(run(&mut first, &ids("!xabab")).1, Some(FinishReason::StopString));
    assert_eq!(first.usage().output_tokens, 6);
    let mut second = request(params.clone());
    let (texts, finish) = run(&mut second, &ids("xxxab."));
    assert_eq!((texts.concat().as_str(), finish), ("xxx", Some(FinishReason::StopString)));
    let mut third = request(params);
    assert_eq!(run(&mut third, &ids("xxxx!")).1, Some(FinishReason::Stop));
}

#[test]
fn max_tokens_and_context_end_the_request_by_length() {
    let mut limited = request(SamplingParams { max_tokens: Some(3), ..Default::default() });
    let (texts, finish) = run(&mut limited, &ids("abcdef"));
    assert_eq!((texts.concat().as_str(), finish), ("abc", Some(FinishReason::Length)));
    let mut unlimited = request(SamplingParams::default());
    let (_, finish) = run(&mut unlimited, &ids(&"a".repeat(100)));
    assert_eq!(finish, Some(FinishReason::Length));
    assert_eq!(unlimited.tokens().len(), CONTEXT);
}

#[test]
fn an_end_token_at_max_tokens_is_an_end_and_not_a_length() {
    let mut request = request(SamplingParams { max_tokens: Some(3), ..Default::default() });
    assert_eq!(run(&mut request, &with_eos("ab")).1, Some(FinishReason::Stop));
}

#[test]
fn a_stop_string_over_several_tokens_is_cut_from_the_text() {
    let mut request = request(SamplingParams { stop: vec!["END".into()], ..Default::default() });
    let (texts, finish) = run(&mut request, &ids("E.ENENDxyz"));
    assert_eq!(texts, ["", "E.", "", "", "EN", "", ""]);
    assert_eq!(finish, Some(FinishReason::StopString));
    // Tokens and usage end with the token that completed it.
    assert_eq!(request.outputs(), ids("E.ENEND"));
}

#[test]
fn held_text_comes_out_at_the_end_whatever_the_reason() {
    let params = SamplingParams { stop: vec!["ENDE".into()], ..Default::default() };
    let (texts, finish) = run(&mut request(params.clone()), &with_eos("xEND"));
    assert_eq!((texts.concat().as_str(), finish), ("xEND", Some(FinishReason::Stop)));
    let (texts, finish) = run(&mut request(SamplingParams { max_tokens: Some(4), ..params }), &ids("xENDE"));
    assert_eq!((texts.concat().as_str(), finish), ("xEND", Some(FinishReason::Length)));
}

#[test]
fn a_character_of_several_tokens_comes_whole_and_half_a_one_is_marked() {
    let (texts, _) = run(&mut request(SamplingParams::default()), &ids("é日"));
    assert_eq!(texts, ["", "é", "", "", "日"]);
    let (texts, _) = run(&mut request(SamplingParams { max_tokens: Some(2), ..Default::default() }), &ids("日"));
    assert_eq!(texts, ["", "\u{FFFD}"]);
    let half = [&ids("日")[..2], &[EOS]].concat();
    let (texts, _) = run(&mut request(SamplingParams::default()), &half);
    assert_eq!(texts, ["", "", "\u{FFFD}"]);
    // A stop string of such characters, also after text that shares its first bytes.
    let params = SamplingParams { stop: vec!["日本".into()], ..Default::default() };
    let (texts, finish) = run(&mut request(params), &ids("日日本!"));
    assert_eq!((texts.concat().as_str(), finish), ("日", Some(FinishReason::StopString)));
}

#[test]
fn bad_requests_are_refused_before_anything_runs() {
    let tokenizer = byte_tokenizer();
    let refused = |prompt: &[u32], params| Request::new(prompt, params, 0, &limits(), &tokenizer).unwrap_err();
    assert_eq!(refused(&[], SamplingParams::default()), RequestError::EmptyPrompt);
    let too_long = RequestError::PromptTooLong { prompt: CONTEXT, context: CONTEXT };
    assert_eq!(refused(&[1; CONTEXT], SamplingParams::default()), too_long);
    let words = RequestError::PromptTooLong { prompt: 45, context: 40 }.to_string();
    assert!(words.ends_with("the context holds 40, the answer included: shorten the prompt by at least 6"), "{words}");
    let unknown = RequestError::UnknownToken { token: 256, position: 1, vocab: 256 };
    assert_eq!(refused(&[1, 256], SamplingParams::default()), unknown);
    let params = SamplingParams { top_p: 2.0, ..Default::default() };
    assert!(matches!(refused(&[1], params), RequestError::Params(_)));
    assert!(Request::new(&[1; CONTEXT - 1], SamplingParams::default(), 0, &limits(), &tokenizer).is_ok());
}

#[test]
fn bad_logits_and_bad_tokens_end_the_request_with_an_error() {
    let mut nan = request(SamplingParams::default());
    assert!(nan.sample(&[f32::NAN; 256], &mut Scratch::new()).is_err());
    assert_eq!(nan.finish(), Some(FinishReason::Error));
    let mut beyond = request(SamplingParams::default());
    let error = beyond.commit(Sampled { token: 300, logprob: None, top: vec![] }).unwrap_err();
    assert!(matches!(error, CommitError::Text { token: 300, .. }), "{error}");
    assert_eq!((beyond.finish(), beyond.outputs().len()), (Some(FinishReason::Error), 0));
}

#[test]
fn cancelling_ends_a_running_request_only() {
    let mut running = request(SamplingParams::default());
    running.cancel();
    assert_eq!(running.finish(), Some(FinishReason::Cancelled));
    let mut ended = request(SamplingParams::default());
    run(&mut ended, &[EOS]);
    ended.cancel();
    assert_eq!(ended.finish(), Some(FinishReason::Stop));
}

#[test]
fn a_request_samples_at_its_absolute_position_and_reports_logprobs() {
    let params = SamplingParams { temperature: 1.0, seed: 5, logprobs: Some(2), ..Default::default() };
    let mut request = request(params);
    let logits: Vec<f32> = (0..256).map(|i| (i % 7) as f32).collect();
    for position in 2..6 {
        let sampler = request.sampler().clone();
        let want = sampler.sample(&logits, request.history(), position, &mut Scratch::new()).unwrap();
        let sampled = request.sample(&logits, &mut Scratch::new()).unwrap();
        assert_eq!(sampled, want);
        let delta = request.commit(sampled).unwrap().delta;
        assert_eq!((delta.token, delta.logprob, delta.top), (want.token, want.logprob, want.top));
    }
}

proptest! {
    #[test]
    fn the_text_is_that_of_the_tokens_up_to_the_first_stop_string(
        text in "[abé日]{0,20}",
        stop in prop::collection::vec("[abé日]{1,3}", 0..3),
    ) {
        let mut request = request(SamplingParams { stop: stop.clone(), ..Default::default() });
        let (texts, finish) = run(&mut request, &with_eos(&text));
        let ends = text.char_indices().map(|(i, c)| i + c.len_utf8());
        let cut = ends.filter_map(|end| {
            stop.iter().filter(|s| text[..end].ends_with(s.as_str())).map(|s| end - s.len()).min()
        }).next();
        prop_assert_eq!(texts.concat(), &text[..cut.unwrap_or(text.len())]);
        prop_assert_eq!(finish, Some(cut.map_or(FinishReason::Stop, |_| FinishReason::StopString)));
    }
}
