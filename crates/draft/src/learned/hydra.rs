//! Hydra's heads: each says what comes next from one hidden state of the target and the words drafted so far (Ankner et al.
//! 2024, arXiv 2402.05109). With a layer of its own before them they are Hydra++.
//!
//! Head i makes draft i + 1, so that drafts come depth by depth: all nodes of a depth, of all requests, in one go.

use std::sync::Arc;

use kernels::{Isa, KvFormat, Pool};
use kv::{Attached, KvCache};
use model::weights::Weights;
use model::{LoadError, LoadOptions, Loader, Model, PrefixLayer, Tap, Workspace};
use spec::{EagleGrowth, Expansion, Proposal, Tree};

use super::format::Fields;
use super::residual::{ResidualBlock, ResidualHead, Scratch, linear};
use super::states::States;
use super::{LearnedError, Target, gathered};
use crate::unread::catch_up;
use crate::{Ask, Computed, DraftError, Drafter, Key, Round, Silence, Words};

/// Words that may follow a node, and nodes of a depth that are expanded; drafts of a tree for each head, at most.
const TOP_K: usize = 4;
const DRAFTS_OF_A_HEAD: usize = 6;

/// What `config.json` says of the heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HydraFormat {
    heads: usize,
    /// Residual blocks of a head.
    blocks: usize,
    /// A layer of its own makes the hidden state that the heads take.
    prefix: bool,
    /// The heads are given the words drafted so far.
    grounded: bool,
    /// Of the target's hidden states, the one so many before the last is read.
    offset: usize,
}

impl HydraFormat {
    pub(super) fn read(fields: &Fields) -> Result<HydraFormat, LearnedError> {
        let or = |field: &'static str, other| fields.find(field).map_or(Ok(other), |_| fields.number(field));
        let (heads, blocks) = (fields.number("hydra_num_heads")?, or("hydra_num_layers", 1)?);
        if !(1..=16).contains(&heads) || !(1..=16).contains(&blocks) {
            let problem = format!("is {heads}, with {blocks} blocks each: known are 1 to 16");
            return Err(fields.wrong("hydra_num_heads", problem));
        }
        let prefix = match fields.find("hydra_head_arch").map(|arch| arch.as_str().unwrap_or_default()) {
            None | Some("mlp") => false,
            Some("prefix-mlp") => true,
            Some(other) => {
                let problem = format!("is {other:?}; known are mlp and prefix-mlp");
                return Err(fields.wrong("hydra_head_arch", problem));
            }
        };
        let (grounded, offset) = (fields.flag("grounded_heads")?, or("hidden_state_offset", 0)?);
        Ok(HydraFormat { heads, blocks, prefix, grounded, offset })
    }

    /// What the names of its tensors begin with.
    pub(super) fn tensors(&self) -> &'static [&'static str] {
        match self.prefix {
            true => &["hydra_mlp.", "hydra_lm_head.", PrefixLayer::PREFIX],
            false => &["hydra_mlp.", "hydra_lm_head."],
        }
    }

    /// The hidden state that is read, of a target of so many layers.
    fn tap(&self, layers: usize) -> Result<Tap, LearnedError> {
        match self.offset {
            0 => Ok(Tap::Final),
            back if back < layers => Ok(Tap::Layer(layers - 1 - back)),
            back if back == layers => Ok(Tap::Embedding),
            back => Err(LearnedError::OtherTarget { what: "at least as many layers as", draft: back, target: layers }),
        }
    }

    /// Numbers that a head takes.
    fn inputs(&self, head: usize, hidden: usize) -> usize {
        if self.grounded { (head + 2) * hidden } else { hidden }
    }
}

/// Drafts from the hidden state before the anchor, which lies in the target's own pages.
pub(super) struct HydraDraft {
    pub(super) heads: Vec<ResidualHead>,
    format: HydraFormat,
    /// For its embedding.
    target: Arc<Model>,
    prefix: Option<Prefix>,
    tap: Tap,
    vocab: usize,
    isa: Isa,
    states: States,
    scratch: Scratch,
}

/// The layer before the heads.
struct Prefix {
    layer: PrefixLayer,
    attached: Option<Attached>,
    kv_format: KvFormat,
    workspace: Workspace,
}

/// What is drafted for one request.
struct Draft<'a> {
    /// Which of the round's asks.
    index: usize,
    ask: &'a Ask<'a>,
    /// Heads that it asks.
    heads: usize,
    /// The hidden state before its anchor, `[hidden]`.
    state: &'a [f32],
    growing: Growing,
}

enum Growing {
    /// The request's own choices, and the newest node.
    Chain(Proposal, Vec<u32>),
    /// The likeliest words.
    Tree(EagleGrowth),
    Done(Option<Proposal>),
}

