//! Images of the kernel build, and what their machine code says of every kernel.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use object::read::elf::{ElfFile64, FileHeader as _};
use object::{Endianness, Object as _, ObjectSection as _, ObjectSymbol as _};

use crate::code::{Code, INVALID_IMAGE, NO_BINARY_FOR_GPU};
use crate::config::Capability;

/// An image: file stem `op.formats.trick.arch` and kernels.
#[derive(Debug)]
pub(crate) struct Image {
    /// `sparse_decode.q8k4.f16`.
    pub(crate) name: String,
    /// `sm90a`.
    pub(crate) arch: String,
    pub(crate) kernels: BTreeMap<String, Kernel>,
}

/// What a cubin says of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kernel {
    /// Offset and size of every parameter, in order.
    pub(crate) parameters: Vec<(usize, usize)>,
    /// Threads of a block, at most.
    pub(crate) threads: u32,
    /// Static shared memory, bytes.
    pub(crate) shared: u32,
}

/// Finds the image in memory at `address` among the `.fatbin` files of `folder`, and reads its cubin.
///
/// # Safety
/// 16 bytes can be read there, and if they are the header of a fatbin, what it says follows.
pub(crate) unsafe fn identify(folder: &Path, address: *const u8) -> Result<Arc<Image>, Code> {
    // SAFETY: the caller's promise.
    let header = unsafe { std::slice::from_raw_parts(address, 16) };
    let bytes = fatbin_bytes(header).ok_or(INVALID_IMAGE)?;
    // SAFETY: the caller's promise.
    let image = unsafe { std::slice::from_raw_parts(address, bytes) };
    let entries = std::fs::read_dir(folder).map_err(|_| INVALID_IMAGE)?;
    for path in entries.flatten().map(|entry| entry.path()) {
        let ours = path.extension().is_some_and(|e| e == "fatbin")
            && path.metadata().is_ok_and(|data| data.len() == bytes as u64)
            && std::fs::read(&path).is_ok_and(|content| content == image);
        if ours {
            return read(&path.with_extension("cubin")).map(Arc::new).map_err(|reason| {
                eprintln!("fake CUDA: {}: {reason}", path.display());
                INVALID_IMAGE
            });
        }
    }
    Err(INVALID_IMAGE)
}

impl Image {
    /// Refused unless a device of this compute capability runs the image: its own, or the family's from 10.0 on.
    pub(crate) fn check_device(&self, capability: Capability) -> Result<(), Code> {
        let runs = match self.arch.as_str() {
            "sm100f" => capability.0 == 10,
            arch => arch == format!("sm{}{}a", capability.0, capability.1),
        };
        if runs { Ok(()) } else { Err(NO_BINARY_FOR_GPU) }
    }
}

/// Length of a fatbin from its first 16 bytes: magic, version, bytes of the header, bytes behind it.
fn fatbin_bytes(header: &[u8]) -> Option<usize> {
    const MAGIC: u32 = 0xba55_ed50;
    let field = |at: usize, bytes: usize| -> u64 {
        header[at..at + bytes].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
    };
    (field(0, 4) == u64::from(MAGIC)).then(|| (field(6, 2) + field(8, 8)) as usize)
}

/// Reads a cubin; its stem is the name of the image.
fn read(path: &Path) -> Result<Image, String> {
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let (name, arch) = stem.rsplit_once('.').ok_or("no name.arch")?;
    let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(Image { name: name.to_owned(), arch: arch.to_owned(), kernels: kernels(&bytes)? })
}

