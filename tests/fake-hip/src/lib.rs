//! A HIP runtime without a GPU: the functions that msa-rocm calls, over the gfx9 interpreter.
//!
//! It is a `libamdhip64.so` for a process that opens one (`MSA_HIP_LIBRARY`): then `MSA_FAKE_HIP_DEVICES` lists the devices
//! (`gfx950,gfx950`; the default is one gfx950), and `HSA_OVERRIDE_GFX_VERSION` renames them as on a real machine. And it is
//! a table of functions for a process that wants several runtimes at a time: each [`Simulated`] is one of its own.
//!
//! Work is queued by device and stream and runs when somebody waits: devices interleaved, the streams of a device one after
//! the other, the default stream first, so that work on a stream that is not the caller's is too early. An interpreter's
//! error is error 719 (launch failure) of the next call, and stays, as on a real device; its text goes to standard error.
#![allow(unsafe_code)]

mod calls;
mod pool;
mod state;

pub use pool::Simulated;
pub use state::{Call, Setup};

use std::ffi::c_int;

/// `hipError_t`.
type Code = c_int;
