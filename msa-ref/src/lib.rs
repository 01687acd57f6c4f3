//! CPU reference of MiniMax Sparse Attention.

pub mod spec;
