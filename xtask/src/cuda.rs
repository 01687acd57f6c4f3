//! CUDA: the compiler, the kernel images, their census.

mod build;
mod census;
mod images;
mod toolchain;

use std::path::{Path, PathBuf};

pub(crate) use toolchain::Toolchain;

/// Where compiled images, their PTX and the generated table stand.
pub(crate) fn output_folder(root: &Path) -> PathBuf {
    target_folder(root).join("kernels").join("cuda")
}

/// Find or install the compiler and say where it is.
///
/// # Errors
/// What is missing and how to get it.
pub(crate) fn set_up(root: &Path) -> Result<(), String> {
    let found = Toolchain::find_or_install(root)?;
    println!("nvcc {} at {}", found.version(), found.nvcc().display());
    Ok(())
}

/// Compile every image whose sources changed, and write the table that msa-cuda embeds.
///
/// # Errors
/// What is missing, or the compiler's output.
pub(crate) fn build_kernels(root: &Path) -> Result<(), String> {
    let compiler = Toolchain::find_or_install(root)?;
    let images = images::read(root)?;
    let report = build::build(root, &compiler, &images)?;
    println!("{report}");
    census::write(root, &compiler, &images)
}

/// Compare the census of the images built last with the committed one; `accept` commits the new one instead.
///
/// # Errors
/// The first difference of every file that differs.
pub(crate) fn check_census(root: &Path, accept: bool) -> Result<(), String> {
    census::compare(root, accept)
}

fn target_folder(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}
