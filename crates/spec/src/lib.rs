//! The mathematics of speculative decoding: what is accepted, what is checked, what it is worth.
//!
//! The room for pure functions over probabilities, trees of tokens and tables of times. It knows no model, no request,
//! no kernel and no other crate; files, clocks, threads and random generators may not enter. Chance comes in through
//! [`Coins`], so that the code that serves is the code whose output law the tests add up exactly, branch by branch.
//!
//! A [`Proposal`] is a [`Tree`] of drafts below the anchor (the newest committed token) and says which drafts were drawn
//! from a distribution. Admission ([`Admission`]) says how much of it is checked, from survivals and a [`CostCurve`]. The
//! acceptance rules ([`keyed`], [`ratio`], [`typical`]) say which drafts stand and what follows them. Calibration
//! ([`OnlineCalibration`], [`SequentialTemperature`]) makes survivals true. The formulas of cost and capacity say what to
//! expect before anything was measured.

mod accept;
mod admit;
mod calibrate;
mod capacity;
mod coins;
mod cost;
mod curve;
mod distribution;
mod grow;
mod online;
mod proposal;
mod tree;

pub use accept::{Accepted, Opinion, Rule, Typical, UnknownRule, keyed, ratio, typical};
pub use admit::{Admission, AdmissionError, Admitted, Mandatory, Search};
pub use calibrate::{
    Bin, Block, CalibrationError, SequentialTemperature, auc, brier_score, expected_calibration_error, reliability,
};
pub use capacity::{CapacityError, KvFormat, KvShape, Number, Scales, largest_batch};
pub use coins::{Coins, UniformCoins};
pub use cost::{
    CostError, best_draft_length, expected_tokens, expected_tokens_by_position, expected_tokens_of_tree, speedup,
};
pub use curve::{CostCurve, CurveError};
pub use distribution::{Distribution, DistributionError};
pub use grow::{EagleGrowth, Expansion, best_first_tree, eagle_tree, product_tree};
pub use online::OnlineCalibration;
pub use proposal::{Drawn, Proposal, ProposalError};
pub use tree::{Tree, TreeError};
