//! Whose pages hold whose keys and values.
//!
//! The room for the page pool: the K/V memory of all layers, the free pages, for each sequence the table of the pages
//! that hold its positions, and which pages hold a text that may come again. It knows pages, positions, token ids and
//! number formats; what is computed from K/V, a model or the meaning of a token may not enter.
//!
//! A page id is an index into every layer of one cache: the K/V of a position lies at the same slot of each layer. A
//! page is free, or in the tables of one or more sequences, or idle: in no table, but findable by the text that it
//! holds until its place is needed. A page that more than one can read is never written.

mod cache;
mod layout;
mod pages;
mod prefix;
mod sequence;

pub use cache::{Attached, Counts, KvCache, Layers, OutOfPages};
pub use layout::Layout;
pub use prefix::Salt;
pub use sequence::Sequence;
