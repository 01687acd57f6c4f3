//! Errors as status numbers and text in memory of the caller, and back.

use std::path::Path;

use super::Policy;
use super::border::{read_growing, write_growing, zeroed};
use super::numbers::Numbered;
use super::table::MsaDiag;
use crate::args::Role;
use crate::error::Error;
use crate::op::OpKind;

/// Status numbers of the border; any other one is a failure too.
pub(crate) mod status {
    /// Done.
    pub(crate) const OK: u32 = 0;
    /// A value that breaks its contract.
    pub(crate) const INVALID: u32 = 1;
    /// No variant does this.
    pub(crate) const UNSUPPORTED: u32 = 2;
    /// No driver or no device.
    pub(crate) const UNAVAILABLE: u32 = 3;
    /// Another major version.
    pub(crate) const ABI_MISMATCH: u32 = 4;
    /// The device failed.
    pub(crate) const DEVICE: u32 = 5;
    /// The plugin panicked; the device is lost.
    pub(crate) const PANIC: u32 = 6;
    /// A required tensor or cache was not passed.
    pub(crate) const MISSING: u32 = 7;
    /// A plan that does not hold.
    pub(crate) const PLAN: u32 = 8;
}

/// Every status with its name, for the C header.
pub(crate) const STATUSES: &[(&str, u32)] = &[
    ("OK", status::OK),
    ("INVALID", status::INVALID),
    ("UNSUPPORTED", status::UNSUPPORTED),
    ("UNAVAILABLE", status::UNAVAILABLE),
    ("ABI_MISMATCH", status::ABI_MISMATCH),
    ("DEVICE", status::DEVICE),
    ("PANIC", status::PANIC),
    ("MISSING", status::MISSING),
    ("PLAN", status::PLAN),
];

const MISSING_PREFIX: &str = "missing argument '";
const NOT_SUPPORTED_BY: &str = " is not supported by ";
const IS_UNAVAILABLE: &str = " is unavailable: ";

/// Status and text of an error, before they are written.
pub(crate) struct Verdict {
    pub(crate) status: u32,
    pub(crate) vendor_code: i32,
    pub(crate) text: String,
    field_length: usize,
    want_length: usize,
}

impl Verdict {
    /// A verdict whose text names no field.
    pub(crate) fn plain(status: u32, text: impl Into<String>) -> Self {
        Self { status, vendor_code: 0, text: text.into(), field_length: 0, want_length: 0 }
    }

    /// What crosses the border for `error`. The text is what a person reads; lengths say where its parts end.
    pub(crate) fn of(error: &Error) -> Self {
        let plain = |status| Self::plain(status, error.to_string());
        match error {
            Error::Invalid { field, want, .. } => {
                Self { field_length: field.len(), want_length: want.len(), ..plain(status::INVALID) }
            }
            Error::Missing { .. } => plain(status::MISSING),
            Error::Unsupported { op, backend, reasons } => {
                let text = format!("{op}{NOT_SUPPORTED_BY}{backend}\n{}", reasons.join("\n"));
                Self::plain(status::UNSUPPORTED, text)
            }
            Error::Unavailable { backend, .. } => {
                Self { field_length: backend.len(), ..plain(status::UNAVAILABLE) }
            }
            Error::Device { code, text } => {
                Self { vendor_code: *code, ..Self::plain(status::DEVICE, text.clone()) }
            }
            Error::Plugin { .. } => plain(status::DEVICE),
            Error::Plan(text) => Self::plain(status::PLAN, text.clone()),
        }
    }

    /// Writes everything but the status to the caller's memory; null and sizes that no version has are skipped, since
    /// there is nowhere to complain.
    ///
    /// # Safety
    /// `diag` is null or valid for its `struct_size`, and its text for its capacity.
    pub(crate) unsafe fn write(&self, diag: *mut MsaDiag) {
        // SAFETY: by this function's contract.
        let Ok(mut local) = (unsafe { read_growing(diag.cast_const()) }) else { return };
        let room = if local.text.is_null() { 0 } else { local.capacity };
        let length = cut(&self.text, room);
        if length > 0 {
            // SAFETY: `length` is at most the capacity, for which the text is valid by this function's contract.
            unsafe { std::ptr::copy_nonoverlapping(self.text.as_ptr(), local.text, length) };
        }
        local.vendor_code = self.vendor_code;
        local.length = length as u64;
        local.field_length = u32::try_from(self.field_length).unwrap_or(0);
        local.want_length = u32::try_from(self.want_length).unwrap_or(0);
        // SAFETY: read just now with the same size.
        unsafe { write_growing(diag, &local) };
    }
}

/// Bytes of `text` that fit into `room` without cutting a character.
fn cut(text: &str, room: u64) -> usize {
    let mut length = text.len().min(usize::try_from(room).unwrap_or(usize::MAX));
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    length
}

/// Room for one answer of a plugin, on this side; on the stack, so that enqueueing allocates nothing.
pub(crate) struct Diagnosis {
    text: [u8; CAPACITY],
    raw: MsaDiag,
}

/// Enough for a refusal by every variant of an operation; longer text is cut.
const CAPACITY: usize = 4 << 10;

impl Diagnosis {
    /// Empty.
    pub(crate) fn new() -> Self {
        let raw = MsaDiag { struct_size: size_of::<MsaDiag>() as u32, capacity: CAPACITY as u64, ..zeroed() };
        Self { text: [0; CAPACITY], raw }
    }

