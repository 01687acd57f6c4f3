//! CPU reference of MiniMax Sparse Attention: the equations, hardware arithmetic models, and what executes plans under
//! them.

pub mod arith;
pub mod atomic_file;
pub mod input;
pub mod output;
pub mod plot;
pub mod sim;
pub mod simd;
pub mod spec;
