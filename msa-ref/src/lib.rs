//! The CPU reference of `msa`: the equations, hardware arithmetic models and what executes plans under them.

pub mod arith;
pub mod simd;
pub mod sim;
pub mod spec;
