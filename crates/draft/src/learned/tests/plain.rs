//! Checkpoints of random numbers, and what they come to in plain arithmetic: loops over f64 that share nothing with what is
//! tested.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use super::*;

/// Tensors by name.
pub(super) struct Numbers(HashMap<String, (Vec<usize>, Vec<f32>)>);

impl Numbers {
    /// Vectors that are norms are about 1; else numbers are about as large as the root of a row's length allows.
    pub(super) fn random(shapes: &[(&str, &[usize])], seed: u64) -> Numbers {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        let tensor = |(name, shape): &(&str, &[usize])| {
            let (middle, size) = match shape {
                [_] if name.ends_with("norm.weight") => (1.0, 0.5),
                [_] => (0.0, 0.5),
                [.., row] => (0.0, 1.5 / (*row as f32).sqrt()),
                [] => (0.0, 1.0),
            };
            let values = (0..shape.iter().product()).map(|_: usize| middle + size * next()).collect();
            ((*name).to_owned(), (shape.to_vec(), values))
        };
        Numbers(shapes.iter().map(tensor).collect())
    }

    /// Of a safetensors file in f32.
    pub(super) fn of_file(file: &Path) -> Numbers {
        let bytes = std::fs::read(file).unwrap();
        let found = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let shape = |name: &str| found.tensor(name).unwrap().shape().to_vec();
        let names = found.names().into_iter();
        Numbers(names.map(|name| (name.to_owned(), (shape(name), floats(file, name)))).collect())
    }

    pub(super) fn set(&mut self, name: &str, value: impl Fn(usize, usize) -> f32) {
        let (shape, values) = self.0.get_mut(name).unwrap();
        let row = *shape.last().unwrap();
        values.iter_mut().enumerate().for_each(|(at, number)| *number = value(at / row, at % row));
    }

