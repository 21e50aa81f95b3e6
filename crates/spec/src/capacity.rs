//! What keys and values need, and how many requests fit.

/// What a model keeps for a token in its layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvShape {
    /// Keys and values of so many heads: all of the model's in MHA, a group's share in GQA (Ainslie et al. 2023), 1 in MQA
    /// (Shazeer 2019). Elements of a token: 2 · layers · kv_heads · head_dim.
    Heads {
        /// Layers that keep keys and values.
        layers: u64,
        /// Heads of keys and values, not of queries.
        kv_heads: u64,
        /// Elements of one head.
        head_dim: u64,
    },
    /// One latent and one shared rotary key (MLA, DeepSeek-V2, section 2.1). Elements of a token: layers · (latent +
    /// rotary); there is no factor 2, as keys and values come out of the same latent.
    Latent {
        /// Layers.
        layers: u64,
        /// Elements of the latent, d_c.
        latent: u64,
        /// Elements of the rotary key, d_R.
        rotary: u64,
    },
}

/// The number format of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Number {
    F32,
    F16,
    Bf16,
    Fp8,
    Int8,
    Int4,
}

impl Number {
    /// Bits of an element.
    pub fn bits(self) -> u64 {
        match self {
            Number::F32 => 32,
            Number::F16 | Number::Bf16 => 16,
            Number::Fp8 | Number::Int8 => 8,
            Number::Int4 => 4,
        }
    }
}

/// What a quantised format keeps beside the elements of a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scales {
    /// Elements of a vector that share a scale, at least 1. A vector's last group may be smaller.
    pub group: u64,
    /// Bits of a group's scale, and of its zero point if it has one.
    pub bits: u64,
}

/// How keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvFormat {
    /// The elements' format.
    pub number: Number,
    /// The scales beside them, if any.
    pub scales: Option<Scales>,
}

impl From<Number> for KvFormat {
    fn from(number: Number) -> KvFormat {
        KvFormat { number, scales: None }
    }
}

/// Sizes that no machine has.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum CapacityError {
    #[error("the size is above 2^64 bytes: check the layers, heads and context that were given")]
    TooLarge,
    #[error("{what} is 0: it must be at least 1")]
    Zero { what: &'static str },
}

impl KvShape {
    /// Bytes that a token needs in all layers, rounded up.
    ///
    /// # Errors
    ///
    /// A shape with a 0 (of a latent shape, `rotary` may be), a scale group of 0, or a size beyond 2^64.
    pub fn bytes_per_token(&self, format: KvFormat) -> Result<u64, CapacityError> {
        Ok(self.bits_per_token(format)?.div_ceil(8))
    }

    /// Bytes that a request of `context` tokens needs: 2 · L · layers · kv_heads · head_dim · bytes for heads. `page` tokens
    /// are handed out at a time; 1 gives the formula.
    ///
    /// # Errors
    ///
    /// As [`bytes_per_token`](KvShape::bytes_per_token), and a page of 0.
    pub fn bytes_per_request(&self, format: KvFormat, context: u64, page: u64) -> Result<u64, CapacityError> {
        let page = at_least_1(page, "the page size")?;
        let tokens = context.div_ceil(page).checked_mul(page).ok_or(CapacityError::TooLarge)?;
        let bits = self.bits_per_token(format)?.checked_mul(tokens).ok_or(CapacityError::TooLarge)?;
        Ok(bits.div_ceil(8))
    }

    fn bits_per_token(&self, format: KvFormat) -> Result<u64, CapacityError> {
        let (vectors, elements) = match *self {
            KvShape::Heads { layers, kv_heads, head_dim } => {
                let layers = at_least_1(layers, "the number of layers")?;
                let vectors = product([2, layers, at_least_1(kv_heads, "the number of KV heads")?])?;
                (vectors, at_least_1(head_dim, "the head size")?)
            }
            KvShape::Latent { layers, latent, rotary } => {
                let latent = at_least_1(latent, "the latent size")?;
                (
                    at_least_1(layers, "the number of layers")?,
                    latent.checked_add(rotary).ok_or(CapacityError::TooLarge)?,
                )
            }
        };
        let mut bits = product([elements, format.number.bits()])?;
        if let Some(scales) = format.scales {
            let groups = elements.div_ceil(at_least_1(scales.group, "the group of a scale")?);
            bits = bits.checked_add(product([groups, scales.bits])?).ok_or(CapacityError::TooLarge)?;
        }
        product([vectors, bits])
    }
}

