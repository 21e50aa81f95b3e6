//! Learned drafters in the engine: what they keep in the target's pages follows the pages wherever they go, and no answer
//! changes for them.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

use draft::{Drafter, Target};
use engine::batch::{Event, Service, ServiceOptions, Speculation, Stats, Submission};
use engine::{Drafting, SamplingParams};
use kernels::{KvFormat, Pool};
use model::Model;
use model::config::Config;
use model::weights::Weights;
use spec::CostCurve;
use testkit::byte_tokenizer;

const DRAFTERS: [&str; 6] =
    ["dspark-markov", "dspark-gated", "dspark-rnn", "dflash-deepspec", "dflash-zlab", "eagle3-deepspec"];

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/drafts").join(name)
}

fn target(pool: &Pool) -> Arc<Model> {
    let dir = fixture("qwen3-target");
    let (weights, config) = (Weights::open_dir(&dir).unwrap(), Config::from_dir(&dir).unwrap());
    Arc::new(Model::load(&weights, config, pool, testkit::options()).unwrap())
}

/// The drafter of this name. Rows cost next to nothing: every draft is checked.
fn drafting_with(name: &str, model: &Arc<Model>, pool: &Pool) -> Speculation {
    let target = Target { model, vocab: 256, kv_format: KvFormat::F16 };
    let drafter: Box<dyn Drafter> = draft::load_learned(&fixture(name), target, pool, testkit::options()).unwrap();
    Speculation::new(drafter, 8, CostCurve::new(&[1, 2], &[0], &[1.0, 1.000_001]).unwrap())
}

/// A prompt in the language that the target was trained on: a rotation of one that is.
fn prompt(seed: usize, len: usize) -> Vec<u32> {
    const TEXT: [u32; 24] =
        [53, 51, 13, 41, 41, 35, 15, 20, 21, 22, 51, 24, 15, 54, 25, 41, 41, 47, 1, 4, 7, 25, 49, 20];
    (0..len).map(|at| TEXT[(at + seed * 5) % TEXT.len()]).collect()
}

/// Requests of all kinds, at all temperatures; some begin alike.
fn requests() -> Vec<Submission> {
    let request = |i: usize| Submission {
        prompt: prompt(i % 4, [24, 15, 16, 17, 33, 90, 200, 3][i % 8]),
        params: SamplingParams {
            temperature: [0.0, 0.7, 1.0][i % 3],
            top_p: [1.0, 0.9][i % 2],
            repetition_penalty: [1.0, 1.0, 1.1][i % 3],
            seed: i as u64,
            max_tokens: Some([60, 1, 33][i % 3]),
            ignore_eos: true,
            ..SamplingParams::default()
        },
        n: [1, 1, 3][i % 3],
        cache_salt: None,
        priority: 0,
        drafting: Drafting::default(),
    };
    (0..16).map(request).collect()
}

struct Serving {
    service: Service,
}

impl Serving {
    fn new(threads: usize, options: ServiceOptions, pages: usize, drafter: Option<&str>) -> Serving {
        let pool = Pool::new(NonZeroUsize::new(threads).unwrap());
        let model = target(&pool);
        let speculation = drafter.map(|name| drafting_with(name, &model, &pool));
        // What is kept beside the model's own keys and values counts.
        let more = speculation.as_ref().map_or(0, |speculation| speculation.drafter.bytes_per_page());
        assert_eq!(more > 0, drafter.is_some());
        let kv_bytes = pages * (model.kv_layout(KvFormat::F16).bytes_per_page() + more);
        let options = ServiceOptions { kv_bytes, context: Some(320), max_running: 12, ..options };
        let service = Service::start(model, byte_tokenizer(), pool, options, speculation);
        assert_eq!(service.handle().stats().kv_pages_total, pages);
        Serving { service }
    }

    /// What `requests` are answered when they come at once.
    fn answers(&self, requests: &[Submission]) -> BTreeMap<(usize, u32), Vec<u32>> {
        let handle = self.service.handle();
        let (events, inbox) = mpsc::channel();
        for (index, request) in requests.iter().enumerate() {
            let events = events.clone();
            handle.submit(request.clone(), Box::new(move |event| events.send((index, event)).unwrap())).unwrap();
        }
        let mut answers = BTreeMap::<(usize, u32), Vec<u32>>::new();
        let mut open: u32 = requests.iter().map(|request| request.n).sum();
        while open > 0 {
            match inbox.recv().unwrap() {
                (index, Event::Delta { choice, delta }) => {
                    answers.entry((index, choice)).or_default().push(delta.token)
                }
                (_, Event::Finished { .. }) => open -= 1,
                (index, Event::Failed { message, .. }) => panic!("request {index}: {message}"),
            }
        }
        answers
    }

    fn stats(&self) -> Stats {
        self.service.handle().stats()
    }
}

