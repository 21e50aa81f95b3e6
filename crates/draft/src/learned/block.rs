//! Block drafters: all drafts of a round from one forward over the anchor and masks (DFlash, Chen et al. 2026; DSpark,
//! section 3; DFlash 2; Domino), each then corrected by those before it.

use kernels::{KvFormat, Pool};
use kv::{Attached, KvCache};
use model::config::Config;
use model::weights::Weights;
use model::{
    Backbone, BlockShape, ForwardError, LoadOptions, Loader, Logits, Segment, Sight, Tap, Visibility, Workspace,
};
use spec::{Expansion, Proposal, SequentialTemperature, product_tree};

use super::follow::{Bound, Follow, Step};
use super::format::{BlockFormat, Follows};
use super::growth::{Growing, Heads, Rows};
use super::heads::ConfidenceHead;
use super::{LearnedError, Target, fits_taps, gathered, known_ids};
use crate::unread::catch_up;
use crate::{Ask, Computed, DraftError, Drafter, Key, Round, Silence, Words};

/// Drafts a block at a time.
///
/// What it knows of a committed position are keys and values in the target's own pages, so that they are shared, found and
/// rolled back with them. A round writes its block where the target's next rows will be.
pub(super) struct BlockDraft {
    pub(super) backbone: Backbone,
    pub(super) follow: Follow,
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
    /// Ways to go on at a place at most.
    pub(super) most_ways: usize,
}

/// One request in a round.
pub(super) struct Block<'a> {
    /// Which of the round's asks.
    index: usize,
    pub(super) ask: &'a Ask<'a>,
    pub(super) max_drafts: usize,
    /// The anchor, then masks.
    tokens: Vec<u32>,
}

/// Words of a row that a tree of independent words is made of, for each way to go on.
const WORDS_OF_A_WAY: usize = 2;

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
        let (hidden, vocab, layers) = (config.hidden, target.model.config().vocab, config.layers);
        let windows = if format.windows.is_empty() { vec![None; layers] } else { format.windows.clone() };
        let config = Config { vocab, windows, ..config };
        let known = format.known.unwrap_or(vocab);
        let ids = known_ids(weights, known, vocab)?;
        let shape = BlockShape {
            taps: format.taps.len(),
            head: format.known,
            sight: if format.sight.is_empty() { vec![Sight::Around; layers] } else { format.sight.clone() },
            convolution: format.convolution,
            embedding_scale: format.embedding_scale,
        };
        let backbone = Backbone::load(weights, config, shape, target.model, pool, options)?;
        let loader = Loader::new(weights, pool, options, "");
        let follow = Follow::load(&loader, options.isa, &format, [vocab, known, hidden], ids.as_deref())?;
        let rank = match format.follows {
            Follows::Markov(markov) => markov.rank,
            _ => 0,
        };
        let confidence = match format.confidence {
            Some(with_markov) => Some(ConfidenceHead::load(&loader, hidden + if with_markov { rank } else { 0 })?),
            None => None,
        };
        let (workspace, step) = (Workspace::new(), Step::default());
        let Target { vocab, kv_format, .. } = target;
        Ok(BlockDraft {
            backbone,
            follow,
            confidence,
            temperatures,
            ids,
            format,
            kv_format,
            attached: None,
            vocab,
            workspace,
            step,
            most_ways: usize::MAX,
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
        Ok(Block { index, ask, max_drafts: ask.max_drafts.min(self.format.drafts()), tokens })
    }

    /// Runs the blocks and lets each say its drafts.
    fn run(&mut self, round: &mut Round<'_>, blocks: &[Block<'_>]) -> Result<Vec<Option<Proposal>>, ForwardError> {
        let Some(attached) = &self.attached else { return Ok(Vec::new()) };
        let Self { backbone, follow, confidence, temperatures, ids, format, vocab, workspace, step, .. } = self;
        let rows: Vec<usize> = (usize::from(!format.is_anchor_first())..format.block).collect();
        let segments: Vec<Segment<'_>> = blocks.iter().map(|block| block.segment(&rows)).collect();
        let output = backbone.forward(workspace, round.pool, round.cache.attached(attached), &segments)?;
        drop(segments);
        let (width, known) = (backbone.config().hidden, output.logits.len() / (blocks.len() * rows.len()));
        let rows =
            Rows { hidden: &output.taps[0], width, logits: output.logits, known, rows: &rows, block: format.block };
        let heads = Heads {
            backbone,
            follow,
            confidence: confidence.as_ref(),
            temperatures: temperatures.as_ref(),
            ids: ids.as_deref(),
            vocab: *vocab,
            bound: Bound { scale: format.logit_scale, cap: format.logit_cap },
        };
        let ways = round.ways(blocks.len()).min(self.most_ways);
        // Where no word depends on another, the best tree is known at once (DDTree, Ringel and Romano 2026, arXiv 2604.12989).
        let independent = matches!(follow, Follow::Nothing) && confidence.is_none();
        if independent && ways > 1 && blocks.iter().all(|block| !block.ask.choose.draws()) {
            let mut proposals = vec![None; blocks.len()];
            round.pool.for_each_mut(&mut proposals, |at, proposal| {
                *proposal = heads.independent(&blocks[at], at, &rows, ways);
            });
            return Ok(proposals);
        }
        Ok(Growing::new(blocks, ways, round.least_survival(blocks.len())).grow(&heads, step, round.pool, &rows))
    }
}

