//! SIMD implementations of the arithmetic models, chosen at run time; every level gives the same bits.
//!
//! The only place of this crate's library with `unsafe`: vector loads and stores, and calls of functions compiled for
//! a processor feature after its presence was checked.

#![allow(unsafe_code)]

use std::fmt;

use crate::arith::ArithError;

pub(crate) mod exponentials;
pub(crate) mod nvfp4;
pub(crate) mod panel;
pub(crate) mod product;
pub(crate) mod softmax;
pub(crate) mod tile;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_fp8;

/// The instruction sets with an implementation of their own, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SimdLevel {
    /// Portable code.
    Scalar,
    /// AVX2 and FMA (x86-64).
    Avx2,
    /// AVX-512 F, BW, DQ, VL and VNNI (x86-64).
    Avx512,
}

impl SimdLevel {
    /// All levels, whether this processor has them or not.
    pub const ALL: [SimdLevel; 3] = [SimdLevel::Scalar, SimdLevel::Avx2, SimdLevel::Avx512];

    /// The best level of this processor.
    pub fn detect() -> SimdLevel {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let avx512 = avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni");
            if avx512 {
                return SimdLevel::Avx512;
            }
            if avx2 {
                return SimdLevel::Avx2;
            }
        }
        SimdLevel::Scalar
    }

    /// The levels of this processor, in ascending order.
    pub fn available() -> impl Iterator<Item = SimdLevel> {
        let best = SimdLevel::detect();
        SimdLevel::ALL.into_iter().filter(move |&level| level <= best)
    }

    /// Whether this processor has the level.
    ///
    /// # Errors
    /// [`ArithError::Level`] if not.
    pub fn require(self) -> Result<(), ArithError> {
        let best = SimdLevel::detect();
        if self <= best { Ok(()) } else { Err(ArithError::Level { level: self, best }) }
    }
}

impl fmt::Display for SimdLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SimdLevel::Scalar => "scalar",
            SimdLevel::Avx2 => "avx2",
            SimdLevel::Avx512 => "avx512",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalar_is_always_available_and_missing_levels_are_errors() {
        let best = SimdLevel::detect();
        assert_eq!(SimdLevel::available().next(), Some(SimdLevel::Scalar));
        assert_eq!(SimdLevel::available().last(), Some(best));
        for level in SimdLevel::ALL {
            assert_eq!(level.require().is_ok(), level <= best);
        }
    }
}
