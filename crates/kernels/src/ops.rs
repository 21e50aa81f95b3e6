//! What happens to one row between two matrix products: norm, gate, residual, rotary embedding, softmax.
//!
//! Each function takes one row (or one head of it) and the instruction set. The order of every sum follows from the
//! row's length, so a row's bits depend on that row alone. What a row belongs to may not enter.

mod exp;
mod gate;
mod norm;
mod rope;
mod softmax;

pub(crate) use exp::exp;
pub use gate::{add, silu_mul};
pub use norm::{rms_norm, rms_norm_in_place};
pub use rope::{Rope, RopeLayout};
pub use softmax::softmax;
