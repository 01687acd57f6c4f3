//! The CPU reference of `msa`: the equations, the hardware's arithmetic, and what executes plans under either.

pub mod arith;
pub mod atomic_file;
pub mod input;
pub mod output;
pub mod plot;
pub mod sim;
pub mod simd;
pub mod spec;
