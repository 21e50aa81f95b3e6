//! Feature-level drafters: one token after the other, each from the feature that the one before it gave (EAGLE, Li et al.
//! 2024, arXiv 2401.15077; EAGLE-3, 2025, arXiv 2503.01840), or from the target's last hidden state (multi-token prediction,
//! DeepSeek-V3, arXiv 2412.19437).

use kernels::{KvFormat, Pool};
use kv::{Attached, KvCache};
use model::config::Config;
use model::weights::Weights;
use model::{Eagle, EagleKind, EagleShape, ForwardError, LoadOptions, Logits, Segment, Tap, Visibility, Workspace};
use spec::Proposal;

use super::format::{FeatureFormat, FeatureKind};
use super::grove::{Grove, Tree, TreeShape};
use super::{LearnedError, Target, fits_taps, gathered, known_ids, spread};
use crate::{Ask, Computed, DraftError, Drafter, Key, Round, Silence, Words};

/// Drafts from features.
///
/// What it knows of a committed position is in the target's own pages: its keys and values there, and the feature that the
/// first draft begins with. A round writes its drafts' keys and values where the target's next rows will be.
pub(super) struct FeatureDraft {
    pub(super) eagle: Eagle,
    name: &'static str,
    taps: Vec<Tap>,
    steps: usize,
    /// How large trees are, where they are drafted.
    pub(super) tree: TreeShape,
    kv_format: KvFormat,
    pub(super) attached: Option<[Attached; 2]>,
    /// For each token that the head knows, the target's.
    ids: Option<Vec<u32>>,
    /// Tokens that the target knows: ids below this.
    vocab: usize,
    workspace: Workspace,
    /// `[asks, hidden]`
    features: Vec<f32>,
}

/// Drafts of a tree, and what is expanded of each level.
const TREE_DRAFTS: usize = 16;
const TOP_K: usize = 4;

/// One request in a round.
struct Chain<'a> {
    /// Which of the round's asks.
    index: usize,
    ask: &'a Ask<'a>,
    max_drafts: usize,
    /// The anchor, and what was drafted.
    tokens: Vec<u32>,
    proposal: Proposal,
    open: bool,
}

impl FeatureDraft {
    pub(super) fn load(
        weights: &Weights,
        config: Config,
        format: FeatureFormat,
        target: Target<'_>,
        pool: &Pool,
        options: LoadOptions,
    ) -> Result<FeatureDraft, LearnedError> {
        let ours = target.model.config();
        if config.vocab != ours.vocab {
            let (draft, target) = (config.vocab, ours.vocab);
            return Err(LearnedError::OtherTarget { what: "the vocabulary", draft, target });
        }
        let taps = match format.kind {
            FeatureKind::Third { .. } if format.taps.is_empty() => usual_taps(ours.layers),
            FeatureKind::Third { .. } => format.taps,
            FeatureKind::First | FeatureKind::Module { .. } => vec![Tap::Final],
        };
        fits_taps(&taps, target)?;
        let known = format.known.unwrap_or(config.vocab);
        let ids = known_ids(weights, known, config.vocab)?;
        let (kind, head) = match format.kind {
            FeatureKind::First => (EagleKind::First, None),
            FeatureKind::Third { normed_residual } => {
                let kind = EagleKind::Third { taps: taps.len(), normed_residual };
                (kind, weights.has("lm_head.weight").then_some(known))
            }
            FeatureKind::Module { layer } => {
                let own = weights.has(&format!("model.layers.{layer}.shared_head.head.weight"));
                (EagleKind::Module { layer }, own.then_some(known))
            }
        };
        let name = match format.kind {
            FeatureKind::First => "eagle",
            FeatureKind::Third { .. } => "eagle3",
            FeatureKind::Module { .. } => "mtp",
        };
        let shape = EagleShape { kind, head };
        let eagle = Eagle::load(weights, config, shape, target.model, pool, options)?;
        let Target { vocab, kv_format, .. } = target;
        let (workspace, features) = (Workspace::new(), Vec::new());
        let steps = format.steps;
        let tree = TreeShape { top_k: TOP_K, rounds: steps - 1, drafts: TREE_DRAFTS };
        let attached = None;
        Ok(FeatureDraft { eagle, name, taps, steps, tree, kv_format, attached, ids, vocab, workspace, features })
    }

