//! Drafts for the requests of a step: who gets some, and how many of them are checked.

use draft::{Ask, Drafter, Key, Verdict};
use spec::{Accepted, Admission, CostCurve, Mandatory, OnlineCalibration, Proposal, Search, Tree};

use super::RequestId;
use super::lane::{Checked, Choice, Lane};
use super::step::context;

/// What a batch drafts with.
pub struct Speculation {
    /// What proposes.
    pub drafter: Box<dyn Drafter>,
    /// Drafts of one request that are checked in one step at most.
    pub max_drafts: usize,
    /// What a step of so many rows costs on this machine.
    pub curve: CostCurve,
}

/// Distances from the anchor that are counted apart; further ones count with the last.
pub const DRAFT_POSITIONS: usize = 16;

/// What became of drafts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// Proposals of which something was checked.
    pub proposals: u64,
    /// Drafts that were checked.
    pub checked: u64,
    /// Drafts that were committed.
    pub accepted: u64,
    /// Steps of a request in which a draft at this distance from the anchor, from 1, was checked.
    pub checked_at: [u64; DRAFT_POSITIONS],
    /// Of these, those in which one was committed.
    pub accepted_at: [u64; DRAFT_POSITIONS],
}

impl DraftCounts {
    pub(super) fn note(&mut self, tree: &Tree, accepted: &Accepted) {
        self.proposals += 1;
        self.checked += tree.drafts() as u64;
        self.accepted += accepted.path.len() as u64;
        let deepest = tree.depths().iter().max().map_or(0, |&depth| depth as usize);
        let place = |depth: usize| (depth - 1).min(DRAFT_POSITIONS - 1);
        (1..=deepest).for_each(|depth| self.checked_at[place(depth)] += 1);
        (1..=accepted.path.len()).for_each(|depth| self.accepted_at[place(depth)] += 1);
    }
}

/// Rows of a step at most, drafts included: beyond it rows cost about as much as they would in a step of their own.
const MAX_ROWS: usize = 128;

/// Drafts that count in what is learnt of the drafter's confidences.
const MEMORY: usize = 2000;

pub(super) struct Speculator {
    drafter: Box<dyn Drafter>,
    max_drafts: usize,
    curve: CostCurve,
    calibration: OnlineCalibration,
    admission: Admission,
}

impl Speculator {
    pub(super) fn new(speculation: Speculation) -> Self {
        let Speculation { drafter, max_drafts, curve } = speculation;
        let calibration = OnlineCalibration::new(max_drafts, MEMORY);
        Self { drafter, max_drafts, curve, calibration, admission: Admission::new() }
    }

    /// Gives every lane that decodes the drafts that this step is to check.
    pub(super) fn propose(&mut self, running: &mut [Lane]) {
        running.iter_mut().for_each(|lane| lane.checked = None);
        let asking: Vec<usize> = (0..running.len()).filter(|&index| self.max_drafts(&running[index]) > 0).collect();
        if asking.is_empty() {
            return;
        }
        let asks: Vec<Ask<'_>> = asking.iter().map(|&index| self.ask(&running[index])).collect();
        let answers = match self.drafter.propose(&asks) {
            Ok(answers) => answers,
            // The requests go on without.
            Err(_) => return,
        };
        let proposals: Vec<(usize, Proposal)> =
            asking.into_iter().zip(answers).filter_map(|(index, answer)| Some((index, answer.ok()?))).collect();
        self.admit(running, proposals);
    }

    /// Drafts on a path that the lane can use: a last token needs none, for it is sampled anyway.
    fn max_drafts(&self, lane: &Lane) -> usize {
        match &lane.choices[..] {
            [choice] if lane.rows > 0 && lane.demand().decodes => {
                self.max_drafts.min(choice.request.remaining().saturating_sub(1))
            }
            _ => 0,
        }
    }

    fn ask<'l>(&self, lane: &'l Lane) -> Ask<'l> {
        let tokens = lane.tokens();
        let choice = &lane.choices[0];
        let key = Key { request: lane.id.0, choice: choice.index };
        let prompt = tokens.len() - choice.request.outputs().len();
        Ask { key, tokens, prompt, predicted: &[], max_drafts: self.max_drafts(lane) }
    }

    /// Hands each lane what is to be checked of its proposal.
    fn admit(&mut self, running: &mut [Lane], proposals: Vec<(usize, Proposal)>) {
        self.admission.clear();
        for (_, proposal) in &proposals {
            let tree = proposal.tree();
            let position = |node: usize| tree.depths()[node] as usize - 1;
            let calibrated = |node| self.calibration.confidence(position(node), tree.confidences()[node]);
            // A calibrated confidence is in (0, 1).
            let _ = self.admission.add_tree(tree, calibrated);
        }
        let rows: usize = running.iter().map(|lane| lane.rows).sum();
        let decodes = running.iter().filter(|lane| lane.demand().decodes).count();
        let context = context(running);
        // Rows of prompts are worth what the decodes would earn in their time: they make drafts neither dear nor cheap.
        let worth = self.curve.seconds(rows, context) / self.curve.seconds(decodes, context);
        let mandatory = Mandatory { rows, tokens: decodes as f64 * worth, max_rows: MAX_ROWS };
        let steps = |rows| self.curve.steps_per_second(rows, context);
        if self.admission.admit(mandatory, Search::Global, steps).is_err() {
            return;
        }
        for (number, (index, proposal)) in proposals.into_iter().enumerate() {
            if self.admission.drafts(number) == 0 {
                continue;
            }
            if let Ok((proposal, proposed)) = proposal.keep(self.admission.kept(number)) {
                running[index].checked = Some(Checked { proposal, proposed });
            }
        }
    }

    /// Learns what became of a proposal.
    pub(super) fn observe(&mut self, lane: &Lane, Checked { proposal, proposed }: &Checked) {
        let [choice] = &lane.choices[..] else { return };
        let (tree, accepted) = (proposal.tree(), &lane.accepted);
        self.calibration.observe_tree(tree, accepted);
        let verdict = Verdict { tree, proposed, accepted };
        let key = Key { request: lane.id.0, choice: choice.index };
        self.drafter.judged(key, &verdict);
    }

    /// Learns what a step of so many rows cost.
    pub(super) fn timed(&mut self, rows: usize, context: usize, seconds: f64) {
        // A clock that stood still teaches nothing.
        let _ = self.curve.observe(rows, context, seconds);
    }

    /// A choice has ended.
    pub(super) fn finished(&mut self, id: RequestId, choice: &Choice) {
        let tokens = choice.request.tokens();
        let key = Key { request: id.0, choice: choice.index };
        self.drafter.finished(key, tokens, tokens.len() - choice.request.outputs().len());
    }
}
