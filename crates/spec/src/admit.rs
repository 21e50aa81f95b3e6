//! How many drafts a step checks, over all requests.

use crate::{Proposal, Tree};

/// How the number of checked drafts is searched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Search {
    /// Stop at the first draft that doesn't raise the throughput (DSpark, algorithm 1). Whether a draft is checked then
    /// depends on nothing that was known only once it was drawn, so the output law of `ratio` stays exact, provided that the
    /// draft's own confidence doesn't depend on it either: the probability that it was drawn with is no such confidence. It
    /// is the maximum if throughput rises and then falls.
    EarlyStop,
    /// The greatest throughput of all numbers of drafts, the least drafts of equals. Finds its way over the steps of a
    /// measured curve; but it looks at survivals past the drafts in question, which biases `ratio` where drafts were drawn
    /// (DSpark, appendix A). Drafts that a rule chose are known beforehand, and it does them no harm.
    Global,
    /// At most this many drafts, the surest first: a budget that was found in an earlier step keeps `ratio` exact
    /// (DSpark, section 5.2).
    Budget(usize),
}

/// What a step does whatever is admitted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mandatory {
    /// Rows: one for each decoding request, and those of prompt chunks.
    pub rows: usize,
    /// What these rows are worth, in tokens: 1 for each decoding request, and what prompt rows are held to be worth.
    pub tokens: f64,
    /// The most rows that a step may have. Mandatory rows are kept even beyond it.
    pub max_rows: usize,
}

impl Mandatory {
    /// One row for each of `requests`, and no limit.
    pub fn requests(requests: usize) -> Mandatory {
        Mandatory { rows: requests, tokens: requests as f64, max_rows: usize::MAX }
    }
}

/// What admission decided on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Admitted {
    /// Drafts admitted, over all requests.
    pub drafts: usize,
    /// Rows of the step: the mandatory ones and a row for each admitted draft.
    pub rows: usize,
    /// Tokens that the step is expected to commit, τ: the mandatory rows' worth and the admitted survivals.
    pub tokens: f64,
    /// Expected tokens a second, Θ.
    pub throughput: f64,
}

/// Survivals or a curve that cannot be.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub enum AdmissionError {
    #[error("the survival {survival} of draft {draft} of request {request} is not in [0, 1]")]
    Survival { request: usize, draft: usize, survival: f64 },
    #[error("the confidence {confidence} of draft {draft} of request {request} is not in [0, 1]")]
    Confidence { request: usize, draft: usize, confidence: f64 },
    #[error("the survival of draft {draft} of request {request} is above that of the draft before it")]
    Rising { request: usize, draft: usize },
    #[error("the curve says {steps} steps a second at {rows} rows: it must be a finite number above 0")]
    Curve { rows: usize, steps: f64 },
}

/// The drafts of a step's requests, and which of them are checked.
///
/// All drafts compete by survival; equals go by request and then by node, never by token. A parent's survival is at least
/// its child's and its number lower, so what is admitted of a tree is a tree, and of a chain a beginning. Buffers are
/// kept from step to step.
#[derive(Debug, Default)]
pub struct Admission {
    candidates: Vec<Candidate>,
    /// Where each request's flags begin.
    starts: Vec<usize>,
    /// By request and node, whether it is checked. A request's first is its anchor.
    flags: Vec<bool>,
    /// The survivals of the request that is being added, by node.
    survivals: Vec<f64>,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    survival: f64,
    request: u32,
    /// Where the draft's flag is.
    flag: usize,
}

impl Admission {
    /// No requests.
    pub fn new() -> Admission {
        Admission::default()
    }

    /// Forgets the requests of the step before.
    pub fn clear(&mut self) {
        self.candidates.clear();
        self.starts.clear();
        self.flags.clear();
    }

