//! The matrix instructions by name: which model each one is, and how far that has been confirmed.

use std::fmt;

use super::convert::add_rn;
use super::validation::H200;
use super::{ArithError, DotModel, Operand, Validation, cdna3, expect_length};

/// A matrix multiply-accumulate instruction, seen as the function of one output element:
/// `k` codes of A, `k` codes of B and an f32 accumulator in, f32 out.
///
/// The PTX name alone does not fix the function (the target and the `ptxas` lowering do), hence the targets in the
/// names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DotInstruction {
    /// `wgmma.mma_async.sp?.m64nNk32.f32.e4m3.e4m3` on sm_90a (SASS QGMMA), operands from shared memory or registers.
    WgmmaE4m3K32,
    /// `wgmma.mma_async.m64nNk16.f32.bf16.bf16` on sm_90a (HGMMA).
    WgmmaBf16K16,
    /// `wgmma.mma_async.m64nNk16.f32.f16.f16` on sm_90a (HGMMA).
    WgmmaF16K16,
    /// `mma.sync.m16n8k16.f32.bf16.bf16.f32` (HMMA.16816).
    MmaBf16K16,
    /// `mma.sync.m16n8k16.f32.f16.f16.f32` (HMMA.16816).
    MmaF16K16,
    /// `mma.sync.m16n8k8.f32.bf16.bf16.f32` (HMMA.1688). Two of these are not one k16.
    MmaBf16K8,
    /// `mma.sync.m16n8k8.f32.f16.f16.f32` (HMMA.1688). Two of these are not one k16.
    MmaF16K8,
    /// `mma.sync.m16n8k32.f32.e4m3.e4m3.f32` as ptxas 13.0 lowers it for sm_90a: unpacked to f16 and run on the FP16
    /// tensor cores. Not the function of [`DotInstruction::WgmmaE4m3K32`].
    MmaE4m3K32EmulatedSm90a,
    /// `tcgen05.mma.kind::f16` with bf16 operands.
    Tcgen05Bf16K16,
    /// `tcgen05.mma.kind::f16` with f16 operands.
    Tcgen05F16K16,
    /// `tcgen05.mma.kind::f8f6f4` with e4m3 operands.
    Tcgen05E4m3K32,
    /// `v_mfma_f32_16x16x16_bf16` and `v_mfma_f32_32x32x8_bf16` of CDNA3, over 16 products (two groups of 8).
    Cdna3Bf16K16,
    /// `v_mfma_f32_16x16x16_f16` of CDNA3, over 16 products (two groups of 8).
    Cdna3F16K16,
    /// `v_mfma_f32_16x16x32_fp8_fp8` of CDNA3 (FNUZ operands), two groups of 16.
    Cdna3E4m3FnuzK32,
}

/// Products per step, at most.
pub(crate) const LARGEST_K: usize = 32;

impl DotInstruction {
    /// Every instruction that has a model.
    pub const ALL: [DotInstruction; 14] = [
        DotInstruction::WgmmaE4m3K32,
        DotInstruction::WgmmaBf16K16,
        DotInstruction::WgmmaF16K16,
        DotInstruction::MmaBf16K16,
        DotInstruction::MmaF16K16,
        DotInstruction::MmaBf16K8,
        DotInstruction::MmaF16K8,
        DotInstruction::MmaE4m3K32EmulatedSm90a,
        DotInstruction::Tcgen05Bf16K16,
        DotInstruction::Tcgen05F16K16,
        DotInstruction::Tcgen05E4m3K32,
        DotInstruction::Cdna3Bf16K16,
        DotInstruction::Cdna3F16K16,
        DotInstruction::Cdna3E4m3FnuzK32,
    ];