    /// Name, shape and numbers of each.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, &[usize], &[f32])> {
        self.0.iter().map(|(name, (shape, values))| (name.as_str(), shape.as_slice(), values.as_slice()))
    }

    /// The same under other names; `None`: without it.
    pub(super) fn renamed(&self, rename: impl Fn(&str) -> Option<String>) -> Numbers {
        Numbers(self.0.iter().filter_map(|(name, tensor)| Some((rename(name)?, tensor.clone()))).collect())
    }

    /// Puts a matrix of another shape in the place of one.
    pub(super) fn replace(&mut self, name: &str, shape: &[usize; 2], value: impl Fn(usize, usize) -> f32) {
        self.0.insert(name.to_owned(), (shape.to_vec(), vec![0.0; shape[0] * shape[1]]));
        self.set(name, value);
    }

    /// Adds to the weights of norms, whose names have `part`.
    pub(super) fn shift(&mut self, part: &str, by: f32) {
        let tensors = self.0.iter_mut().filter(|(name, _)| name.contains(part));
        tensors.for_each(|(_, (_, values))| values.iter_mut().for_each(|value| *value += by));
    }

    /// Makes all numbers of tensors whose names have `part` this one.
    pub(super) fn fill(&mut self, part: &str, value: f32) {
        self.0.iter_mut().filter(|(name, _)| name.contains(part)).for_each(|(_, (_, values))| values.fill(value));
    }

    /// Makes numbers of tensors larger, and what they say surer.
    pub(super) fn scale(&mut self, prefix: &str, factor: f32) {
        let tensors = self.0.iter_mut().filter(|(name, _)| name.starts_with(prefix));
        tensors.for_each(|(_, (_, values))| values.iter_mut().for_each(|value| *value *= factor));
    }

    pub(super) fn write(&self, dir: &Path, config: &Value) {
        let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let data: Vec<_> = self.0.iter().map(|(name, (shape, values))| (name, shape, bytes(values))).collect();
        let views = data.iter().map(|(name, shape, data)| {
            (*name, safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.to_vec(), data).unwrap())
        });
        safetensors::serialize_to_file(views, None, &dir.join("model.safetensors")).unwrap();
        std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    }

    /// A matrix or vector, row after row.
    pub(super) fn get(&self, name: &str) -> Vec<f64> {
        self.0[name].1.iter().map(|&value| value.into()).collect()
    }

    pub(super) fn row(&self, name: &str, row: u32) -> Vec<f64> {
        let width = *self.0[name].0.last().unwrap();
        self.get(name)[row as usize * width..][..width].to_vec()
    }

    /// W x + b, of `name.weight` and, if it is there, `name.bias`.
    pub(super) fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mut out: Vec<f64> = self.get(&format!("{name}.weight")).chunks(x.len()).map(|row| dot(row, x)).collect();
        if self.0.contains_key(&format!("{name}.bias")) {
            out.iter_mut().zip(self.get(&format!("{name}.bias"))).for_each(|(out, bias)| *out += bias);
        }
        out
    }

    pub(super) fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mean = dot(x, x) / x.len() as f64;
        x.iter().zip(self.get(name)).map(|(x, weight)| x / (mean + 1e-6).sqrt() * weight).collect()
    }

    /// A decoder layer of Llama, of 4 heads of 16 that share 2 keys, over rows at these positions, in ascending order.
    pub(super) fn layer(&self, name: &str, rows: &[(usize, Vec<f64>)], input_norm: bool) -> Vec<Vec<f64>> {
        let at = |part: &str| format!("{name}{part}");
        let normed = |x: &[f64]| match input_norm {
            true => self.norm(&at("input_layernorm.weight"), x),
            false => x.to_vec(),
        };
        let turned = |part: &str, (position, x): &(usize, Vec<f64>)| {
            let heads = self.linear(&at(part), &normed(x));
            heads.chunks(16).map(|head| rotated(head, *position)).collect::<Vec<_>>()
        };
        let keys: Vec<_> = rows.iter().map(|row| turned("self_attn.k_proj", row)).collect();
        let values: Vec<_> = rows.iter().map(|(_, x)| self.linear(&at("self_attn.v_proj"), &normed(x))).collect();
        let row = |(index, row): (usize, &(usize, Vec<f64>))| {
            let mut attended = Vec::new();
            for (head, query) in turned("self_attn.q_proj", row).into_iter().enumerate() {
                let scores: Vec<f64> =
                    keys[..=index].iter().map(|key| (dot(&query, &key[head / 2]) / 4.0).exp()).collect();
                let sum: f64 = scores.iter().sum();
                let value = |dim: usize| {
                    scores
                        .iter()
                        .zip(&values)
                        .map(|(score, value)| score / sum * value[head / 2 * 16 + dim])
                        .sum::<f64>()
                };
                attended.extend((0..16).map(value));
            }
            let x = add(&row.1, &self.linear(&at("self_attn.o_proj"), &attended));
            let y = self.norm(&at("post_attention_layernorm.weight"), &x);
            let gate = self.linear(&at("mlp.gate_proj"), &y);
            let inner: Vec<f64> =
                gate.into_iter().zip(self.linear(&at("mlp.up_proj"), &y)).map(|(gate, up)| silu(gate) * up).collect();
            add(&x, &self.linear(&at("mlp.down_proj"), &inner))
        };
        rows.iter().enumerate().map(row).collect()
    }
}