    /// What a table function takes; valid until `self` moves.
    pub(crate) fn as_mut(&mut self) -> *mut MsaDiag {
        self.raw.text = self.text.as_mut_ptr();
        &raw mut self.raw
    }

    /// The text, as far as it is true.
    pub(crate) fn text(&self) -> String {
        let length = usize::try_from(self.raw.length).unwrap_or(usize::MAX).min(CAPACITY);
        String::from_utf8_lossy(self.text.get(..length).unwrap_or_default()).into_owned()
    }

    /// The error that a status means; `backend` is the name on this side, `path` the plugin's.
    pub(crate) fn error(&self, status: u32, backend: &str, path: &Path) -> Error {
        let text = self.text();
        match status {
            status::INVALID => self.invalid(text),
            status::UNSUPPORTED => unsupported(&text, backend),
            status::UNAVAILABLE => unavailable(&text, self.raw.field_length as usize, backend),
            status::DEVICE => Error::Device { code: self.raw.vendor_code, text },
            status::MISSING => {
                missing(&text).unwrap_or_else(|| Error::invalid("args", "every argument", text))
            }
            status::PLAN => Error::Plan(text),
            status::ABI_MISMATCH => plugin(path, Policy::SameMajor, text),
            status::PANIC => plugin(path, Policy::NoUnwinding, format!("the plugin panicked: {text}")),
            unknown => plugin(path, Policy::PlainNumbers, format!("status {unknown} is unknown: {text}")),
        }
    }

    fn invalid(&self, text: String) -> Error {
        let (field, want) = (self.raw.field_length as usize, self.raw.want_length as usize);
        let parts = || {
            let (name, rest) = text.split_at_checked(field)?;
            let (wanted, rest) = rest.strip_prefix(": want ")?.split_at_checked(want)?;
            Some(Error::invalid(name, wanted, rest.strip_prefix(", got ")?))
        };
        parts().unwrap_or_else(|| Error::invalid("argument", "a valid value", &text))
    }
}

/// A plugin that broke `policy`.
pub(crate) fn plugin(path: &Path, policy: Policy, detail: impl Into<String>) -> Error {
    Error::Plugin { path: path.to_owned(), policy: policy.label(), detail: detail.into() }
}

fn unsupported(text: &str, backend: &str) -> Error {
    let mut lines = text.lines();
    let op = lines.next().and_then(|line| op_name(line.split_once(NOT_SUPPORTED_BY)?.0));
    let reasons = lines.map(str::to_owned).collect();
    match op {
        Some(op) => Error::Unsupported { op, backend: backend.to_owned(), reasons },
        None => Error::Unsupported {
            op: "operation",
            backend: backend.to_owned(),
            reasons: text.lines().map(str::to_owned).collect(),
        },
    }
}

fn unavailable(text: &str, name: usize, backend: &str) -> Error {
    let reason = text.get(name..).and_then(|rest| rest.strip_prefix(IS_UNAVAILABLE)).unwrap_or(text);
    Error::Unavailable { backend: backend.to_owned(), reason: reason.to_owned() }
}

fn missing(text: &str) -> Option<Error> {
    let (role, op) = text.strip_prefix(MISSING_PREFIX)?.split_once("' of ")?;
    Some(Error::Missing { op: op_name(op)?, role: role_name(role)? })
}

fn op_name(name: &str) -> Option<&'static str> {
    OpKind::VALUES.iter().map(|kind| kind.name()).find(|known| *known == name)
}

fn role_name(name: &str) -> Option<&'static str> {
    let roles = Role::VALUES.iter().map(|role| role.name());
    roles.chain(["kv_cache", "index_cache"]).find(|known| *known == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn across(error: &Error) -> Error {
        let mut diagnosis = Diagnosis::new();
        let verdict = Verdict::of(error);
        // SAFETY: the diagnosis is valid.
        unsafe { verdict.write(diagnosis.as_mut()) };
        diagnosis.error(verdict.status, "cuda", Path::new("/p"))
    }

    #[test]
    fn errors_cross_the_border_whole() {
        let all = [
            Error::invalid("a[0]: want x, got y", "b, got c", "d: want e"),
            Error::Missing { op: "select", role: "scores" },
            Error::Missing { op: "sparse_decode", role: "kv_cache" },
            Error::Unsupported {
                op: "merge",
                backend: "cuda".into(),
                reasons: vec!["a: needs b, c".into(), "d: needs e; f".into()],
            },
            Error::Unavailable { backend: "cuda".into(), reason: "no libcuda.so.1".into() },
            Error::Device { code: 700, text: "illegal address".into() },
            Error::Plan("line 3: ends".into()),
        ];
        for error in all {
            assert_eq!(across(&error), error);
        }
    }

    #[test]
    fn unknown_status_and_lying_lengths_are_still_errors() {
        let mut diagnosis = Diagnosis::new();
        diagnosis.raw.length = u64::MAX;
        diagnosis.raw.field_length = u32::MAX;
        for status in [1, 2, 3, 7, 9, 77, u32::MAX] {
            let _ = diagnosis.error(status, "cuda", Path::new("/p")).to_string();
        }
        diagnosis.raw.length = 0;
        let text = diagnosis.error(0xdead_beef, "cuda", Path::new("/p")).to_string();
        assert_eq!(text, "plugin /p: policy ABI-6 (known numbers): status 3735928559 is unknown: ");
    }

    #[test]
    fn long_text_is_cut_at_a_character() {
        assert_eq!(cut("aé", 2), 1);
        assert_eq!(cut("aé", 3), 3);
        assert_eq!(cut("aé", u64::MAX), 3);
    }
}