    /// A short stable name, used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            DotInstruction::WgmmaE4m3K32 => "wgmma_e4m3_k32",
            DotInstruction::WgmmaBf16K16 => "wgmma_bf16_k16",
            DotInstruction::WgmmaF16K16 => "wgmma_f16_k16",
            DotInstruction::MmaBf16K16 => "mma_bf16_k16",
            DotInstruction::MmaF16K16 => "mma_f16_k16",
            DotInstruction::MmaBf16K8 => "mma_bf16_k8",
            DotInstruction::MmaF16K8 => "mma_f16_k8",
            DotInstruction::MmaE4m3K32EmulatedSm90a => "mma_e4m3_k32_emulated_sm90a",
            DotInstruction::Tcgen05Bf16K16 => "tcgen05_bf16_k16",
            DotInstruction::Tcgen05F16K16 => "tcgen05_f16_k16",
            DotInstruction::Tcgen05E4m3K32 => "tcgen05_e4m3_k32",
            DotInstruction::Cdna3Bf16K16 => "cdna3_bf16_k16",
            DotInstruction::Cdna3F16K16 => "cdna3_f16_k16",
            DotInstruction::Cdna3E4m3FnuzK32 => "cdna3_e4m3fnuz_k32",
        }
    }

    /// The format of A and B.
    pub const fn operand(self) -> Operand {
        match self {
            DotInstruction::WgmmaE4m3K32
            | DotInstruction::MmaE4m3K32EmulatedSm90a
            | DotInstruction::Tcgen05E4m3K32 => Operand::E4m3,
            DotInstruction::WgmmaBf16K16
            | DotInstruction::MmaBf16K16
            | DotInstruction::MmaBf16K8
            | DotInstruction::Tcgen05Bf16K16
            | DotInstruction::Cdna3Bf16K16 => Operand::Bf16,
            DotInstruction::WgmmaF16K16
            | DotInstruction::MmaF16K16
            | DotInstruction::MmaF16K8
            | DotInstruction::Tcgen05F16K16
            | DotInstruction::Cdna3F16K16 => Operand::F16,
            DotInstruction::Cdna3E4m3FnuzK32 => Operand::E4m3Fnuz,
        }
    }

    /// Products per step.
    pub const fn k(self) -> usize {
        match self {
            DotInstruction::MmaBf16K8 | DotInstruction::MmaF16K8 => 8,
            _ => match self.operand() {
                Operand::E4m3 | Operand::E4m3Fnuz => 32,
                Operand::Bf16 | Operand::F16 => 16,
            },
        }
    }

    /// What one step computes.
    pub const fn behaviour(self) -> Behaviour {
        /// Half-precision datapath: F = 25 and the clamp at -133 are measured on Hopper.
        const fn half(group: usize) -> DotModel {
            DotModel { group, fraction_bits: 25, output_bits: 23, emin: Some(-133) }
        }
        match self {
            DotInstruction::WgmmaE4m3K32 => {
                Behaviour::Fused(DotModel { group: 32, fraction_bits: 13, output_bits: 13, emin: None })
            }
            DotInstruction::WgmmaBf16K16
            | DotInstruction::WgmmaF16K16
            | DotInstruction::MmaBf16K16
            | DotInstruction::MmaF16K16
            | DotInstruction::Tcgen05Bf16K16
            | DotInstruction::Tcgen05F16K16 => Behaviour::Fused(half(16)),
            DotInstruction::MmaBf16K8 | DotInstruction::MmaF16K8 => Behaviour::Fused(half(8)),
            DotInstruction::MmaE4m3K32EmulatedSm90a => Behaviour::PairsThenAdd(half(16)),
            DotInstruction::Tcgen05E4m3K32 => {
                Behaviour::Fused(DotModel { group: 32, fraction_bits: 25, output_bits: 23, emin: None })
            }
            DotInstruction::Cdna3Bf16K16 | DotInstruction::Cdna3F16K16 => Behaviour::Cdna3Half,
            DotInstruction::Cdna3E4m3FnuzK32 => Behaviour::Cdna3Fp8,
        }
    }

    /// How far the model has been confirmed.
    pub const fn validation(self) -> Validation {
        match self {
            DotInstruction::WgmmaE4m3K32
            | DotInstruction::WgmmaBf16K16
            | DotInstruction::WgmmaF16K16
            | DotInstruction::MmaBf16K16
            | DotInstruction::MmaF16K16
            | DotInstruction::MmaE4m3K32EmulatedSm90a => Validation::Silicon {
                card: H200,
                compared: "2.0e9 outputs per operand type in 12 adversarial classes, single and chained: 0 mismatches",
            },
            DotInstruction::MmaBf16K8 | DotInstruction::MmaF16K8 => Validation::Silicon {
                card: H200,
                compared: "the adversarial classes of the k16 instructions: 0 mismatches (no recorded vectors)",
            },
            DotInstruction::Tcgen05Bf16K16 | DotInstruction::Tcgen05F16K16 => Validation::Unverified {
                basis: "MMA-Sim (arXiv 2511.10909) for ordinary values; the clamp at -133 is carried over from HMMA",
            },
            DotInstruction::Tcgen05E4m3K32 => {
                Validation::PublicModel { source: "MMA-Sim, arXiv 2511.10909: kind::f8f6f4 = T(32, 25, 23)" }
            }
            DotInstruction::Cdna3Bf16K16 | DotInstruction::Cdna3F16K16 | DotInstruction::Cdna3E4m3FnuzK32 => {
                cdna3::VALIDATION
            }
        }
    }

    /// One step: `c + A.B` as f32 bits, NaN canonical.
    ///
    /// `a`, `b`: exactly [`DotInstruction::k`] codes each; `c`: f32 bits.
    ///
    /// # Errors
    /// [`ArithError::Length`] if `a` or `b` has another length.
    pub fn dot_add<T: Copy + Into<u16>>(self, a: &[T], b: &[T], c: u32) -> Result<u32, ArithError> {
        expect_length("a", self.k(), a.len())?;
        expect_length("b", self.k(), b.len())?;
        Ok(self.step(a, b, c))
    }

    /// [`DotInstruction::dot_add`] for callers that have checked the lengths.
    pub(crate) fn step<T: Copy + Into<u16>>(self, a: &[T], b: &[T], c: u32) -> u32 {
        let operand = self.operand();
        match self.behaviour() {
            Behaviour::Fused(model) => model.dot_add(operand, a, b, c),
            Behaviour::PairsThenAdd(model) => {
                let mut sum = 0;
                for half in [0, 1] {
                    sum = model.dot_add(operand, &pairs_of_half(a, half), &pairs_of_half(b, half), sum);
                }
                add_rn(c, sum)
            }
            Behaviour::Cdna3Half => cdna3::half_dot_add(operand, a, b, c),
            Behaviour::Cdna3Fp8 => cdna3::fp8_dot_add(a, b, c),
        }
    }
}

