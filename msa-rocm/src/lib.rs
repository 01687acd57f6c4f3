//! AMD kernels of MiniMax Sparse Attention.
//!
//! The kernels are compiled by `cargo xtask plugin rocm`, never by a build script, so that this crate builds on a clean clone
//! without a vendor toolchain. It then holds no kernel, and says so.

mod backend;
pub mod hip;
mod images;
pub mod launch;
mod module;
pub mod parameters;
mod variants;

pub use backend::{backend, backend_with};
pub use images::Images;
pub use variants::variants;

/// Why this build can run nothing: the reason that every support query answers with while the kernel table is empty.
///
/// The text ends in the command that puts it right.
pub fn unavailable_reason() -> &'static str {
    "built without kernels: run cargo xtask plugin rocm"
}

#[cfg(test)]
mod tests {
    use super::unavailable_reason;

    #[test]
    fn the_reason_says_what_is_missing_and_what_to_run() {
        assert_eq!(unavailable_reason(), "built without kernels: run cargo xtask plugin rocm");
    }
}
