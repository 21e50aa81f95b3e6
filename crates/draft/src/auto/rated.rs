//! What is known of a drafter: how often it is right, what it takes and what it brings, in all requests and in each.
//!
//! The room for what `auto` has learnt. Which drafter is asked and whose proposal is taken is decided in `auto`.

use std::collections::HashMap;

use spec::{OnlineCalibration, Proposal, Tree};

use super::Worth;
use crate::{Ask, DraftError, Drafter, Key, Outlook, Round, Silence};

/// Drafts on a path of which a request's acceptance is learnt by position; deeper ones share the last's.
const POSITIONS: usize = 16;

/// Confidences between which drafts are taken to differ in kind: who says 0.6 and 0.8 may be right in 0.1 and 0.9.
const KINDS: [f64; 8] = [0.3, 0.5, 0.65, 0.75, 0.8, 0.85, 0.9, 0.95];

/// Depths of which the kinds are learnt by themselves: 1, 2, up to 4, up to 8, beyond.
const DEPTHS: usize = 5;

/// Which kind of draft one at `position`, from 0, with this confidence is.
pub(super) fn kind(position: usize, said: f64) -> usize {
    let depth = (position + 1).next_power_of_two().ilog2() as usize;
    depth.min(DEPTHS - 1) * (KINDS.len() + 1) + KINDS.partition_point(|&least| least <= said)
}

/// Drafts that count in what all requests have taught of a drafter's confidences.
const MEMORY: usize = 2000;

/// Drafts that count in what one request has.
const MEMORY_OF_A_REQUEST: usize = 40;

/// Proposals that count in what a drafter brings, in all requests and in one.
const PROPOSALS: f64 = 256.0;
const PROPOSALS_OF_A_REQUEST: f64 = 16.0;

/// What all requests say of a new one counts as so many proposals of its own.
const PRIOR: f64 = 3.0;

/// A drafter is asked so many times where a request begins, whatever it brings to others, if all of them take no more than this
/// share of the answer.
const FIRST: usize = 3;
const FIRST_SHARE: f64 = 0.01;

/// Proposals until a drafter is judged by what it brings.
const LEARNING: f64 = 4.0;

/// Calls that count in what a drafter takes.
const CALLS: f64 = 32.0;

/// New tokens of a request up to which a call is an ordinary one; beyond them the drafter catches up.
const ORDINARY: usize = 32;

/// A drafter that takes no more than this share of what a draft is worth is always asked.
const CHEAP: f64 = 0.01;

/// Proposals of a request at most whose end is not known yet.
const MAX_OPEN: usize = 64;

/// A mean in which about `memory` newest values count.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mean {
    value: f64,
    count: f64,
    memory: f64,
}

impl Mean {
    pub(super) fn new(memory: f64) -> Mean {
        Mean { value: 0.0, count: 0.0, memory }
    }

    pub(super) fn add(&mut self, value: f64) {
        self.count = (self.count + 1.0).min(self.memory);
        self.value += (value - self.value) / self.count;
    }

    /// The mean; `default` if there is nothing to take it of.
    pub(super) fn or(&self, default: f64) -> f64 {
        if self.count > 0.0 { self.value } else { default }
    }
}

/// A drafter and what it is worth.
pub(super) struct Rated {
    pub(super) drafter: Box<dyn Drafter>,
    /// By kind of draft.
    calibration: OnlineCalibration,
    /// Seconds of an ordinary call, for each request.
    seconds: Mean,
    /// Seconds for each token that it catches up with.
    catching_up: Mean,
    /// What a proposal brings, in tokens.
    brings: Mean,
    /// Drafts that stand where the first one does.
    run: Mean,
    requests: HashMap<Key, Request>,
    /// Seconds that may be spent on trying where it did not pay.
    credit: f64,
}

/// What is known of a drafter in one request.
struct Request {
    /// On top of what all requests have taught.
    calibration: OnlineCalibration,
    brings: Mean,
    /// Tokens that the drafter has read of it.
    read: usize,
    /// Seconds that went into reading more of it so far.
    reading: f64,
    /// The drafter is being tried here, and has to read on first.
    trying: bool,
    /// Times that it has said what it thinks.
    said: usize,
    /// The step in which the drafter was asked last.
    asked: u64,
    open: Vec<Open>,
}

/// A proposal that the text still follows, as far as the text goes.
struct Open {
    tree: Tree,
    /// The place in the text of what comes after `node`.
    next: usize,
    node: usize,
    /// Which nodes are worth checking, as far as anybody could tell.
    worthy: Vec<bool>,
    /// Nodes worth checking that stood.
    stood: usize,
    /// What checking all that are worth it costs, in drafts that stand.
    cost: f64,
}

