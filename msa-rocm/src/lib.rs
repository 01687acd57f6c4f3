//! AMD kernels of MiniMax Sparse Attention.
//!
//! The kernels are compiled by `cargo xtask plugin rocm`, never by a build script, so that this crate builds on a clean clone
//! without a vendor toolchain. It then holds no kernel, and says so.
//!
//! **These kernels have never run on AMD hardware.** They have been compiled, counted and interpreted: continuous
//! integration executes every one of them, for gfx942 and gfx950, and compares with the reference bit for bit. That proves
//! addressing, layout, masks, order and protocol. Matrix products follow a published model of CDNA3 and an assumption about
//! CDNA4, so that their low bits on silicon are not known. Whoever has such a machine helps most with the output of
//! `msa-check -b rocm:0 -s full --json` and of the example `probe`.
//!
//! The HIP runtime is opened at run time ([`hip`]); a plan becomes launches as plain data ([`launch`]), which the
//! interpreter and a GPU run alike. Several GPUs share the work of the index in [`indexer`].
//!
//! The feature `hip-rs` adds conversions from the handles of the crate of that name. It is off, and builds only where ROCm is
//! installed, because that crate links it and reads its headers. Continuous integration type-checks it with stand-ins for those
//! headers; nobody has linked or run it yet. Do not use `--all-features`.

mod backend;
mod context;
pub mod hip;
mod images;
pub mod indexer;
#[cfg(feature = "hip-rs")]
pub mod interop;
pub mod launch;
mod memory;
mod module;
pub mod parameters;
pub mod plugin;
pub mod probe;
mod ranges;
mod variants;

pub use backend::{backend, backend_over, backend_with};
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
