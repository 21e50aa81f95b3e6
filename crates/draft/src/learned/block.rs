//! Block drafters: all drafts of a round from one forward over the anchor and masks (DFlash, Chen et al. 2026; DSpark,
//! section 3), each then corrected by the one before it.

use kernels::{KvFormat, Pool};
use kv::{Attached, KvCache};
use model::config::Config;
use model::weights::Weights;
use model::{Backbone, ForwardError, LoadOptions, Loader, Logits, Segment, Tap, Visibility, Workspace};
use spec::{Expansion, Proposal, SequentialTemperature, product_tree};

use super::format::BlockFormat;
use super::heads::{ConfidenceHead, MarkovHead, Step, StepOf, sigmoid};
use super::{LearnedError, Target, fits_taps, gathered, known_ids, likeliest, spread};
use crate::{Ask, Computed, DraftError, Drafter, Key, Round, Silence};

/// Drafts a block at a time.
///
/// What it knows of a committed position are keys and values in the target's own pages, so that they are shared, found and
/// rolled back with them. A round writes its block where the target's next rows will be.
pub(super) struct BlockDraft {
    pub(super) backbone: Backbone,
    pub(super) markov: Option<MarkovHead>,
    pub(super) confidence: Option<ConfidenceHead>,
    /// Of the confidences, one for each draft of a block.
    temperatures: Option<SequentialTemperature>,
    /// For each token that the head knows, the target's.
    ids: Option<Vec<u32>>,
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
    /// Where a tree is drafted: what each row says, however the others decide.
    words: Vec<Expansion>,
    open: bool,
}

/// Words of a row that a tree is made of, and drafts of a tree for each row.
const WORDS: usize = 8;
const DRAFTS_OF_A_ROW: usize = 3;

impl BlockDraft {
    pub(super) fn load(
        weights: &Weights,
        config: Config,
        (format, temperatures): (BlockFormat, Option<SequentialTemperature>),
        target: Target<'_>,
        pool: &Pool,
        options: LoadOptions,
    ) -> Result<BlockDraft, LearnedError> {
        fits(&config, &format, target)?;
        let (hidden, vocab) = (config.hidden, target.model.config().vocab);
        let config = Config { vocab, ..config };
        let (taps, known) = (format.taps.len(), format.known.unwrap_or(vocab));
        let ids = known_ids(weights, known, vocab)?;
        let backbone = Backbone::load(weights, config, (taps, format.known), target.model, pool, options)?;
        let loader = Loader::new(weights, pool, options, "");
        let markov = match format.markov {
            Some(markov) => Some(MarkovHead::load(&loader, options.isa, markov, [vocab, known, hidden])?),
            None => None,
        };
        let rank = format.markov.map_or(0, |markov| markov.rank);
        let confidence = match format.confidence {
            Some(with_markov) => Some(ConfidenceHead::load(&loader, hidden + if with_markov { rank } else { 0 })?),
            None => None,
        };
        let (workspace, step) = (Workspace::new(), Step::default());
        let Target { vocab, kv_format, .. } = target;
        Ok(BlockDraft {
            backbone,
            markov,
            confidence,
            temperatures,
            ids,
            format,
            kv_format,
            attached: None,
            vocab,
            workspace,
            step,
        })
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
        let (proposal, drafts, words) = (Proposal::new(ask.anchor()), Vec::new(), Vec::new());
        Ok(Block {
            index,
            ask,
            max_drafts: ask.max_drafts.min(self.format.drafts()),
            tokens,
            proposal,
            drafts,
            words,
            open: true,
        })
    }