impl Rated {
    pub(super) fn new(drafter: Box<dyn Drafter>) -> Rated {
        Rated {
            drafter,
            calibration: OnlineCalibration::new(DEPTHS * (KINDS.len() + 1), MEMORY),
            seconds: Mean::new(CALLS),
            catching_up: Mean::new(CALLS),
            brings: Mean::new(PROPOSALS),
            run: Mean::new(PROPOSALS),
            requests: HashMap::new(),
            credit: 0.0,
        }
    }

    /// The proposal with its confidences corrected.
    pub(super) fn correct(&self, key: Key, proposal: &Proposal) -> Proposal {
        let own = self.requests.get(&key);
        let tree = proposal.tree();
        proposal.with_confidences(|node| {
            if !proposal.is_draft(node) {
                return 0.0;
            }
            let position = tree.depths()[node] as usize - 1;
            let said = tree.confidences()[node];
            let corrected = self.calibration.confidence(kind(position, said), said);
            own.map_or(corrected, |own| own.calibration.confidence(position, corrected))
        })
    }

    /// Seconds that a corrected proposal is expected to save, before what drafting took.
    ///
    /// Admission checks drafts that are worth their rows; what others would lose does not count. Where drafts are drawn by
    /// chance, whose proposal is taken may not depend on what was drawn: only the confidence of the first drafts is looked
    /// at, which is a function of their law, and how far they usually lead.
    pub(super) fn gain(&self, corrected: &Proposal, worth: Worth, draws: bool) -> f64 {
        let tree = corrected.tree();
        let saved = |survival: f64| (survival * worth.draft - worth.row).max(0.0);
        if draws {
            let first = tree.children(0).map(|node| tree.confidences()[node]).fold(0.0, f64::max);
            return saved(first) * self.run.or(1.0);
        }
        let survivals = tree.survivals();
        (1..tree.len()).map(|node| saved(survivals[node].max(corrected.worth(node)))).sum()
    }

    /// Seconds that asking for this request takes, and how many of them are for catching up with it.
    fn cost(&self, ask: &Ask<'_>, outlook: Outlook) -> (f64, f64) {
        let late = self.late(ask);
        let reading = self.requests.get(&ask.key).map_or(0.0, |request| request.reading);
        let usually = self.catching_up.or(outlook.reading / late.max(1) as f64);
        let catching_up = if late > ORDINARY { (usually * late as f64 - reading).max(0.0) } else { 0.0 };
        (self.seconds.or(outlook.seconds) + catching_up, catching_up)
    }

    /// Tokens of the request that the drafter has not read.
    fn late(&self, ask: &Ask<'_>) -> usize {
        let read = self.requests.get(&ask.key).map_or(0, |request| request.read);
        ask.tokens.len().saturating_sub(read)
    }

    /// Seconds that an ordinary call takes for each request; 0 as long as nothing is known.
    pub(super) fn seconds(&self) -> f64 {
        self.seconds.or(0.0)
    }

    /// Whether asking for this request is expected to save more than it takes, where another proposal is at hand that
    /// saves `otherwise` seconds. `horizon`: steps over which catching up has to earn itself.
    pub(super) fn pays(&self, ask: &Ask<'_>, outlook: Outlook, worth: Worth, otherwise: f64, horizon: f64) -> bool {
        let (cost, catching_up) = self.cost(ask, outlook);
        let request = self.requests.get(&ask.key);
        if cost <= CHEAP * worth.draft || request.is_some_and(|request| request.trying) {
            return true;
        }
        // One text is not like another: what a drafter brings to others says little of this request.
        let is_first = request.map_or(0, |request| request.said) < FIRST;
        if is_first && FIRST as f64 * cost <= FIRST_SHARE * horizon * worth.draft {
            return otherwise < cost;
        }
        let brings = request.map_or(self.brings, |request| request.brings);
        let gain = if self.brings.count < LEARNING { outlook.gain } else { brings.or(0.0) * worth.draft };
        gain - otherwise >= cost - catching_up + catching_up / horizon
    }

