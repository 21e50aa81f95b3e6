//! How large a page is.

use kernels::{KvFormat, PAGE};

/// The shape of a model's K/V.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Layers.
    pub layers: usize,
    /// K/V heads of each layer.
    pub kv_heads: usize,
    /// Numbers of one head.
    pub head_dim: usize,
    /// The format of the numbers.
    pub format: KvFormat,
}

impl Layout {
    /// Bytes that one position takes, K and V of all layers.
    pub fn bytes_per_token(&self) -> usize {
        2 * self.layers * self.kv_heads * self.head_dim * self.format.bytes()
    }

    /// Bytes that one page takes, K and V of all layers.
    pub fn bytes_per_page(&self) -> usize {
        PAGE * self.bytes_per_token()
    }
}