    /// Adds a request that has a chain of drafts with these survivals a_1, a_2, ... (or none). Returns its number.
    ///
    /// # Errors
    ///
    /// A survival that is NaN, outside [0, 1] or above the one before it. Nothing was added then.
    pub fn add_chain(&mut self, survivals: &[f64]) -> Result<usize, AdmissionError> {
        let request = self.starts.len();
        let mut before = 1.0;
        for (i, &survival) in survivals.iter().enumerate() {
            let draft = i + 1;
            if !(0.0..=1.0).contains(&survival) {
                return Err(AdmissionError::Survival { request, draft, survival });
            }
            if survival > before {
                return Err(AdmissionError::Rising { request, draft });
            }
            before = survival;
        }
        self.survivals.clear();
        self.survivals.push(1.0);
        self.survivals.extend_from_slice(survivals);
        Ok(self.add())
    }

    /// Adds a request that has a tree of drafts, of which `confidence(node)` says how likely each is to be accepted once its
    /// parent was: what the tree has, or that calibrated. Returns the request's number.
    ///
    /// # Errors
    ///
    /// A confidence that is NaN or outside [0, 1]. Nothing was added then.
    pub fn add_tree(&mut self, tree: &Tree, mut confidence: impl FnMut(usize) -> f64) -> Result<usize, AdmissionError> {
        self.survivals.clear();
        self.survivals.push(1.0);
        for node in 1..tree.len() {
            let confidence = confidence(node);
            if !(0.0..=1.0).contains(&confidence) {
                return Err(AdmissionError::Confidence { request: self.starts.len(), draft: node, confidence });
            }
            let above = tree.parent(node).map_or(1.0, |parent| self.survivals[parent]);
            self.survivals.push(above * confidence);
        }
        Ok(self.add())
    }

    /// As [`add_tree`](Admission::add_tree); a probe competes with what it is [worth](Proposal::worth), if that is more than
    /// its survival as a draft, and never with more than what is above it.
    ///
    /// # Errors
    ///
    /// A confidence that is NaN or outside [0, 1]. Nothing was added then.
    pub fn add_proposal(
        &mut self,
        proposal: &Proposal,
        mut confidence: impl FnMut(usize) -> f64,
    ) -> Result<usize, AdmissionError> {
        let tree = proposal.tree();
        self.survivals.clear();
        self.survivals.push(1.0);
        // Without the worth of probes above: a draft below a probe is no likelier for it.
        let mut stands = vec![1.0];
        for node in 1..tree.len() {
            let confidence = if proposal.is_draft(node) { confidence(node) } else { 0.0 };
            if !(0.0..=1.0).contains(&confidence) {
                return Err(AdmissionError::Confidence { request: self.starts.len(), draft: node, confidence });
            }
            let parent = tree.parent(node).unwrap_or(0);
            stands.push(stands[parent] * confidence);
            let worth = proposal.worth(node).min(self.survivals[parent]);
            self.survivals.push(stands[node].max(worth));
        }
        Ok(self.add())
    }

    /// Adds a request of the survivals at hand.
    fn add(&mut self) -> usize {
        let request = self.starts.len();
        let start = self.flags.len();
        self.starts.push(start);
        self.flags.push(true);
        self.flags.resize(start + self.survivals.len(), false);
        for (node, &survival) in self.survivals.iter().enumerate().skip(1).filter(|(_, survival)| **survival > 0.0) {
            self.candidates.push(Candidate { survival, request: request as u32, flag: start + node });
        }
        request
    }

    /// Decides which drafts are checked. `steps_per_second(rows)` is the measured curve SPS(B); it is asked about the
    /// mandatory rows and every number of rows that is considered.
    ///
    /// # Errors
    ///
    /// A curve that is not finite and above 0 somewhere. Nothing is admitted then.
    pub fn admit(
        &mut self,
        mandatory: Mandatory,
        search: Search,
        steps_per_second: impl Fn(usize) -> f64,
    ) -> Result<Admitted, AdmissionError> {
        self.nothing();
        self.candidates.sort_unstable_by(|a, b| {
            b.survival.total_cmp(&a.survival).then(a.request.cmp(&b.request)).then(a.flag.cmp(&b.flag))
        });
        let best = self.search(mandatory, search, steps_per_second)?;
        for candidate in &self.candidates[..best.drafts] {
            self.flags[candidate.flag] = true;
        }
        Ok(best)
    }

