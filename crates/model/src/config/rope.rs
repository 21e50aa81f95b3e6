//! Rotary position embedding: the frequencies of every scaling rule, as the transformers library computes them.

use std::f64::consts::PI;

use kernels::RopeLayout;

/// Rotary position embedding of one model.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// Base of the geometric series of wavelengths.
    pub theta: f32,
    /// How the series is stretched for contexts longer than trained.
    pub scaling: RopeScaling,
    /// Which components are rotated together. It follows from how the file stores the rows of the q and k projections.
    pub layout: RopeLayout,
}

/// How the frequencies of a rotary embedding are stretched.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All frequencies divided by one factor.
    Linear {
        /// The factor.
        factor: f32,
    },
    /// Llama 3.1's: low frequencies divided by the factor, high ones left, those between blended.
    Llama3 {
        /// The factor.
        factor: f32,
        /// Wavelengths above `original_context / low_freq_factor` are stretched in full.
        low_freq_factor: f32,
        /// Wavelengths below `original_context / high_freq_factor` are left alone.
        high_freq_factor: f32,
        /// Context before stretching.
        original_context: usize,
    },
    /// YaRN: blended by the number of rotations in the original context, with a factor on cosine and sine.
    Yarn {
        /// The factor.
        factor: f32,
        /// Context before stretching.
        original_context: usize,
        /// Rotations above which a frequency is left alone.
        beta_fast: f32,
        /// Rotations below which a frequency is stretched in full.
        beta_slow: f32,
        /// Factor on cosine and sine, where the file gives it.
        attention_factor: Option<f32>,
        /// Numerator of the inferred factor on cosine and sine.
        mscale: Option<f32>,
        /// Its denominator.
        mscale_all_dim: Option<f32>,
        /// Whether the blend's ends are rounded to whole dimensions.
        truncate: bool,
    },
    /// A divisor for each frequency, as GGUF stores Llama 3.1's rule.
    Factors(Vec<f32>),
}

impl RopeConfig {
    /// Frequencies `[head_dim / 2]` and the factor on cosine and sine.
    pub(super) fn inv_freq(&self, head_dim: usize) -> (Vec<f32>, f32) {
        let theta = f64::from(self.theta);
        // The exponent is rounded to f32 as the reference does it; the power is taken in f64 and rounded once.
        let wave = |i: usize| theta.powf(f64::from((2 * i) as f32 / head_dim as f32)) as f32;
        let plain = (0..head_dim / 2).map(|i| 1.0 / wave(i));
        match &self.scaling {
            RopeScaling::None => (plain.collect(), 1.0),
            RopeScaling::Linear { factor } => (plain.map(|f| f / factor).collect(), 1.0),
            RopeScaling::Factors(factors) => (plain.zip(factors).map(|(f, factor)| f / factor).collect(), 1.0),
            &RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let original = original_context as f32;
                let blend = |f: f32| llama3(f, factor, low_freq_factor, high_freq_factor, original);
                (plain.map(blend).collect(), 1.0)
            }
            RopeScaling::Yarn { factor, .. } => {
                let (low, high) = self.scaling.yarn_range(theta, head_dim);
                let blend = |i: usize| {
                    let ramp = ((i as f32 - low) / (high - low)).clamp(0.0, 1.0);
                    let keep = 1.0 - ramp;
                    1.0 / (factor * wave(i)) * (1.0 - keep) + 1.0 / wave(i) * keep
                };
                ((0..head_dim / 2).map(blend).collect(), self.scaling.attention_scale())
            }
        }
    }

    /// Whether the numbers make sense; else which field does not, and why.
    pub(super) fn check(&self, head_dim: usize) -> Result<(), (&'static str, String)> {
        let positive = |field, v: f32| {
            if v.is_finite() && v > 0.0 {
                Ok(())
            } else {
                Err((field, format!("is {v}, which is not a positive number")))
            }
        };
        positive("theta", self.theta)?;
        if self.theta <= 1.0 {
            return Err(("theta", format!("is {}, and must be above 1", self.theta)));
        }
        match &self.scaling {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } => positive("factor", *factor),
            &RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                positive("factor", factor)?;
                positive("low_freq_factor", low_freq_factor)?;
                positive("high_freq_factor", high_freq_factor)?;
                if low_freq_factor >= high_freq_factor {
                    let problem = format!("is {high_freq_factor}, not above the low_freq_factor {low_freq_factor}");
                    return Err(("high_freq_factor", problem));
                }
                positive("original_context", original_context as f32)
            }
            &RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, .. } => {
                positive("factor", factor)?;
                positive("original_context", original_context as f32)?;
                positive("beta_fast", beta_fast)?;
                positive("beta_slow", beta_slow)?;
                if beta_fast < beta_slow {
                    return Err(("beta_fast", format!("is {beta_fast}, below the beta_slow {beta_slow}")));
                }
                positive("attention_factor", self.scaling.attention_scale())
            }
            RopeScaling::Factors(factors) if factors.len() != head_dim / 2 => {
                Err(("factors", format!("has {} values, where {} are needed", factors.len(), head_dim / 2)))
            }
            RopeScaling::Factors(factors) => factors.iter().try_for_each(|&f| positive("factors", f)),
        }
    }
}

fn llama3(f: f32, factor: f32, low: f32, high: f32, original: f32) -> f32 {
    let wavelength = (2.0 * PI) as f32 / f;
    if wavelength < original / high {
        f
    } else if wavelength > original / low {
        f / factor
    } else {
        let smooth = (original / wavelength - low) / (high - low);
        (1.0 - smooth) * f / factor + smooth * f
    }
}

impl RopeScaling {
    /// Dimensions between which YaRN blends.
    fn yarn_range(&self, theta: f64, head_dim: usize) -> (f32, f32) {
        let &RopeScaling::Yarn { original_context, beta_fast, beta_slow, truncate, .. } = self else {
            return (0.0, 1.0);
        };
        let dim = |rotations: f32| {
            let context = original_context as f64;
            head_dim as f64 * (context / (f64::from(rotations) * 2.0 * PI)).ln() / (2.0 * theta.ln())
        };
        let (mut low, mut high) = (dim(beta_fast), dim(beta_slow));
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let low = low.max(0.0);
        let high = high.min((head_dim - 1) as f64);
        // Equal ends would divide by zero.
        if low == high { (low as f32, (high + 0.001) as f32) } else { (low as f32, high as f32) }
    }

    /// The factor on cosine and sine.
    fn attention_scale(&self) -> f32 {
        let &RopeScaling::Yarn { factor, attention_factor, mscale, mscale_all_dim, .. } = self else { return 1.0 };
        let scale = |m: f32| if factor <= 1.0 { 1.0 } else { 0.1 * f64::from(m) * f64::from(factor).ln() + 1.0 };
        let inferred = match (mscale, mscale_all_dim) {
            (Some(m), Some(all)) if m != 0.0 && all != 0.0 => scale(m) / scale(all),
            _ => scale(1.0),
        };
        attention_factor.unwrap_or(inferred as f32)
    }
}
