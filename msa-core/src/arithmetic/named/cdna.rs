//! Decode on CDNA: a wave holds 32 tokens of a block; products under a published model (CDNA3) or an assumption (CDNA4).

use super::super::*;
use super::decode::QUAD_K32;

/// Lane group g of a wave owns channels 32g..32g+31; a k32 step takes eight of each.
pub(super) const CDNA3_SCORES: Product =
    Product { dot: Dot::MfmaCdna3Fp8K32, operand: Operand::E4m3, steps: QUAD_K32, shift: 0 };

pub(super) const CDNA4_SCORES: Product =
    Product { dot: Dot::MfmaCdna4Fp8K128, operand: Operand::E4m3, steps: Steps::contiguous(128), shift: 0 };

/// Four waves of 32 tokens a block, P in FP8 times 2^7 (FNUZ ends at 240), software exponential.
pub(super) const CDNA3: AttentionArithmetic = AttentionArithmetic {
    scores: CDNA3_SCORES,
    values: Product { steps: Steps::contiguous(32), ..CDNA3_SCORES },
    parts: 4,
    tokens_per_update: 32,
    exp2: Exp2::Polynomial5,
    exponent: Exponent::Difference,
    reference: Reference::Running,
    lag_limit: 0,
    probability: Probability { operand: Operand::E4m3, scale_log2: 7, times_448: false, sum_rounded: false },
    row_sum: RowSum::GroupsOf8,
    sum_update: SumUpdate::Fused,
    combine: Combine::Live,
    splits: Splits::Merged,
    normalise: Normalise::Divide,
    promote: false,
    partial: Operand::F32,
};

/// The same with P times 2^8 and OCP products.
pub(super) const CDNA4: AttentionArithmetic = AttentionArithmetic {
    scores: CDNA4_SCORES,
    values: Product { dot: Dot::MfmaCdna4Fp8K32, ..CDNA3.values },
    probability: Probability { scale_log2: 8, ..CDNA3.probability },
    ..CDNA3
};

/// bf16 queries: keys widen to bf16, lane group g owns channels 32g..32g+31 and a k16 step takes four of each.
pub(super) const CDNA3_SCORES_BF16: Product = Product {
    dot: Dot::MfmaCdna3Bf16K16,
    operand: Operand::Bf16,
    steps: Steps { runs: 4, run: 4, run_stride: 32, step_stride: 4, interleave: 1 },
    shift: 0,
};

/// The same with k32 steps, which take eight.
pub(super) const CDNA4_SCORES_BF16: Product =
    Product { dot: Dot::MfmaCdna4Bf16K32, operand: Operand::Bf16, steps: QUAD_K32, shift: 0 };

/// bf16 queries over FP8 and NVFP4 caches: P and V stay in FP8.
pub(super) const CDNA3_MIXED: AttentionArithmetic =
    AttentionArithmetic { scores: CDNA3_SCORES_BF16, ..CDNA3 };

/// The same on CDNA4.
pub(super) const CDNA4_MIXED: AttentionArithmetic =
    AttentionArithmetic { scores: CDNA4_SCORES_BF16, ..CDNA4 };

/// bf16 caches: P in bf16 as it comes. A lane's eight tokens enter as two steps of four.
pub(super) const CDNA3_BF16: AttentionArithmetic = AttentionArithmetic {
    values: Product {
        steps: Steps { runs: 4, run: 4, run_stride: 8, step_stride: 4, interleave: 1 },
        ..CDNA3_SCORES_BF16
    },
    probability: Probability { operand: Operand::Bf16, scale_log2: 0, ..CDNA3.probability },
    ..CDNA3_MIXED
};

/// The same on CDNA4, in one step.
pub(super) const CDNA4_BF16: AttentionArithmetic = AttentionArithmetic {
    values: Product { steps: Steps::contiguous(32), ..CDNA4_SCORES_BF16 },
    probability: CDNA3_BF16.probability,
    ..CDNA4_MIXED
};
