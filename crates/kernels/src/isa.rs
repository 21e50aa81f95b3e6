//! Which instruction set the kernels run on: found at run time, or forced (tests run every set the machine has).

use std::fmt;
use std::str::FromStr;

/// An instruction set that the kernels are written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust, on any machine.
    Portable,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 (F, BW, DQ, VL) and VNNI.
    Avx512,
}

/// An instruction set name that is none of `portable`, `avx2`, `avx512`.
#[derive(Debug, thiserror::Error)]
#[error("unknown instruction set '{0}': expected portable, avx2 or avx512")]
pub struct UnknownIsa(String);

impl Isa {
    /// Every set that this machine can run, the best last.
    pub fn available() -> Vec<Isa> {
        [Isa::Portable, Isa::Avx2, Isa::Avx512].into_iter().filter(|isa| isa.runs_here()).collect()
    }

    /// The best set that this machine can run.
    pub fn detect() -> Isa {
        *Self::available().last().unwrap_or(&Isa::Portable)
    }

    /// Whether this machine can run the set.
    pub fn runs_here(self) -> bool {
        match self {
            Isa::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.runs_here()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        })
    }
}

impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(name: &str) -> Result<Self, UnknownIsa> {
        match name {
            "portable" => Ok(Isa::Portable),
            "avx2" => Ok(Isa::Avx2),
            "avx512" => Ok(Isa::Avx512),
            other => Err(UnknownIsa(other.to_owned())),
        }
    }
}
