//! Prefill on NVIDIA: union tiles in half blocks of 64 keys with a lagging reference, KV-outer tiles with a state for each
//! block.

use super::super::*;

pub(super) const E4M3: Product =
    Product { dot: Dot::WgmmaE4m3K32, operand: Operand::E4m3, steps: Steps::contiguous(32), shift: 0 };

pub(super) const BF16: Product =
    Product { dot: Dot::WgmmaBf16K16, operand: Operand::Bf16, steps: Steps::contiguous(16), shift: 0 };

pub(super) const TCGEN05_E4M3: Product = Product { dot: Dot::Tcgen05E4m3K32, ..E4M3 };

pub(super) const TCGEN05_BF16: Product = Product { dot: Dot::Tcgen05Bf16K16, ..BF16 };

/// Half blocks of 64 keys, products chained in the accumulator over all blocks of the row. P stays below 448, the end of
/// E4M3, if the sum of a quad does.
pub(super) const UNION_FP8: AttentionArithmetic = AttentionArithmetic {
    scores: E4M3,
    values: E4M3,
    parts: 1,
    tokens_per_update: 64,
    exp2: Exp2::Mufu,
    exponent: Exponent::Scaled,
    reference: Reference::Lagging,
    lag_limit: 448,
    probability: Probability { operand: Operand::E4m3, scale_log2: 4, times_448: false, sum_rounded: false },
    row_sum: RowSum::QuadTiles,
    sum_update: SumUpdate::Partial,
    combine: Combine::All,
    splits: Splits::States,
    normalise: Normalise::ReciprocalRn,
    promote: false,
    partial: Operand::Bf16,
};

/// bf16 ends far later; 10^18 keeps sums of outputs finite.
pub(super) const UNION_BF16: AttentionArithmetic = AttentionArithmetic {
    scores: BF16,
    values: BF16,
    lag_limit: 1_000_000_000_000_000_000,
    probability: Probability { operand: Operand::Bf16, ..UNION_FP8.probability },
    ..UNION_FP8
};

/// A state for each block, relative to the block's own maximum.
pub(super) const KV_OUTER_FP8: AttentionArithmetic = AttentionArithmetic {
    tokens_per_update: 128,
    reference: Reference::PerBlock,
    lag_limit: 0,
    probability: Probability { scale_log2: 8, ..UNION_FP8.probability },
    row_sum: RowSum::QuadColumns,
    ..UNION_FP8
};

pub(super) const KV_OUTER_BF16: AttentionArithmetic = AttentionArithmetic {
    scores: BF16,
    values: BF16,
    probability: Probability { operand: Operand::Bf16, ..KV_OUTER_FP8.probability },
    ..KV_OUTER_FP8
};

/// FP8 scores, P and V in bf16.
pub(super) const fn bf16_probability(recipe: AttentionArithmetic, limit: u64) -> AttentionArithmetic {
    let probability = Probability { operand: Operand::Bf16, ..recipe.probability };
    AttentionArithmetic { values: BF16, probability, lag_limit: limit, ..recipe }
}

/// P in E4M3 as it comes, at most 1, or times 448. Neither leaves room for a reference that lags.
pub(super) const fn running(recipe: AttentionArithmetic, times_448: bool) -> AttentionArithmetic {
    let probability = Probability { scale_log2: 0, times_448, ..recipe.probability };
    let reference = match recipe.reference {
        Reference::Lagging => Reference::Running,
        other => other,
    };
    AttentionArithmetic { probability, reference, lag_limit: 0, ..recipe }
}

/// The same kernels over tensor memory.
pub(super) const fn tcgen05(recipe: AttentionArithmetic, product: Product) -> AttentionArithmetic {
    AttentionArithmetic { scores: product, values: product, ..recipe }
}
