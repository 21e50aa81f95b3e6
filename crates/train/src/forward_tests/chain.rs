//! Feature-level drafters.

use kv::{KvCache, Salt};
use model::{Eagle, EagleKind, EagleShape, Logits, Segment, Visibility, Workspace};

use super::*;

fn same_forward(name: &str, method: Method, known: Option<usize>) {
    let this = trained(name, method, known);
    let (vocabulary, pool) = (&this.drafter.base.vocabulary, &this.pool);
    let (weights, config) = (Weights::open_dir(this.out.path()).unwrap(), Config::from_dir(this.out.path()).unwrap());
    let (kind, taps) = match method {
        Method::Eagle3 => (EagleKind::Third { taps: 2, normed_residual: false }, 2),
        _ => (EagleKind::Module { layer: this.target.config().layers }, 1),
    };
    let head = (method == Method::Eagle3).then_some(vocabulary.len());
    let shape = EagleShape { kind, head, depth: 0 };
    let eagle = Eagle::load(&weights, config, shape, &this.target, pool, testkit::options()).unwrap();
    let mut cache = KvCache::new(this.target.kv_layout(KvFormat::F32), 8);
    let attached = eagle.kv_layouts(KvFormat::F32).map(|layout| cache.attach(layout));
    let mut workspace = Workspace::new();
    // Each block by itself, a draft after the other.
    for (at, &anchor) in this.anchors.iter().enumerate() {
        let mut sequence = cache.match_prefix(&[], &Salt::default());
        cache.reserve(&mut sequence, anchor + DRAFTS).unwrap();
        let segment = |start, tokens, logits| Segment {
            sequence: &sequence,
            start,
            tokens,
            visibility: Visibility::Causal,
            logits,
        };
        let states: Vec<Vec<f32>> = (0..taps).map(|tap| this.state(tap, anchor)).collect();
        let states: Vec<&[f32]> = states.iter().map(Vec::as_slice).collect();
        let context = segment(0, &this.text.tokens[..anchor], Logits::None);
        eagle.read(&mut workspace, pool, cache.attached_two(&attached), &[context], &states).unwrap();
        let mut feature = vec![0.0; this.target.config().hidden];
        eagle.feature(&cache.attached(&attached[1]), sequence.slot(anchor - 1), &mut feature);
        for draft in 0..DRAFTS.min(this.text.tokens.len() - 1 - anchor) {
            let row = at * DRAFTS + draft;
            let newest = segment(anchor + draft, &this.batch.before[row..=row], Logits::Last);
            let kv = cache.attached(&attached[0]);
            let output = eagle.forward(&mut workspace, pool, kv, &[newest], &feature).unwrap();
            let known = vocabulary.ids().iter().enumerate();
            let logits: Vec<f32> =
                known.map(|(at, &id)| output.logits[if head.is_some() { at } else { id as usize }]).collect();
            let far = apart(&logits, &this.logits[row * vocabulary.len()..][..vocabulary.len()]);
            assert!(far < 1e-3, "{name}, {method:?}, block {at}, draft {draft}: {far}");
            feature.copy_from_slice(&output.taps[0]);
        }
        cache.free(sequence);
    }
}

#[test]
fn what_is_written_computes_what_was_trained() {
    same_forward("llama", Method::Eagle3, Some(40));
    same_forward("../drafts/qwen3-target", Method::Eagle3, None);
    same_forward("llama", Method::Mtp, Some(40));
    same_forward("qwen2", Method::Mtp, None);
}
