//! Schedule records.
mod layout;

pub use layout::{RecordLayout, SectionOffsets};
pub(in crate::plan) use layout::RecordExtents;
