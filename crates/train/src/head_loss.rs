//! The loss of rows of hidden states through a frozen head, without ever keeping the logits of all rows.
//!
//! Logits, softmax, loss and gradients of a few rows at a time, while they are in the cache (DSpark, section 3.3, equations 9
//! and 10). Where the rows come from may not enter.

use candle_core::{Device, Result, Tensor};
use kernels::Isa;
use rayon::prelude::*;

use crate::ops::{given, given_by_three, values};

/// Rows at a time.
const ROWS: usize = 64;

/// What a row should say, in tokens of the draft's vocabulary.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RowTarget<'a> {
    /// The target's likeliest tokens, likeliest first, with their probabilities among all that it knows; `None`: the draft
    /// does not know this one.
    pub(crate) teacher: &'a [(Option<u32>, f32)],
    /// How much the row counts; 0: it is not looked at.
    pub(crate) weight: f32,
}

/// Weights of the losses (DSpark, equation 12).
#[derive(Debug, Clone, Copy)]
pub(crate) struct LossWeights {
    /// Of the cross-entropy with the target's distribution, which says the same as that with the tokens that come, and without
    /// their noise.
    pub(crate) cross_entropy: f32,
    /// Of the distance `|p − q|₁` between target and draft.
    pub(crate) variation: f32,
}

/// What a row says.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct RowSays {
    /// How likely a draft drawn from it stands: the sum of `min(p, q)`.
    pub(crate) acceptance: f32,
    /// Whether its likeliest token is the target's.
    pub(crate) agrees: bool,
    /// Its loss, before the row's weight.
    pub(crate) loss: f32,
}

/// The frozen head of a draft, and what is added to its logits.
pub(crate) struct Head {
    /// `[known, hidden]`
    pub(crate) weights: Tensor,
    pub(crate) isa: Isa,
}

/// The inputs of a head.
pub(crate) struct HeadInputs<'a> {
    /// After the final norm, `[rows, hidden]`.
    pub(crate) hidden: &'a Tensor,
    /// What the tokens before add to the logits.
    pub(crate) follow: Option<Follow<'a>>,
}

/// What makes rows depend on the tokens before them.
pub(crate) struct Follow<'a> {
    /// Embeddings of the tokens before, `[rows, rank]`.
    pub(crate) before: &'a Tensor,
    /// From these to biases of logits, `[rank, known]`.
    pub(crate) bias: &'a Tensor,
}

