//! The CPU reference of `msa`: hardware arithmetic models and what executes plans under them.

pub mod arith;
pub mod simd;
