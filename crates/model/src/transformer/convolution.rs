//! Short convolutions along a block, whose weights depend on the row (DFlash 2): before a sublayer on what goes into it, and
//! after it on what comes out. A row takes in those before it in its block and nothing from outside.

use kernels::{Activations, Isa, Matrix, Pool, Product, multiply};

use crate::load::{LoadError, Loader};

/// The numbers of all convolutions of a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvolutionShape {
    /// Rows that go into one: itself and those before it.
    pub taps: usize,
    /// Neighbouring channels that share what a row adds to the weights.
    pub group: usize,
}

/// The two convolutions around one sublayer.
pub(super) struct Convolution {
    shape: ConvolutionShape,
    /// Weights of every row, before and after the sublayer: `[2, taps, hidden]`.
    base: Vec<f32>,
    /// What a row adds to them, from what goes into the sublayer: `[2 * taps * hidden / group, hidden]`.
    dynamic: Matrix,
}

/// The buffers of a forward with convolutions.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    /// `[rows, hidden]`
    pub(super) before: Vec<f32>,
    /// `[rows, hidden]`
    pub(super) after: Vec<f32>,
    /// What rows add to the weights, `[rows, 2 * taps * hidden / group]`.
    dynamic: Vec<f32>,
}

/// Which side of a sublayer.
#[derive(Clone, Copy)]
pub(super) enum Side {
    Before = 0,
    After = 1,
}

impl Convolution {
    /// Those of tensors whose names begin with `name`.
    pub(super) fn load(
        loader: &Loader<'_>,
        name: &str,
        shape: ConvolutionShape,
        hidden: usize,
    ) -> Result<Convolution, LoadError> {
        let ConvolutionShape { taps, group } = shape;
        let base = loader.weights.tensor(&format!("{name}.base_kernel"), &[2, taps, hidden])?.to_f32()?;
        let shape_of_dynamic = [2 * taps * (hidden / group), hidden];
        let dynamic = loader.matrix(&format!("{name}.kernel_projection.weight"), shape_of_dynamic)?;
        Ok(Convolution { shape, base, dynamic })
    }

    /// Works out what the rows `buffers.before` add to the weights, for both sides.
    pub(super) fn look(&self, x: &mut Activations, pool: &Pool, isa: Isa, buffers: &mut Buffers) {
        let Buffers { before, dynamic, .. } = buffers;
        let width = self.dynamic.inputs();
        let rows = before.len() / width;
        x.fill(pool, isa, (rows, width), self.dynamic.format().is_quantised(), |row, out| {
            out.copy_from_slice(&before[row * width..(row + 1) * width]);
        });
        dynamic.resize(rows * self.dynamic.outputs(), 0.0);
        multiply(pool, x, &mut [Product::new(&self.dynamic, dynamic)]);
    }

    /// From `buffers.before` to `buffers.after`, in blocks of so many rows.
    pub(super) fn run(&self, pool: &Pool, side: Side, block: usize, buffers: &mut Buffers) {
        let Buffers { before, after, dynamic } = buffers;
        let ConvolutionShape { taps, group } = self.shape;
        let width = self.dynamic.inputs();
        let (rows, groups) = (before.len() / width, width / group);
        after.resize(rows * width, 0.0);
        pool.for_each_row(after, rows, |row, out| {
            out.fill(0.0);
            for tap in 0..taps.min(row % block + 1) {
                let from = &before[(row - tap) * width..(row - tap + 1) * width];
                let part = side as usize * taps + tap;
                let base = &self.base[part * width..(part + 1) * width];
                let own = &dynamic[(row * 2 * taps + part) * groups..(row * 2 * taps + part + 1) * groups];
                for (channel, (out, from)) in out.iter_mut().zip(from).enumerate() {
                    *out += (base[channel] + own[channel / group]) * from;
                }
            }
        });
    }
}
