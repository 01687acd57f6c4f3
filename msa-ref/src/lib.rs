//! CPU reference of MiniMax Sparse Attention.

pub mod sim;
pub mod spec;
