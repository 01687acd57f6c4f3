//! What the fake library logs, and what it can be told.

use std::ffi::{CString, c_char, c_int, c_uint};

use cudarc::driver::sys;

fn symbol<T: Copy>(name: &str) -> T {
    let name = format!("{name}\0");
    // SAFETY: the library was opened by whoever asked for a device before.
    let library = unsafe { sys::culib() };
    // SAFETY: `T` is the type that `api::control` gives the function.
    *unsafe { library.get::<T>(name.as_bytes()) }.expect("the library is the fake one")
}

/// Lines since the last call, which empties the log.
pub(crate) fn take_log() -> Vec<String> {
    let read: unsafe extern "C" fn(*mut c_char, usize) -> usize = symbol("msa_fake_cuda_log");
    let clear: extern "C" fn() = symbol("msa_fake_cuda_clear_log");
    let mut text = vec![0_u8; 1 << 22];
    // SAFETY: the buffer has this length.
    let bytes = unsafe { read(text.as_mut_ptr().cast(), text.len()) };
    assert!(bytes < text.len(), "a log of {bytes} bytes");
    clear();
    String::from_utf8_lossy(&text[..bytes]).lines().map(str::to_owned).collect()
}

/// Names of the calls, in order.
pub(crate) fn take_calls() -> Vec<String> {
    let calls = take_log().into_iter().filter(|line| !line.starts_with("run "));
    calls.map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect()
}

/// Makes the call `name` answer `code` once, after `skip` that do not.
pub(crate) fn fail(name: &str, code: sys::CUresult, skip: u32) {
    fail_with(name, code as c_int, skip);
}

/// The same for a code of a driver that is newer than the bindings.
pub(crate) fn fail_with(name: &str, code: c_int, skip: u32) {
    let fail: unsafe extern "C" fn(*const c_char, c_int, c_uint) = symbol("msa_fake_cuda_fail");
    let name = CString::new(name).unwrap();
    // SAFETY: the name ends with a zero.
    unsafe { fail(name.as_ptr(), code, skip) }
}

/// Makes a kernel fail when it runs next.
pub(crate) fn break_kernel(kernel: &str, code: sys::CUresult) {
    let fail: unsafe extern "C" fn(*const c_char, c_int) = symbol("msa_fake_cuda_break");
    let kernel = CString::new(kernel).unwrap();
    // SAFETY: the name ends with a zero.
    unsafe { fail(kernel.as_ptr(), code as c_int) }
}

/// Tasks that have not run.
pub(crate) fn pending() -> usize {
    symbol::<extern "C" fn() -> usize>("msa_fake_cuda_pending")()
}

/// Contexts on the stack of this thread.
pub(crate) fn depth() -> usize {
    symbol::<extern "C" fn() -> usize>("msa_fake_cuda_depth")()
}

/// Allocated bytes of a device.
pub(crate) fn used(device: usize) -> u64 {
    symbol::<extern "C" fn(usize) -> u64>("msa_fake_cuda_used")(device)
}
