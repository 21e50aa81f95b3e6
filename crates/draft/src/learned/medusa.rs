//! Medusa's heads: each says, from one hidden state of the target, what comes so many tokens later (Cai et al. 2024, arXiv
//! 2401.10774).
//!
//! The heads do not know of each other's words, so what they say together is a tree: the likeliest beginnings of what
//! follows, as if the words were independent.

use kernels::{Isa, Pool};
use kv::KvCache;
use model::weights::Weights;
use model::{LoadError, LoadOptions, Loader, Tap};
use spec::{Expansion, Proposal, product_tree};

use super::format::Fields;
use super::residual::{ResidualBlock, ResidualHead, Scratch, linear};
use super::states::States;
use super::{LearnedError, Target, gathered};
use crate::unread::catch_up;
use crate::{Ask, Computed, DraftError, Drafter, Key, Round, Silence, Words};

/// Words of a head that are drafted at most.
const WORDS: usize = 10;

/// Drafts of a tree for each head, at most; admission checks as many as pay.
const DRAFTS_OF_A_HEAD: usize = 6;

/// What `config.json` says of the heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MedusaFormat {
    heads: usize,
    /// Residual blocks of a head.
    blocks: usize,
}

impl MedusaFormat {
    pub(super) fn read(fields: &Fields) -> Result<MedusaFormat, LearnedError> {
        let heads = fields.number("medusa_num_heads")?;
        let blocks = fields.find("medusa_num_layers").map_or(Ok(1), |_| fields.number("medusa_num_layers"))?;
        if !(1..=16).contains(&heads) || blocks > 16 {
            let problem = format!("is {heads}, with {blocks} blocks each: known are 1 to 16");
            return Err(fields.wrong("medusa_num_heads", problem));
        }
        Ok(MedusaFormat { heads, blocks })
    }
}

/// Drafts from the target's hidden state before the anchor, which lies in the target's own pages.
pub(super) struct MedusaDraft {
    heads: Vec<ResidualHead>,
    vocab: usize,
    isa: Isa,
    states: States,
    scratch: Scratch,
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
        let heads = (0..format.heads).map(|at| head(&loader, at, format.blocks, [vocab, hidden]));
        Ok(MedusaDraft {
            heads: heads.collect::<Result<_, _>>()?,
            vocab: target.vocab,
            isa: options.isa,
            states: States::new(hidden, options.isa, target.kv_format),
            scratch: Scratch::default(),
        })
    }

    /// What all heads up to `deepest` say to each request, of which `rows` are the hidden states: their likeliest words.
    fn words(&mut self, pool: &Pool, deepest: usize, rows: &[f32], asks: &[Ask<'_>]) -> Vec<Vec<Expansion>> {
        let Self { heads, vocab, isa, scratch, .. } = self;
        let mut words = vec![Vec::<Expansion>::new(); asks.len()];
        for head in &heads[..deepest] {
            let logits = head.logits(scratch, pool, *isa, rows);
            let all = logits.len() / asks.len();
            pool.for_each_mut(&mut words, |row, words| {
                let said = Words::new(&logits[row * all..(row + 1) * all], None, *vocab);
                let before: Vec<u32> = words.iter().filter_map(|words| Some(words.first()?.0)).collect();
                let choose = asks[row].choose;
                words.push(match choose.draws() {
                    true => said.likeliest(WORDS),
                    false => choose.choices(&before, said, WORDS),
                });
            });
        }
        words
    }
}

/// Loads a head under the names of Medusa's own files (`I.J.linear`), of whole models (`medusa_head.I.J.linear`), or of those
/// for vLLM (`blocks.I.layers.J`).
fn head(
    loader: &Loader<'_>,
    head: usize,
    blocks: usize,
    [vocab, hidden]: [usize; 2],
) -> Result<ResidualHead, LoadError> {
    let own = !loader.weights.has(&format!("lm_heads.{head}.weight"));
    let prefix = if loader.weights.has(&format!("{head}.{blocks}.weight")) { "" } else { "medusa_head." };
    let block = |block: usize| match own {
        true => format!("{prefix}{head}.{block}.linear"),
        false => format!("blocks.{head}.layers.{block}"),
    };
    let words = if own { format!("{prefix}{head}.{blocks}") } else { format!("lm_heads.{head}") };
    let blocks = (0..blocks)
        .map(|at| Ok(ResidualBlock { linear: linear(loader, &block(at), [hidden, hidden])?, shortcut: None }));
    Ok(ResidualHead {
        blocks: blocks.collect::<Result<_, LoadError>>()?,
        words: linear(loader, &words, [vocab, hidden])?,
    })
}

impl Drafter for MedusaDraft {
    fn name(&self) -> &'static str {
        "medusa"
    }

    fn taps(&self) -> Vec<Tap> {
        vec![Tap::Final]
    }

    fn bytes_per_page(&self) -> usize {
        self.states.bytes_per_page()
    }

    fn attach(&mut self, cache: &mut KvCache) {
        self.states.attach(cache);
    }

    fn computed(&mut self, computed: &mut Computed<'_>) -> Result<(), DraftError> {
        if let [states] = gathered(computed, &[Tap::Final])[..] {
            self.states.keep(computed.pool, computed.cache, computed.batch, states);
        }
        Ok(())
    }

    fn propose(
        &mut self,
        round: &mut Round<'_>,
        asks: &[Ask<'_>],
    ) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
        catch_up(self, round, asks)?;
        let rows = self.states.before_anchors(round.cache, asks.iter());
        let ways = round.ways(asks.len());
        let deepest = asks.iter().map(|ask| ask.max_drafts).max().unwrap_or(0).min(self.heads.len());
        let words = self.words(round.pool, deepest, &rows, asks);
        let propose = |(index, ask): (usize, &Ask<'_>)| {
            let depth = ask.max_drafts.min(deepest);
            let drafts = depth * ways.min(DRAFTS_OF_A_HEAD);
            let tree = product_tree(ask.anchor(), &words[index][..depth], drafts).map_err(|_| Silence::NoMatch)?;
            if tree.drafts() == 0 { Err(Silence::NoMatch) } else { Ok(Proposal::from(tree)) }
        };
        Ok(asks.iter().enumerate().map(propose).collect())
    }

    fn finished(&mut self, _: Key, _: &[u32], _: usize) {}
}