impl Head {
    /// What all rows say.
    pub(crate) fn says(&self, inputs: &HeadInputs<'_>, targets: &[RowTarget<'_>]) -> Result<Vec<RowSays>> {
        let inputs = inputs.detached();
        let mut all = Vec::with_capacity(targets.len());
        for (at, targets) in targets.chunks(ROWS).enumerate() {
            let mut logits = self.logits(&inputs, at, targets.len())?;
            let known = logits.len() / targets.len();
            let none = LossWeights { cross_entropy: 0.0, variation: 0.0 };
            let says = logits.par_chunks_mut(known).zip(targets);
            all.par_extend(says.map(|(logits, target)| self.row(logits, target, none, 1.0)));
        }
        Ok(all)
    }

    /// The loss of all rows, divided by the sum of their weights, as a function of the inputs; and what the rows say.
    pub(crate) fn loss(
        &self,
        inputs: &HeadInputs<'_>,
        targets: &[RowTarget<'_>],
        weights: LossWeights,
    ) -> Result<(Tensor, Vec<RowSays>)> {
        let total: f32 = targets.iter().map(|target| target.weight).sum::<f32>().max(f32::MIN_POSITIVE);
        let detached = inputs.detached();
        let (mut all, mut hidden_parts, mut before_parts) = (Vec::with_capacity(targets.len()), Vec::new(), Vec::new());
        let mut bias_gradient: Option<Tensor> = None;
        for (at, targets) in targets.chunks(ROWS).enumerate() {
            let mut logits = self.logits(&detached, at, targets.len())?;
            let known = logits.len() / targets.len();
            let says = logits.par_chunks_mut(known).zip(targets);
            all.par_extend(says.map(|(logits, target)| self.row(logits, target, weights, target.weight / total)));
            let gradient = Tensor::from_vec(logits, (targets.len(), known), &Device::Cpu)?;
            hidden_parts.push(gradient.matmul(&self.weights)?);
            if let Some([before, bias]) = &detached.follow {
                before_parts.push(gradient.matmul(&bias.t()?)?);
                let before = before.narrow(0, at * ROWS, targets.len())?;
                let part = before.t()?.matmul(&gradient)?;
                bias_gradient = Some(match bias_gradient {
                    Some(sum) => (sum + part)?,
                    None => part,
                });
            }
        }
        let loss: f32 = all.iter().zip(targets).map(|(says, target)| says.loss * target.weight / total).sum();
        let hidden = Tensor::cat(&hidden_parts, 0)?;
        let loss = match (&inputs.follow, bias_gradient) {
            (Some(Follow { before, bias }), Some(gradient)) => {
                let gradients = [hidden, Tensor::cat(&before_parts, 0)?, gradient];
                given_by_three(loss, [inputs.hidden, before, bias], gradients)?
            }
            _ => given(loss, inputs.hidden, hidden)?,
        };
        Ok((loss, all))
    }

    /// Logits of the rows of part `at`, `[rows, known]`.
    fn logits(&self, inputs: &Detached, at: usize, rows: usize) -> Result<Vec<f32>> {
        let part = |tensor: &Tensor| tensor.narrow(0, at * ROWS, rows);
        let logits = part(&inputs.hidden)?.matmul(&self.weights.t()?)?;
        match &inputs.follow {
            Some([before, bias]) => values(&(logits + part(before)?.matmul(bias)?)?),
            None => values(&logits),
        }
    }

    /// What a row says by its `logits`, in whose place the gradients of its loss times `share` are left.
    fn row(&self, logits: &mut [f32], target: &RowTarget<'_>, weights: LossWeights, share: f32) -> RowSays {
        if target.weight == 0.0 {
            logits.fill(0.0);
            return RowSays::default();
        }
        let likeliest = argmax(logits);
        kernels::softmax(self.isa, logits);
        let known = target.teacher.iter().filter_map(|&(token, p)| Some((token? as usize, p)));
        let (mut acceptance, mut below) = (0.0, 0.0);
        for (token, p) in known.clone() {
            acceptance += logits[token].min(p);
            below += if logits[token] < p { logits[token] } else { 0.0 };
        }
        let each = known.clone().map(|(token, p)| -p * logits[token].max(f32::MIN_POSITIVE).ln());
        let (cross_entropy, mass) = (each.sum::<f32>(), known.clone().map(|(_, p)| p).sum::<f32>());
        let loss = weights.cross_entropy * cross_entropy + 2.0 * weights.variation * (1.0 - acceptance);
        let agrees = target.teacher.first().is_some_and(|&(token, _)| token == Some(likeliest));
        let (ce, tv) = (weights.cross_entropy * share, 2.0 * weights.variation * share);
        let all = ce * mass + tv * below;
        let lacks = |q: f32, p: f32| if q < p { tv * q } else { 0.0 };
        let corrections: Vec<(usize, f32)> =
            known.map(|(token, p)| (token, -ce * p - lacks(logits[token], p))).collect();
        logits.iter_mut().for_each(|q| *q *= all);
        corrections.into_iter().for_each(|(token, by)| logits[token] += by);
        RowSays { acceptance, agrees, loss }
    }
}

/// The inputs of a head without their history.
struct Detached {
    hidden: Tensor,
    follow: Option<[Tensor; 2]>,
}

impl HeadInputs<'_> {
    fn detached(&self) -> Detached {
        let follow = self.follow.as_ref().map(|follow| [follow.before.detach(), follow.bias.detach()]);
        Detached { hidden: self.hidden.detach(), follow }
    }
}

/// The first of the greatest numbers.
fn argmax(logits: &[f32]) -> u32 {
    let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter().position(|&logit| logit == greatest).unwrap_or(0) as u32
}

#[cfg(test)]
mod tests {
    use candle_core::Var;

    use super::*;

    const ROWS_HERE: usize = ROWS + 3;
    const KNOWN: usize = 12;

    fn random(shape: &[usize], seed: usize, size: f32) -> Vec<f32> {
        let value = |at: usize| ((seed * 7919 + at * 104_729 + at * at * 31) % 1009) as f32 / 504.5 - 1.0;
        (0..shape.iter().product()).map(|at| size * value(at)).collect()
    }

    /// Loss and what rows say, from logits as a textbook has it.
    fn plain(logits: &[f32], target: &RowTarget<'_>, weights: LossWeights) -> (f64, f64) {
        let exp: Vec<f64> = logits.iter().map(|&x| f64::from(x).exp()).collect();
        let sum: f64 = exp.iter().sum();
        let q = |token: usize| exp[token] / sum;
        let mut p = vec![0.0; logits.len()];
        let unknown: f64 =
            1.0 - target.teacher.iter().filter(|(token, _)| token.is_some()).map(|(_, p)| f64::from(*p)).sum::<f64>();
        target.teacher.iter().for_each(|&(token, value)| {
            if let Some(token) = token {
                p[token as usize] = f64::from(value);
            }
        });
        // What the target gives to tokens that the list does not have counts as far from everything.
        let distance: f64 = (0..logits.len()).map(|token| (q(token) - p[token]).abs()).sum::<f64>() + unknown;
        let cross_entropy: f64 = -(0..logits.len()).map(|token| p[token] * q(token).ln()).sum::<f64>();
        let loss = f64::from(weights.cross_entropy) * cross_entropy + f64::from(weights.variation) * distance;
        (loss, 1.0 - distance / 2.0)
    }

