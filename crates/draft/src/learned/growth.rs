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
    /// Drawn by chance of its own: a chain, whose nodes have the numbers 0, 1, 2, ...
    Drawn(Proposal),
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
            true => Growth::Drawn(Proposal::new(block.ask.anchor())),
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
        let open = self.open.drain(..).enumerate();
        let (places, mut said): (Vec<Place>, Vec<Said>) = open
            .map(|(row, Open { place, node, path, .. })| (place, Said { row, node, path, words: Next::Nothing }))
            .unzip();
        let hidden = |place: &Place| rows.hidden(place.block, depth);
        heads.follow.advance(step, pool, heads.backbone, &places, depth, hidden);
        let step = &*step;
        let (blocks, ways, growths) = (self.blocks, self.ways, &self.growths);
        pool.for_each_mut(&mut said, |row, said| {
            let place = &places[row];
            let sure = heads.sure(step, row, depth, hidden(place));
            let choose = blocks[place.block].ask.choose;
            said.words = heads.next(step, row, place.before, rows.logits(place.block, depth), |logits, ids| {
                match growths[place.block] {
                    Growth::Drawn(_) => {
                        let chosen = choose.choose(&said.path, &spread(logits, ids, heads.vocab));
                        chosen.map_or(Next::Nothing, |chosen| Next::Drawn(chosen, sure))
                    }
                    Growth::Chosen(_) => {
                        let choices = choose.choices(&said.path, Words::new(logits, ids, heads.vocab), ways);
                        Next::Chosen(weighed(choices, sure))
                    }
                }
            });
        });
        let mut at = 0;
        for level in places.chunk_by(|a, b| a.block == b.block) {
            self.take_in(step, level[0].block, &mut said[at..at + level.len()]);
            at += level.len();
        }
    }

    /// Takes in what all places of a block have said, and opens those that it leads to.
    fn take_in(&mut self, step: &Step, block: usize, level: &mut [Said]) {
        let Self { growths, open, least, .. } = self;
        let mut go_on = |from: &Said, node: usize, before: u32| {
            let path = from.path.iter().copied().chain([before]).collect();
            open.push(Open { place: Place { block, before }, node, path, state: step.state(from.row).to_vec() });
        };
        match &mut growths[block] {
            Growth::Drawn(proposal) => {
                let [said] = level else { return };
                let Next::Drawn(chosen, sure) = std::mem::take(&mut said.words) else { return };
                let confidence = sure.unwrap_or(chosen.confidence);
                if let Some(token) = chosen.add_to(proposal, said.node, confidence) {
                    go_on(said, said.node + 1, token);
                }
            }
            Growth::Chosen(growth) => {
                // Places that were not worth going on are in the growth's level, and have said nothing.
                let words = |&node: &usize| match level.iter_mut().find(|said| said.node == node) {
                    Some(Said { words: Next::Chosen(words), .. }) => std::mem::take(words),
                    _ => Expansion::new(),
                };
                let mut words: Vec<Expansion> = growth.level().iter().map(words).collect();
                // Probabilities are in range, and a token comes once: the tree cannot refuse.
                if growth.grow(&mut words).is_err() {
                    return;
                }
                let tree = growth.tree();
                let mut nodes: Vec<usize> = growth.level().to_vec();
                nodes.retain(|&node| growth.survival(node) >= *least);
                nodes.sort_unstable();
                for node in nodes {
                    let parent = tree.parent(node).and_then(|parent| level.iter().find(|said| said.node == parent));
                    if let Some(parent) = parent {
                        go_on(parent, node, tree.tokens()[node]);
                    }
                }
            }
        }
    }

    fn finish(self) -> Vec<Option<Proposal>> {
        let (ways, blocks) = (self.ways, self.blocks);
        let finish = |(growth, block): (Growth, &Block<'_>)| match growth {
            Growth::Drawn(proposal) => Some(proposal),
            Growth::Chosen(growth) => growth.finish(block.max_drafts * ways).ok().map(Proposal::from),
        };
        self.growths.into_iter().zip(blocks).map(finish).collect()
    }
}

/// A place that was asked.
struct Said {
    /// Its row in the step.
    row: usize,
    node: usize,
    /// The words before, the anchor not among them.
    path: Vec<u32>,
    words: Next,
}

/// What may follow at a place.
#[derive(Default)]
enum Next {
    #[default]
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