#[test]
fn no_learned_drafter_changes_an_answer() {
    let requests = requests();
    let plain = Serving::new(1, ServiceOptions::default(), 900, None).answers(&requests);
    for name in DRAFTERS {
        for (threads, pages, row_budget, prefix_cache) in [(1, 900, 128, true), (2, 22, 7, true), (1, 22, 64, false)] {
            let options = ServiceOptions { row_budget, prefix_cache, ..ServiceOptions::default() };
            let serving = Serving::new(threads, options, pages, Some(name));
            assert_eq!(serving.answers(&requests), plain, "{name}, {pages} pages");
            let stats = serving.stats();
            assert!(stats.drafts.checked > 100 && stats.drafts.accepted > 10, "{name}: {:?}", stats.drafts);
            assert_eq!((stats.kv_pages_used, stats.preemptions > 0), (0, pages < 900), "{name}");
        }
    }
}

/// A checkpoint of random numbers of these shapes: nearly always wrong, and so a good test of whether that shows.
fn random(dir: &Path, shapes: &[(String, Vec<usize>)], config: &str) {
    let mut state = 7u64;
    let mut tensor = |shape: &[usize]| -> Vec<u8> {
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 40) as f32 / (1 << 24) as f32 - 0.5) / 4.0
        };
        (0..shape.iter().product()).flat_map(|_: usize| next().to_le_bytes()).collect()
    };
    let data: Vec<Vec<u8>> = shapes.iter().map(|(_, shape)| tensor(shape)).collect();
    let views = shapes.iter().zip(&data).map(|((name, shape), data)| {
        (name, safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), data).unwrap())
    });
    safetensors::serialize_to_file(views, None, &dir.join("model.safetensors")).unwrap();
    std::fs::write(dir.join("config.json"), config).unwrap();
}

/// A decoder layer of the target's shape.
fn layer(prefix: &str) -> Vec<(String, Vec<usize>)> {
    let matrix = |name: &str, out: usize, inputs: usize| (format!("{prefix}{name}.weight"), vec![out, inputs]);
    let mut shapes = vec![
        matrix("self_attn.q_proj", 64, 64),
        matrix("self_attn.k_proj", 32, 64),
        matrix("self_attn.v_proj", 32, 64),
        matrix("self_attn.o_proj", 64, 64),
        matrix("mlp.gate_proj", 160, 64),
        matrix("mlp.up_proj", 160, 64),
        matrix("mlp.down_proj", 64, 160),
    ];
    shapes.extend(
        ["input_layernorm", "post_attention_layernorm"].map(|name| (format!("{prefix}{name}.weight"), vec![64])),
    );
    shapes
}

