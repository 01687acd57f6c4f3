//! Executes plans under the arithmetic that they name, bit for bit, on host memory.

pub mod append;
pub mod batch;
pub mod paged;