impl Heads<'_> {
    /// The tree of a block whose words do not depend on each other.
    fn independent(&self, block: &Block<'_>, at: usize, rows: &Rows<'_>, ways: usize) -> Option<Proposal> {
        let mut before = Vec::new();
        let mut words: Vec<Expansion> = Vec::with_capacity(block.max_drafts);
        for depth in 0..block.max_drafts {
            let here = self.next(&Step::default(), 0, block.ask.anchor(), rows.logits(at, depth), |logits, ids| {
                let said = Words::new(logits, ids, self.vocab);
                block.ask.choose.choices(&before, said, ways * WORDS_OF_A_WAY)
            });
            before.push(here.first()?.0);
            words.push(here);
        }
        product_tree(block.ask.anchor(), &words, block.max_drafts * ways).ok().map(Proposal::from)
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
    let layers =
        [format.windows.len(), format.sight.len()].into_iter().find(|&layers| layers != 0 && layers != config.layers);
    if let Some(layers) = layers {
        return other("kinds of layers, so many as", layers, config.layers);
    }
    if let Some(convolution) = format.convolution
        && !config.hidden.is_multiple_of(convolution.group)
    {
        return other("the hidden size a multiple of", convolution.group, config.hidden);
    }
    fits_taps(&format.taps, target)
}

impl Block<'_> {
    fn segment<'s>(&'s self, rows: &'s [usize]) -> Segment<'s> {
        let (sequence, start) = (self.ask.sequence, self.ask.tokens.len() - 1);
        Segment { sequence, start, tokens: &self.tokens, visibility: Visibility::Block, logits: Logits::Rows(rows) }
    }
}

impl Drafter for BlockDraft {
    fn name(&self) -> &'static str {
        match self.format.follows {
            Follows::Markov(_) => "dspark",
            Follows::Domino(_) => "domino",
            Follows::Selector(_) => "dflash2",
            Follows::Nothing => "dflash",
        }
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
        catch_up(self, round, asks)?;
        let mut answers = vec![Err(Silence::NoMatch); asks.len()];
        let mut blocks = Vec::with_capacity(asks.len());
        for (index, ask) in asks.iter().enumerate() {
            match self.begin(index, ask) {
                Ok(block) => blocks.push(block),
                Err(silence) => answers[index] = Err(silence),
            }
        }
        if blocks.is_empty() {
            return Ok(answers);
        }
        let name = self.name();
        let proposals = self.run(round, &blocks);
        let proposals = proposals.map_err(|error| DraftError { drafter: name, message: error.to_string() })?;
        for (Block { index, .. }, proposal) in blocks.iter().zip(proposals) {
            if let Some(proposal) = proposal.filter(|proposal| proposal.tree().drafts() > 0) {
                answers[*index] = Ok(proposal);
            }
        }
        Ok(answers)
    }

    fn finished(&mut self, _: Key, _: &[u32], _: usize) {}
}
