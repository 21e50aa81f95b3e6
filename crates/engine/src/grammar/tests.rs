//! The two ways to ask a state agree, and the sampler's short cut changes nothing.

use super::*;
use crate::history::History;
use crate::params::SamplingParams;
use crate::process::Scratch;
use crate::sampler::Sampler;
use testkit::{EOS, byte_tokenizer};

fn row(state: &mut u64, spread: f32) -> Vec<f32> {
    let mut next = || {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*state >> 40) as f32 / (1 << 24) as f32
    };
    (0..256).map(|_| next() * spread).collect()
}

fn grammars() -> Vec<Grammar> {
    let compiler = GrammarCompiler::new(&byte_tokenizer()).unwrap();
    let schema = json!({ "type": "object", "required": ["a"], "properties": {
        "a": { "type": "string", "maxLength": 6 }, "b": { "type": "integer" } } });
    let free = "start: FREE | head \"x\" more*\nFREE: /(?s:.*)/\nhead[lazy]: FREE \"<t>\"\nmore: \"\\n<t>\"";
    let sources = [
        GrammarSource::JsonSchema { schema, lenient: false },
        GrammarSource::Regex("[é-ü]*(ab|ac)?".into()),
        GrammarSource::Lark(free.into()),
    ];
    sources.iter().map(|source| compiler.compile(source).unwrap()).collect()
}

#[test]
fn one_token_and_the_mask_of_all_agree() {
    for grammar in grammars() {
        for ends in [vec![EOS], vec![], vec![EOS, b'a'.into(), 255]] {
            let (mut state, mut seed) = (GrammarState::new(grammar.clone()), 9);
            for _ in 0..40 {
                let mut masked = row(&mut seed, 1.0);
                if state.mask(&mut masked, &ends).is_err() {
                    break;
                }
                for (token, logit) in masked.iter().enumerate() {
                    assert_eq!(*logit > f32::NEG_INFINITY, state.allows(token as u32, &ends), "{token}");
                }
                let (pick, _) = masked.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
                // An end, or the end of the grammar.
                if state.is_eos(pick as u32) || pick == 255 || !matches!(state.advance(pick as u32), Ok(false)) {
                    break;
                }
            }
        }
    }
}

#[test]
fn the_short_cut_chooses_what_the_masked_row_gives() {
    let variants = [(0.0, 1.0, 0), (0.8, 1.0, 0), (1.5, 1.0, 0), (1e-30, 1.0, 0), (1.0, 0.8, 0), (1.0, 1.0, 5)];
    for grammar in grammars() {
        for (case, (temperature, top_p, top_k)) in variants.into_iter().enumerate() {
            for spread in [2.0, 12.0] {
                let params = SamplingParams { temperature, top_p, top_k, seed: 3, ..Default::default() };
                let sampler = Sampler::new(params, &[EOS], 0);
                let (history, mut scratch) = (History::new(&[1]), Scratch::new());
                let (mut state, mut seed) = (GrammarState::new(grammar.clone()), 100 + case as u64);
                for position in 1..60 {
                    let logits = row(&mut seed, spread);
                    let mut masked = logits.clone();
                    state.mask(&mut masked, &[EOS]).unwrap();
                    let want = sampler.sample(&masked, &history, position, &mut scratch).unwrap().token;
                    let got = sampler.sample_within(Some(&mut state), &logits, &history, position, &mut scratch);
                    assert_eq!(got.unwrap().token, want);
                    if want == EOS || state.advance(want).unwrap() {
                        break;
                    }
                }
            }
        }
    }
}

#[test]
fn a_clone_goes_its_own_way() {
    let mut state = GrammarState::new(grammars().swap_remove(1));
    state.advance(b'a'.into()).unwrap();
    let mut other = state.clone();
    assert_eq!(state.advance(b'b'.into()), Ok(true));
    assert_eq!(other.advance(b'c'.into()), Ok(true));
    assert_eq!(state.advance(b'c'.into()), Err(GrammarStop::Failed));
}