    /// Runs the blocks and lets each say its drafts, one after another. With `trees` blocks whose rows do not look at each
    /// other's words say several ways to go on (DDTree, Ringel and Romano 2026, arXiv 2604.12989).
    fn run(
        &mut self,
        pool: &Pool,
        cache: &mut KvCache,
        blocks: &mut [Block<'_>],
        trees: bool,
    ) -> Result<(), ForwardError> {
        let Some(attached) = &self.attached else { return Ok(()) };
        let Self { backbone, confidence, temperatures, ids, format, vocab, workspace, step, .. } = self;
        let heads = Heads {
            markov: self.markov.as_ref(),
            confidence: confidence.as_ref(),
            temperatures: temperatures.as_ref(),
            ids: ids.as_deref(),
            vocab: *vocab,
            trees,
        };
        let rows: Vec<usize> = (usize::from(!format.anchor_first)..format.block).collect();
        let segments: Vec<Segment<'_>> = blocks.iter().map(|block| block.segment(&rows)).collect();
        let output = backbone.forward(workspace, pool, cache.attached(attached), &segments)?;
        drop(segments);
        let (width, known) = (backbone.config().hidden, output.logits.len() / (blocks.len() * rows.len()));
        let rows =
            Rows { hidden: &output.taps[0], width, logits: output.logits, known, rows: &rows, block: format.block };
        if let Some(markov) = heads.markov {
            markov.begin(step, blocks.len());
        }
        for depth in 0..rows.rows.len() {
            if let Some(markov) = heads.markov {
                let before: Vec<u32> = blocks.iter().map(Block::before).collect();
                markov.advance(step, pool, &before, |block| rows.hidden(block, depth));
            }
            let step = &*step;
            pool.for_each_mut(blocks, |at, block| {
                if block.open && depth < block.max_drafts {
                    heads.say(block, step.of(at), depth, rows.hidden(at, depth), rows.logits(at, depth));
                }
            });
        }
        Ok(())
    }
}

/// What came of all blocks' rows.
struct Rows<'a> {
    /// `[blocks, block, width]`
    hidden: &'a [f32],
    width: usize,
    /// `[blocks, rows that give a draft, known]`
    logits: &'a [f32],
    known: usize,
    /// Of a block, those that give a draft.
    rows: &'a [usize],
    block: usize,
}

impl<'a> Rows<'a> {
    /// Of the row of a block that gives its draft number `depth`, from 0.
    fn hidden(&self, block: usize, depth: usize) -> &'a [f32] {
        let row = block * self.block + self.rows[depth];
        &self.hidden[row * self.width..(row + 1) * self.width]
    }

    fn logits(&self, block: usize, depth: usize) -> &'a [f32] {
        let row = block * self.rows.len() + depth;
        &self.logits[row * self.known..(row + 1) * self.known]
    }
}

/// What makes a draft of a row.
struct Heads<'a> {
    markov: Option<&'a MarkovHead>,
    confidence: Option<&'a ConfidenceHead>,
    temperatures: Option<&'a SequentialTemperature>,
    /// For each token that the head knows, the target's.
    ids: Option<&'a [u32]>,
    /// Tokens that the target knows.
    vocab: usize,
    /// Several ways to go on are asked for.
    trees: bool,
}

impl Heads<'_> {
    /// Adds the draft of a row to its block. `step`: what the draft before it has left.
    fn say(&self, block: &mut Block<'_>, step: StepOf<'_>, depth: usize, hidden: &[f32], logits: &[f32]) {
        let sure = self.confidence.map(|head| {
            let sure = f64::from(sigmoid(head.logit(hidden, step.embedding)));
            self.temperatures.map_or(sure, |temperatures| temperatures.confidence(depth, sure))
        });
        match self.markov {
            Some(_) => {
                let corrected: Vec<f32> = logits.iter().zip(step.bias).map(|(logit, bias)| logit + bias).collect();
                block.extend(&spread(&corrected, self.ids, self.vocab), sure);
            }
            None if self.trees && !block.ask.choose.draws() => {
                block.words.push(likeliest(&spread(logits, self.ids, self.vocab), WORDS));
            }
            None => block.extend(&spread(logits, self.ids, self.vocab), sure),
        }
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
    if format.known.is_none() && config.vocab != ours.vocab {
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
        let confidence = sure.unwrap_or(chosen.confidence);
        let token = chosen.add_to(&mut self.proposal, self.drafts.len(), confidence)?;
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

    fn bytes_per_page(&self) -> usize {
        self.backbone.kv_layout(self.kv_format).bytes_per_page()
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
            let trees = round.are_rows_cheap(asks.len());
            let run = self.run(round.pool, round.cache, &mut blocks, trees);
            run.map_err(|error| DraftError { drafter: self.name(), message: error.to_string() })?;
        }
        for Block { index, ask, proposal, words, .. } in blocks {
            let proposal = match words.len() {
                0 => proposal,
                rows => match product_tree(ask.anchor(), &words, rows * DRAFTS_OF_A_ROW) {
                    Ok(tree) => tree.into(),
                    Err(_) => proposal,
                },
            };
            if proposal.tree().drafts() > 0 {
                answers[index] = Ok(proposal);
            }
        }
        Ok(answers)
    }

    fn finished(&mut self, _: Key, _: &[u32], _: usize) {}
}
