//! What a test makes the library do, and what it reads of it. None of this is in the driver API.

use std::ffi::{CStr, c_char, c_int, c_uint};

use crate::state::with;

/// Copies as much of the log as fits into `to` and returns the length of all of it. One line a call (`name details`, then
/// `-> code` if it failed) or a kernel that ran (`run details`).
///
/// # Safety
/// `to` is valid for `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msa_fake_cuda_log(to: *mut c_char, capacity: usize) -> usize {
    with(|state| {
        let text = state.log().join("\n");
        // SAFETY: the caller's promise; the text is at least as long as what is copied.
        unsafe { to.copy_from_nonoverlapping(text.as_ptr().cast(), text.len().min(capacity)) };
        text.len()
    })
}

/// Empties the log.
#[unsafe(no_mangle)]
pub extern "C" fn msa_fake_cuda_clear_log() {
    with(|state| state.log().clear());
}

/// Makes the call `name` answer `code` once, after `skip` calls that do not, and do nothing then.
///
/// # Safety
/// `name` ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msa_fake_cuda_fail(name: *const c_char, code: c_int, skip: c_uint) {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    with(|state| state.plan_failure(name, code, skip));
}

/// Makes a kernel whose name starts with `symbol` fail with `code` when it runs next: its context keeps the error.
///
/// # Safety
/// `symbol` ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msa_fake_cuda_break(symbol: *const c_char, code: c_int) {
    // SAFETY: the caller's promise.
    let symbol = unsafe { CStr::from_ptr(symbol) }.to_string_lossy().into_owned();
    with(|state| state.broken = Some((symbol, code)));
}

/// Tasks that are queued and have not run.
#[unsafe(no_mangle)]
pub extern "C" fn msa_fake_cuda_pending() -> usize {
    with(|state| state.queues.pending())
}

/// Contexts on the stack of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn msa_fake_cuda_depth() -> usize {
    with(|state| state.depth())
}

/// Bytes of a device that are allocated.
#[unsafe(no_mangle)]
pub extern "C" fn msa_fake_cuda_used(device: usize) -> u64 {
    with(|state| state.memory.used(device))
}