/// The tensors of such a layer.
pub(super) fn layer_shapes(name: &str, input_norm: bool) -> Vec<(String, &'static [usize])> {
    const PARTS: [(&str, &[usize]); 9] = [
        ("input_layernorm", &[64]),
        ("self_attn.q_proj", &[64, 64]),
        ("self_attn.k_proj", &[32, 64]),
        ("self_attn.v_proj", &[32, 64]),
        ("self_attn.o_proj", &[64, 64]),
        ("post_attention_layernorm", &[64]),
        ("mlp.gate_proj", &[160, 64]),
        ("mlp.up_proj", &[160, 64]),
        ("mlp.down_proj", &[64, 160]),
    ];
    PARTS[usize::from(!input_norm)..].iter().map(|(part, shape)| (format!("{name}{part}.weight"), *shape)).collect()
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub(super) fn add(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

pub(super) fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// The first half of a head turns against the second, by theta 10000.
fn rotated(head: &[f64], position: usize) -> Vec<f64> {
    let half = head.len() / 2;
    let turn = |at: usize| {
        let angle = position as f64 / 10000f64.powf((at % half) as f64 / half as f64);
        let other = if at < half { -head[at + half] } else { head[at - half] };
        head[at] * angle.cos() + other * angle.sin()
    };
    (0..head.len()).map(turn).collect()
}

pub(super) fn argmax(values: &[f64]) -> u32 {
    let better = |best: usize, at: usize| if values[at] > values[best] { at } else { best };
    (0..values.len()).fold(0, better) as u32
}

pub(super) fn assert_logits(got: &[f32], want: &[f64], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let error = got.iter().zip(want).fold(0.0f64, |error, (&got, want)| error.max((f64::from(got) - want).abs()));
    assert!(error <= 1e-4, "{what}: error {error}");
}

/// Chooses greedily, and remembers by what.
#[derive(Default)]
pub(super) struct Recording(pub(super) Mutex<Vec<Vec<f32>>>);

impl Choose for Recording {
    fn choose(&self, drafts: &[u32], logits: &[f32]) -> Option<crate::Chosen> {
        self.0.lock().unwrap().push(logits.to_vec());
        Greedy.choose(drafts, logits)
    }

    fn draws(&self) -> bool {
        false
    }
}

/// The target's text so far, its hidden states, and its embedding and head.
pub(super) struct Known {
    pub(super) text: Vec<u32>,
    pub(super) states: Vec<Vec<f64>>,
    target: Numbers,
}

impl Known {
    pub(super) fn of(rounds: &Rounds) -> Known {
        let mut cache = KvCache::new(rounds.target.kv_layout(KvFormat::F32), 16);
        let (mut sequence, text) = (Sequence::new(), rounds.tokens.clone());
        let rows = &text[..text.len() - 1];
        cache.reserve(&mut sequence, rows.len()).unwrap();
        let (visibility, logits) = (Visibility::Causal, Logits::None);
        let segment = Segment { sequence: &sequence, start: 0, tokens: rows, visibility, logits };
        let mut workspace = Workspace::new();
        let run = rounds.target.forward(&mut workspace, &rounds.pool, &mut cache, &[segment], &[Tap::Final]);
        let states = run.unwrap().taps[0].chunks(64).map(|row| row.iter().map(|&value| value.into()).collect());
        let (states, target) = (states.collect(), Numbers::of_file(&fixture("qwen3-target").join("model.safetensors")));
        Known { text, states, target }
    }

    pub(super) fn embedding(&self, token: u32) -> Vec<f64> {
        self.target.row("model.embed_tokens.weight", token)
    }

    /// By the target's head.
    pub(super) fn logits(&self, x: &[f64]) -> Vec<f64> {
        self.target.linear("lm_head", x)
    }
}

/// What enters the layer of a module, from a position, the token there and the feature before it.
type Join<'a> = dyn Fn(usize, usize, u32, &[f64]) -> Vec<f64> + 'a;

/// The layer of a module, over rows at these positions.
type LayerOf<'a> = dyn Fn(usize, &[(usize, Vec<f64>)]) -> Vec<Vec<f64>> + 'a;

/// Layers that pair a token with what is known of the position before it: EAGLE's, and modules for multi-token prediction.
pub(super) struct Pairs<'a> {
    pub(super) known: &'a Known,
    pub(super) modules: usize,
    pub(super) join: &'a Join<'a>,
    pub(super) layer: &'a LayerOf<'a>,
    /// What a module says, by what its layer gives.
    pub(super) logits: &'a dyn Fn(usize, &[f64]) -> Vec<f64>,
    /// What stands for the feature, of what the layer gives.
    pub(super) feature: &'a dyn Fn(&[f64]) -> Vec<f64>,
}

impl Pairs<'_> {
    /// The logits of so many steps, each draft being the likeliest: nothing is kept from one to the next.
    pub(super) fn chain(&self, steps: usize) -> Vec<Vec<f64>> {
        let (mut text, anchor) = (self.known.text.clone(), self.known.text.len() - 1);
        let mut features: Vec<BTreeMap<usize, Vec<f64>>> = vec![BTreeMap::new(); self.modules];
        let (mut last, mut all) = (BTreeMap::new(), Vec::new());
        for (position, state) in self.known.states.iter().enumerate() {
            last.insert(position, state.clone());
        }
        for step in 0..steps {
            let module = step % self.modules;
            let first = if step < self.modules { step + 1 } else { anchor + step + 1 - self.modules };
            for position in first..=anchor + step {
                features[module].insert(position, last[&(position - 1)].clone());
            }
            let joined = |(&position, feature): (&usize, &Vec<f64>)| {
                (position - 1, (self.join)(module, position, text[position], feature))
            };
            let rows: Vec<(usize, Vec<f64>)> = features[module].iter().map(joined).collect();
            let outputs = (self.layer)(module, &rows);
            last = rows.iter().zip(&outputs).map(|((pair, _), output)| (pair + 1, (self.feature)(output))).collect();
            let logits = (self.logits)(module, outputs.last().unwrap());
            text.push(argmax(&logits));
            all.push(logits);
        }
        all
    }
}

