//! Executing kernels: waves of 64 lanes, groups, several simulated GPUs.

mod global;
mod lds;
mod machine;
mod matrix;
mod memory;
mod program;
mod registers;
mod scalar;
mod vector;
mod wait;
mod wave;

pub use machine::{Arguments, Kernel, Launch, Machine, Options, Statistics};
pub use memory::BufferId;

/// Lanes of a wave.
pub(crate) const LANES: usize = 64;