/// How many requests of `bytes_per_request` fit into `memory` bytes of which `reserved` are taken by weights, activations
/// and whatever else. 0 if none does.
///
/// # Errors
///
/// Requests of 0 bytes.
pub fn largest_batch(memory: u64, reserved: u64, bytes_per_request: u64) -> Result<u64, CapacityError> {
    Ok(memory.saturating_sub(reserved) / at_least_1(bytes_per_request, "the size of a request")?)
}

fn at_least_1(number: u64, what: &'static str) -> Result<u64, CapacityError> {
    if number == 0 { Err(CapacityError::Zero { what }) } else { Ok(number) }
}

fn product<const N: usize>(factors: [u64; N]) -> Result<u64, CapacityError> {
    factors.into_iter().try_fold(1, u64::checked_mul).ok_or(CapacityError::TooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: f64 = (1u64 << 30) as f64;

    fn heads(layers: u64, kv_heads: u64) -> KvShape {
        KvShape::Heads { layers, kv_heads, head_dim: 128 }
    }

    #[test]
    fn requests_of_4096_tokens_have_the_known_sizes() {
        let latent = KvShape::Latent { layers: 60, latent: 512, rotary: 64 };
        let table = [
            ("Llama-2-7B, MHA", heads(32, 32), 2.0),
            ("70B, were it MHA", heads(80, 64), 10.0),
            ("Llama-3-70B, GQA", heads(80, 8), 1.25),
            ("70B, were it MQA", heads(80, 1), 0.15625),
            ("DeepSeek-V2, MLA", latent, 0.263_671_875),
        ];
        for (name, shape, gib) in table {
            let bytes = shape.bytes_per_request(Number::F16.into(), 4096, 1).unwrap();
            assert_eq!(bytes as f64 / GIB, gib, "{name}");
        }
        // The seeds' table says some 0.27 GB and a quarter of MHA's size in int4.
        assert_eq!(latent.bytes_per_token(Number::F16.into()), Ok(60 * 576 * 2));
        assert_eq!(heads(80, 64).bytes_per_request(Number::Int4.into(), 4096, 1).unwrap() as f64 / GIB, 2.5);
    }

    #[test]
    fn formats_have_their_bits_and_scales() {
        let shape = heads(1, 1);
        for (number, bytes) in [
            (Number::F32, 1024),
            (Number::F16, 512),
            (Number::Bf16, 512),
            (Number::Fp8, 256),
            (Number::Int8, 256),
            (Number::Int4, 128),
        ] {
            assert_eq!(shape.bytes_per_token(number.into()), Ok(bytes));
        }
        // A scale in f16 for 32 elements, as Q8_0 has; a scale and a zero point for the head; a group that does not divide.
        let with = |number, group, bits| KvFormat { number, scales: Some(Scales { group, bits }) };
        assert_eq!(shape.bytes_per_token(with(Number::Int8, 32, 16)), Ok(256 + 2 * 4 * 2));
        assert_eq!(shape.bytes_per_token(with(Number::Int4, 128, 32)), Ok(128 + 2 * 4));
        assert_eq!(shape.bytes_per_token(with(Number::Int4, 100, 16)), Ok(128 + 2 * 2 * 2));
    }

    #[test]
    fn pages_are_handed_out_whole() {
        let shape = heads(1, 1);
        let size = |context| shape.bytes_per_request(Number::F16.into(), context, 16).unwrap();
        assert_eq!([size(0), size(1), size(16), size(17)], [0, 16 * 512, 16 * 512, 32 * 512]);
    }

    #[test]
    fn as_many_requests_fit_as_the_memory_holds() {
        // 400 GiB for requests of 1.25 GiB.
        let request = heads(80, 8).bytes_per_request(Number::F16.into(), 4096, 1).unwrap();
        assert_eq!(largest_batch(640 << 30, 240 << 30, request), Ok(320));
        assert_eq!(largest_batch(1 << 30, 2 << 30, request), Ok(0));
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        assert!(matches!(heads(0, 8).bytes_per_token(Number::F16.into()), Err(CapacityError::Zero { .. })));
        let huge = heads(u64::MAX, 2);
        assert_eq!(huge.bytes_per_token(Number::F16.into()), Err(CapacityError::TooLarge));
        assert_eq!(heads(80, 8).bytes_per_request(Number::F16.into(), u64::MAX, 16), Err(CapacityError::TooLarge));
        assert!(heads(1, 1).bytes_per_request(Number::F16.into(), 1, 0).is_err());
        assert!(largest_batch(1, 0, 0).is_err());
        let groupless = KvFormat { number: Number::Int8, scales: Some(Scales { group: 0, bits: 16 }) };
        assert!(heads(1, 1).bytes_per_token(groupless).is_err());
    }
}
