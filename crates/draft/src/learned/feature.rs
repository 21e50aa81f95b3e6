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
use crate::unread::catch_up;
use crate::{Ask, Computed, DraftError, Drafter, Key, Round, Silence, Words};

/// Drafts from features.
///
/// What it knows of a committed position is in the target's own pages: its keys and values there, and the feature that the
/// first draft begins with. A round writes its drafts' keys and values where the target's next rows will be.
pub(super) struct FeatureDraft {
    /// Several take turns, one for each draft of a chain.
    pub(super) modules: Vec<Eagle>,
    name: &'static str,
    taps: Vec<Tap>,
    steps: usize,
    /// How large trees are, where they are drafted.
    pub(super) tree: TreeShape,
    kv_format: KvFormat,
    /// For each module, keys and values, and features; empty until it is attached.
    pub(super) attached: Vec<[Attached; 2]>,
    /// For each token that the head knows, the target's.
    ids: Option<Vec<u32>>,
    /// Tokens that the target knows: ids below this.
    vocab: usize,
    workspace: Workspace,
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
    /// Of the rows before those of the next step, `[rows, hidden]`.
    features: Vec<f32>,
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
        // What is the target's, feature, embedding or head, is of the target's width.
        let own = |name| weights.has(name);
        let is_apart =
            matches!(format.kind, FeatureKind::Third { .. }) && own("embed_tokens.weight") && own("lm_head.weight");
        if config.hidden != ours.hidden && !is_apart {
            let (draft, target) = (config.hidden, ours.hidden);
            return Err(LearnedError::OtherTarget { what: "the hidden size", draft, target });
        }
        let taps = match format.kind {
            FeatureKind::Third { .. } if format.taps.is_empty() => usual_taps(ours.layers),
            FeatureKind::Third { .. } => format.taps,
            _ => vec![Tap::Final],
        };
        fits_taps(&taps, target)?;
        let known = format.known.unwrap_or(config.vocab);
        let ids = known_ids(weights, known, config.vocab)?;
        let has_head = |name: &str| weights.has(name).then_some(known);
        let (name, count) = match format.kind {
            FeatureKind::First => ("eagle", 1),
            FeatureKind::Third { .. } => ("eagle3", 1),
            FeatureKind::Modules { modules, .. } | FeatureKind::Next { modules } => ("mtp", modules),
        };
        let shape = |depth: usize| {
            let (kind, head) = match format.kind {
                FeatureKind::First => (EagleKind::First, None),
                FeatureKind::Third { normed_residual } => {
                    (EagleKind::Third { taps: taps.len(), normed_residual }, has_head("lm_head.weight"))
                }
                FeatureKind::Modules { first, .. } => {
                    let layer = first + depth;
                    (EagleKind::Module { layer }, has_head(&format!("model.layers.{layer}.shared_head.head.weight")))
                }
                FeatureKind::Next { .. } => (EagleKind::Next { layer: depth }, None),
            };
            EagleShape { kind, head, depth }
        };
        let load = |depth| Eagle::load(weights, config.clone(), shape(depth), target.model, pool, options);
        let modules = (0..count).map(load).collect::<Result<_, _>>()?;
        let Target { vocab, kv_format, .. } = target;
        let steps = format.steps.max(count);
        let tree = TreeShape { top_k: TOP_K, rounds: steps - 1, drafts: TREE_DRAFTS };
        let (attached, workspace) = (Vec::new(), Workspace::new());
        Ok(FeatureDraft { modules, name, taps, steps, tree, kv_format, attached, ids, vocab, workspace })
    }

    /// Why a request can have no drafts of which so many slots are computed.
    fn silence(&self, ask: &Ask<'_>, slots: usize) -> Option<Silence> {
        let end = ask.tokens.len() - 1 + slots;
        if end > self.modules[0].config().context {
            return Some(Silence::Context);
        }
        if ask.sequence.len() < end {
            return Some(Silence::Behind);
        }
        // A pair begins with the feature before its token.
        (ask.tokens.len() < 2).then_some(Silence::NoMatch)
    }

    fn chain<'a>(&self, index: usize, ask: &'a Ask<'a>) -> Result<Chain<'a>, Silence> {
        // The last draft is not computed, and each further module has its first pair a position later.
        let mut max_drafts = ask.max_drafts.min(self.steps);
        if ask.tokens.len() <= self.modules.len() {
            max_drafts = max_drafts.min(ask.tokens.len() - 1);
        }
        if let Some(silence) = self.silence(ask, max_drafts) {
            return Err(silence);
        }
        let (tokens, features, proposal) = (vec![ask.anchor()], Vec::new(), Proposal::new(ask.anchor()));
        Ok(Chain { index, ask, max_drafts, tokens, features, proposal, open: true })
    }

    /// What a module takes for the feature before the anchor of a request, `[hidden]`.
    fn first_feature(&self, cache: &mut KvCache, module: usize, ask: &Ask<'_>) -> Vec<f32> {
        let eagle = &self.modules[module];
        let mut feature = vec![0.0; eagle.config().hidden];
        if let (Some([_, kept]), Some(before)) = (self.attached.get(module), ask.tokens.len().checked_sub(2)) {
            eagle.feature(&cache.attached(kept), ask.sequence.slot(before), &mut feature);
        }
        feature
    }

    /// Drafts a tree for each of these requests.
    fn grow(
        &mut self,
        round: &mut Round<'_>,
        asks: Vec<(usize, &Ask<'_>)>,
        ways: usize,
    ) -> Result<Vec<(usize, Option<Proposal>)>, ForwardError> {
        let first: Vec<f32> = asks.iter().flat_map(|(_, ask)| self.first_feature(round.cache, 0, ask)).collect();
        let Some([own, _]) = self.attached.first() else { return Ok(Vec::new()) };
        let Self { modules, ids, vocab, tree: shape, workspace, .. } = self;
        let shape = TreeShape { top_k: ways, ..*shape };
        let mut trees: Vec<Tree<'_>> = asks.iter().map(|&(index, ask)| Tree::new(index, ask, shape)).collect();
        let (eagle, pool, ids, vocab) = (&modules[0], round.pool, ids.as_deref(), *vocab);
        let grove = Grove { eagle, own, pool, ids, vocab, top_k: ways };
        grove.grow(workspace, round.cache, &mut trees, &first)?;
        Ok(trees.into_iter().map(|tree| (tree.index, tree.finish(shape.drafts))).collect())
    }

    /// Lets every chain say its drafts, a forward for each further one of all that go on. Answers what they came to.
    ///
    /// A module that comes up for the first time has not met the anchor and the drafts before its own: it takes them all in,
    /// and when its turn comes again, those since. So each step runs a row more than the one before, up to the number of
    /// modules, over what the step before gave.
    fn run<'a>(
        &mut self,
        pool: &Pool,
        cache: &mut KvCache,
        mut chains: Vec<Chain<'a>>,
    ) -> Result<Vec<Chain<'a>>, ForwardError> {
        let (mut done, mut step, count) = (Vec::with_capacity(chains.len()), 0, self.modules.len());
        while !chains.is_empty() {
            let (module, rows) = (step % count, count.min(step + 1));
            if step < count {
                for chain in &mut chains {
                    let first = self.first_feature(cache, module, chain.ask);
                    chain.features.splice(..0, first);
                }
            }
            let Self { modules, attached, ids, vocab, workspace, .. } = &mut *self;
            let Some([own, _]) = attached.get(module) else { return Ok(done) };
            let features: Vec<f32> = chains.iter().flat_map(|chain| &chain.features).copied().collect();
            let segments: Vec<Segment<'_>> = chains.iter().map(|chain| chain.segment(rows)).collect();
            let output = modules[module].forward(workspace, pool, cache.attached(own), &segments, &features)?;
            drop(segments);
            let [known, width] = [output.logits.len(), output.taps[0].len()].map(|all| all / chains.len());
            pool.for_each_mut(&mut chains, |at, chain| {
                let logits = &output.logits[at * known..(at + 1) * known];
                chain.features.clear();
                chain.features.extend_from_slice(&output.taps[0][at * width..(at + 1) * width]);
                chain.open = chain.extend(logits, ids.as_deref(), *vocab).is_some();
            });
            done.extend(chains.extract_if(.., |chain| !chain.open));
            step += 1;
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
    /// The newest tokens, so many, at their places.
    fn segment(&self, rows: usize) -> Segment<'_> {
        let first = self.tokens.len() - rows;
        Segment {
            sequence: self.ask.sequence,
            start: self.ask.tokens.len() - 1 + first,
            tokens: &self.tokens[first..],
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
        let layouts = self.modules.iter().flat_map(|eagle| eagle.kv_layouts(self.kv_format));
        layouts.map(|layout| layout.bytes_per_page()).sum()
    }

    fn attach(&mut self, cache: &mut KvCache) {
        let layouts = self.modules.iter().map(|eagle| eagle.kv_layouts(self.kv_format));
        self.attached = layouts.map(|layouts| layouts.map(|layout| cache.attach(layout))).collect();
    }

    fn slots_ahead(&self) -> usize {
        self.steps.max(self.tree.slots())
    }

    fn computed(&mut self, computed: &mut Computed<'_>) -> Result<(), DraftError> {
        let Computed { pool, batch, .. } = *computed;
        let drafter = self.name;
        let mut states = gathered(computed, &self.taps);
        let mut given;
        for (at, (eagle, attached)) in self.modules.iter().zip(&self.attached).enumerate() {
            let kv = computed.cache.attached_two(attached);
            let read = eagle.read(&mut self.workspace, pool, kv, batch, &states);
            read.map_err(|error| DraftError { drafter, message: error.to_string() })?;
            if at + 1 < self.modules.len() {
                given = eagle.features(&self.workspace, pool);
                states = vec![&given];
            }
        }
        Ok(())
    }

    fn propose(
        &mut self,
        round: &mut Round<'_>,
        asks: &[Ask<'_>],
    ) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
        catch_up(self, round, asks)?;
        let mut answers = vec![Err(Silence::NoMatch); asks.len()];
        let (mut chains, mut trees) = (Vec::new(), Vec::new());
        // Modules that take turns make chains.
        let ways = if self.modules.len() == 1 { round.ways(asks.len()).min(self.tree.top_k) } else { 1 };
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
