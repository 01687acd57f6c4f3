//! What the exported functions have in common.

use std::ffi::c_void;

use crate::code::{Code, INVALID_VALUE};

/// A handle: a number that the library gave.
pub type Handle = *mut c_void;

/// Where the caller wants an answer.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// An answer whose type another argument names.
    pub(crate) fn at(place: *mut c_void) -> Self {
        Self(place.cast())
    }

    /// Stores the answer.
    pub(crate) fn set(&self, value: T) -> Result<(), Code> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null; whoever calls a function of the driver API passes valid pointers.
        unsafe { self.0.write(value) };
        Ok(())
    }
}

/// Functions of the driver API: every call goes through the state, which logs it.
macro_rules! entries {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) |$state:ident| $body:expr)*) => {$(
        /// As in the driver API.
        ///
        /// # Safety
        /// Pointers are what the driver API takes there.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $crate::code::Code {
            $crate::state::call(stringify!($name), |$state| $body)
        }
    )*};
}
