//! Executes plans under the arithmetic that they name, bit for bit, on host memory: `f32` with kernels of its own, every
//! other one by [`recipe`].
//!
//! # The arithmetic `f32`
//!
//! The reference's own arithmetic (`msa_core::arithmetic::Named::F32`). Every operation is one IEEE f32 operation,
//! rounded to nearest even, so every machine and every SIMD level gives the same bits. With q, k, v the dequantised
//! rows, `scale` the softmax scale and `slope = f32(scale * log2 e)`:
//!
//! * **Score** of a query row and a key: `s = fma(q[c], k[c], s)` over channels c = 0, 1, ..., from +0.
//! * **Index score** of a block: the largest score of its visible keys. NaN is ignored, -0 < +0; -inf without any.
//! * **Attention** of a row goes through blocks in the order of its list (ascending ids, as selection writes them),
//!   with a state (m, l\[16\], O\[D\]) that starts as (-inf, 0, 0). For each block:
//!   m' = max(m, largest visible score); if m' > m, then l and O are multiplied by `weight(m, m')`;
//!   each visible token t, in order, has `p = weight(s, m')`, `l[t mod 16] += p`, `O[d] = fma(p, v[d], O[d])`.
//!   Tokens that the row does not see are left out: their K and V are not read as numbers.
//! * `weight(s, m) = exp2((s - m) * slope)`, with the degree-5 polynomial of [`crate::arith::exp2`]. The difference
//!   is taken first: it is exact for neighbours, so that scores of -3e30 weigh as much against each other as scores
//!   of -3 do. m = -inf counts as 0 here (all weights are then +0). A NaN stays NaN.
//! * **Row sum**: l\[i\] + l\[i+8\], then +4, +2, +1.
//! * **Combining** states in ascending order: states without a key are left out; a single one is returned as it is;
//!   otherwise M = the largest m, and from zero `l = fma(l_s, a_s, l)`, `O = fma(O_s, a_s, O)` with
//!   `a_s = weight(m_s, M)`.
//! * **Finish**: `O / l`, and the LSE `fma(m, scale, ln l)` with [`crate::arith::log::ln`]. l = 0 (no visible key, or
//!   all scores -inf): 0 and -inf. NaN is canonical.
//!
//! NaN and +inf scores of visible keys make the row NaN, as in the equations.
//!
//! Schedules differ in what makes up a state, and in nothing else: *union* has one state a row, like decode with one
//! part, and gives the same bits. *KV-outer* has a state for each slot of the list, *hybrid* one for each
//! slot that goes to KV-outer and, behind them, one for the blocks that stay in the union. How rows and blocks are tiled, chunked or spread over threads never
//! shows in a result.

pub mod append;
pub mod attention;
pub mod batch;
pub mod block;
pub mod candidates;
pub mod cdna;
pub(crate) mod execute;
pub mod index_score;
pub mod merge;
pub mod paged;
pub mod recipe;
pub mod select;
mod slots;
pub mod state;
#[cfg(test)]
mod test_device;
mod tile;
pub mod validate;