impl fmt::Display for DotInstruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What one step of an instruction computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Behaviour {
    /// All products and the accumulator in one truncated sum.
    Fused(DotModel),
    /// The products with k mod 4 in {0, 1} from +0, then those with k mod 4 in {2, 3} on top, each a fused sum; the
    /// result is added to the accumulator by FADD.RN (read off the SASS of ptxas 13.0.88 and 13.5.37).
    PairsThenAdd(DotModel),
    /// [`cdna3::half_dot_add`].
    Cdna3Half,
    /// [`cdna3::fp8_dot_add`].
    Cdna3Fp8,
}

/// The codes of one f16 register half after ptxas' unpacking: pairs 0, 2, 4, .. or 1, 3, 5, ..
pub(crate) fn pairs_of_half<T: Copy + Into<u16>>(codes: &[T], half: usize) -> [u16; LARGEST_K / 2] {
    let mut gathered = [0; LARGEST_K / 2];
    let selected = codes.iter().enumerate().filter(|(k, _)| k >> 1 & 1 == half);
    for (slot, (_, &code)) in gathered.iter_mut().zip(selected) {
        *slot = code.into();
    }
    gathered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_lengths_are_errors() {
        for instruction in DotInstruction::ALL {
            let k = instruction.k();
            assert!(instruction.dot_add(&vec![0u16; k], &vec![0; k], 0).is_ok());
            let error = instruction.dot_add(&vec![0u16; k], &vec![0; k - 1], 0);
            assert_eq!(error, Err(ArithError::Length { buffer: "b", want: k, got: k - 1 }));
        }
    }

    #[test]
    fn only_hopper_is_called_exact() {
        for instruction in DotInstruction::ALL {
            let hopper = instruction.name().starts_with("wgmma") || instruction.name().starts_with("mma");
            assert_eq!(instruction.validation().is_exact(), hopper, "{instruction}");
        }
    }

    #[test]
    fn emulated_mma_sync_differs_from_wgmma() {
        // 1 * 1 + 2^-9 * 2^-9: 18 bits apart, lost by the 14-bit sum, kept by the f16 datapath.
        let mut a = [0u8; 32];
        (a[0], a[1]) = (0x38, 0x01);
        assert_eq!(DotInstruction::WgmmaE4m3K32.step(&a, &a, 0), 0x3f80_0000);
        assert_eq!(DotInstruction::MmaE4m3K32EmulatedSm90a.step(&a, &a, 0), 0x3f80_0000 | 1 << 5);
    }

    #[test]
    fn two_k8_steps_are_not_one_k16() {
        // One product at 2^0, then 2^-26 four times in the second half: below the grid alone, and truncated anyway in
        // k16; visible in k8 only through the accumulator's own truncation. Use cancellation to tell them apart.
        let at = |e: i32| ((e + 127) as u16) << 7;
        let (mut a, b) = ([0u16; 16], [0x3f80u16; 16]);
        (a[0], a[1], a[8], a[9]) = (at(0), at(-24), at(0) | 0x8000, at(-24));
        let k16 = DotInstruction::MmaBf16K16.step(&a, &b, 0);
        let first = DotInstruction::MmaBf16K8.step(&a[..8], &b[..8], 0);
        let k8 = DotInstruction::MmaBf16K8.step(&a[8..], &b[8..], first);
        assert_eq!((k16, k8), (0x3400_0000, 0x3380_0000));
    }
}
