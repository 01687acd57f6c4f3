//! `append` end to end: arguments on a host allocator, caches in the engines' layouts, bytes checked one by one.

// The helpers of tests may panic as the tests themselves may.
#![allow(clippy::unwrap_used)]

mod field_problems;
mod formats;
mod golden;
mod quantised_fields;
mod rig;
