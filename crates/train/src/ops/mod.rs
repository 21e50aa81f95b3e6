//! Operations with gradients that candle lacks, or composes of many passes over memory: each goes over its rows once.
//!
//! A room for arithmetic and its derivative. Rows are split among threads, and what is summed over rows is summed in parts of
//! a fixed size, in order: the same bits whatever the threads do. What the rows mean may not enter.

mod gate;
mod given;
mod norm;
mod rotate;
mod visible;

use candle_core::{CpuStorage, Layout, Result, Tensor, bail};

pub(crate) use gate::silu_mul;
pub(crate) use given::{given, given_by_three, times_constant};
pub(crate) use norm::rms_norm;
pub(crate) use rotate::{Rotation, rotate};
pub(crate) use visible::{Visible, visible_softmax};

/// The numbers of a contiguous operand.
fn numbers<'s>(storage: &'s CpuStorage, layout: &Layout) -> Result<&'s [f32]> {
    match layout.contiguous_offsets() {
        Some((from, to)) => Ok(&storage.as_slice::<f32>()?[from..to]),
        None => bail!("an operand is not contiguous"),
    }
}

/// The numbers of a tensor, in order.
pub(crate) fn values(tensor: &Tensor) -> Result<Vec<f32>> {
    tensor.flatten_all()?.to_vec1()
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;

    /// Compares the gradients of `sum(weights * f(inputs))` with differences of f, at every number of every input.
    fn check(shapes: &[&[usize]], f: impl Fn(&[Tensor]) -> Result<Tensor>) {
        let value = |seed: usize, at: usize| ((seed * 7919 + at * 104_729) % 1000) as f32 / 500.0 - 1.0;
        let inputs: Vec<Vec<f32>> = shapes
            .iter()
            .enumerate()
            .map(|(seed, shape)| (0..shape.iter().product()).map(|at: usize| value(seed + 1, at)).collect())
            .collect();
        let tensors = |inputs: &[Vec<f32>]| -> Vec<Var> {
            inputs
                .iter()
                .zip(shapes)
                .map(|(values, &shape)| Var::from_vec(values.clone(), shape, &Device::Cpu).unwrap())
                .collect()
        };
        let sum = |vars: &[Var]| {
            let inputs: Vec<Tensor> = vars.iter().map(|var| var.as_tensor().clone()).collect();
            let out = f(&inputs).unwrap();
            let weights: Vec<f32> = (0..out.elem_count()).map(|at| value(99, at)).collect();
            let weights = Tensor::from_vec(weights, out.shape(), &Device::Cpu).unwrap();
            (out * weights).unwrap().sum_all().unwrap()
        };
        let vars = tensors(&inputs);
        let gradients = sum(&vars).backward().unwrap();
        for (at, var) in vars.iter().enumerate() {
            let gradient = values(gradients.get(var).unwrap()).unwrap();
            for (number, gradient) in gradient.iter().enumerate() {
                let moved = |by: f32| {
                    let mut inputs = inputs.clone();
                    inputs[at][number] += by;
                    f64::from(sum(&tensors(&inputs)).to_scalar::<f32>().unwrap())
                };
                let difference = (moved(1e-2) - moved(-1e-2)) / 2e-2;
                assert!(
                    (difference - f64::from(*gradient)).abs() < 4e-3,
                    "input {at}, number {number}: {gradient} by gradient, {difference} by difference"
                );
            }
        }
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        check(&[&[5, 8], &[8]], |x| rms_norm(&x[0], &x[1], 1e-5));
        check(&[&[3, 4], &[3, 4]], |x| silu_mul(&x[0], &x[1]));
        let rotation = Rotation::new(&[0.3, 0.01], 1.5, &[0, 7, 300]);
        check(&[&[3, 8]], |x| rotate(&x[0], &rotation));
        let visible = Visible::new(vec![[0..2, 4..5], [0..0, 3..6], [0..6, 6..6]], 2, 0.7);
        check(&[&[2, 6, 6]], |x| visible_softmax(&x[0], &visible));
        let constant = Tensor::new(&[[1f32, 2.0], [3.0, -1.0], [0.5, 0.0]], &Device::Cpu).unwrap();
        check(&[&[2, 3]], |x| times_constant(&constant, &x[0]));
    }

    #[test]
    fn what_is_not_visible_has_no_weight() {
        let visible = Visible::new(vec![[0..1, 2..4]], 1, 1.0);
        let scores = Tensor::new(&[[[1f32, 9.0, 1.0, 1.0]]], &Device::Cpu).unwrap();
        let third = 1.0 / 3.0;
        assert_eq!(values(&visible_softmax(&scores, &visible).unwrap()).unwrap(), [third, 0.0, third, third]);
    }
}
