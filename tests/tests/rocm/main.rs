//! msa-rocm's host path and shipped kernels over the gfx9 interpreter: the set `emu`, indexer context parallelism, and the
//! problems of `tests/field.toml` that concern AMD. Without kernels every test says so and passes, unless
//! `MSA_REQUIRE_KERNELS` is set.

#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)]

/// Counts, for the test that an enqueued run allocates nothing.
#[global_allocator]
static ALLOCATOR: msa_fake_hip::Counting = msa_fake_hip::Counting;

mod back_to_back;
mod border;
mod captured;
mod emu_set;
mod examples;
#[path = "../gpu/field_append.rs"]
mod field_append;
#[path = "../gpu/field_caches.rs"]
mod field_caches;
#[path = "../gpu/field_decode.rs"]
mod field_decode;
mod field_devices;
mod field_flavours;
#[path = "../gpu/field_formats.rs"]
mod field_formats;
mod field_graphs;
mod field_ranks;
#[path = "../gpu/field_select.rs"]
mod field_select;
mod field_support;
mod first_call;
mod host_path;
mod pair;
mod ranks;
#[path = "../gpu/workspaces.rs"]
mod workspaces;
mod worlds;
