//! The kernels of Hopper, bit for bit: index scores and attention under a named arithmetic whose products are
//! tensor-core instructions.
//!
//! Every model involved was compared with an H200 (see [`crate::arith`]); what is written here is the order of the
//! kernels' operations, which their sources state in the same terms.

mod index_score;
mod prefill;
mod product;
mod sparse_decode;

pub use index_score::BlockScorer;
pub use prefill::Prefiller;
pub use sparse_decode::{DecodeBlock, Decoder};
