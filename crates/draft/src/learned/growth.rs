//! How blocks come to their drafts, word by word: a chain for each request, or a tree where rows are cheap enough for
//! second thoughts. All requests go a step deeper at a time.

use kernels::Pool;
use model::Backbone;
use spec::{EagleGrowth, Expansion, Proposal, SequentialTemperature};

use super::block::Block;
use super::follow::{Bound, Follow, Place, Step};
use super::heads::{ConfidenceHead, sigmoid};
use super::spread;
use crate::Words;

/// What came of all blocks' rows.
pub(super) struct Rows<'a> {
    /// `[blocks, block, width]`
    pub(super) hidden: &'a [f32],
    pub(super) width: usize,
    /// `[blocks, rows that give a draft, known]`
    pub(super) logits: &'a [f32],
    pub(super) known: usize,
    /// Of a block, those that give a draft.
    pub(super) rows: &'a [usize],
    pub(super) block: usize,
}

impl<'a> Rows<'a> {
    /// Of the row of a block that gives its draft number `depth`, from 0.
    pub(super) fn hidden(&self, block: usize, depth: usize) -> &'a [f32] {
        let row = block * self.block + self.rows[depth];
        &self.hidden[row * self.width..(row + 1) * self.width]
    }

    pub(super) fn logits(&self, block: usize, depth: usize) -> &'a [f32] {
        let row = block * self.rows.len() + depth;
        &self.logits[row * self.known..(row + 1) * self.known]
    }
}

/// What makes drafts of rows.
pub(super) struct Heads<'a> {
    pub(super) backbone: &'a Backbone,
    pub(super) follow: &'a Follow,
    pub(super) confidence: Option<&'a ConfidenceHead>,
    pub(super) temperatures: Option<&'a SequentialTemperature>,
    /// For each token that the head knows, the target's.
    pub(super) ids: Option<&'a [u32]>,
    /// Tokens that the target knows.
    pub(super) vocab: usize,
    pub(super) bound: Bound,
}

impl Heads<'_> {
    /// How sure the drafter is of its word at a place, where it has a head that says so.
    fn sure(&self, step: &Step, row: usize, depth: usize, hidden: &[f32]) -> Option<f64> {
        let sure = f64::from(sigmoid(self.confidence?.logit(hidden, step.embedding(row))));
        Some(self.temperatures.map_or(sure, |temperatures| temperatures.confidence(depth, sure)))
    }

    /// Shows what may follow at a place: logits, and the target's tokens that they are of.
    pub(super) fn next<T>(
        &self,
        step: &Step,
        row: usize,
        before: u32,
        logits: &[f32],
        use_it: impl FnOnce(&[f32], Option<&[u32]>) -> T,
    ) -> T {
        let (logits, chosen) = self.follow.corrected(step, row, before, logits, self.bound);
        match chosen {
            None => use_it(&logits, self.ids),
            Some(chosen) => {
                let id = |&token: &u32| self.ids.map_or(token, |ids| ids[token as usize]);
                let ids: Vec<u32> = chosen.iter().map(id).collect();
                use_it(&logits, Some(&ids))
            }
        }
    }
}

/// The drafts of one request as they grow.
enum Growth {
    /// Drawn by chance of its own: a chain.
    Drawn { proposal: Proposal, drafts: Vec<u32> },
    /// Chosen: a tree, which may be a chain.
    Chosen(EagleGrowth),
}

/// A place that goes on.
struct Open {
    place: Place,
    /// Its node.
    node: usize,
    /// The words before, the anchor not among them.
    path: Vec<u32>,
    state: Vec<f32>,
}

/// All requests' drafts as they grow.
pub(super) struct Growing<'b> {
    blocks: &'b [Block<'b>],
    growths: Vec<Growth>,
    /// Places that go on, block by block.
    open: Vec<Open>,
    ways: usize,
    least: f64,
}

