//! Executes any arithmetic that `msa_core::arithmetic` can say, bit for bit: index scores, decode and prefill.
//!
//! Everything that a recipe decides is a field of [`AttentionArithmetic`]; what the fields leave open is here. With
//! `c = f32(scale * log2 e)`, f the logarithm of the scale of P where it enters the exponent (else 0), and a state
//! (m, l, O) that starts as (-inf, 0, 0), every step of `tokens_per_update` tokens of a part of a block does:
//!
//! 1. S of every token by the first product, -inf for hidden ones.
//! 2. The reference: m' = max(m, S) (m in the unit that [`Exponent`] says). Where it is higher, `a = exp2((m - m') * c)`,
//!    or `exp2(m - m')` under [`Exponent::Scaled`], multiplies l and O. A lagging reference first tries m as it is, and is
//!    raised, for every head of the group, only if a sum of the step is above the limit or is no number, or if the reference
//!    of some head is far ([`is_far`]). A state per block starts anew with every block.
//! 3. `p = exp2(..)` as [`Exponent`] says, and its sums as [`RowSum`] and [`SumUpdate`] say.
//! 4. O is chained through the product of P, scaled and rounded, and V; hidden values are +0. With `promote` the product
//!    starts from +0 and `O = fma(O, a, product)`.
//!
//! The states of a block's parts combine in ascending order, then those of the parts of the slots ([`Splits`]), or of the
//! KV-outer slots with the union's state behind them; those of prefill are rounded to `partial` before. At the end the
//! output is O / l or O * (1 / l), and the LSE `fma(m, scale, ln l)`, or `fma(m - f, ln 2, ln l)` under
//! [`Exponent::Scaled`]; without a weight 0 and -inf. NaN is canonical.
//!
//! FNUZ products take NVFP4 values halved (FNUZ ends at 240, E4M3 at 448), and what they give is doubled: powers of two
//! are exact.
//!
//! [`AttentionArithmetic`]: msa_core::arithmetic::AttentionArithmetic
//! [`Exponent`]: msa_core::arithmetic::Exponent
//! [`Exponent::Scaled`]: msa_core::arithmetic::Exponent::Scaled
//! [`is_far`]: msa_core::arithmetic::is_far
//! [`RowSum`]: msa_core::arithmetic::RowSum
//! [`SumUpdate`]: msa_core::arithmetic::SumUpdate
//! [`Splits`]: msa_core::arithmetic::Splits

mod attend;
mod exponent;
mod index_score;
mod operand;
mod product;
mod row_sum;
mod softmax;
mod state;
#[cfg(test)]
mod tests;

use msa_core::arithmetic::{Arithmetic, Named};
use msa_core::cache::CacheFormat;
use msa_core::error::{Error, Result};
use msa_core::op::{Attention, Op};

pub use attend::{Attender, SelectedBlock, Shape};
pub use index_score::BlockScorer;

/// Whether the reference executes `op` under `arithmetic`; it does everything under its own, `f32`.
///
/// # Errors
/// [`Error::Unsupported`] with the reason: steps that do not fit the op's extents, or fields that exclude each other.
pub fn check(arithmetic: &Arithmetic, op: &Op) -> Result<()> {
    if *arithmetic == Named::F32.arithmetic() {
        return Ok(());
    }
    let g = op.geometry();
    let index = |keys| BlockScorer::new(&arithmetic.index, g.index_dim as usize, keys, &[]).map(drop);
    let attention = |op: &Attention| Attender::new(arithmetic, &Shape::of(op, 1.0, 1.0)).map(drop);
    let checked = match op {
        Op::IndexScore(op) => index(op.keys),
        Op::SparseDecode(op) | Op::SparsePrefill(op) => attention(op),
        Op::Step(op) => index(op.index.keys).and_then(|()| attention(&op.attention)),
        _ => Ok(()),
    };
    checked.map_err(|error| Error::Unsupported {
        op: op.name(),
        backend: "ref".to_owned(),
        reasons: vec![format!("arithmetic {}: {error}", arithmetic.name)],
    })
}

/// Whether FNUZ products hold values of a cache halved.
fn halved(format: CacheFormat) -> bool {
    format == CacheFormat::Nvfp4
}