impl HydraDraft {
    pub(super) fn load(
        weights: &Weights,
        format: HydraFormat,
        target: Target<'_>,
        pool: &Pool,
        options: LoadOptions,
    ) -> Result<HydraDraft, LearnedError> {
        let config = target.model.config();
        let (hidden, vocab) = (config.hidden, config.vocab);
        let loader = Loader::new(weights, pool, options, "");
        let heads = (0..format.heads).map(|at| head(&loader, at, format, [vocab, hidden]));
        let prefix = match format.prefix {
            true => {
                let layer = PrefixLayer::load(weights, target.model, pool, options)?;
                let workspace = Workspace::new();
                Some(Prefix { layer, attached: None, kv_format: target.kv_format, workspace })
            }
            false => None,
        };
        Ok(HydraDraft {
            heads: heads.collect::<Result<_, _>>()?,
            tap: format.tap(config.layers)?,
            format,
            target: Arc::clone(target.model),
            prefix,
            vocab: target.vocab,
            isa: options.isa,
            states: States::new(hidden, options.isa, target.kv_format),
            scratch: Scratch::default(),
        })
    }

    /// What a head takes of a hidden state and the words from the anchor on.
    fn push_row(&self, head: usize, state: &[f32], words: &[u32], rows: &mut Vec<f32>) {
        let from = rows.len();
        rows.resize(from + self.format.inputs(head, state.len()), 0.0);
        let mut parts = rows[from..].chunks_exact_mut(state.len());
        if let Some(part) = parts.next() {
            part.copy_from_slice(state);
        }
        // No words go to heads that take none.
        parts.zip(words).for_each(|(part, &word)| self.target.embed(word, part));
    }

    /// Has every head say its words about all drafts, one depth after the other.
    fn draft(&mut self, pool: &Pool, drafts: &mut [Draft<'_>]) {
        for head in 0..self.heads.len() {
            let (mut rows, mut counts) = (Vec::new(), Vec::with_capacity(drafts.len()));
            for draft in drafts.iter() {
                let paths = draft.paths(head);
                paths.iter().for_each(|words| self.push_row(head, draft.state, words, &mut rows));
                counts.push(paths.len());
            }
            let count: usize = counts.iter().sum();
            if count == 0 {
                return;
            }
            let logits = self.heads[head].logits(&mut self.scratch, pool, self.isa, &rows);
            let all = logits.len() / count;
            let first: Vec<usize> =
                counts.iter().scan(0, |sum, count| Some(std::mem::replace(sum, *sum + count))).collect();
            let vocab = self.vocab;
            pool.for_each_mut(drafts, |at, draft| {
                let row = |row: usize| &logits[(first[at] + row) * all..][..vocab];
                if counts[at] > 0 {
                    draft.take((0..counts[at]).map(row));
                }
            });
        }
    }
}

/// Loads a head under the names that the Hydra repository saves, in which dropout has numbers of its own: the head alone in
/// `mlp`, every other one in `prefix-mlp`.
fn head(
    loader: &Loader<'_>,
    head: usize,
    format: HydraFormat,
    [vocab, hidden]: [usize; 2],
) -> Result<ResidualHead, LoadError> {
    let block = |at: usize| {
        let name = format!("hydra_mlp.{head}.{}", if format.prefix { 2 * at + 1 } else { at });
        let inputs = if at == 0 { format.inputs(head, hidden) } else { hidden };
        let shortcut = (inputs > hidden).then(|| linear(loader, &format!("{name}.res_connection"), [hidden, inputs]));
        let linear = linear(loader, &format!("{name}.linear"), [hidden, inputs])?;
        Ok(ResidualBlock { linear, shortcut: shortcut.transpose()? })
    };
    let words = format!("hydra_lm_head.{head}{}", if format.prefix { ".1" } else { "" });
    let blocks = (0..format.blocks).map(block).collect::<Result<_, LoadError>>()?;
    Ok(ResidualHead { blocks, words: linear(loader, &words, [vocab, hidden])? })
}

impl<'a> Draft<'a> {
    fn new(index: usize, ask: &'a Ask<'a>, heads: usize, state: &'a [f32], ways: usize) -> Draft<'a> {
        let heads = ask.max_drafts.min(heads);
        let growing = match ways > 1 && !ask.choose.draws() {
            true => Growing::Tree(EagleGrowth::new(ask.anchor(), ways.min(TOP_K), heads.saturating_sub(1))),
            false => Growing::Chain(Proposal::new(ask.anchor()), vec![ask.anchor()]),
        };
        Draft { index, ask, heads, state, growing }
    }

    /// The words from the anchor to each node that the head is to go on from.
    fn paths(&self, head: usize) -> Vec<Vec<u32>> {
        match &self.growing {
            _ if head >= self.heads => Vec::new(),
            Growing::Chain(_, words) => vec![words.clone()],
            Growing::Tree(growth) => growth.level().iter().map(|&node| path(growth.tree(), node)).collect(),
            Growing::Done(_) => Vec::new(),
        }
    }

    /// Goes on by what the head says to each path: `[vocab]` each.
    fn take<'l>(&mut self, mut logits: impl Iterator<Item = &'l [f32]>) {
        let done = match &mut self.growing {
            Growing::Chain(proposal, words) => {
                let chosen = logits.next().and_then(|logits| self.ask.choose.choose(&words[1..], logits));
                let token = chosen.and_then(|chosen| {
                    let confidence = chosen.confidence;
                    chosen.add_to(proposal, words.len() - 1, confidence)
                });
                words.extend(token);
                token.is_none()
            }
            Growing::Tree(growth) => {
                let says = |(&node, logits): (&usize, &[f32])| {
                    let words = Words::new(logits, None, logits.len());
                    self.ask.choose.choices(&path(growth.tree(), node)[1..], words, TOP_K)
                };
                let mut words: Vec<Expansion> = growth.level().iter().zip(logits).map(says).collect();
                // Probabilities are in range, and a token has one: the tree cannot refuse.
                growth.grow(&mut words).is_err()
            }
            Growing::Done(_) => false,
        };
        if done {
            self.growing = Growing::Done(self.proposal());
        }
    }