fn kernels(cubin: &[u8]) -> Result<BTreeMap<String, Kernel>, String> {
    let file = ElfFile64::<Endianness>::parse(cubin).map_err(|error| error.to_string())?;
    if file.elf_header().e_machine(file.endian()) != object::elf::EM_CUDA {
        return Err("no CUDA machine code".to_owned());
    }
    let functions =
        file.symbols().filter(|symbol| symbol.is_global() && symbol.kind() == object::SymbolKind::Text);
    let mut found = BTreeMap::new();
    for name in functions.filter_map(|symbol| symbol.name().ok().map(str::to_owned)) {
        let section = |prefix: &str| file.section_by_name(&format!("{prefix}{name}"));
        let Some(info) = section(".nv.info.") else { continue };
        let info = info.data().map_err(|error| error.to_string())?;
        let shared = section(".nv.shared.").map_or(0, |section| section.size() as u32);
        found.insert(name.clone(), kernel(info, shared).map_err(|error| format!("{name}: {error}"))?);
    }
    if found.is_empty() { Err("no kernels".to_owned()) } else { Ok(found) }
}

/// From the attributes of a `.nv.info.<kernel>` section: a format byte, an attribute byte, then a 16-bit value, or a 16-bit
/// length (format 4) and that many bytes.
fn kernel(info: &[u8], shared: u32) -> Result<Kernel, String> {
    const SIZED: u8 = 4;
    const MAX_THREADS: u8 = 0x05;
    const PARAMETER: u8 = 0x17;
    const PARAMETER_BYTES: u8 = 0x19;
    let word = |bytes: &[u8], at: usize| {
        bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    };
    let (mut parameters, mut all, mut threads) = (BTreeMap::new(), 0, 0);
    let mut rest = info;
    while let [format, attribute, low, high, tail @ ..] = rest {
        let value = usize::from(u16::from_le_bytes([*low, *high]));
        let (payload, next) =
            if *format == SIZED { tail.split_at(value.min(tail.len())) } else { tail.split_at(0) };
        match *attribute {
            MAX_THREADS => threads = word(payload, 0) * word(payload, 4) * word(payload, 8),
            // Index, ordinal and offset (16 bits each), then the size from bit 18 on.
            PARAMETER => {
                let place = word(payload, 4);
                _ = parameters
                    .insert(place & 0xffff, ((place >> 16) as usize, (word(payload, 8) >> 18) as usize));
            }
            PARAMETER_BYTES => all = value,
            _ => {}
        }
        rest = next;
    }
    let parameters: Vec<(usize, usize)> = parameters.into_values().collect();
    let end = parameters.iter().map(|(offset, bytes)| offset + bytes).max().unwrap_or(0);
    if all == 0 || threads == 0 || end != all {
        return Err(format!("{all} bytes of parameters that end at {end}, {threads} threads"));
    }
    Ok(Kernel { parameters, threads, shared })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_give_parameters_and_threads() {
        // One parameter of 416 bytes at 0, 128 threads, as nvcc 13.5 writes them.
        let mut info = vec![4, 0x17, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x00, 0xf0, 0x81, 0x06];
        info.extend([4, 5, 12, 0, 128, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]);
        info.extend([3, 0x19, 0xa0, 0x01]);
        let found = kernel(&info, 1024).unwrap();
        assert_eq!(found, Kernel { parameters: vec![(0, 416)], threads: 128, shared: 1024 });
        let low = info.len() - 2;
        info[low] = 0xa4;
        assert!(kernel(&info, 0).unwrap_err().contains("420 bytes of parameters that end at 416"));
    }

    #[test]
    fn only_a_device_of_its_own_or_of_the_family_runs_an_image() {
        let image =
            |arch: &str| Image { name: String::new(), arch: arch.to_owned(), kernels: BTreeMap::new() };
        assert_eq!(image("sm90a").check_device((9, 0)), Ok(()));
        assert_eq!(image("sm100a").check_device((10, 3)), Err(NO_BINARY_FOR_GPU));
        assert_eq!(image("sm100f").check_device((10, 3)), Ok(()));
        assert_eq!(image("sm100f").check_device((12, 0)), Err(NO_BINARY_FOR_GPU));
    }

    #[test]
    fn foreign_bytes_are_no_fatbin() {
        assert_eq!(
            fatbin_bytes(b"\x50\xed\x55\xba\x01\x00\x10\x00\x38\x48\x00\x00\x00\x00\x00\x00"),
            Some(18504)
        );
        assert_eq!(fatbin_bytes(b"\x7fELF000000000000"), None);
    }
}