impl Rounds {
    /// A proposal for a request that chooses so, where a row costs so much of a step.
    pub(super) fn propose_for(
        &mut self,
        drafter: &mut dyn Drafter,
        (max_drafts, choose): (usize, &dyn Choose),
        row_seconds: f64,
    ) -> Result<Proposal, crate::Silence> {
        let Rounds { pool, cache, sequence, tokens, prompt, .. } = self;
        cache.reserve(sequence, tokens.len() - 1 + drafter.slots_ahead()).unwrap();
        let mut round =
            Round { pool, cache, step_seconds: 1.0, row_seconds, checks_all: false, unread: &mut Unread::default() };
        let (prompt, predicted, remaining) = (*prompt, &[][..], 1000);
        let ask = Ask { key: KEY, tokens, prompt, predicted, max_drafts, remaining, choose, sequence };
        drafter.propose(&mut round, &[ask]).unwrap().remove(0)
    }

    /// A drafter from a directory, some rounds into a text.
    pub(super) fn with(dir: &Path, rounds: usize) -> (Rounds, Box<dyn Drafter>) {
        let mut all = Rounds::new(&numbers(&json(&fixture("dspark-markov").join("trace.json"))["prompt"]));
        let target = Target { model: &all.target, vocab: 256, kv_format: KvFormat::F32 };
        let mut drafter = load(dir, target, &all.pool, testkit::options()).unwrap();
        all.begin(drafter.as_mut());
        for _ in 0..rounds {
            all.round(drafter.as_mut(), 0.0);
        }
        (all, drafter)
    }

    /// The logits of a chain of so many drafts.
    pub(super) fn recorded(&mut self, drafter: &mut dyn Drafter, drafts: usize) -> Vec<Vec<f32>> {
        let recording = Recording::default();
        let proposal = self.propose_for(drafter, (drafts, &recording), 1.0).unwrap();
        assert_eq!(proposal.tree().drafts(), drafts);
        recording.0.into_inner().unwrap()
    }
}

/// A config like the target's, of a Llama, with more fields.
pub(super) fn llama_config(more: Value) -> Value {
    let mut config = json(&fixture("qwen3-target").join("config.json"));
    config["model_type"] = "llama".into();
    let fields = config.as_object_mut().unwrap();
    fields.remove("layer_types");
    fields.extend(more.as_object().unwrap().clone());
    config
}