    /// Picks, among the requests for which the drafter does not pay, one to try it on all the same: the one that has waited
    /// longest, once `allowance` more seconds have added up to what this takes.
    pub(super) fn trial<'a>(
        &mut self,
        resting: impl Iterator<Item = (usize, &'a Ask<'a>, Outlook)>,
        allowance: f64,
    ) -> Option<usize> {
        let asked = |ask: &Ask<'_>| self.requests.get(&ask.key).map_or(0, |request| request.asked);
        let (index, ask, outlook) = resting.min_by_key(|(_, ask, _)| asked(ask))?;
        let (cost, _) = self.cost(ask, outlook);
        self.credit += allowance;
        if self.credit < cost {
            return None;
        }
        self.credit -= cost;
        // What it brings now counts as much as all that is remembered.
        let request = self.request(ask.key);
        request.brings.count = request.brings.count.min(1.0);
        request.trying = true;
        Some(index)
    }

    fn request(&mut self, key: Key) -> &mut Request {
        let brings = Mean { count: PRIOR.min(self.brings.count), memory: PROPOSALS_OF_A_REQUEST, ..self.brings };
        self.requests.entry(key).or_insert_with(|| Request {
            calibration: OnlineCalibration::new(POSITIONS, MEMORY_OF_A_REQUEST),
            brings,
            read: 0,
            reading: 0.0,
            trying: false,
            said: 0,
            asked: 0,
            open: Vec::new(),
        })
    }

    /// Asks the drafter, and learns how long it takes. `step` is now.
    pub(super) fn propose(
        &mut self,
        round: &mut Round<'_>,
        asks: &[Ask<'_>],
        step: u64,
        clock: &mut dyn FnMut() -> f64,
    ) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
        let started = clock();
        let answers = self.drafter.propose(round, asks);
        let seconds = (clock() - started).max(0.0);
        let is_late = |late: usize| late > ORDINARY;
        let late: Vec<usize> = asks.iter().map(|ask| self.late(ask)).collect();
        let all_late: usize = late.iter().filter(|&&late| is_late(late)).sum();
        if all_late == 0 {
            self.seconds.add(seconds / asks.len() as f64);
        }
        let reading = (seconds - self.seconds.or(0.0) * asks.len() as f64).max(0.0);
        for (index, (ask, late)) in asks.iter().zip(late).enumerate() {
            let behind = answers.as_ref().is_ok_and(|answers| answers.get(index) == Some(&Err(Silence::Behind)));
            let request = self.request(ask.key);
            request.asked = step;
            if is_late(late) {
                request.reading += reading * late as f64 / all_late as f64;
            }
            if !behind {
                let spent = std::mem::take(&mut request.reading);
                (request.read, request.trying) = (ask.tokens.len(), false);
                if is_late(late) {
                    self.catching_up.add(spent / late as f64);
                }
            }
        }
        answers
    }

    /// Notes what was said of a request, and what it is after correction, to be compared with the text to come; `None`:
    /// nothing was, though the drafter has read all of it.
    pub(super) fn said(&mut self, ask: &Ask<'_>, said: Option<(&Tree, &Proposal)>, worth: Worth) {
        let Some(request) = self.requests.get_mut(&ask.key) else { return };
        request.said += 1;
        match said {
            Some((tree, corrected)) => {
                if request.open.len() == MAX_OPEN {
                    request.open.remove(0);
                }
                let row = worth.row / worth.draft;
                let survivals = corrected.tree().survivals();
                let is_worthy = |node: usize| corrected.is_draft(node) && survivals[node] > row;
                let worthy: Vec<bool> = (0..tree.len()).map(is_worthy).collect();
                let cost = row * worthy.iter().filter(|&&worthy| worthy).count() as f64;
                let (tree, next) = (tree.clone(), ask.tokens.len());
                request.open.push(Open { tree, next, node: 0, worthy, stood: 0, cost });
            }
            None => {
                request.brings.add(0.0);
                self.brings.add(0.0);
            }
        }
    }

    /// Compares what was said of a request with the text since, whether the target was asked or not: so a drafter is known
    /// even where its drafts are not checked.
    pub(super) fn compare(&mut self, key: Key, tokens: &[u32]) {
        let Some(request) = self.requests.get_mut(&key) else { return };
        let Request { calibration: own, brings, open, .. } = request;
        open.retain_mut(|open| {
            while let Some(&token) = tokens.get(open.next) {
                let position = open.tree.depths()[open.node] as usize;
                for child in open.tree.children(open.node) {
                    let (said, stands) = (open.tree.confidences()[child], open.tree.tokens()[child] == token);
                    if said == 0.0 {
                        continue; // A probe, which is not expected to stand.
                    }
                    let kind = kind(position, said);
                    own.observe(position, self.calibration.confidence(kind, said), stands);
                    self.calibration.observe(kind, said, stands);
                }
                let Some(child) = open.tree.child(open.node, token) else { break };
                (open.node, open.next) = (child, open.next + 1);
                open.stood += usize::from(open.worthy[child]);
            }
            let goes_on = open.next >= tokens.len() && open.tree.children(open.node).next().is_some();
            if !goes_on {
                let stood = f64::from(open.tree.depths()[open.node]);
                if stood > 0.0 {
                    self.run.add(stood);
                }
                // What nobody would have checked neither brings nor costs anything.
                let brought = open.stood as f64 - open.cost;
                brings.add(brought);
                self.brings.add(brought);
            }
            goes_on
        });
    }

    /// Forgets a request, of which these are all tokens.
    pub(super) fn finished(&mut self, key: Key, tokens: &[u32], prompt: usize) {
        self.compare(key, tokens);
        self.requests.remove(&key);
        self.drafter.finished(key, tokens, prompt);
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}
