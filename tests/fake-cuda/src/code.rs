//! `CUresult`, as far as it is answered here.

use std::ffi::c_int;

/// `CUresult`.
pub(crate) type Code = c_int;

pub(crate) const INVALID_VALUE: Code = 1;
pub(crate) const OUT_OF_MEMORY: Code = 2;
pub(crate) const NOT_INITIALIZED: Code = 3;
pub(crate) const NO_DEVICE: Code = 100;
pub(crate) const INVALID_DEVICE: Code = 101;
pub(crate) const INVALID_IMAGE: Code = 200;
pub(crate) const INVALID_CONTEXT: Code = 201;
pub(crate) const NO_BINARY_FOR_GPU: Code = 209;
pub(crate) const PEER_ACCESS_UNSUPPORTED: Code = 217;
pub(crate) const INVALID_HANDLE: Code = 400;
pub(crate) const NOT_FOUND: Code = 500;
pub(crate) const ILLEGAL_ADDRESS: Code = 700;
pub(crate) const PEER_ACCESS_ALREADY_ENABLED: Code = 704;
pub(crate) const CONTEXT_IS_DESTROYED: Code = 709;
pub(crate) const LAUNCH_FAILED: Code = 719;
pub(crate) const STREAM_CAPTURE_UNSUPPORTED: Code = 900;
pub(crate) const STREAM_CAPTURE_INVALIDATED: Code = 901;
