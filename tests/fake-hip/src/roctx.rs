//! The range functions of ROCTX: names are remembered, and given back to a test that asks.
// The names are those of roctx.h.
#![allow(non_snake_case)]

use std::ffi::{CStr, c_char, c_int};
use std::sync::{Mutex, PoisonError};

/// Names in the order in which ranges began, and how many are open.
static RANGES: Mutex<(Vec<String>, c_int)> = Mutex::new((Vec::new(), 0));

/// As in ROCTX: the depth of the new range.
///
/// # Safety
/// `name` ends with a zero.
#[unsafe(no_mangle)]
unsafe extern "C" fn roctxRangePushA(name: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    let mut ranges = RANGES.lock().unwrap_or_else(PoisonError::into_inner);
    ranges.0.push(name);
    ranges.1 += 1;
    ranges.1 - 1
}

/// As in ROCTX: the depth of the range that ended.
#[unsafe(no_mangle)]
extern "C" fn roctxRangePop() -> c_int {
    let mut ranges = RANGES.lock().unwrap_or_else(PoisonError::into_inner);
    ranges.1 -= 1;
    ranges.1
}

/// Writes the names of all ranges, a line each, then `depth N`; returns the bytes of it.
///
/// # Safety
/// `text` is valid for `bytes`.
#[unsafe(no_mangle)]
unsafe extern "C" fn fakeRoctxRanges(text: *mut u8, bytes: usize) -> usize {
    let ranges = RANGES.lock().unwrap_or_else(PoisonError::into_inner);
    let all = format!("{}\ndepth {}", ranges.0.join("\n"), ranges.1);
    let length = all.len().min(bytes);
    // SAFETY: the caller's promise.
    unsafe { text.copy_from_nonoverlapping(all.as_ptr(), length) };
    length
}
