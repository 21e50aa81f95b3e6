//! The matrix product against f64, and the property that everything leans on: a row's bits depend on that row alone.

use std::num::NonZeroUsize;

use half::{bf16, f16};
use kernels::{Activations, Compute, Format, Isa, Matrix, Packer, Pool, Product, multiply};
use proptest::prelude::*;

const FORMATS: [Format; 11] = [
    Format::F32,
    Format::F16,
    Format::BF16,
    Format::Q4_0,
    Format::Q4_1,
    Format::Q5_0,
    Format::Q5_1,
    Format::Q8_0,
    Format::Q4K,
    Format::Q5K,
    Format::Q6K,
];

/// A small generator: tests must not depend on a library's stream.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }
    fn unit(&mut self) -> f32 {
        self.next() as f32 / (1u64 << 31) as f32 - 1.0
    }
}

fn pool(threads: usize) -> Pool {
    Pool::new(NonZeroUsize::new(threads).expect("not zero"))
}

/// Where a block's f16 scales are: random bits there would be infinite or not a number.
fn scale_offsets(format: Format) -> &'static [usize] {
    match format {
        Format::F32 | Format::F16 | Format::BF16 => &[],
        Format::Q4_0 | Format::Q5_0 | Format::Q8_0 => &[0],
        Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => &[0, 2],
        Format::Q6K => &[208],
    }
}

/// Random weights: every bit pattern of the quantised part, sane scales.
fn weights(format: Format, outputs: usize, inputs: usize, random: &mut Random) -> Vec<u8> {
    let bytes = format.bytes(outputs, inputs).expect("whole blocks");
    match format {
        Format::F32 => (0..outputs * inputs).flat_map(|_| random.unit().to_le_bytes()).collect(),
        Format::F16 => (0..outputs * inputs).flat_map(|_| f16::from_f32(random.unit()).to_le_bytes()).collect(),
        Format::BF16 => (0..outputs * inputs).flat_map(|_| bf16::from_f32(random.unit()).to_le_bytes()).collect(),
        _ => {
            let mut data: Vec<u8> = (0..bytes).map(|_| random.next() as u8).collect();
            for block in data.chunks_exact_mut(format.block_bytes()) {
                for &at in scale_offsets(format) {
                    block[at..at + 2].copy_from_slice(&f16::from_f32(random.unit() / 16.0).to_le_bytes());
                }
            }
            data
        }
    }
}

fn pack(pool: &Pool, isa: Isa, compute: Compute, format: Format, shape: (usize, usize), data: &[u8]) -> Matrix {
    Packer::new(pool, isa, compute).pack(format, shape, data, |_| {}).expect("packs")
}