    /// The best number of drafts to take from the front of the sorted candidates.
    fn search(
        &self,
        mandatory: Mandatory,
        search: Search,
        steps_per_second: impl Fn(usize) -> f64,
    ) -> Result<Admitted, AdmissionError> {
        let throughput = |tokens: f64, rows: usize| {
            let steps = steps_per_second(rows);
            let usable = steps.is_finite() && steps > 0.0;
            if usable { Ok(tokens * steps) } else { Err(AdmissionError::Curve { rows, steps }) }
        };
        let Mandatory { rows, tokens, max_rows } = mandatory;
        let mut best = Admitted { drafts: 0, rows, tokens, throughput: throughput(tokens, rows)? };
        let mut next = best;
        let room = max_rows.saturating_sub(rows);
        let limit = if let Search::Budget(budget) = search { room.min(budget) } else { room };
        for candidate in self.candidates.iter().take(limit) {
            next.drafts += 1;
            next.rows += 1;
            next.tokens += candidate.survival;
            next.throughput = throughput(next.tokens, next.rows)?;
            match search {
                Search::Budget(_) => best = next,
                _ if next.throughput > best.throughput => best = next,
                Search::EarlyStop => break,
                Search::Global => {}
            }
        }
        Ok(best)
    }

    /// Admits no draft.
    fn nothing(&mut self) {
        self.flags.fill(false);
        self.starts.iter().for_each(|&start| self.flags[start] = true);
    }

    /// Requests that were added.
    pub fn requests(&self) -> usize {
        self.starts.len()
    }

    /// Which nodes of a request are checked, `[its drafts + 1]`; the anchor always is. Empty for a request that was not
    /// added.
    pub fn kept(&self, request: usize) -> &[bool] {
        let Some(&start) = self.starts.get(request) else { return &[] };
        let end = self.starts.get(request + 1).copied().unwrap_or(self.flags.len());
        &self.flags[start..end]
    }

