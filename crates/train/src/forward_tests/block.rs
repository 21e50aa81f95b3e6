//! Block drafters.

use kv::{KvCache, Salt};
use model::{Backbone, BlockShape, Logits, Segment, Sight, Visibility, Workspace};

use super::*;

fn same_forward(name: &str, method: Method, known: Option<usize>) {
    let this = trained(name, method, known);
    let (out, pool, known) = (this.out.path(), &this.pool, this.drafter.base.vocabulary.len());
    let (weights, part) = (Weights::open_dir(out).unwrap(), known < 256);
    let config = if part { Config::from_part(out, "transformer_layer_config") } else { Config::from_dir(out) }.unwrap();
    let shape = BlockShape {
        taps: 2,
        head: part.then_some(known),
        sight: vec![Sight::Around; config.layers],
        convolution: None,
        embedding_scale: 1.0,
    };
    let backbone = Backbone::load(&weights, config, shape, &this.target, pool, testkit::options()).unwrap();
    let mut cache = KvCache::new(backbone.kv_layout(KvFormat::F32), 8);
    let (mut workspace, block) = (Workspace::new(), this.batch.shape.rows);
    let width = this.target.config().hidden;
    // Each block by itself.
    for (at, &anchor) in this.anchors.iter().enumerate() {
        let mut sequence = cache.match_prefix(&[], &Salt::default());
        cache.reserve(&mut sequence, anchor + block).unwrap();
        let context = Segment {
            sequence: &sequence,
            start: 0,
            tokens: &this.text.tokens[..anchor],
            visibility: Visibility::Causal,
            logits: Logits::None,
        };
        let taps = [this.state(0, anchor), this.state(1, anchor)];
        backbone.read(&mut workspace, pool, cache.layers(), &[context], &[&taps[0], &taps[1]]).unwrap();
        let rows: Vec<usize> = (0..block).collect();
        let segment = Segment {
            sequence: &sequence,
            start: anchor,
            tokens: &this.batch.tokens[at * block..][..block],
            visibility: Visibility::Block,
            logits: Logits::Rows(&rows),
        };
        let output = backbone.forward(&mut workspace, pool, cache.layers(), &[segment]).unwrap();
        let far = [
            apart(&output.taps[0], &this.hidden[at * block * width..][..block * width]),
            apart(output.logits, &this.logits[at * block * known..][..block * known]),
        ];
        assert!(far[0] < 1e-4 && far[1] < 1e-3, "{name}, block {at}: {far:?}");
        cache.free(sequence);
    }
}

#[test]
fn what_is_written_computes_what_was_trained() {
    same_forward("llama", Method::Dspark, Some(40));
    same_forward("qwen2", Method::Dspark, Some(40));
    same_forward("../drafts/qwen3-target", Method::Dspark, None);
    same_forward("llama", Method::Dflash, Some(40));
    same_forward("../drafts/qwen3-target", Method::Dflash, None);
}

#[test]
fn a_mistral_trains_a_draft_without_windows() {
    same_forward("mistral-window", Method::Dspark, Some(30));
}
