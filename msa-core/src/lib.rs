//! placeholder

pub mod format;
