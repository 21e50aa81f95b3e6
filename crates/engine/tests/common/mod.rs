//! What several tests need.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::num::NonZeroUsize;

use kernels::Pool;
use model::Model;
pub(crate) use testkit::byte_tokenizer;

/// The tiny Llama of the fixtures, and a pool of so many threads.
pub(crate) fn tiny_llama(threads: usize) -> (Model, Pool) {
    let pool = Pool::new(NonZeroUsize::new(threads).unwrap());
    (testkit::target("llama", &pool), pool)
}
