//! Chance that the run's seed decides: every use has numbers of its own, so that what was done before a kill changes nothing
//! that comes after it.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

/// What random numbers are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// How an invented prompt begins.
    Opening = 1,
    /// How it goes on.
    Invention,
    /// The answer to a prompt of a file.
    Answer,
    /// The answer to an invented prompt.
    OwnAnswer,
    /// Which texts are held out.
    HeldOut,
    /// Weights before training.
    Weights,
    /// The order of the texts in a pass over them.
    Order,
    /// Anchors of a step.
    Anchors,
}

/// The numbers of this `purpose` number `index`.
pub(crate) fn chance(seed: u64, purpose: Purpose, index: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // 56 bits of index are more than any run has of anything.
    rng.set_stream((purpose as u64) << 56 | index);
    rng
}
