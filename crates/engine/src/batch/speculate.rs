//! Drafts for the requests of a step: who gets some, and how many of them are checked.

use draft::{Ask, DraftError, Drafter, Key, Round, Silence, Unread, Verdict};
use kernels::Pool;
use kv::KvCache;
use model::{Output, Segment, Tap};
use spec::{Admission, CostCurve, Mandatory, OnlineCalibration, Opinion, Proposal, Search};

use super::RequestId;
use super::counts::{DraftCounts, Reason};
use super::lane::{Checked, Choice, Lane};
use super::reading::Reading;
use super::step::context;
use crate::drafting::Chooser;
use crate::process::SharedScratch;

/// What a batch drafts with.
pub struct Speculation {
    /// What proposes.
    pub drafter: Box<dyn Drafter>,
    /// Drafts of one request that are checked in one step at most.
    pub max_drafts: usize,
    /// What a step of so many rows costs on this machine.
    pub curve: CostCurve,
    /// Which drafts are checked.
    pub check: Check,
}

/// Which drafts are checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Check {
    /// Those that are expected to pay, by confidences and the cost of rows (DSpark, section 3.2).
    #[default]
    Paying,
    /// All that is drafted, whatever it costs: what drafts of a fixed length are.
    All,
}

impl Speculation {
    /// With drafts checked where they pay.
    pub fn new(drafter: Box<dyn Drafter>, max_drafts: usize, curve: CostCurve) -> Speculation {
        Speculation { drafter, max_drafts, curve, check: Check::default() }
    }
}

/// Rows of a step at most, drafts included: beyond it rows cost about as much as they would in a step of their own.
const MAX_ROWS: usize = 128;

/// Rows over which the cost of one more is taken: a step of the curve is nobody's price.
const ROWS_ASIDE: usize = 8;

/// Drafts that count in what is learnt of the drafter's confidences.
const MEMORY: usize = 2000;

pub(super) struct Speculator {
    drafter: Box<dyn Drafter>,
    max_drafts: usize,
    /// Tokens that the target knows: ids below this.
    vocab: usize,
    curve: CostCurve,
    check: Check,
    calibration: OnlineCalibration,
    admission: Admission,
    /// What the drafter last failed with: the same failure is told of once.
    trouble: Option<String>,
    reading: Reading,
}

/// What a step does without drafts.
struct Load {
    rows: usize,
    /// Lanes that decode.
    decodes: usize,
}

fn load(running: &[Lane]) -> Load {
    let rows = running.iter().map(|lane| lane.rows).sum();
    Load { rows, decodes: running.iter().filter(|lane| lane.demand().decodes).count() }
}

/// Hands each lane all of its proposal, as long as there is room for so many more rows.
fn check_all(running: &mut [Lane], proposals: Vec<(usize, Checked)>, mut room: usize, counts: &mut DraftCounts) {
    for (index, usable) in proposals {
        let drafts = usable.proposal.tree().drafts();
        match room.checked_sub(drafts) {
            Some(left) => {
                room = left;
                running[index].checked = Some(usable);
            }
            None => counts.silent(Reason::DoesNotPay),
        }
    }
}

/// A lane that can use drafts.
struct Asking<'l> {
    index: usize,
    lane: &'l Lane,
    choice: &'l Choice,
    max_drafts: usize,
    chooser: Chooser<'l>,
}

impl<'l> Asking<'l> {
    fn ask(&'l self) -> Ask<'l> {
        let (tokens, request) = (self.lane.tokens(), &self.choice.request);
        Ask {
            key: Key { request: self.lane.id.0, choice: self.choice.index },
            tokens,
            prompt: tokens.len() - request.outputs().len(),
            predicted: &request.drafting().predicted,
            max_drafts: self.max_drafts,
            remaining: request.remaining(),
            choose: &self.chooser,
            sequence: &self.lane.sequence,
        }
    }
}

impl Speculator {
    /// A drafter for a model of `vocab` tokens, whose keys and values are in `cache`.
    pub(super) fn new(speculation: Speculation, vocab: usize, cache: &mut KvCache) -> Self {
        let Speculation { mut drafter, max_drafts, curve, check } = speculation;
        let calibration = OnlineCalibration::new(max_drafts, MEMORY);
        drafter.attach(cache);
        let (admission, reading) = (Admission::new(), Reading::new(&*drafter));
        Self { drafter, max_drafts, vocab, curve, check, calibration, admission, trouble: None, reading }
    }

    /// The target's hidden states that the drafter reads.
    pub(super) fn taps(&self) -> &[Tap] {
        self.reading.taps()
    }

