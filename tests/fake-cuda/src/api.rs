//! The exported functions.

#[macro_use]
mod entry;
pub mod context;
pub mod control;
pub mod device;
pub mod graph;
pub mod memory;
pub mod module;
pub mod stream;

pub use entry::{Handle, Out};
