//! Medusa's heads: each says, from one hidden state of the target, what comes so many tokens later (Cai et al. 2024, arXiv
//! 2401.10774).
//!
//! The heads do not know of each other's words, so what they say together is a tree: the likeliest beginnings of what
//! follows, as if the words were independent.

use kernels::{Activations, Isa, KvFormat, Pool, Product, Strided, multiply};
use kv::{Attached, KvCache, Layout};
use model::weights::Weights;
use model::{Linear, LoadError, LoadOptions, Loader, Tap};
use spec::{Expansion, Proposal, product_tree};

use super::format::MedusaFormat;
use super::{LearnedError, Target, gathered};
use crate::{Ask, Computed, DraftError, Drafter, Key, Round, Silence, Words};

/// Words of a head that are drafted at most.
const WORDS: usize = 10;

/// Drafts of a tree for each head, at most; admission checks as many as pay.
const DRAFTS_OF_A_HEAD: usize = 6;

/// Drafts from the target's hidden state before the anchor, which lies in the target's own pages.
pub(super) struct MedusaDraft {
    heads: Vec<Head>,
    hidden: usize,
    vocab: usize,
    isa: Isa,
    kv_format: KvFormat,
    attached: Option<Attached>,
    x: Activations,
    buffers: [Vec<f32>; 2],
    logits: Vec<f32>,
}

/// Residual blocks, and what makes words of them.
struct Head {
    /// `[hidden, hidden]` each.
    blocks: Vec<Linear>,
    /// `[vocab, hidden]`
    words: Linear,
}

impl MedusaDraft {
    pub(super) fn load(
        weights: &Weights,
        format: MedusaFormat,
        target: Target<'_>,
        pool: &Pool,
        options: LoadOptions,
    ) -> Result<MedusaDraft, LearnedError> {
        let (hidden, vocab) = (target.model.config().hidden, target.model.config().vocab);
        let loader = Loader::new(weights, pool, options, "");
        let heads = (0..format.heads).map(|head| Head::load(&loader, head, format.blocks, [vocab, hidden]));
        Ok(MedusaDraft {
            heads: heads.collect::<Result<_, _>>()?,
            hidden,
            vocab: target.vocab,
            isa: options.isa,
            kv_format: target.kv_format,
            attached: None,
            x: Activations::new(),
            buffers: Default::default(),
            logits: Vec::new(),
        })
    }

    /// The hidden state of a position, half in the place of a key and half in that of a value.
    fn layout(&self) -> Layout {
        Layout { layers: 1, kv_heads: 1, head_dim: self.hidden / 2, format: self.kv_format }
    }

    /// What a head says to each of the rows: its likeliest words.
    fn words(&mut self, pool: &Pool, head: usize, rows: &[f32]) -> Vec<Expansion> {
        let Self { heads, hidden, vocab, isa, x, buffers: [state, moved], logits, .. } = self;
        let (head, width, isa) = (&heads[head], *hidden, *isa);
        let count = rows.len() / width;
        rows.clone_into(state);
        for block in &head.blocks {
            product(x, pool, isa, block, state, moved);
            // x + SiLU(W x + b)
            state.iter_mut().zip(&*moved).for_each(|(state, moved)| *state += moved / (1.0 + (-moved).exp()));
        }
        product(x, pool, isa, &head.words, state, logits);
        let all = logits.len() / count;
        let mut words = vec![Expansion::new(); count];
        pool.for_each_mut(&mut words, |row, words| {
            *words = Words::new(&logits[row * all..(row + 1) * all], None, *vocab).likeliest(WORDS);
        });
        words
    }
}

/// `out = x Wᵀ + b` for all rows.
fn product(
    x: &mut Activations,
    pool: &Pool,
    isa: Isa,
    Linear { matrix, bias }: &Linear,
    rows: &[f32],
    out: &mut Vec<f32>,
) {
    let inputs = matrix.inputs();
    let count = rows.len() / inputs;
    x.fill(pool, isa, (count, inputs), matrix.format().is_quantised(), |row, to| {
        to.copy_from_slice(&rows[row * inputs..(row + 1) * inputs]);
    });
    out.resize(count * matrix.outputs(), 0.0);
    multiply(pool, x, &mut [Product::new(matrix, out)]);
    if let Some(bias) = bias {
        out.chunks_exact_mut(bias.len()).for_each(|row| kernels::add(isa, row, bias));
    }
}

