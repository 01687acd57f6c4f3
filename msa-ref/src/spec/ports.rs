//! Helpers of general shape for ports of the algorithm to other hardware and frameworks: f32 in, f32 out.
//!
//! Some ports select blocks per *block of queries* rather than per query, validate against a dense attention with
//! an f32 mask, or combine `(o, l, m)` states over context-parallel ranks. These functions are the reference for
//! that. They compute in f64 by the equations of [`spec`](super) and round once to f32 at the end, so they are
//! independent of any summation order; they are not fast and no kernel's result passes through them.

pub mod block_lists;
pub mod causal_mask;
pub mod dense;
pub mod shards;
