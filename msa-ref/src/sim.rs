//! Execution of plans: what a kernel computes, step by step, on host memory.

pub mod batch;
pub mod paged;