    /// Takes what the target has computed for those `running` that have rows, in `batch`.
    pub(super) fn computed(
        &mut self,
        lent: (&Pool, &mut KvCache),
        running: &[Lane],
        batch: &[Segment<'_>],
        output: &Output<'_>,
    ) {
        let result = self.reading.computed(&mut *self.drafter, lent, running, batch, output);
        if let Err(error) = result {
            self.failed(&error);
        }
    }

    /// Takes that drafts of a lane were accepted, whose committed tokens in the cache were `before`.
    pub(super) fn accepted(&mut self, lent: (&Pool, &mut KvCache), lane: &Lane, before: usize) {
        if let Err(error) = self.reading.accepted(&mut *self.drafter, lent, lane, before) {
            self.failed(&error);
        }
    }

    /// The lane has lost its pages.
    pub(super) fn preempted(&mut self, lane: &Lane) {
        lane.choices.iter().for_each(|choice| self.reading.forget(Key { request: lane.id.0, choice: choice.index }));
    }

    /// Finds slots for what the drafter writes while it proposes, as far as there are any: for lanes that decode, beyond
    /// the rows of this step.
    pub(super) fn reserve(&self, running: &mut [Lane], cache: &mut KvCache) {
        let ahead = self.drafter.slots_ahead();
        for lane in running.iter_mut().filter(|_| ahead > 0) {
            if matches!(self.max_drafts(lane), Some(Ok(_))) {
                // Who gets none goes without drafts.
                let _ = cache.reserve(&mut lane.sequence, lane.computed + ahead);
            }
        }
    }

    /// Tells of a failure in the log, once.
    fn failed(&mut self, error: &DraftError) {
        let message = error.to_string();
        if self.trouble.as_ref() != Some(&message) {
            tracing::error!("{message}; requests go on without drafts");
            self.trouble = Some(message);
        }
    }

    /// Gives every lane that decodes the drafts that this step is to check.
    pub(super) fn propose(
        &mut self,
        running: &mut [Lane],
        (pool, cache): (&Pool, &mut KvCache),
        scratch: &SharedScratch,
        counts: &mut DraftCounts,
    ) {
        running.iter_mut().for_each(|lane| lane.checked = None);
        let mut asking = Vec::new();
        for (index, lane) in running.iter().enumerate() {
            match self.max_drafts(lane) {
                None => {}
                Some(Err(reason)) => counts.silent(reason),
                Some(Ok((choice, max_drafts))) => {
                    let chooser = Chooser::new(&choice.request, scratch);
                    asking.push(Asking { index, lane, choice, max_drafts, chooser });
                }
            }
        }
        if asking.is_empty() {
            return;
        }
        let mut unread = std::mem::take(&mut self.reading.unread);
        let mut round = self.round(running, asking.len(), (pool, cache), &mut unread);
        let asks: Vec<Ask<'_>> = asking.iter().map(Asking::ask).collect();
        let answers = self.answers(&mut round, &asks);
        self.reading.unread = unread;
        let mut proposals = Vec::with_capacity(asks.len());
        for (asking, answer) in asking.iter().zip(answers) {
            match answer.and_then(|proposal| self.usable(proposal, asking)) {
                Ok(usable) => proposals.push((asking.index, usable)),
                Err(reason) => counts.silent(reason),
            }
        }
        let draws = asks.iter().any(|ask| ask.choose.draws());
        drop(asks);
        drop(asking);
        self.admit(running, proposals, draws, counts);
    }

    /// What the step lends to the drafter, which `asking` requests ask.
    fn round<'p>(
        &self,
        running: &[Lane],
        asking: usize,
        (pool, cache): (&'p Pool, &'p mut KvCache),
        unread: &'p mut Unread,
    ) -> Round<'p> {
        let (load, context) = (load(running), context(running));
        let step_seconds = self.curve.seconds(load.decodes, context) * asking as f64 / load.decodes as f64;
        let drafts = asking.saturating_mul(self.max_drafts).clamp(1, ROWS_ASIDE);
        let more = self.curve.seconds(load.rows + drafts, context) - self.curve.seconds(load.rows, context);
        Round {
            pool,
            cache,
            step_seconds,
            row_seconds: more / drafts as f64,
            checks_all: self.check == Check::All,
            unread,
        }
    }

