//! The reference's own recipe.

use super::super::*;

pub(super) const PRODUCT: Product =
    Product { dot: Dot::Fma, operand: Operand::F32, steps: Steps::contiguous(1), shift: 0 };

pub(super) const ATTENTION: AttentionArithmetic = AttentionArithmetic {
    scores: PRODUCT,
    values: PRODUCT,
    parts: 1,
    tokens_per_update: 128,
    exp2: Exp2::Polynomial5,
    exponent: Exponent::Difference,
    reference: Reference::Running,
    lag_limit: 0,
    probability: Probability { operand: Operand::F32, scale_log2: 0, times_448: false, sum_rounded: false },
    row_sum: RowSum::Lanes16,
    sum_update: SumUpdate::Partial,
    combine: Combine::Live,
    splits: Splits::States,
    normalise: Normalise::Divide,
    promote: false,
    partial: Operand::F32,
};
