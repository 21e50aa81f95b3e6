//! Decoding of every format against blocks that a public reference decoded.

use kernels::{Format, FormatError};
use safetensors::SafeTensors;

const FORMATS: [(&str, Format); 10] = [
    ("F16", Format::F16),
    ("BF16", Format::BF16),
    ("Q4_0", Format::Q4_0),
    ("Q4_1", Format::Q4_1),
    ("Q5_0", Format::Q5_0),
    ("Q5_1", Format::Q5_1),
    ("Q8_0", Format::Q8_0),
    ("Q4_K", Format::Q4K),
    ("Q5_K", Format::Q5K),
    ("Q6_K", Format::Q6K),
];

#[test]
fn decoding_is_the_reference_to_the_bit() {
    let file = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/quant-blocks.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    for (name, format) in FORMATS {
        let raw = tensors.tensor(&format!("{name}.raw")).unwrap();
        let want = tensors.tensor(&format!("{name}.f32")).unwrap();
        assert_eq!(raw.shape()[1], format.block_bytes(), "{name}");
        assert_eq!(want.shape()[1], format.block_len(), "{name}");
        let want: Vec<u32> = want.data().as_chunks().0.iter().map(|&b| u32::from_le_bytes(b)).collect();
        let mut got = vec![0.0; want.len()];
        format.decode(raw.data(), &mut got).unwrap();
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            assert!(same(*got, f32::from_bits(want)), "{name} value {i}: {got} is not {}", f32::from_bits(want));
        }
    }
}

/// Equal bits, or both not a number (the payload of a NaN means nothing).
fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

#[test]
fn f32_decodes_to_itself() {
    let want = [1.5f32, -0.0, f32::MAX, f32::MIN_POSITIVE / 4.0];
    let bytes: Vec<u8> = want.iter().flat_map(|v| v.to_le_bytes()).collect();
    let mut got = [0.0; 4];
    Format::F32.decode(&bytes, &mut got).unwrap();
    assert_eq!(got.map(f32::to_bits), want.map(f32::to_bits));
}

#[test]
fn wrong_sizes_are_errors_and_write_nothing() {
    let mut out = [7.0; 256];
    let short = Format::Q4K.decode(&[0; 143], &mut out);
    assert_eq!(short, Err(FormatError::Size { format: Format::Q4K, got: 143, want: 144 }));
    let ragged = Format::Q8_0.decode(&[0; 34], &mut out[..31]);
    assert_eq!(ragged, Err(FormatError::RaggedRow { format: Format::Q8_0, cols: 31, block: 32 }));
    assert_eq!(out, [7.0; 256]);
}

#[test]
fn values_quantised_to_8_bits_are_within_half_a_step() {
    let values: Vec<f32> = (0..96).map(|i| ((i * 37 % 101) as f32 - 50.0) / if i < 32 { 1e3 } else { 7.0 }).collect();
    let zeros = [0.0; 32];
    let all = [&values[..], &zeros].concat();
    let bytes = Format::quantise_q8_0(&all).unwrap();
    let mut back = vec![0.0; all.len()];
    Format::Q8_0.decode(&bytes, &mut back).unwrap();
    for (block, decoded) in all.chunks(32).zip(back.chunks(32)) {
        let greatest = block.iter().fold(0.0f32, |greatest, value| greatest.max(value.abs()));
        // Half a step of 1/127, and what half precision loses of the scale.
        let error = greatest * (0.5 / 127.0 + 1.0 / 2048.0);
        assert!(block.iter().zip(decoded).all(|(a, b)| (a - b).abs() <= error), "{block:?} {decoded:?}");
    }
    assert!(Format::quantise_q8_0(&[1.0; 33]).is_err());
}