impl<'b> Growing<'b> {
    /// Drafts of blocks, with so many ways to go on at a place, and nothing beyond a word that is less likely than `least`.
    pub(super) fn new(blocks: &'b [Block<'b>], ways: usize, least: f64) -> Growing<'b> {
        let growth = |block: &Block<'_>| match block.ask.choose.draws() {
            true => Growth::Drawn { proposal: Proposal::new(block.ask.anchor()), drafts: Vec::new() },
            false => Growth::Chosen(EagleGrowth::new(block.ask.anchor(), ways, block.max_drafts.saturating_sub(1))),
        };
        Growing { blocks, growths: blocks.iter().map(growth).collect(), open: Vec::new(), ways, least }
    }

    /// Lets all of them say their drafts.
    pub(super) fn grow(
        mut self,
        heads: &Heads<'_>,
        step: &mut Step,
        pool: &Pool,
        rows: &Rows<'_>,
    ) -> Vec<Option<Proposal>> {
        let first = |(block, of): (usize, &Block<'_>)| Open {
            place: Place { block, before: of.ask.anchor() },
            node: 0,
            path: Vec::new(),
            state: vec![0.0; heads.follow.state_len()],
        };
        self.open = self.blocks.iter().enumerate().map(first).collect();
        for depth in 0..rows.rows.len() {
            self.open.retain(|open| depth < self.blocks[open.place.block].max_drafts);
            if self.open.is_empty() {
                break;
            }
            self.deeper(heads, step, pool, rows, depth);
        }
        self.finish()
    }

    /// Goes one word deeper.
    fn deeper(&mut self, heads: &Heads<'_>, step: &mut Step, pool: &Pool, rows: &Rows<'_>, depth: usize) {
        step.states.clear();
        self.open.iter().for_each(|open| step.states.extend_from_slice(&open.state));
        let (places, rest): (Vec<Place>, Vec<_>) =
            self.open.drain(..).map(|Open { place, node, path, .. }| (place, (node, path))).unzip();
        let hidden = |place: &Place| rows.hidden(place.block, depth);
        heads.follow.advance(step, pool, heads.backbone, &places, depth, hidden);
        let step = &*step;
        let (blocks, ways, growths) = (self.blocks, self.ways, &self.growths);
        let mut said: Vec<Said> = places.iter().map(|_| Said::Nothing).collect();
        pool.for_each_mut(&mut said, |row, said| {
            let (place, path) = (&places[row], &rest[row].1);
            let sure = heads.sure(step, row, depth, hidden(place));
            let choose = blocks[place.block].ask.choose;
            *said = heads.next(step, row, place.before, rows.logits(place.block, depth), |logits, ids| {
                match growths[place.block] {
                    Growth::Drawn { .. } => {
                        let chosen = choose.choose(path, &spread(logits, ids, heads.vocab));
                        chosen.map_or(Said::Nothing, |chosen| Said::Drawn(chosen, sure))
                    }
                    Growth::Chosen(_) => {
                        let choices = choose.choices(path, Words::new(logits, ids, heads.vocab), ways);
                        Said::Chosen(weighed(choices, sure))
                    }
                }
            });
        });
        self.take_in(step, places, rest, said);
    }

    /// Takes in what all places have said, and opens those that it leads to.
    fn take_in(&mut self, step: &Step, places: Vec<Place>, rest: Vec<(usize, Vec<u32>)>, said: Vec<Said>) {
        let mut rows = places.iter().zip(rest).zip(said).enumerate().peekable();
        while let Some((row, ((place, (node, path)), said))) = rows.next() {
            let block = place.block;
            let mut level = vec![(row, node, path)];
            let mut expansions = Vec::new();
            match (said, &mut self.growths[block]) {
                (Said::Drawn(chosen, sure), Growth::Drawn { proposal, drafts }) => {
                    let confidence = sure.unwrap_or(chosen.confidence);
                    if let Some(token) = chosen.add_to(proposal, drafts.len(), confidence) {
                        drafts.push(token);
                        let (path, state) = (drafts.clone(), step.state(row).to_vec());
                        self.open.push(Open { place: Place { block, before: token }, node: drafts.len(), path, state });
                    }
                    continue;
                }
                (Said::Chosen(expansion), Growth::Chosen(_)) => expansions.push(expansion),
                _ => expansions.push(Expansion::new()),
            }
            while let Some((row, ((_, (node, path)), said))) = rows.next_if(|(_, ((next, _), _))| next.block == block) {
                level.push((row, node, path));
                expansions.push(if let Said::Chosen(expansion) = said { expansion } else { Expansion::new() });
            }
            self.take_in_level(step, block, level, expansions);
        }
    }

    /// Takes in a level of one request's tree: rows of the step, their nodes and the words before them.
    fn take_in_level(
        &mut self,
        step: &Step,
        block: usize,
        level: Vec<(usize, usize, Vec<u32>)>,
        mut expansions: Vec<Expansion>,
    ) {
        let Growth::Chosen(growth) = &mut self.growths[block] else { return };
        // Places that were not worth going on are in the growth's level, and have said nothing.
        let place = |node: usize| level.iter().position(|(_, other, _)| *other == node);
        let said = |&node: &usize| place(node).map(|place| std::mem::take(&mut expansions[place])).unwrap_or_default();
        let mut all: Vec<Expansion> = growth.level().iter().map(said).collect();
        // Probabilities are in range, and a token comes once: the tree cannot refuse.
        if growth.grow(&mut all).is_err() {
            return;
        }
        let tree = growth.tree();
        let mut nodes = growth.level().to_vec();
        nodes.sort_unstable();
        for node in nodes {
            let parent = tree.parent(node).and_then(|parent| level.iter().find(|(_, other, _)| *other == parent));
            let Some((row, _, path)) = parent else { continue };
            if growth.survival(node) < self.least {
                continue;
            }
            let before = tree.tokens()[node];
            let path = path.iter().copied().chain([before]).collect();
            self.open.push(Open { place: Place { block, before }, node, path, state: step.state(*row).to_vec() });
        }
    }

    fn finish(self) -> Vec<Option<Proposal>> {
        let (ways, blocks) = (self.ways, self.blocks);
        let finish = |(growth, block): (Growth, &Block<'_>)| match growth {
            Growth::Drawn { proposal, .. } => Some(proposal),
            Growth::Chosen(growth) => growth.finish(block.max_drafts * ways).ok().map(Proposal::from),
        };
        self.growths.into_iter().zip(blocks).map(finish).collect()
    }
}

/// What a place says.
enum Said {
    Nothing,
    Drawn(crate::Chosen, Option<f64>),
    Chosen(Expansion),
}

/// Words with how likely each is to stand: as likely as a head says of the first, the others in proportion, and all of them
/// no likelier than certain.
fn weighed(mut words: Expansion, sure: Option<f64>) -> Expansion {
    let (Some(sure), Some(&(_, first))) = (sure, words.first()) else { return words };
    for (at, (_, p)) in words.iter_mut().enumerate() {
        *p = match at {
            0 => sure,
            _ => (sure * *p / first).min((1.0 - sure) * *p / (1.0 - first).max(f64::MIN_POSITIVE)).clamp(0.0, 1.0),
        };
    }
    words
}
