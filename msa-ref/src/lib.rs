//! The CPU reference of `msa`: the equations, the hardware's arithmetic, and what executes plans under either.

pub mod arith;
pub mod atomic_file;
mod backend;
pub mod input;
pub mod output;
pub mod plot;
pub mod plugin;
pub mod sim;
pub mod simd;
pub mod spec;

pub use backend::{VARIANTS, backend, device};

/// Name of the instruction set that the reference uses on this machine; every one gives the same bits.
pub fn simd_level() -> String {
    simd::SimdLevel::detect().to_string()
}

/// The README's engine example, compiled and run as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
