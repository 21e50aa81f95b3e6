//! SIMD arithmetic on rows, and nothing else.
//!
//! The room for the loops that a step spends its time in: packed weight formats and the skinny matrix product,
//! attention over pages of K/V, norms, RoPE, the gate, and the thread pool that they run on. It knows rows, columns,
//! pages and positions; a model, a request or a file may not enter.
//!
//! One rule binds every kernel: **a row's bits depend on that row alone**. The order of a reduction follows from the
//! row's own length, never from how many rows share the call, how the rows are split into calls, or how many threads
//! run. Threads split outputs, never a reduction.
//!
//! All `unsafe` of the project lives here (and in the mmap of weight files).

mod activations;
mod aligned;
mod attention;
mod format;
mod isa;
mod lanes;
mod matrix;
mod ops;
mod pool;
pub mod probe;
mod simd;

pub use activations::Activations;
pub use attention::{Attention, AttentionRow, KvFormat, KvLayer, KvSlot, PAGE, Strided};
pub use format::{Format, FormatError};
pub use isa::{Isa, UnknownIsa};
pub use matrix::{Compute, Matrix, PackError, Packer, Product, multiply};
pub use ops::{Rope, RopeLayout, add, rms_norm, rms_norm_in_place, silu_mul, softmax};
pub use pool::Pool;
