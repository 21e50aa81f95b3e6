//! Block drafters: all drafts of a round from one forward over the anchor and masks (DFlash, Chen et al. 2026; DSpark,
//! section 3), each then corrected by the one before it.

use kernels::{KvFormat, Packer, Pool};
use kv::{Attached, KvCache};
use model::config::Config;
use model::weights::Weights;
use model::{Backbone, ForwardError, LoadOptions, Loader, Logits, Segment, Tap, Visibility, Workspace};
use spec::{Drawn, Proposal};

use super::format::BlockFormat;
use super::heads::{ConfidenceHead, MarkovHead, Step, sigmoid};
use super::{LearnedError, Target, fits_taps, gathered};
use crate::{Ask, Computed, DraftError, Drafter, Key, Round, Silence};

/// Drafts a block at a time.
///
/// What it knows of a committed position are keys and values in the target's own pages, so that they are shared, found and
/// rolled back with them. A round writes its block where the target's next rows will be.
pub(super) struct BlockDraft {
    pub(super) backbone: Backbone,
    pub(super) markov: Option<MarkovHead>,
    pub(super) confidence: Option<ConfidenceHead>,
    pub(super) format: BlockFormat,
    kv_format: KvFormat,
    pub(super) attached: Option<Attached>,
    /// Tokens that the target knows: ids below this.
    vocab: usize,
    workspace: Workspace,
    step: Step,
}

/// One request in a round.
struct Block<'a> {
    /// Which of the round's asks.
    index: usize,
    ask: &'a Ask<'a>,
    max_drafts: usize,
    /// The anchor, then masks.
    tokens: Vec<u32>,
    proposal: Proposal,
    drafts: Vec<u32>,
    open: bool,
}

impl BlockDraft {
    pub(super) fn load(
        weights: &Weights,
        config: Config,
        format: BlockFormat,
        target: Target<'_>,
        pool: &Pool,
        options: LoadOptions,
    ) -> Result<BlockDraft, LearnedError> {
        fits(&config, &format, target)?;
        let (hidden, vocab) = (config.hidden, config.vocab);
        let backbone = Backbone::load(weights, config, format.taps.len(), target.model, pool, options)?;
        let loader = Loader { weights, packer: Packer::new(pool, options.isa, options.compute), prefix: "" };
        let markov = match format.markov {
            Some(markov) => Some(MarkovHead::load(&loader, options.isa, markov, [vocab, hidden])?),
            None => None,
        };
        let rank = format.markov.map_or(0, |markov| markov.rank);
        let confidence = match format.confidence {
            Some(with_markov) => Some(ConfidenceHead::load(&loader, hidden + if with_markov { rank } else { 0 })?),
            None => None,
        };
        let (workspace, step) = (Workspace::new(), Step::default());
        let Target { vocab, kv_format, .. } = target;
        Ok(BlockDraft { backbone, markov, confidence, format, kv_format, attached: None, vocab, workspace, step })
    }

    /// Drafts of a block.
    fn drafts(&self) -> usize {
        self.format.block - usize::from(!self.format.anchor_first)
    }

    fn begin<'a>(&self, index: usize, ask: &'a Ask<'a>) -> Result<Block<'a>, Silence> {
        let end = ask.tokens.len() - 1 + self.format.block;
        if end > self.backbone.config().context {
            return Err(Silence::Context);
        }
        if ask.sequence.len() < end {
            return Err(Silence::Behind);
        }
        let mut tokens = vec![self.format.mask; self.format.block];
        tokens[0] = ask.anchor();
        let (proposal, drafts) = (Proposal::new(ask.anchor()), Vec::new());
        Ok(Block { index, ask, max_drafts: ask.max_drafts.min(self.drafts()), tokens, proposal, drafts, open: true })
    }

    /// Runs the blocks and lets each say its drafts, one after another.
    fn run(&mut self, pool: &Pool, cache: &mut KvCache, blocks: &mut [Block<'_>]) -> Result<(), ForwardError> {
        let Some(attached) = &self.attached else { return Ok(()) };
        let Self { backbone, markov, confidence, format, vocab, workspace, step, .. } = self;
        let rows: Vec<usize> = (usize::from(!format.anchor_first)..format.block).collect();
        let segments: Vec<Segment<'_>> = blocks.iter().map(|block| block.segment(&rows)).collect();
        let output = backbone.forward(workspace, pool, cache.attached(attached), &segments)?;
        drop(segments);
        let (width, logits_width) = (backbone.config().hidden, output.logits.len() / (blocks.len() * rows.len()));
        if let Some(markov) = markov {
            markov.begin(step, blocks.len());
        }
        for depth in 0..rows.len() {
            let hidden = |block: usize| {
                let row = block * format.block + rows[depth];
                &output.taps[0][row * width..(row + 1) * width]
            };
            if let Some(markov) = markov {
                let before: Vec<u32> = blocks.iter().map(Block::before).collect();
                markov.advance(step, pool, &before, hidden);
            }
            let count = blocks.len();
            let Step { embeddings, biases, .. } = &*step;
            pool.for_each_mut(blocks, |at, block| {
                if !block.open || depth >= block.max_drafts {
                    return;
                }
                let base = &output.logits[(at * rows.len() + depth) * logits_width..][..*vocab];
                let of = |all: &'_ [f32], width: usize| -> std::ops::Range<usize> {
                    let width = if all.is_empty() { 0 } else { width };
                    at * width..(at + 1) * width
                };
                let sure = confidence.as_ref().map(|head| {
                    let embedding = &embeddings[of(embeddings, embeddings.len() / count)];
                    f64::from(sigmoid(head.logit(hidden(at), embedding)))
                });
                match markov {
                    None => block.extend(base, sure),
                    Some(_) => {
                        let bias = &biases[of(biases, biases.len() / count)];
                        let corrected: Vec<f32> = base.iter().zip(bias).map(|(base, bias)| base + bias).collect();
                        block.extend(&corrected, sure);
                    }
                }
            });
        }
        Ok(())
    }
}