    /// Drafts on a path that the lane can use; `None` if it does not decode. A last token needs none: it is sampled anyway.
    fn max_drafts<'l>(&self, lane: &'l Lane) -> Option<Result<(&'l Choice, usize), Reason>> {
        let [choice] = &lane.choices[..] else { return None };
        if lane.rows == 0 || !lane.demand().decodes {
            return None;
        }
        let drafting = choice.request.drafting();
        let allowed = drafting.max_drafts.unwrap_or(usize::MAX).min(self.max_drafts);
        if !drafting.enabled || allowed == 0 {
            return Some(Err(Reason::Disabled));
        }
        match allowed.min(choice.request.remaining().saturating_sub(1)) {
            0 => Some(Err(Reason::LastToken)),
            drafts => Some(Ok((choice, drafts))),
        }
    }

    /// What the drafter says to each request. If it fails they go on without, and the log says why.
    fn answers(&mut self, round: &mut Round<'_>, asks: &[Ask<'_>]) -> Vec<Result<Proposal, Reason>> {
        let reason = |silence| match silence {
            Silence::NoMatch => Reason::NoMatch,
            Silence::Context => Reason::Context,
            Silence::DoesNotPay => Reason::DoesNotPay,
            Silence::Behind => Reason::Behind,
        };
        match self.drafter.propose(round, asks) {
            Ok(answers) => {
                self.trouble = None;
                answers.into_iter().map(|answer| answer.map_err(reason)).collect()
            }
            Err(error) => {
                self.failed(&error);
                asks.iter().map(|_| Err(Reason::Failed)).collect()
            }
        }
    }

    /// The part of a proposal that can be checked: no token that the target does not know, and no path longer than what
    /// may still be said. One that begins elsewhere than the request ends would put a wrong token in its past.
    fn usable(&self, proposal: Proposal, asking: &Asking<'_>) -> Result<Checked, Reason> {
        let tree = proposal.tree();
        if tree.tokens().first() != asking.lane.tokens().last() {
            return Err(Reason::Failed);
        }
        let mut kept: Vec<bool> = Vec::with_capacity(tree.len());
        for node in 0..tree.len() {
            let parent = tree.parent(node).is_none_or(|parent| kept[parent]);
            let known = (tree.tokens()[node] as usize) < self.vocab;
            kept.push(node == 0 || parent && known && tree.depths()[node] as usize <= asking.max_drafts);
        }
        let (proposal, proposed) = match kept.iter().all(|&kept| kept) {
            true => (proposal, (0..kept.len()).collect()),
            false => proposal.keep(&kept).map_err(|_| Reason::Failed)?,
        };
        if proposal.tree().drafts() == 0 { Err(Reason::NoMatch) } else { Ok(Checked { proposal, proposed }) }
    }

    /// Hands each lane what is to be checked of its proposal. Where drafts `draw` by chance, whether one is checked may
    /// not depend on those beyond it, so that the search has to stop early (DSpark, appendix A).
    fn admit(&mut self, running: &mut [Lane], proposals: Vec<(usize, Checked)>, draws: bool, counts: &mut DraftCounts) {
        let Load { rows, decodes } = load(running);
        if self.check == Check::All {
            return check_all(running, proposals, MAX_ROWS.saturating_sub(rows), counts);
        }
        let context = context(running);
        self.admission.clear();
        for (_, usable) in &proposals {
            let tree = usable.proposal.tree();
            let position = |node: usize| tree.depths()[node] as usize - 1;
            let calibrated = |node| self.calibration.confidence(position(node), tree.confidences()[node]);
            // A calibrated confidence is in (0, 1).
            let _ = self.admission.add_proposal(&usable.proposal, calibrated);
        }
        // Rows of prompts are worth what the decodes would earn in their time: they make drafts neither dear nor cheap.
        let worth = self.curve.seconds(rows, context) / self.curve.seconds(decodes, context);
        let mandatory = Mandatory { rows, tokens: decodes as f64 * worth, max_rows: MAX_ROWS };
        let steps = |rows| self.curve.steps_per_second(rows, context);
        let search = if draws { Search::EarlyStop } else { Search::Global };
        let admitted = self.admission.admit(mandatory, search, steps).is_ok();
        for (number, (index, usable)) in proposals.into_iter().enumerate() {
            if !admitted || self.admission.drafts(number) == 0 {
                counts.silent(Reason::DoesNotPay);
                continue;
            }
            if let Ok((proposal, kept)) = usable.proposal.keep(self.admission.kept(number)) {
                let proposed = kept.into_iter().map(|node| usable.proposed[node]).collect();
                running[index].checked = Some(Checked { proposal, proposed });
            }
        }
    }

    /// Learns what became of a proposal, and counts it.
    pub(super) fn observe(&mut self, lane: &Lane, Checked { proposal, proposed }: &Checked, counts: &mut DraftCounts) {
        let [choice] = &lane.choices[..] else { return };
        let (tree, accepted) = (proposal.tree(), &lane.accepted);
        counts.checked(tree, accepted, choice.request.finish().is_some());
        let opinions = || accepted.opinions(tree).filter(|opinion| proposal.is_draft(opinion.node));
        // All are counted before any teaches: what is learnt here was not known when they were admitted.
        for Opinion { node, depth, stands } in opinions() {
            counts.judged(self.calibration.confidence(depth - 1, tree.confidences()[node]), stands);
        }
        for Opinion { node, depth, stands } in opinions() {
            self.calibration.observe(depth - 1, tree.confidences()[node], stands);
        }
        let key = Key { request: lane.id.0, choice: choice.index };
        if !lane.heard.is_empty() {
            let says: Vec<(usize, u32)> = lane.heard.iter().map(|&(node, token)| (proposed[node], token)).collect();
            self.drafter.heard(key, &says);
        }
        self.drafter.judged(key, &Verdict { tree, proposed, accepted });
    }

    /// Learns what a forward of so many rows cost. Answers what had been expected.
    pub(super) fn timed(&mut self, rows: usize, context: usize, seconds: f64) -> f64 {
        let expected = self.curve.seconds(rows, context);
        // A clock that stood still teaches nothing.
        let _ = self.curve.observe(rows, context, seconds);
        expected
    }

    /// A choice has ended.
    pub(super) fn finished(&mut self, id: RequestId, choice: &Choice) {
        let tokens = choice.request.tokens();
        let key = Key { request: id.0, choice: choice.index };
        self.reading.forget(key);
        self.drafter.finished(key, tokens, tokens.len() - choice.request.outputs().len());
    }
}