    /// How many drafts of a request are checked: of a chain, its first so many.
    pub fn drafts(&self, request: usize) -> usize {
        self.kept(request).iter().skip(1).filter(|&&kept| kept).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(confidences: &[f64]) -> Vec<f64> {
        confidences.iter().scan(1.0, |survival, c| Some(*survival * c).inspect(|next| *survival = *next)).collect()
    }

    /// A curve from SPS(1), SPS(2), ...
    fn curve(steps: &[f64]) -> impl Fn(usize) -> f64 {
        move |rows| steps[rows - 1]
    }

    #[test]
    fn the_worked_example_keeps_three() {
        let survivals = chain(&[0.95, 0.92, 0.85, 0.30]);
        let steps = [1000.0, 520.0, 400.0, 340.0, 280.0];
        let expected = [1000.0, 1014.0, 1129.6, 1212.746, 1061.136];
        let mut admission = Admission::new();
        admission.add_chain(&survivals).unwrap();
        for (budget, theta) in expected.into_iter().enumerate() {
            let admitted = admission.admit(Mandatory::requests(1), Search::Budget(budget), curve(&steps)).unwrap();
            assert!((admitted.throughput - theta).abs() < 5e-4, "{admitted:?}");
        }
        for search in [Search::EarlyStop, Search::Global] {
            let admitted = admission.admit(Mandatory::requests(1), search, curve(&steps)).unwrap();
            assert_eq!((admitted.drafts, admitted.rows), (3, 4));
            assert_eq!(admission.drafts(0), 3);
            assert_eq!(admission.kept(0), [true, true, true, true, false]);
        }
    }

    #[test]
    fn only_the_global_search_crosses_a_step_of_the_curve() {
        // A tile boundary between 1 and 2 rows; 2 to 4 rows cost the same.
        let steps = [1.0, 0.5, 0.5, 0.5];
        let mut admission = Admission::new();
        admission.add_chain(&[0.9, 0.8, 0.7]).unwrap();
        let early = admission.admit(Mandatory::requests(1), Search::EarlyStop, curve(&steps)).unwrap();
        assert_eq!(early.drafts, 0);
        let global = admission.admit(Mandatory::requests(1), Search::Global, curve(&steps)).unwrap();
        assert_eq!(global.drafts, 3);
        assert!((global.throughput - 1.7).abs() < 1e-12);
    }

    #[test]
    fn equals_go_by_request_and_then_by_draft() {
        let mut admission = Admission::new();
        for _ in 0..3 {
            admission.add_chain(&[0.5, 0.5]).unwrap();
        }
        admission.admit(Mandatory::requests(3), Search::Budget(3), |_| 1.0).unwrap();
        assert_eq!([0, 1, 2].map(|request| admission.drafts(request)), [2, 1, 0]);
    }

    #[test]
    fn a_draft_that_cannot_survive_is_not_checked() {
        let mut admission = Admission::new();
        admission.add_chain(&[0.5, 0.0, 0.0]).unwrap();
        let admitted = admission.admit(Mandatory::requests(1), Search::Budget(9), |_| 1.0).unwrap();
        assert_eq!(admitted.drafts, 1);
    }

    #[test]
    fn rows_stay_below_the_limit_and_mandatory_rows_beyond_it() {
        let mut admission = Admission::new();
        admission.add_chain(&[0.9; 8]).unwrap();
        let with = |max_rows| Mandatory { rows: 5, tokens: 1.0, max_rows };
        assert_eq!(admission.admit(with(8), Search::Global, |_| 1.0).unwrap().rows, 8);
        assert_eq!(admission.admit(with(3), Search::Global, |_| 1.0).unwrap().rows, 5);
    }

    #[test]
    fn what_cannot_be_is_refused_and_admits_nothing() {
        let mut admission = Admission::new();
        for bad in [f64::NAN, -0.1, 1.1] {
            assert!(matches!(admission.add_chain(&[0.5, bad]), Err(AdmissionError::Survival { draft: 2, .. })));
        }
        assert_eq!(admission.add_chain(&[0.5, 0.6]), Err(AdmissionError::Rising { request: 0, draft: 2 }));
        assert_eq!(admission.requests(), 0);
        let tree = Tree::chain(0, &[1], &[0.5]).unwrap();
        let refused = admission.add_tree(&tree, |_| f64::NAN);
        assert!(matches!(refused, Err(AdmissionError::Confidence { request: 0, draft: 1, .. })));
        admission.add_chain(&[0.9, 0.9]).unwrap();
        admission.admit(Mandatory::requests(1), Search::Budget(2), |_| 1.0).unwrap();
        for bad in [f64::NAN, 0.0, f64::INFINITY] {
            let steps = |rows| if rows == 3 { bad } else { 1.0 };
            let refused = admission.admit(Mandatory::requests(1), Search::Global, steps);
            assert!(matches!(refused, Err(AdmissionError::Curve { rows: 3, .. })));
            assert_eq!(admission.drafts(0), 0);
        }
    }

    #[test]
    fn requests_of_all_lengths_share_a_step_and_the_next_starts_anew() {
        let mut admission = Admission::new();
        for drafts in [0, 7, 1, 3] {
            admission.add_chain(&chain(&vec![0.9; drafts])).unwrap();
        }
        let admitted = admission.admit(Mandatory::requests(4), Search::Global, |_| 1.0).unwrap();
        assert_eq!((admitted.drafts, admitted.rows), (11, 15));
        assert_eq!([0, 1, 2, 3, 4].map(|request| admission.drafts(request)), [0, 7, 1, 3, 0]);
        assert_eq!([0, 1, 2, 3, 4].map(|request| admission.kept(request).len()), [1, 8, 2, 4, 0]);
        admission.clear();
        assert_eq!(admission.requests(), 0);
        assert_eq!(admission.admit(Mandatory::requests(0), Search::Global, |_| 1.0).unwrap().drafts, 0);
    }

    #[test]
    fn of_a_tree_a_tree_is_admitted() {
        // Certain children tie with their parents.
        let tree = Tree::from_parents(0, &[0, 1, 0, 3, 4], &[5, 6, 7, 8, 9], &[0.5, 1.0, 0.5, 1.0, 1.0]).unwrap();
        for budget in 0..=5 {
            let mut admission = Admission::new();
            admission.add_tree(&tree, |node| tree.confidences()[node]).unwrap();
            admission.admit(Mandatory::requests(1), Search::Budget(budget), |_| 1.0).unwrap();
            let (kept, _) = tree.keep(admission.kept(0)).unwrap();
            assert_eq!(kept.drafts(), budget);
        }
    }
}
