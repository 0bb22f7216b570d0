// SPDX-License-Identifier: Apache-2.0
//! Statuses as errors, and what the calls of the C API have in common.
use std::ffi::{c_char, CStr};
use std::fmt;
use std::ptr::NonNull;

use crate::sys;

/// A status that is not `KVSTRATA_OK`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// `KVSTRATA_E_*`
    pub code: i32,
    /// An errno or the status of a callback; 0 = none.
    pub native_code: i64,
    /// The field, option or record member at fault; may be empty.
    pub field: String,
    /// One sentence with the value at fault.
    pub message: String,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of one's own, out of a storage for example.
    pub fn new(code: i32) -> Self {
        Error { code, native_code: 0, field: String::new(), message: String::new() }
    }
    pub(crate) fn with(code: i32, field: &str, message: &str) -> Self {
        Error { code, native_code: 0, field: field.into(), message: message.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{} [{}] {}", status_name(self.code), self.field, self.message)
    }
}

impl std::error::Error for Error {}

/// "KVSTRATA_E_IO"
pub fn status_name(code: i32) -> &'static str {
    // SAFETY: the library gives static, 0-terminated text for every number.
    unsafe { CStr::from_ptr(sys::kvstrata_status_name(code)) }.to_str().unwrap_or("?")
}

fn text_of(array: &[c_char]) -> String {
    let bytes: Vec<u8> = array.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Runs a fallible call of the C API.
pub(crate) fn check(call: impl FnOnce(*mut sys::kvstrata_error) -> i32) -> Result<()> {
    let mut error = sys::kvstrata_error::default();
    let code = call(&mut error);
    if code == sys::KVSTRATA_OK {
        return Ok(());
    }
    Err(Error { code, native_code: error.native_code, field: text_of(&error.field), message: text_of(&error.message) })
}

/// Runs a call whose output is a struct or a number.
pub(crate) fn get<T: Default>(call: impl FnOnce(*mut T, *mut sys::kvstrata_error) -> i32) -> Result<T> {
    let mut out = T::default();
    check(|error| call(&mut out, error))?;
    Ok(out)
}

/// Runs a call whose output is a handle.
pub(crate) fn make<T>(call: impl FnOnce(*mut *mut T, *mut sys::kvstrata_error) -> i32) -> Result<NonNull<T>> {
    let mut out = std::ptr::null_mut();
    check(|error| call(&mut out, error))?;
    NonNull::new(out).ok_or_else(|| Error::with(sys::KVSTRATA_E_INTERNAL, "out", "no handle came with success"))
}

/// Text for the C API; text with a 0 in it has no C form.
pub(crate) fn c_string(text: &str, field: &str) -> Result<std::ffi::CString> {
    std::ffi::CString::new(text)
        .map_err(|_| Error::with(sys::KVSTRATA_E_INVALID_ARGUMENT, field, "a 0 byte within text"))
}

/// A type that owns one C handle and may move between threads.
macro_rules! handle {
    ($(#[$doc:meta])* $name:ident, $raw:ident, $destroy:ident) => {
        $(#[$doc])*
        pub struct $name(pub(crate) std::ptr::NonNull<$crate::sys::$raw>);

        // SAFETY: handles may move between threads (c_api.h, "Handles").
        unsafe impl Send for $name {}

        impl $name {
            pub(crate) fn raw(&self) -> *mut $crate::sys::$raw {
                self.0.as_ptr()
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: owned, and not used afterwards.
                unsafe { $crate::sys::$destroy(self.raw()) }
            }
        }
    };
}
pub(crate) use handle;
