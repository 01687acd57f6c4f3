//! msa-rocm's host path and shipped kernels over the gfx9 interpreter: the set `emu`, indexer context parallelism, and the
//! problems of `tests/field.toml` that concern AMD. Without kernels every test says so and passes, unless
//! `MSA_REQUIRE_KERNELS` is set.

#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod captured;
mod emu_set;
mod field_append;
mod field_caches;
mod field_decode;
mod field_devices;
mod field_graphs;
mod field_ranks;
mod field_select;
mod field_support;
mod pair;
mod ranks;
mod worlds;
