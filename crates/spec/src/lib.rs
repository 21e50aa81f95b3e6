//! The mathematics of speculative decoding: what is accepted, what is checked, what it is worth.
//!
//! The room for pure functions over probabilities, trees of tokens and tables of times. It knows no model, no request,
//! no kernel and no other crate; files, clocks, threads and random generators may not enter. Chance comes in through
//! [`Coins`], so that the code that serves is the code whose output law the tests add up exactly, branch by branch.
//!
//! A [`Proposal`] is a [`Tree`] of drafts below the anchor (the newest committed token) and says which drafts were drawn
//! from a distribution. [`Admission`] says how much of it is checked, from survivals and a curve of steps a second. The
//! acceptance rules ([`keyed`], [`ratio`], [`typical`]) say which drafts stand and what follows them.

mod accept;
mod admit;
mod coins;
mod distribution;
mod proposal;
mod tree;

pub use accept::{Accepted, Rule, Typical, UnknownRule, keyed, ratio, typical};
pub use admit::{Admission, AdmissionError, Admitted, Mandatory, Search};
pub use coins::{Coins, UniformCoins};
pub use distribution::{Distribution, DistributionError};
pub use proposal::{Drawn, Proposal, ProposalError};
pub use tree::{Tree, TreeError};