/// The product of `rows` (each `[inputs]`) by one matrix.
fn product(pool: &Pool, isa: Isa, matrix: &Matrix, rows: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let mut x = Activations::new();
    let quantise = matrix.format().is_quantised();
    x.fill(pool, isa, (rows.len(), matrix.inputs()), quantise, |row, out| out.copy_from_slice(&rows[row]));
    let mut out = vec![f32::NAN; rows.len() * matrix.outputs()];
    multiply(pool, &x, &mut [Product::new(matrix, &mut out)]);
    out.chunks_exact(matrix.outputs()).map(<[f32]>::to_vec).collect()
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn packing_loses_no_bit() {
    let mut random = Random(7);
    let pool = pool(2);
    for format in FORMATS {
        // Neither 8 nor 16 divides 37: the last panel is partly empty.
        let (outputs, inputs) = (37, 512);
        let data = weights(format, outputs, inputs, &mut random);
        let row_bytes = data.len() / outputs;
        for isa in Isa::available() {
            for compute in [Compute::Stored, Compute::F32] {
                let matrix = pack(&pool, isa, compute, format, (outputs, inputs), &data);
                for row in 0..outputs {
                    let (mut want, mut got) = (vec![0.0; inputs], vec![0.0; inputs]);
                    format.decode(&data[row * row_bytes..(row + 1) * row_bytes], &mut want).expect("decodes");
                    matrix.row(row, &mut got);
                    assert_eq!(got, want, "{format:?} {isa} {compute:?} row {row}");
                }
            }
        }
    }
}

#[test]
fn packed_bytes_are_those_of_the_file() {
    let pool = pool(1);
    for format in FORMATS {
        let (outputs, inputs) = (48, 512);
        let data = weights(format, outputs, inputs, &mut Random(1));
        for isa in Isa::available() {
            let packed = pack(&pool, isa, Compute::Stored, format, (outputs, inputs), &data).packed_bytes();
            // The 6-bit scales of the K formats take a byte each, hence the three per cent.
            assert!(packed >= data.len() && packed as f64 <= data.len() as f64 * 1.03, "{format:?} {isa}: {packed}");
        }
    }
}

#[test]
fn products_agree_with_f64() {
    let mut random = Random(11);
    for format in FORMATS {
        for (outputs, inputs) in [(1, 256), (8, 256), (17, 768), (50, 1536)] {
            let data = weights(format, outputs, inputs, &mut random);
            let mut decoded = vec![0.0; outputs * inputs];
            format.decode(&data, &mut decoded).expect("decodes");
            // Whole numbers with a 127 in every block are their own 8-bit form: what is left is rounding alone.
            let rows: Vec<Vec<f32>> = (0..9)
                .map(|_| {
                    let mut row: Vec<f32> = (0..inputs).map(|_| (random.unit() * 127.0).round()).collect();
                    row.iter_mut().step_by(32).for_each(|v| *v = 127.0);
                    row
                })
                .collect();
            for isa in Isa::available() {
                for compute in [Compute::Stored, Compute::F32] {
                    let pool = pool(2);
                    let matrix = pack(&pool, isa, compute, format, (outputs, inputs), &data);
                    let got = product(&pool, isa, &matrix, &rows);
                    for (row, got) in rows.iter().zip(&got) {
                        for (output, &got) in got.iter().enumerate() {
                            let weights = &decoded[output * inputs..(output + 1) * inputs];
                            let terms = row.iter().zip(weights).map(|(x, w)| f64::from(*x) * f64::from(*w));
                            let (mut want, mut size) = (0.0, 0.0);
                            terms.for_each(|term| (want, size) = (want + term, size + term.abs()));
                            // A constant of the block is added apart from its weights, so it counts on its own.
                            let constants = 1.0 + 32.0 * f64::from(format.is_quantised());
                            let limit = size * 1e-6 * constants + 1e-6;
                            assert!(
                                (f64::from(got) - want).abs() <= limit,
                                "{format:?} {isa} {compute:?} [{outputs}, {inputs}] output {output}: {got} for {want}"
                            );
                        }
                    }
                }
            }
        }
    }
}

/// Whether multiplying rows in the batches `cuts` gives the bits of multiplying each alone.
fn rows_are_independent(rows: &[Vec<f32>], cuts: &[usize], product: impl Fn(&[Vec<f32>]) -> Vec<Vec<f32>>) -> bool {
    let alone: Vec<Vec<u32>> = rows.iter().map(|row| bits(&product(std::slice::from_ref(row))[0])).collect();
    let mut start = 0;
    for &cut in cuts {
        let batch = &rows[start..(start + cut).min(rows.len())];
        if batch.is_empty() {
            break;
        }
        let together: Vec<Vec<u32>> = product(batch).iter().map(|row| bits(row)).collect();
        if together != alone[start..start + batch.len()] {
            return false;
        }
        start += batch.len();
    }
    true
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    #[test]
    fn a_row_has_the_same_bits_in_any_batch_on_any_threads(
        seed: u64,
        format in prop::sample::select(FORMATS.to_vec()),
        isa in prop::sample::select(Isa::available()),
        outputs in 1usize..70,
        blocks in 1usize..5,
        cuts in prop::collection::vec(1usize..40, 1..5),
        threads in 1usize..4,
    ) {
        let mut random = Random(seed);
        let inputs = blocks * format.block_len().max(32);
        let data = weights(format, outputs, inputs, &mut random);
        let rows: Vec<Vec<f32>> = (0..cuts.iter().sum())
            .map(|_| (0..inputs).map(|_| random.unit() * 3.0).collect())
            .collect();
        let (single, many) = (pool(1), pool(threads));
        let matrix = pack(&many, isa, Compute::Stored, format, (outputs, inputs), &data);
        let holds = rows_are_independent(&rows, &cuts, |batch| {
            product(if batch.len() == 1 { &single } else { &many }, isa, &matrix, batch)
        });
        prop_assert!(holds);
    }
}

#[test]
fn up_to_512_rows_and_several_matrices_at_once() {
    let mut random = Random(3);
    for isa in Isa::available() {
        let pool = pool(2);
        let inputs = 256;
        let first = weights(Format::Q4_1, 24, inputs, &mut random);
        let second = weights(Format::Q6K, 40, inputs, &mut random);
        let first = pack(&pool, isa, Compute::Stored, Format::Q4_1, (24, inputs), &first);
        let second = pack(&pool, isa, Compute::Stored, Format::Q6K, (40, inputs), &second);
        let rows: Vec<Vec<f32>> = (0..512).map(|_| (0..inputs).map(|_| random.unit()).collect()).collect();
        let mut x = Activations::new();
        x.fill(&pool, isa, (512, inputs), true, |row, out| out.copy_from_slice(&rows[row]));
        let (mut left, mut right) = (vec![1.0; 512 * 24], vec![2.0; 512 * 40]);
        multiply(
            &pool,
            &x,
            &mut [Product { matrix: &first, out: &mut left, accumulate: true }, Product::new(&second, &mut right)],
        );
        for row in [0, 1, 127, 128, 300, 511] {
            let alone_first = &product(&pool, isa, &first, &rows[row..=row])[0];
            let alone_second = &product(&pool, isa, &second, &rows[row..=row])[0];
            let plus_one: Vec<f32> = alone_first.iter().map(|v| 1.0 + v).collect();
            assert_eq!(bits(&left[row * 24..(row + 1) * 24]), bits(&plus_one), "{isa} row {row}");
            assert_eq!(bits(&right[row * 40..(row + 1) * 40]), bits(alone_second), "{isa} row {row}");
        }
    }
}

/// A product whose sum is cut into as many parts as there are rows: what the property above must catch.
fn depends_on_rows(weights: &[f32], inputs: usize, rows: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let parts = rows.len();
    rows.iter()
        .map(|row| {
            weights
                .chunks_exact(inputs)
                .map(|weights| {
                    let part = |p: usize| (p..inputs).step_by(parts).map(|i| row[i] * weights[i]).sum::<f32>();
                    (0..parts).map(part).sum::<f32>()
                })
                .collect()
        })
        .collect()
}

#[test]
fn the_property_fails_for_a_reduction_that_depends_on_the_batch() {
    let mut random = Random(5);
    let (inputs, outputs) = (256, 20);
    let weights: Vec<f32> = (0..inputs * outputs).map(|_| random.unit()).collect();
    let rows: Vec<Vec<f32>> = (0..8).map(|_| (0..inputs).map(|_| random.unit()).collect()).collect();
    assert!(rows_are_independent(&rows, &[1, 1, 1, 1], |batch| depends_on_rows(&weights, inputs, batch)));
    assert!(!rows_are_independent(&rows, &[4, 4], |batch| depends_on_rows(&weights, inputs, batch)));
}

#[test]
fn a_matrix_that_does_not_fit_its_bytes_is_refused() {
    let pool = pool(1);
    let data = vec![0; 100];
    for (format, shape) in [(Format::Q4_0, (2, 33)), (Format::F32, (5, 6)), (Format::Q8_0, (0, 32))] {
        assert!(Packer::new(&pool, Isa::Portable, Compute::Stored).pack(format, shape, &data, |_| {}).is_err());
    }
}
