//! Decode on NVIDIA: a warp holds 32 tokens of a block, the states of the four warps and then of the splits combine in
//! order. The recipe was compared with an H200 without a differing bit (driver 580.159).

use super::super::*;

/// Thread quad q of a warp owns channels 32q..32q+31; a k16 step takes four of each.
const QUAD_K16: Steps = Steps { runs: 4, run: 4, run_stride: 32, step_stride: 4, interleave: 1 };

/// The same for k32 steps: eight channels of each quad.
pub(super) const QUAD_K32: Steps = Steps { runs: 4, run: 8, run_stride: 32, step_stride: 8, interleave: 1 };

/// The packed codes of a quad's 32 channels, taken apart by masks: every second of eight neighbours.
const QUAD_NIBBLES: Steps = Steps { runs: 4, run: 4, run_stride: 32, step_stride: 8, interleave: 2 };

pub(super) const F16: Product =
    Product { dot: Dot::MmaF16K16, operand: Operand::F16, steps: QUAD_K16, shift: 0 };

pub(super) const BF16: Product =
    Product { dot: Dot::MmaBf16K16, operand: Operand::Bf16, steps: QUAD_K16, shift: 0 };

pub(super) const E4M3: Product =
    Product { dot: Dot::WgmmaE4m3K32, operand: Operand::E4m3, steps: QUAD_K32, shift: 0 };

/// NVFP4 values without the second rounding: a code's bits are an f16 subnormal, so that code times scale comes out times
/// 2^-14, exactly.
pub(super) const EXACT_F16: Product =
    Product { dot: Dot::MmaF16K16, operand: Operand::F16, steps: QUAD_NIBBLES, shift: -14 };

/// Two channels of each quad a step.
const QUAD_K8: Steps = Steps { runs: 4, run: 2, run_stride: 32, step_stride: 2, interleave: 1 };

pub(super) const F16_K8: Product = Product { dot: Dot::MmaF16K8, steps: QUAD_K8, ..F16 };

pub(super) const BF16_K8: Product = Product { dot: Dot::MmaBf16K8, steps: QUAD_K8, ..BF16 };

pub(super) const WGMMA_F16: Product = Product { dot: Dot::WgmmaF16K16, ..F16 };

pub(super) const MMA_E4M3: Product = Product { dot: Dot::MmaE4m3K32Emulated, ..E4M3 };

pub(super) const TCGEN05_F16: Product = Product { dot: Dot::Tcgen05F16K16, ..F16 };

pub(super) const TCGEN05_E4M3: Product = Product { dot: Dot::Tcgen05E4m3K32, ..E4M3 };

/// Four warps of 32 tokens a block, f16 `mma.sync` for both products, MUFU exponentials: the prototype.
pub(super) const RUNNING: AttentionArithmetic = AttentionArithmetic {
    scores: F16,
    values: Product { steps: Steps::contiguous(16), ..F16 },
    parts: 4,
    tokens_per_update: 32,
    exp2: Exp2::Mufu,
    exponent: Exponent::Fused,
    reference: Reference::Running,
    lag_limit: 0,
    probability: Probability { operand: Operand::F16, scale_log2: 0, times_448: false, sum_rounded: false },
    row_sum: RowSum::QuadPairs,
    sum_update: SumUpdate::Partial,
    combine: Combine::All,
    splits: Splits::States,
    normalise: Normalise::ReciprocalRn,
    promote: false,
    partial: Operand::F32,
};

/// The same with references that lag: the sum of a quad is eight weights, so that every P stays below the largest f16, and
/// most updates need no maximum.
const fn lagging(running: AttentionArithmetic) -> AttentionArithmetic {
    AttentionArithmetic {
        exponent: Exponent::Scaled,
        reference: Reference::Lagging,
        lag_limit: 1 << 15,
        ..running
    }
}

/// What the kernels execute for E4M3 queries.
pub(super) const ATTENTION: AttentionArithmetic = lagging(RUNNING);

/// bf16 queries do not fit f16, so the first product takes bf16; FP8 and NVFP4 values are exact in f16, where P keeps three
/// more bits.
pub(super) const MIXED: AttentionArithmetic = AttentionArithmetic { scores: BF16, ..ATTENTION };

/// [`RUNNING`] with both products in bf16.
pub(super) const RUNNING_BF16: AttentionArithmetic = AttentionArithmetic {
    scores: BF16,
    values: Product { steps: Steps::contiguous(16), ..BF16 },
    probability: Probability { operand: Operand::Bf16, ..RUNNING.probability },
    ..RUNNING
};

pub(super) const ATTENTION_BF16: AttentionArithmetic = lagging(RUNNING_BF16);

/// The same kernel over tensor memory.
pub(super) const TCGEN05: AttentionArithmetic = AttentionArithmetic {
    scores: TCGEN05_F16,
    values: Product { steps: Steps::contiguous(16), ..TCGEN05_F16 },
    ..RUNNING
};

/// [`RUNNING`] with a software exponential.
pub(super) const fn polynomial(exp2: Exp2) -> AttentionArithmetic {
    AttentionArithmetic { exp2, ..RUNNING }
}

/// Scores through `wgmma`, values as before.
pub(super) const WGMMA: AttentionArithmetic = AttentionArithmetic { scores: WGMMA_F16, ..RUNNING };

/// Both products through a k8 form.
pub(super) const fn k8(attention: AttentionArithmetic, product: Product) -> AttentionArithmetic {
    AttentionArithmetic {
        scores: product,
        values: Product { steps: Steps::contiguous(8), ..product },
        ..attention
    }
}
