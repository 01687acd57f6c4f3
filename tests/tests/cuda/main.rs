//! The backend `cuda` on a GPU: problems of `tests/field.toml`, every result compared with the reference bit for bit.
//!
//! The device is `cuda:0` of the plugin that the usual search finds (`MSA_PLUGIN_PATH`, or beside the test). Where there is
//! none every test says so and passes, unless `MSA_REQUIRE_CUDA` is set. `MSA_TEST_DEVICE` names another device:
//! `as:sm90a` runs the same rows on the reference under the plans of an H200, so that what the tests expect is seen to
//! hold where there is no GPU.

#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod captured;
mod checked;
#[path = "../gpu/field_append.rs"]
mod field_append;
#[path = "../gpu/field_caches.rs"]
mod field_caches;
#[path = "../gpu/field_decode.rs"]
mod field_decode;
#[path = "../gpu/field_formats.rs"]
mod field_formats;
mod field_graphs;
mod field_plans;
mod field_repeats;
mod field_rows;
mod field_sanitizer;
#[path = "../gpu/field_select.rs"]
mod field_select;
mod field_support;
mod long_rows;
mod pair;
#[path = "../gpu/workspaces.rs"]
mod workspaces;
