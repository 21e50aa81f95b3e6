//! What is trained: named tensors, and the optimiser that moves them (AdamW, Loshchilov and Hutter 2019, arXiv 1711.05101).
//!
//! Weights are `[in, out]`, as their products take them. What they mean may not enter.

use std::collections::HashMap;

use candle_core::backprop::GradStore;
use candle_core::{Device, Tensor, Var};
use rayon::prelude::*;

use crate::TrainError;
use crate::ops::values;

/// How fast the means of gradients and of their squares follow.
const BETAS: [f32; 2] = [0.9, 0.95];
const EPSILON: f32 = 1e-8;
/// Numbers that a thread takes at a time; sums go by these parts, in order.
const PART: usize = 1 << 16;

/// A trained tensor with the optimiser's state.
#[derive(Debug)]
pub(crate) struct Parameter {
    pub(crate) var: Var,
    /// Whether weight decay pulls it to 0: matrices, not norms and biases.
    decays: bool,
    /// Means of its gradient and of the square of that.
    pub(crate) moments: [Vec<f32>; 2],
}

/// All that is trained, in the order in which it was added.
#[derive(Debug, Default)]
pub(crate) struct Parameters {
    pub(crate) all: Vec<(String, Parameter)>,
    by_name: HashMap<String, usize>,
}

/// How a step moves the parameters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// Learning rate.
    pub(crate) rate: f32,
    /// Weight decay.
    pub(crate) decay: f32,
    /// The greatest norm of all gradients together; larger ones are shrunk to it.
    pub(crate) clip: f32,
    /// Which step it is, from 0.
    pub(crate) number: u64,
}

impl Parameters {
    /// Adds a parameter that begins as `value`.
    pub(crate) fn add(&mut self, name: impl Into<String>, value: &Tensor) -> Result<(), TrainError> {
        let (name, var) = (name.into(), Var::from_tensor(&value.contiguous()?)?);
        let (len, decays) = (value.elem_count(), value.rank() > 1);
        self.by_name.insert(name.clone(), self.all.len());
        self.all.push((name, Parameter { var, decays, moments: [vec![0.0; len], vec![0.0; len]] }));
        Ok(())
    }

    /// The parameter of this name.
    pub(crate) fn get(&self, name: &str) -> Result<&Tensor, TrainError> {
        let missing = || candle_core::Error::CannotFindTensor { path: name.to_owned() }.bt();
        let at = self.by_name.get(name).ok_or_else(missing)?;
        Ok(self.all[*at].1.var.as_tensor())
    }

    /// The gradients of all parameters; empty where nothing depends on one.
    pub(crate) fn gradients(&self, gradients: &GradStore) -> Result<Vec<Vec<f32>>, TrainError> {
        let of = |(_, parameter): &(String, Parameter)| {
            Ok(gradients.get(&parameter.var).map(values).transpose()?.unwrap_or_default())
        };
        self.all.iter().map(of).collect()
    }

    /// Moves all parameters by the gradients that were gathered in `parts` parts, and returns the norm of these.
    pub(crate) fn step(&mut self, gradients: &[Vec<f32>], parts: usize, step: Step) -> Result<f32, TrainError> {
        let share = 1.0 / parts.max(1) as f32;
        let squares: f64 = gradients.iter().map(|gradient| sum_of_squares(gradient)).sum();
        let norm = squares.sqrt() as f32 * share;
        let scale = share * (step.clip / norm.max(f32::MIN_POSITIVE)).min(1.0);
        let number = (step.number + 1).min(i32::MAX as u64) as i32;
        let corrections = BETAS.map(|beta| 1.0 / (1.0 - f64::from(beta).powi(number)) as f32);
        for ((_, parameter), gradient) in self.all.iter_mut().zip(gradients) {
            if gradient.is_empty() {
                continue;
            }
            let mut numbers = values(&parameter.var)?;
            let decay = if parameter.decays { step.rate * step.decay } else { 0.0 };
            let [first, second] = &mut parameter.moments;
            let parts = numbers.par_iter_mut().zip(first).zip(second).zip(gradient).with_min_len(PART);
            parts.for_each(|(((x, first), second), gradient)| {
                let gradient = gradient * scale;
                *first = BETAS[0] * *first + (1.0 - BETAS[0]) * gradient;
                *second = BETAS[1] * *second + (1.0 - BETAS[1]) * gradient * gradient;
                let moved = *first * corrections[0] / ((*second * corrections[1]).sqrt() + EPSILON);
                *x -= decay * *x + step.rate * moved;
            });
            parameter.var.set(&Tensor::from_vec(numbers, parameter.var.shape(), &Device::Cpu)?)?;
        }
        Ok(norm)
    }
}

fn sum_of_squares(numbers: &[f32]) -> f64 {
    let square = |part: &[f32]| part.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>();
    let parts: Vec<f64> = numbers.par_chunks(PART).map(square).collect();
    parts.into_iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_goes_by_rate_decay_and_clipped_norm() {
        let mut parameters = Parameters::default();
        parameters.add("matrix", &Tensor::new(&[[1f32, -2.0]], &Device::Cpu).unwrap()).unwrap();
        parameters.add("norm", &Tensor::new(&[1f32], &Device::Cpu).unwrap()).unwrap();
        let step = Step { rate: 0.1, decay: 0.5, clip: 1.0, number: 0 };
        // The sum of two parts, each half of it.
        let norm = parameters.step(&[vec![6.0, 0.0], vec![8.0]], 2, step).unwrap();
        assert_eq!(norm, 5.0);
        let near = |name: &str, wanted: &[f32]| {
            let found = values(parameters.get(name).unwrap()).unwrap();
            assert!(found.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?}");
        };
        // The first step of Adam is the rate by the gradient's sign; what does not decay has no part of it.
        near("matrix", &[1.0 - 0.05 - 0.1, -2.0 + 0.1]);
        near("norm", &[0.9]);
        assert!((parameters.all[0].1.moments[0][0] - 0.1 * 0.6).abs() < 1e-6);
    }
}