/// Medusa's heads.
fn medusa(dir: &Path) {
    let head = |head: usize| {
        let name = |part: &str| format!("medusa_head.{head}.{part}");
        [(name("0.linear.weight"), vec![64, 64]), (name("0.linear.bias"), vec![64]), (name("1.weight"), vec![256, 64])]
    };
    let shapes: Vec<_> = (0..3).flat_map(head).collect();
    random(dir, &shapes, r#"{"medusa_num_heads": 3, "medusa_num_layers": 1}"#);
}

/// Hydra's heads after a layer of their own.
fn hydra(dir: &Path) {
    let head = |head: usize| {
        let inputs = 64 * (head + 2);
        [
            (format!("hydra_mlp.{head}.1.linear.weight"), vec![64, inputs]),
            (format!("hydra_mlp.{head}.1.res_connection.weight"), vec![64, inputs]),
            (format!("hydra_lm_head.{head}.1.weight"), vec![256, 64]),
        ]
    };
    let mut shapes: Vec<_> = (0..3).flat_map(head).collect();
    shapes.extend(layer("prefix_embeding_layer.layers.0."));
    shapes.push(("prefix_embeding_layer.norm.weight".into(), vec![64]));
    let config =
        r#"{"hydra_num_heads": 3, "hydra_num_layers": 1, "hydra_head_arch": "prefix-mlp", "grounded_heads": true}"#;
    random(dir, &shapes, config);
}

/// Three modules for multi-token prediction that take turns.
fn modules(dir: &Path) {
    let module = |module: usize| {
        let at = format!("model.layers.{}.", 8 + module);
        let mut shapes = layer(&at);
        shapes.push((format!("{at}eh_proj.weight"), vec![64, 128]));
        shapes.extend(["enorm", "hnorm", "shared_head.norm"].map(|name| (format!("{at}{name}.weight"), vec![64])));
        shapes
    };
    let shapes: Vec<_> = (0..3).flat_map(module).collect();
    let config = std::fs::read_to_string(fixture("qwen3-target").join("config.json")).unwrap();
    let config = config.replace(r#""model_type": "qwen3""#, r#""model_type": "llama", "num_nextn_predict_layers": 3"#);
    random(dir, &shapes, &config);
}

/// A block drafter of two layers with something more, in z-lab's format.
fn block(dir: &Path, more: Vec<(String, Vec<usize>)>, change: impl FnOnce(&mut serde_json::Value)) {
    let mut shapes: Vec<(String, Vec<usize>)> = vec![("fc.weight".into(), vec![64, 320])];
    shapes.extend(["hidden_norm.weight", "norm.weight"].map(|name| (name.to_owned(), vec![64])));
    for at in 0..2 {
        let name = format!("layers.{at}.");
        shapes.extend(layer(&name));
        shapes.extend(["q_norm", "k_norm"].map(|norm| (format!("{name}self_attn.{norm}.weight"), vec![16])));
    }
    shapes.extend(more);
    let config = std::fs::read_to_string(fixture("dflash-zlab").join("config.json")).unwrap();
    let mut config = serde_json::from_str(&config).unwrap();
    change(&mut config);
    random(dir, &shapes, &config.to_string());
}

/// DFlash 2, with windows.
fn dflash2(dir: &Path) {
    let around = |layer: usize, part: &str| {
        let name = format!("layers.{layer}.{part}_conv");
        [(format!("{name}.base_kernel"), vec![2, 2, 64]), (format!("{name}.kernel_projection.weight"), vec![16, 64])]
    };
    let mut more: Vec<_> =
        (0..2).flat_map(|layer| ["attention", "mlp"].map(|part| around(layer, part))).flatten().collect();
    let codebooks = ["predecessor", "successor"].map(|name| format!("candidate_selector.{name}_codebook"));
    more.extend(codebooks.map(|name| (name, vec![256, 8])));
    more.push(("candidate_selector.hidden_projection.weight".into(), vec![8, 64]));
    block(dir, more, |config| {
        config["architectures"] = serde_json::json!(["DFlash2DraftModel"]);
        config["layer_types"] = serde_json::json!(["sliding_attention", "full_attention"]);
        config["sliding_window"] = 20.into();
        for (field, value) in
            [("conv_kernel_size", 2), ("conv_group_size", 16), ("selector_rank", 8), ("selector_top_k", 16)]
        {
            config["dflash_config"][field] = value.into();
        }
    });
}

fn domino(dir: &Path) {
    let more = [
        ("prefix_gru.weight_ih_l0", [36, 64]),
        ("prefix_gru.weight_hh_l0", [36, 12]),
        ("embed_proj.0.weight", [8, 76]),
        ("embed_proj.2.weight", [256, 8]),
    ];
    block(dir, more.map(|(name, shape)| (name.to_owned(), shape.to_vec())).into(), |config| {
        config["architectures"] = serde_json::json!(["DominoDraftModel"]);
        config["dflash_config"]["gru_hidden_dim"] = 12.into();
        config["dflash_config"]["emb_dim"] = 8.into();
    });
}

#[test]
fn drafters_that_are_wrong_change_no_answer() {
    let requests = requests();
    let plain = Serving::new(1, ServiceOptions::default(), 900, None).answers(&requests);
    for write in [medusa, hydra, modules, dflash2, domino] {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path());
        for (threads, pages, row_budget) in [(1, 900, 128), (2, 22, 7)] {
            let options = ServiceOptions { row_budget, ..ServiceOptions::default() };
            let serving = Serving::new(threads, options, pages, dir.path().to_str());
            assert_eq!(serving.answers(&requests), plain, "{pages} pages");
            let stats = serving.stats();
            assert!(stats.drafts.checked > 1000, "{:?}", stats.drafts);
            assert_eq!(stats.kv_pages_used, 0);
        }
    }
}

/// What a drafter's answers to one request at a time took.
fn steps(serving: &Serving, request: &Submission) -> [u64; 3] {
    let before = serving.stats();
    serving.answers(std::slice::from_ref(request));
    let after = serving.stats();
    [
        after.drafts.checked - before.drafts.checked,
        after.drafts.accepted - before.drafts.accepted,
        after.cached_prompt_tokens - before.cached_prompt_tokens,
    ]
}

#[test]
fn what_a_drafter_knows_comes_with_a_prefix_and_with_chunks() {
    let written = [hydra, modules].map(|write| {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path());
        dir
    });
    let written = written.iter().map(|dir| dir.path().to_str().unwrap());
    for name in DRAFTERS.into_iter().chain(written) {
        for temperature in [0.0, 1.0] {
            let params =
                SamplingParams { temperature, seed: 3, max_tokens: Some(60), ignore_eos: true, ..Default::default() };
            let request = Submission { prompt: prompt(1, 90), params, n: 1, ..requests().remove(0) };
            let serving = Serving::new(1, ServiceOptions::default(), 100, Some(name));
            let [checked, accepted, found] = steps(&serving, &request);
            assert_eq!(found, 0);
            let again = steps(&serving, &request);
            assert_eq!(again, [checked, accepted, 80], "{name}: found in the cache");
            let options = ServiceOptions { row_budget: 7, prefix_cache: false, ..ServiceOptions::default() };
            let chunks = steps(&Serving::new(2, options, 100, Some(name)), &request);
            assert_eq!(chunks, [checked, accepted, 0], "{name}: computed in chunks");
        }
    }
}
