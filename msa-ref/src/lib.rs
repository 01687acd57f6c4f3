//! placeholder
pub mod atomic_file;
pub mod input;
pub mod output;
pub mod plot;
