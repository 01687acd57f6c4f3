//! A HIP runtime without a GPU: the functions that msa-rocm calls, over the gfx9 interpreter.
//!
//! It is a `libamdhip64.so` for a process that opens one (`MSA_HIP_LIBRARY`): then `MSA_FAKE_HIP_DEVICES` lists the devices
//! (`gfx950,gfx950`; the default is one gfx950), and `HSA_OVERRIDE_GFX_VERSION` renames them as on a real machine. And it is
//! a table of functions for a process that wants several runtimes at a time: each [`Simulated`] is one of its own.
//!
//! Work is queued by device and stream and runs when somebody waits for it, and no sooner: whoever waits for one stream sees
//! nothing of another that does not block it, and what the host copies to a device is not there when the call returns. An
//! interpreter's error is error 719 (launch failure) of the next call, and stays, as on a real device; its text goes to
//! standard error.
#![allow(unsafe_code)]

mod calls;
mod counting;
mod pool;
mod queue;
mod roctx;
mod setup;
mod state;

pub use counting::Counting;
pub use pool::Simulated;
pub use setup::Setup;
pub use state::Call;

use std::ffi::c_int;

/// `hipError_t`.
type Code = c_int;
