//! Exponentials over slices: the branch-free lane functions of `arith`, compiled once per level.

use super::SimdLevel;
use crate::arith::exp2::{Degree, exp2_pass};
use crate::arith::mufu::ex2_pass;

/// `ex2.approx.ftz` over f32 bits.
pub(crate) fn ex2(level: SimdLevel, x: &[u32], out: &mut [u32]) {
    match level.min(SimdLevel::detect()) {
        SimdLevel::Scalar => ex2_pass(x, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level is one that this processor has.
        SimdLevel::Avx2 => unsafe { x86::ex2_avx2(x, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level is one that this processor has.
        SimdLevel::Avx512 => unsafe { x86::ex2_avx512(x, out) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => ex2_pass(x, out),
    }
}

/// The software exp2.
pub(crate) fn exp2(level: SimdLevel, degree: Degree, x: &[f32], out: &mut [f32]) {
    match level.min(SimdLevel::detect()) {
        SimdLevel::Scalar => exp2_pass(degree, x, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level is one that this processor has.
        SimdLevel::Avx2 => unsafe { x86::exp2_avx2(degree, x, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level is one that this processor has.
        SimdLevel::Avx512 => unsafe { x86::exp2_avx512(degree, x, out) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => exp2_pass(degree, x, out),
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Degree, ex2_pass, exp2_pass};

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn ex2_avx2(x: &[u32], out: &mut [u32]) {
        ex2_pass(x, out);
    }

    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) fn ex2_avx512(x: &[u32], out: &mut [u32]) {
        ex2_pass(x, out);
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn exp2_avx2(degree: Degree, x: &[f32], out: &mut [f32]) {
        exp2_pass(degree, x, out);
    }

    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) fn exp2_avx512(degree: Degree, x: &[f32], out: &mut [f32]) {
        exp2_pass(degree, x, out);
    }
}
