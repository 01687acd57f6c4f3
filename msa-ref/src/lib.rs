//! placeholder
pub mod input;
