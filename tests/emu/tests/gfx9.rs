//! The gfx942 and gfx950 kernels that ship, executed without a GPU and compared bit for bit with the reference.
//!
//! `cargo xtask plugin rocm` builds the code objects. Where they are missing a test says so and does nothing, unless
//! `MSA_REQUIRE_KERNELS` is set, as it is in continuous integration.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail loudly")]

#[path = "gfx9/append.rs"]
mod append;
#[path = "gfx9/attention.rs"]
mod attention;
#[path = "gfx9/cache.rs"]
mod cache;
#[path = "gfx9/context_parallel.rs"]
mod context_parallel;
#[path = "gfx9/coverage.rs"]
mod coverage;
#[path = "gfx9/fences.rs"]
mod fences;
#[path = "gfx9/index_score.rs"]
mod index_score;
#[path = "gfx9/merge.rs"]
mod merge;
#[path = "gfx9/mutations.rs"]
mod mutations;
#[path = "gfx9/requests.rs"]
mod requests;
#[path = "gfx9/rig.rs"]
mod rig;
#[path = "gfx9/select.rs"]
mod select;
#[path = "gfx9/select_merge.rs"]
mod select_merge;
#[path = "gfx9/shared_pages.rs"]
mod shared_pages;
#[path = "gfx9/sparse_decode.rs"]
mod sparse_decode;
#[path = "gfx9/speed.rs"]
mod speed;
#[path = "gfx9/validate.rs"]
mod validate;
#[path = "gfx9/wrong_programs.rs"]
mod wrong_programs;
