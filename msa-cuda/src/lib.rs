//! NVIDIA kernels of MiniMax Sparse Attention.
//!
//! The kernels are compiled by `cargo xtask plugin cuda`, never by a build script, so that this crate builds on a clean clone
//! without a vendor toolchain. It then holds no kernel, and says so. The CUDA driver is opened at run time; without one, or
//! without a device, [`backend`] still works and its devices are an error with the reason.
//!
//! A plan decides (msa-core), `launch` turns it into grids, and `prepared` obeys.
//!
//! Around every enqueue stands a range named after the variant, on the thread that enqueues (NVTX 3, the default domain). It is
//! seen by tools that start the process with `NVTX_INJECTION64_PATH`: Nsight Systems, Nsight Compute, and programs that
//! name CUPTI or a library of their own there. Without the variable, and in a process with raised privileges, nothing is looked for;
//! `libnvToolsExt.so` (NVTX 1 and 2, up to CUDA 12) is not. The tool is found when the first run of a process is prepared.

mod arguments;
mod backend;
mod context;
mod device;
mod driver;
mod images;
pub mod indexer;
mod launch;
mod memory;
pub mod plugin;
mod prepared;
mod ranges;
mod stages;
mod variants;

pub use backend::{backend, open_in_context};
pub use variants::variants;

/// Why this build can run nothing: the reason that every support query answers with while the kernel table is empty.
///
/// The text ends in the command that puts it right.
pub fn unavailable_reason() -> &'static str {
    "built without kernels: run cargo xtask plugin cuda"
}

/// True if kernels are embedded.
pub fn has_kernels() -> bool {
    !images::IMAGES.is_empty()
}

#[cfg(test)]
mod tests {
    use super::unavailable_reason;

    #[test]
    fn the_reason_says_what_is_missing_and_what_to_run() {
        assert_eq!(unavailable_reason(), "built without kernels: run cargo xtask plugin cuda");
    }
}