    /// What was drafted, which then goes.
    fn proposal(&mut self) -> Option<Proposal> {
        match std::mem::replace(&mut self.growing, Growing::Done(None)) {
            Growing::Chain(proposal, _) => Some(proposal),
            Growing::Tree(growth) => growth.finish(self.heads * DRAFTS_OF_A_HEAD).ok().map(Proposal::from),
            Growing::Done(proposal) => proposal,
        }
    }
}

/// The words from the root of a tree to a node.
fn path(tree: &Tree, node: usize) -> Vec<u32> {
    let mut words: Vec<u32> =
        std::iter::successors(Some(node), |&node| tree.parent(node)).map(|node| tree.tokens()[node]).collect();
    words.reverse();
    words
}

impl Drafter for HydraDraft {
    fn name(&self) -> &'static str {
        if self.prefix.is_some() { "hydra++" } else { "hydra" }
    }

    fn taps(&self) -> Vec<Tap> {
        vec![self.tap]
    }

    fn bytes_per_page(&self) -> usize {
        let prefix = self.prefix.as_ref().map(|prefix| prefix.layer.kv_layout(prefix.kv_format).bytes_per_page());
        self.states.bytes_per_page() + prefix.unwrap_or(0)
    }

    fn attach(&mut self, cache: &mut KvCache) {
        self.states.attach(cache);
        if let Some(prefix) = &mut self.prefix {
            prefix.attached = Some(cache.attach(prefix.layer.kv_layout(prefix.kv_format)));
        }
    }

    fn computed(&mut self, computed: &mut Computed<'_>) -> Result<(), DraftError> {
        let drafter = self.name();
        let [mut states] = gathered(computed, &[self.tap])[..] else { return Ok(()) };
        let Computed { pool, batch, .. } = *computed;
        if let Some(Prefix { layer, attached: Some(attached), workspace, .. }) = &mut self.prefix {
            let own = computed.cache.attached(attached);
            let run = layer.forward(workspace, pool, own, batch, states);
            states = run.map_err(|error| DraftError { drafter, message: error.to_string() })?;
        }
        self.states.keep(pool, computed.cache, batch, states);
        Ok(())
    }

    fn propose(
        &mut self,
        round: &mut Round<'_>,
        asks: &[Ask<'_>],
    ) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
        catch_up(self, round, asks)?;
        let states = self.states.before_anchors(round.cache, asks.iter());
        let ways = round.ways(asks.len());
        let width = states.len() / asks.len().max(1);
        let (heads, known) = (self.heads.len(), |(_, ask): &(usize, &Ask<'_>)| ask.tokens.len() > 1);
        let mut drafts: Vec<Draft<'_>> = asks
            .iter()
            .enumerate()
            // Before the anchor there must be a hidden state.
            .filter(known)
            .map(|(index, ask)| {
                let state = &states[index * width..(index + 1) * width];
                Draft::new(index, ask, heads, state, ways)
            })
            .collect();
        self.draft(round.pool, &mut drafts);
        let mut answers = vec![Err(Silence::NoMatch); asks.len()];
        for draft in &mut drafts {
            if let Some(proposal) = draft.proposal().filter(|proposal| proposal.tree().drafts() > 0) {
                answers[draft.index] = Ok(proposal);
            }
        }
        Ok(answers)
    }

    fn finished(&mut self, _: Key, _: &[u32], _: usize) {}
}