/// Refuses what was made for another target.
fn fits(config: &Config, format: &BlockFormat, target: Target<'_>) -> Result<(), LearnedError> {
    let ours = target.model.config();
    let other = |what, draft, target| Err(LearnedError::OtherTarget { what, draft, target });
    // The target's embedding and head are the draft's.
    if config.hidden != ours.hidden {
        return other("the hidden size", config.hidden, ours.hidden);
    }
    if config.vocab != ours.vocab {
        return other("the vocabulary", config.vocab, ours.vocab);
    }
    if format.mask as usize >= ours.vocab {
        return other("the mask token", format.mask as usize, ours.vocab);
    }
    fits_taps(&format.taps, target)
}

impl Block<'_> {
    fn segment<'s>(&'s self, rows: &'s [usize]) -> Segment<'s> {
        let (sequence, start) = (self.ask.sequence, self.ask.tokens.len() - 1);
        Segment { sequence, start, tokens: &self.tokens, visibility: Visibility::Block, logits: Logits::Rows(rows) }
    }

    /// The token before the next draft.
    fn before(&self) -> u32 {
        self.drafts.last().copied().unwrap_or(self.tokens[0])
    }

    /// Adds the draft that the request chooses by `logits`, `[vocab]`, of which a head may say how `sure` it is.
    fn extend(&mut self, logits: &[f32], sure: Option<f64>) {
        self.open = self.add(logits, sure).is_some();
    }

    fn add(&mut self, logits: &[f32], sure: Option<f64>) -> Option<()> {
        let chosen = self.ask.choose.choose(&self.drafts, logits)?;
        let (parent, token) = (self.drafts.len(), chosen.token);
        let confidence = sure.unwrap_or(chosen.confidence);
        match chosen.law {
            Some(law) => {
                drop(self.proposal.add_drawn(parent, law, Drawn::Independently, &[token], &[confidence]).ok()?)
            }
            None => drop(self.proposal.add_point(parent, token, confidence).ok()?),
        }
        self.drafts.push(token);
        Some(())
    }
}

impl Drafter for BlockDraft {
    fn name(&self) -> &'static str {
        if self.format.markov.is_some() { "dspark" } else { "dflash" }
    }

    fn taps(&self) -> Vec<Tap> {
        self.format.taps.clone()
    }

    fn attach(&mut self, cache: &mut KvCache) {
        self.attached = Some(cache.attach(self.backbone.kv_layout(self.kv_format)));
    }

    fn slots_ahead(&self) -> usize {
        self.format.block
    }

    fn computed(&mut self, computed: &mut Computed<'_>) -> Result<(), DraftError> {
        let Some(attached) = &self.attached else { return Ok(()) };
        let features = gathered(computed, &self.format.taps);
        let kv = computed.cache.attached(attached);
        let read = self.backbone.read(&mut self.workspace, computed.pool, kv, computed.batch, &features);
        read.map_err(|error| DraftError { drafter: self.name(), message: error.to_string() })
    }

    fn propose(
        &mut self,
        round: &mut Round<'_>,
        asks: &[Ask<'_>],
    ) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
        let mut answers = vec![Err(Silence::NoMatch); asks.len()];
        let mut blocks = Vec::with_capacity(asks.len());
        for (index, ask) in asks.iter().enumerate() {
            match self.begin(index, ask) {
                Ok(block) => blocks.push(block),
                Err(silence) => answers[index] = Err(silence),
            }
        }
        if !blocks.is_empty() {
            let run = self.run(round.pool, round.cache, &mut blocks);
            run.map_err(|error| DraftError { drafter: self.name(), message: error.to_string() })?;
        }
        for Block { index, proposal, .. } in blocks {
            if proposal.tree().drafts() > 0 {
                answers[index] = Ok(proposal);
            }
        }
        Ok(answers)
    }

    fn finished(&mut self, _: Key, _: &[u32], _: usize) {}
}
