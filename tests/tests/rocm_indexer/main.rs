//! Indexer context parallelism through msa-rocm's host path, over simulated GPUs that reach each other's memory: every world
//! selects what one device selects, bit for bit.

#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod captured;
mod field_problems;
mod ranks;
mod worlds;