    #[test]
    fn loss_and_gradients_are_those_of_the_formulas() {
        let (hidden, rank) = (5, 3);
        let shapes: [&[usize]; 3] = [&[ROWS_HERE, hidden], &[ROWS_HERE, rank], &[rank, KNOWN]];
        let head = random(&[KNOWN, hidden], 4, 1.0);
        let teacher = [(Some(3), 0.4f32), (None, 0.2), (Some(7), 0.15), (Some(0), 0.05)];
        let targets: Vec<RowTarget<'_>> = (0..ROWS_HERE)
            .map(|row| RowTarget { teacher: &teacher[row % 2..], weight: [1.0, 0.5, 0.0, 0.25][row % 4] })
            .collect();
        let weights = LossWeights { cross_entropy: 0.3, variation: 0.7 };
        let this = Head {
            weights: Tensor::from_vec(head.clone(), (KNOWN, hidden), &Device::Cpu).unwrap(),
            isa: Isa::detect(),
        };
        let numbers: Vec<Vec<f32>> =
            shapes.iter().enumerate().map(|(seed, shape)| random(shape, seed + 1, 1.0)).collect();
        let expected = |numbers: &[Vec<f32>]| -> f64 {
            let total: f64 = targets.iter().map(|target| f64::from(target.weight)).sum();
            let logit = |row: usize, token: usize| {
                let dot =
                    |a: &[f32], at: &dyn Fn(usize) -> f32| a.iter().enumerate().map(|(i, a)| a * at(i)).sum::<f32>();
                dot(&numbers[0][row * hidden..][..hidden], &|i| head[token * hidden + i])
                    + dot(&numbers[1][row * rank..][..rank], &|i| numbers[2][i * KNOWN + token])
            };
            let row = |row: usize| {
                plain(&(0..KNOWN).map(|token| logit(row, token)).collect::<Vec<_>>(), &targets[row], weights).0
            };
            (0..ROWS_HERE).map(|at| row(at) * f64::from(targets[at].weight)).sum::<f64>() / total
        };
        let vars: Vec<Var> = numbers
            .iter()
            .zip(shapes)
            .map(|(values, shape)| Var::from_vec(values.clone(), shape, &Device::Cpu).unwrap())
            .collect();
        let inputs = HeadInputs { hidden: &vars[0], follow: Some(Follow { before: &vars[1], bias: &vars[2] }) };
        let (loss, says) = this.loss(&inputs, &targets, weights).unwrap();
        assert!((f64::from(loss.to_scalar::<f32>().unwrap()) - expected(&numbers)).abs() < 1e-5);
        let quiet = this.says(&inputs, &targets).unwrap();
        assert!(says.iter().zip(&quiet).all(|(a, b)| a.acceptance == b.acceptance && a.agrees == b.agrees));
        let gradients = (loss * 2.0).unwrap().backward().unwrap();
        for (at, var) in vars.iter().enumerate() {
            let gradient = values(gradients.get(var).unwrap()).unwrap();
            for number in 0..gradient.len() {
                let moved = |by: f32| {
                    let mut numbers = numbers.clone();
                    numbers[at][number] += by;
                    expected(&numbers)
                };
                let difference = 2.0 * (moved(1e-3) - moved(-1e-3)) / 2e-3;
                assert!(
                    (difference - f64::from(gradient[number])).abs() < 2e-4,
                    "input {at}, number {number}: {difference}, {}",
                    gradient[number]
                );
            }
        }
        // Without what follows, the same as with biases of 0.
        let none = Tensor::zeros(shapes[2], candle_core::DType::F32, &Device::Cpu).unwrap();
        let zero = HeadInputs { hidden: &vars[0], follow: Some(Follow { before: &vars[1], bias: &none }) };
        let alone = HeadInputs { hidden: &vars[0], follow: None };
        let [zero, alone] = [zero, alone].map(|inputs| {
            let (loss, says) = this.loss(&inputs, &targets, weights).unwrap();
            (values(loss.backward().unwrap().get(&vars[0]).unwrap()).unwrap(), says)
        });
        assert_eq!(zero, alone);
    }
}
