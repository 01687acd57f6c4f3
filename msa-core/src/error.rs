//! What can go wrong, whose fault it is, and what was wanted.

use std::fmt;
use std::path::PathBuf;

/// Result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error names the field, the wanted and the got, and says whose fault it is.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller's: a field of a descriptor, an option or a tensor does not meet its contract. Nothing was written.
    #[error("{field}: want {want}, got {got}")]
    Invalid {
        /// Path of the field, for example `geometry.index_heads` or `query.stride[0]`.
        field: String,
        /// What the contract asks for.
        want: String,
        /// What was passed.
        got: String,
    },
    /// The caller's: a required tensor was not passed.
    #[error("missing argument '{role}' of {op}")]
    Missing {
        /// Operation.
        op: &'static str,
        /// Role of the tensor.
        role: &'static str,
    },
    /// Nobody's: no variant of this backend does this; every reason is listed.
    #[error("{op} is not supported by {backend}: {}", join(.reasons))]
    Unsupported {
        /// Operation.
        op: &'static str,
        /// Backend or device.
        backend: String,
        /// One line a variant.
        reasons: Vec<String>,
    },
    /// Nobody's: the backend is there but has no usable device.
    #[error("{backend} is unavailable: {reason}")]
    Unavailable {
        /// Backend.
        backend: String,
        /// Why.
        reason: String,
    },
    /// The plugin's: it broke a numbered policy of the plugin ABI.
    #[error("plugin {}: policy {policy}: {detail}", path.display())]
    Plugin {
        /// Library or manifest.
        path: PathBuf,
        /// Number and short name of the policy.
        policy: &'static str,
        /// What was seen.
        detail: String,
    },
    /// The device's: vendor code and text. Asynchronous device errors come back from the next call.
    #[error("device error {code}: {text}")]
    Device {
        /// Vendor code.
        code: i32,
        /// Vendor text.
        text: String,
    },
    /// A plan that does not hold: parsed from a damaged text, or changed after it was made.
    #[error("plan: {0}")]
    Plan(String),
}

impl Error {
    /// The caller's error at `field`.
    pub fn invalid(field: impl Into<String>, want: impl fmt::Display, got: impl fmt::Display) -> Self {
        Self::Invalid { field: field.into(), want: want.to_string(), got: got.to_string() }
    }
}

/// `Ok` if `holds`, otherwise the caller's error at `field`.
///
/// # Errors
/// [`Error::Invalid`] with `field`, `want` and `got`.
pub fn require(holds: bool, field: &str, want: impl fmt::Display, got: impl fmt::Display) -> Result<()> {
    require_at(holds, field, want, got)
}

/// [`require`] at a field whose name is put together, which only an error does: for what is checked at every run.
///
/// # Errors
/// As for [`require`].
pub fn require_at(
    holds: bool,
    field: impl fmt::Display,
    want: impl fmt::Display,
    got: impl fmt::Display,
) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::invalid(field.to_string(), want, got)) }
}

fn join(reasons: &[String]) -> String {
    if reasons.is_empty() { "no variant".to_owned() } else { reasons.join("; ") }
}