    /// Why a request can have no drafts of which so many slots are computed.
    fn silence(&self, ask: &Ask<'_>, slots: usize) -> Option<Silence> {
        let end = ask.tokens.len() - 1 + slots;
        if end > self.eagle.config().context {
            return Some(Silence::Context);
        }
        if ask.sequence.len() < end {
            return Some(Silence::Behind);
        }
        // A pair begins with the feature before its token.
        (ask.tokens.len() < 2).then_some(Silence::NoMatch)
    }

    fn chain<'a>(&self, index: usize, ask: &'a Ask<'a>) -> Result<Chain<'a>, Silence> {
        // The last draft is not computed.
        let max_drafts = ask.max_drafts.min(self.steps);
        if let Some(silence) = self.silence(ask, max_drafts) {
            return Err(silence);
        }
        let (tokens, proposal) = (vec![ask.anchor()], Proposal::new(ask.anchor()));
        Ok(Chain { index, ask, max_drafts, tokens, proposal, open: true })
    }

    /// The features before the anchors of requests, `[asks, hidden]`.
    fn first_features<'a>(&self, cache: &mut KvCache, asks: impl ExactSizeIterator<Item = &'a Ask<'a>>) -> Vec<f32> {
        let width = self.eagle.config().hidden;
        let mut features = vec![0.0; asks.len() * width];
        let Some([_, kept]) = &self.attached else { return features };
        let kept = cache.attached(kept);
        for (ask, row) in asks.zip(features.chunks_exact_mut(width)) {
            self.eagle.feature(&kept, ask.sequence.slot(ask.tokens.len() - 2), row);
        }
        features
    }

    /// Drafts a tree for each of these requests.
    fn grow(
        &mut self,
        round: &mut Round<'_>,
        asks: Vec<(usize, &Ask<'_>)>,
        ways: usize,
    ) -> Result<Vec<(usize, Option<Proposal>)>, ForwardError> {
        let first = self.first_features(round.cache, asks.iter().map(|(_, ask)| *ask));
        let Some([own, _]) = &self.attached else { return Ok(Vec::new()) };
        let Self { eagle, ids, vocab, tree: shape, workspace, .. } = self;
        let shape = TreeShape { top_k: ways, ..*shape };
        let mut trees: Vec<Tree<'_>> = asks.iter().map(|&(index, ask)| Tree::new(index, ask, shape)).collect();
        let grove = Grove { eagle, own, pool: round.pool, ids: ids.as_deref(), vocab: *vocab, top_k: ways };
        grove.grow(workspace, round.cache, &mut trees, &first)?;
        Ok(trees.into_iter().map(|tree| (tree.index, tree.finish(shape.drafts))).collect())
    }

    /// Lets every chain say its drafts, a forward for each further one of all that go on. Answers what they came to.
    fn run<'a>(
        &mut self,
        pool: &Pool,
        cache: &mut KvCache,
        mut chains: Vec<Chain<'a>>,
    ) -> Result<Vec<Chain<'a>>, ForwardError> {
        let mut done = Vec::with_capacity(chains.len());
        self.features = self.first_features(cache, chains.iter().map(|chain| chain.ask));
        let Some([own, _]) = &self.attached else { return Ok(done) };
        let Self { eagle, ids, vocab, workspace, features, .. } = self;
        let width = eagle.config().hidden;
        while !chains.is_empty() {
            let segments: Vec<Segment<'_>> = chains.iter().map(Chain::segment).collect();
            let output = eagle.forward(workspace, pool, cache.attached(own), &segments, features)?;
            drop(segments);
            let known = output.logits.len() / chains.len();
            pool.for_each_mut(&mut chains, |at, chain| {
                let logits = &output.logits[at * known..(at + 1) * known];
                chain.open = chain.extend(logits, ids.as_deref(), *vocab).is_some();
            });
            let mut rows = output.taps[0].chunks_exact(width);
            features.clear();
            done.extend(chains.extract_if(.., |chain| {
                let row = rows.next().unwrap_or_default();
                if chain.open {
                    features.extend_from_slice(row);
                }
                !chain.open
            }));
        }
        Ok(done)
    }
}