impl Head {
    /// Under the names of Medusa's own files (`medusa_head.I.J.linear`), or of those for vLLM (`blocks.I.layers.J`).
    fn load(loader: &Loader<'_>, head: usize, blocks: usize, [vocab, hidden]: [usize; 2]) -> Result<Head, LoadError> {
        let own = !loader.weights.has(&format!("lm_heads.{head}.weight"));
        let block = |block: usize| match own {
            true => format!("medusa_head.{head}.{block}.linear"),
            false => format!("blocks.{head}.layers.{block}"),
        };
        let words = if own { format!("medusa_head.{head}.{blocks}") } else { format!("lm_heads.{head}") };
        let linear = |name: String, shape| {
            let bias = loader.weights.has(&format!("{name}.bias"));
            loader.linear(&name, shape, bias)
        };
        let blocks = (0..blocks).map(|at| linear(block(at), [hidden, hidden])).collect::<Result<_, _>>()?;
        Ok(Head { blocks, words: linear(words, [vocab, hidden])? })
    }
}

impl Drafter for MedusaDraft {
    fn name(&self) -> &'static str {
        "medusa"
    }

    fn taps(&self) -> Vec<Tap> {
        vec![Tap::Final]
    }

    fn bytes_per_page(&self) -> usize {
        self.layout().bytes_per_page()
    }

    fn attach(&mut self, cache: &mut KvCache) {
        self.attached = Some(cache.attach(self.layout()));
    }

    fn computed(&mut self, computed: &mut Computed<'_>) -> Result<(), DraftError> {
        let Some(attached) = &self.attached else { return Ok(()) };
        let [states] = gathered(computed, &[Tap::Final])[..] else { return Ok(()) };
        let rows = computed
            .batch
            .iter()
            .flat_map(|segment| (0..segment.tokens.len()).map(|row| segment.sequence.slot(segment.start + row)));
        let slots: Vec<_> = rows.collect();
        let part = |from: usize| Strided { data: &states[from..], stride: self.hidden };
        if !slots.is_empty() {
            let layers = computed.cache.attached(attached).layers;
            layers[0].append(computed.pool, self.isa, &slots, part(0), part(self.hidden / 2));
        }
        Ok(())
    }

    fn propose(
        &mut self,
        round: &mut Round<'_>,
        asks: &[Ask<'_>],
    ) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
        let Some(attached) = &self.attached else { return Ok(vec![Err(Silence::NoMatch); asks.len()]) };
        let mut rows = vec![0.0; asks.len() * self.hidden];
        let layer = &round.cache.attached(attached).layers[0];
        for (ask, row) in asks.iter().zip(rows.chunks_exact_mut(self.hidden)) {
            let (k, v) = row.split_at_mut(self.hidden / 2);
            if let Some(before) = ask.tokens.len().checked_sub(2) {
                layer.read(ask.sequence.slot(before), k, v);
            }
        }
        let deepest = asks.iter().map(|ask| ask.max_drafts).max().unwrap_or(0).min(self.heads.len());
        let words: Vec<Vec<Expansion>> = (0..deepest).map(|head| self.words(round.pool, head, &rows)).collect();
        let propose = |(index, ask): (usize, &Ask<'_>)| {
            let depth = ask.max_drafts.min(deepest);
            let said: Vec<Expansion> = words[..depth].iter().map(|rows| rows[index].clone()).collect();
            let tree = product_tree(ask.anchor(), &said, depth * DRAFTS_OF_A_HEAD).map_err(|_| Silence::NoMatch)?;
            if tree.drafts() == 0 { Err(Silence::NoMatch) } else { Ok(Proposal::from(tree)) }
        };
        Ok(asks.iter().enumerate().map(propose).collect())
    }

    fn finished(&mut self, _: Key, _: &[u32], _: usize) {}
}
