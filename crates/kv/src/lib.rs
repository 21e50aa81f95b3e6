//! Whose pages hold whose keys and values.
//!
//! The room for the page pool: the K/V memory of all layers, the free pages, and for each sequence the table of the
//! pages that hold its positions. It knows pages, positions and number formats; what is computed from K/V, a model or a
//! token may not enter.
//!
//! A page id is an index into every layer of one cache: the K/V of a position lies at the same slot of each layer. A
//! page is either free or in exactly one sequence's table.

mod cache;
mod layout;

pub use cache::{KvCache, OutOfPages, Sequence};
pub use layout::Layout;
