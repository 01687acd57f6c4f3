//! The embedded machine code.

/// A module for one architecture, compressed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Image {
    /// `op.formats.trick`.
    pub(crate) name: &'static str,
    /// `sm90a`, ...
    pub(crate) arch: &'static str,
    /// A fatbin.
    pub(crate) bytes: &'static [u8],
    /// What it exports.
    pub(crate) kernels: &'static [Kernel],
}

/// A kernel with the limits that its source asserts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kernel {
    /// Symbol.
    pub(crate) symbol: &'static str,
    /// Threads of a block.
    pub(crate) threads: u32,
    /// Dynamic shared memory of a block, bytes.
    pub(crate) shared: u32,
    /// Blocks that one SM holds.
    pub(crate) blocks: u32,
}

/// Every image, empty if the crate was built without `MSA_CUDA_KERNELS`.
#[cfg(msa_cuda_kernels)]
pub(crate) static IMAGES: &[Image] = include!(concat!(env!("MSA_CUDA_KERNELS"), "/table.rs"));

/// Every image, empty if the crate was built without `MSA_CUDA_KERNELS`.
#[cfg(not(msa_cuda_kernels))]
pub(crate) static IMAGES: &[Image] = &[];

/// The image `name` for `arch`.
pub(crate) fn find(name: &str, arch: &str) -> Option<&'static Image> {
    IMAGES.iter().find(|image| image.name == name && image.arch == arch)
}

/// Every architecture that an image is for, once.
pub(crate) fn archs() -> Vec<&'static str> {
    let mut found = Vec::new();
    for image in IMAGES {
        if !found.contains(&image.arch) {
            found.push(image.arch);
        }
    }
    found
}