/// The outputs of layers 1, n/2 − 1 and n − 4: the inputs of layers 2, n/2 and n − 3, as EAGLE's code takes them.
fn usual_taps(layers: usize) -> Vec<Tap> {
    [2, layers / 2, layers.saturating_sub(3)]
        .map(|input| input.checked_sub(1).map_or(Tap::Embedding, Tap::Layer))
        .into()
}

impl Chain<'_> {
    /// The newest token, at its place.
    fn segment(&self) -> Segment<'_> {
        let depth = self.tokens.len() - 1;
        Segment {
            sequence: self.ask.sequence,
            start: self.ask.tokens.len() - 1 + depth,
            tokens: &self.tokens[depth..],
            visibility: Visibility::Causal,
            logits: Logits::Last,
        }
    }

    /// Adds the draft that the request chooses by `logits` of the target's tokens `ids`; `None`: the chain ends.
    fn extend(&mut self, logits: &[f32], ids: Option<&[u32]>, vocab: usize) -> Option<()> {
        let parent = self.tokens.len() - 1;
        if parent >= self.max_drafts {
            return None;
        }
        let (choose, drafts) = (self.ask.choose, &self.tokens[1..]);
        let token = if choose.draws() {
            let chosen = choose.choose(drafts, &spread(logits, ids, vocab))?;
            let confidence = chosen.confidence;
            chosen.add_to(&mut self.proposal, parent, confidence)?
        } else {
            let (token, confidence) = choose.choices(drafts, Words::new(logits, ids, vocab), 1).pop()?;
            self.proposal.add_point(parent, token, confidence).ok()?;
            token
        };
        self.tokens.push(token);
        (self.tokens.len() <= self.max_drafts).then_some(())
    }
}

impl Drafter for FeatureDraft {
    fn name(&self) -> &'static str {
        self.name
    }

    fn taps(&self) -> Vec<Tap> {
        self.taps.clone()
    }

    fn bytes_per_page(&self) -> usize {
        self.eagle.kv_layouts(self.kv_format).iter().map(kv::Layout::bytes_per_page).sum()
    }

    fn attach(&mut self, cache: &mut KvCache) {
        self.attached = Some(self.eagle.kv_layouts(self.kv_format).map(|layout| cache.attach(layout)));
    }

    fn slots_ahead(&self) -> usize {
        self.steps.max(self.tree.slots())
    }

    fn computed(&mut self, computed: &mut Computed<'_>) -> Result<(), DraftError> {
        let Some(attached) = &self.attached else { return Ok(()) };
        let taps = gathered(computed, &self.taps);
        let kv = computed.cache.attached_two(attached);
        let read = self.eagle.read(&mut self.workspace, computed.pool, kv, computed.batch, &taps);
        read.map_err(|error| DraftError { drafter: self.name(), message: error.to_string() })
    }

    fn propose(
        &mut self,
        round: &mut Round<'_>,
        asks: &[Ask<'_>],
    ) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
        let mut answers = vec![Err(Silence::NoMatch); asks.len()];
        let (mut chains, mut trees) = (Vec::new(), Vec::new());
        let ways = round.ways(asks.len()).min(self.tree.top_k);
        for (index, ask) in asks.iter().enumerate() {
            if ways > 1 && !ask.choose.draws() && self.silence(ask, self.tree.slots()).is_none() {
                trees.push((index, ask));
                continue;
            }
            match self.chain(index, ask) {
                Ok(chain) => chains.push(chain),
                Err(silence) => answers[index] = Err(silence),
            }
        }
        let drafter = self.name;
        let failed = |error: ForwardError| DraftError { drafter, message: error.to_string() };
        let done = self.run(round.pool, round.cache, chains).map_err(failed)?;
        let grown = self.grow(round, trees, ways).map_err(failed)?;
        let chains = done.into_iter().map(|chain| (chain.index, Some(chain.proposal)));
        for (index, proposal) in chains.chain(grown) {
            if let Some(proposal) = proposal.filter(|proposal| proposal.tree().drafts() > 0) {
                answers[index] = Ok(proposal);
            }
        }
        Ok(answers)
    }

    fn finished(&mut self, _: Key, _: &[u32], _: usize) {}
}
