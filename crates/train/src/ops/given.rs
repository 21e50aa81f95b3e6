//! Results that were computed elsewhere, with what their gradients are.

use candle_core::{CpuStorage, CustomOp1, CustomOp3, Layout, Result, Shape, Tensor};

/// A number that was computed from three tensors, whose gradients for it are known.
struct GivenByThree {
    value: f32,
    gradients: [Tensor; 3],
}

/// A number that was computed from one.
struct GivenByOne {
    value: f32,
    gradient: Tensor,
}

/// The number `value` as a function of `input`, whose gradient for it is `gradient`, of the same shape.
pub(crate) fn given(value: f32, input: &Tensor, gradient: Tensor) -> Result<Tensor> {
    input.apply_op1(GivenByOne { value, gradient })
}

impl CustomOp1 for GivenByOne {
    fn name(&self) -> &'static str {
        "given by one"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![self.value]), Shape::from(())))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        (&self.gradient * f64::from(gradient.to_scalar::<f32>()?)).map(Some)
    }
}

/// The number `value` as a function of `inputs`, whose gradients for it are `gradients`, of the same shapes.
pub(crate) fn given_by_three(value: f32, inputs: [&Tensor; 3], gradients: [Tensor; 3]) -> Result<Tensor> {
    inputs[0].apply_op3(inputs[1], inputs[2], GivenByThree { value, gradients })
}

impl CustomOp3 for GivenByThree {
    fn name(&self) -> &'static str {
        "given by three"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![self.value]), Shape::from(())))
    }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let factor = f64::from(gradient.to_scalar::<f32>()?);
        let [a, b, c] = &self.gradients;
        Ok((Some((a * factor)?), Some((b * factor)?), Some((c * factor)?)))
    }
}

/// A product of which one side never changes: candle would compute its gradient all the same.
struct TimesConstant {
    constant: Tensor,
    product: Tensor,
}

/// `constant @ weights`: `[rows, in]` by `[in, out]`.
pub(crate) fn times_constant(constant: &Tensor, weights: &Tensor) -> Result<Tensor> {
    let product = constant.matmul(&weights.detach())?;
    weights.apply_op1(TimesConstant { constant: constant.detach(), product })
}

impl CustomOp1 for TimesConstant {
    fn name(&self) -> &'static str {
        "times constant"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(super::values(&self.product)?), self.product.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        self.constant.t()?.matmul(gradient).map(Some)
    }
}
