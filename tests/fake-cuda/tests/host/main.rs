//! The host path of msa-cuda over a driver library that needs no GPU.
//!
//! A process opens one driver, once: every test runs in a process of its own, with the driver that it asks for (`child`).
//! `engine` is what an engine does with the driver itself, `fake` reads the log and makes calls fail.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail loudly")]

/// For the test that a run allocates nothing.
#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

mod allocations;
mod checked;
mod child;
mod contexts;
mod engine;
mod errors;
mod fake;
mod graphs;
mod loading;
mod obeys;
mod ranges;
mod ranks;
mod refusals;
mod results;
mod semantics;
mod streams;
mod views;
mod work;
