//! Taking GGUF blocks apart and putting their parts into a panel's lane: the slow half of packing, done once at load.

/// The 32 weights of a block as unsigned numbers, whatever their width.
pub(super) struct Plane([u8; 32]);

impl Plane {
    /// Weights `i` and `i + 16` share byte `i`.
    pub(super) fn nibbles(bytes: &[u8]) -> Plane {
        Plane(std::array::from_fn(|i| if i < 16 { bytes[i] & 15 } else { bytes[i - 16] >> 4 }))
    }

    /// Adds bit `i` of a little-endian word as the fifth bit of weight `i`.
    pub(super) fn with_fifth(mut self, word: &[u8]) -> Plane {
        for (i, q) in self.0.iter_mut().enumerate() {
            *q |= ((word[i / 8] >> (i % 8)) & 1) << 4;
        }
        self
    }

    /// Block `block` of eight in a K block: two blocks share 32 bytes, the even one in the low nibbles.
    pub(super) fn k_nibbles(bytes: &[u8], block: usize) -> Plane {
        let at = &bytes[32 * (block / 2)..32 * (block / 2) + 32];
        Plane(std::array::from_fn(|i| (at[i] >> (4 * (block % 2))) & 15))
    }

    /// Bit `block` of byte `i` is the fifth bit of weight `i` of block `block`.
    pub(super) fn with_k_fifth(mut self, bits: &[u8], block: usize) -> Plane {
        for (i, q) in self.0.iter_mut().enumerate() {
            *q |= ((bits[i] >> block) & 1) << 4;
        }
        self
    }

    /// Block `block` of eight in a Q6_K block: 128 weights share 64 bytes of nibbles and 32 bytes of upper bits.
    pub(super) fn six_bits(low: &[u8], upper: &[u8], block: usize) -> Plane {
        let (half, quarter) = (block / 4, block % 4);
        Plane(std::array::from_fn(|i| {
            let nibble = (low[64 * half + 32 * (quarter % 2) + i] >> (4 * (quarter / 2))) & 15;
            nibble | (((upper[32 * half + i] >> (2 * quarter)) & 3) << 4)
        }))
    }
}

/// The 6-bit scale and minimum of block `block` from the 12 bytes of a Q4_K or Q5_K block.
pub(super) fn k_scale_min(scales: &[u8], block: usize) -> (u8, u8) {
    if block < 4 {
        (scales[block] & 63, scales[block + 4] & 63)
    } else {
        let low = scales[block + 4];
        ((low & 15) | ((scales[block - 4] >> 6) << 4), (low >> 4) | ((scales[block] >> 6) << 4))
    }
}

/// One output's place in a chunk. Offsets are in bytes a lane: field `at` of a chunk of `lanes` begins at `at * lanes`.
pub(super) struct Lane<'a> {
    pub(super) chunk: &'a mut [u8],
    pub(super) lanes: usize,
    pub(super) lane: usize,
}

impl Lane<'_> {
    /// A 16-bit number in a field of one a lane.
    pub(super) fn half(&mut self, at: usize, bytes: &[u8]) {
        let start = at * self.lanes + 2 * self.lane;
        self.chunk[start..start + 2].copy_from_slice(bytes);
    }

    /// A byte in a field of one a lane.
    pub(super) fn byte(&mut self, at: usize, byte: u8) {
        self.chunk[at * self.lanes + self.lane] = byte;
    }

    /// Byte `b` of vector `j` in a field of vectors.
    fn vector(&mut self, at: usize, j: usize, b: usize) -> &mut u8 {
        &mut self.chunk[at * self.lanes + 4 * self.lanes * j + 4 * self.lane + b]
    }

    /// Eight vectors of bytes.
    pub(super) fn bytes(&mut self, at: usize, q: &[u8]) {
        for (i, &q) in q.iter().enumerate() {
            *self.vector(at, i / 4, i % 4) = q;
        }
    }

    /// Four vectors of nibbles: the first 16 weights are the low ones.
    pub(super) fn nibbles(&mut self, at: usize, q: &Plane) {
        for i in 0..16 {
            *self.vector(at, i / 4, i % 4) = (q.0[i] & 15) | (q.0[i + 16] << 4);
        }
    }

    /// One vector of fifth bits: bit `j` of its bytes belongs to vector `j`.
    pub(super) fn fifth_bits(&mut self, at: usize, q: &Plane) {
        for (i, &q) in q.0.iter().enumerate() {
            *self.vector(at, 0, i % 4) |= (q >> 4) << (i / 4);
        }
    }

    /// Two vectors of the bits 4 and 5: pair `j % 4` of the bytes of vector `j / 4` belongs to vector `j`.
    pub(super) fn upper_pairs(&mut self, at: usize, q: &Plane) {
        for (i, &q) in q.0.iter().enumerate() {
            let j = i / 4;
            *self.vector(at, j / 4, i % 4) |= (q >> 4) << (2 * (j % 4));
        }
    }
}
