//! Executes plans under the arithmetic that they name, bit for bit.

pub mod append;
