//! CUDA: the compiler, the kernel images, their census.

mod build;
mod census;
mod images;
mod toolchain;

use std::path::{Path, PathBuf};

use crate::artifact::Artifact;
use crate::target_folder;
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

/// [`build_kernels`], then the library that embeds them, with its manifest, in `target/plugins`.
///
/// # Errors
/// As for [`build_kernels`] and [`Artifact::build`].
pub(crate) fn build_plugin(root: &Path) -> Result<PathBuf, String> {
    build_kernels(root)?;
    let arches = images::ARCHS.map(|arch| format!("sm{arch}")).to_vec();
    Artifact { name: "cuda", arches, kernels: Some(("MSA_CUDA_KERNELS", output_folder(root))) }.build(root)
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
