//! Code objects (`.hsaco`): an ELF file with kernels and their descriptors.
//!
//! Layout of the kernel descriptor: LLVM's "User Guide for AMDGPU Backend", section "Kernel Descriptor".

use std::collections::BTreeMap;

use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SymbolKind};

use super::error::EmuError;

/// A loaded code object.
#[derive(Debug, Clone)]
pub struct CodeObject {
    architecture: String,
    kernels: BTreeMap<String, KernelCode>,
    sections: Vec<(String, Vec<u8>)>,
}

/// One kernel: its code and what its descriptor asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelCode {
    /// Symbol.
    pub name: String,
    /// Machine code, from the entry.
    pub code: Vec<u8>,
    /// Bytes of LDS.
    pub lds_bytes: u32,
    /// Bytes of scratch of a work-item.
    pub scratch_bytes: u32,
    /// Bytes of arguments.
    pub argument_bytes: u32,
    /// Vector registers of a wave, as allocated.
    pub vector_registers: u32,
    /// Which of the group's coordinates the kernel is given, in registers after the user registers.
    pub group_ids: [bool; 3],
    /// Scalar registers that the launch fills before the group's coordinates.
    pub user_registers: u32,
    /// Descriptor word that says what is in the user registers.
    pub properties: u16,
}

impl KernelCode {
    /// The only user register content that kernels of this project ask for: the address of the arguments.
    pub const ARGUMENT_POINTER: u16 = 1 << 3;
}

impl CodeObject {
    /// Reads a file.
    ///
    /// # Errors
    /// No ELF file for an AMD GPU, or a kernel symbol that leads nowhere.
    pub fn parse(bytes: &[u8]) -> Result<Self, EmuError> {
        let wrong = |reason: String| EmuError::CodeObject(reason);
        let file = object::File::parse(bytes).map_err(|error| wrong(error.to_string()))?;
        let architecture = architecture(bytes)?;
        let symbols: BTreeMap<&str, (u64, u64)> = file
            .symbols()
            .chain(file.dynamic_symbols())
            .filter(|symbol| symbol.kind() != SymbolKind::Section)
            .filter_map(|symbol| Some((symbol.name().ok()?, (symbol.address(), symbol.size()))))
            .collect();
        let mut kernels = BTreeMap::new();
        for (name, descriptor) in &symbols {
            if let Some(name) = name.strip_suffix(".kd") {
                let entry =
                    symbols.get(name).ok_or_else(|| wrong(format!("{name}: descriptor without code")))?;
                let descriptor = read(&file, descriptor.0, 64)?;
                let code = read(&file, entry.0, entry.1)?;
                kernels.insert(name.to_owned(), KernelCode::new(name, code, &descriptor));
            }
        }
        let sections = [".text", ".rodata", ".note"];
        let sections = sections.map(|name| (name.to_owned(), section_bytes(&file, name))).into();
        Ok(Self { architecture, kernels, sections })
    }

    /// `gfx942` or `gfx950`.
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    /// All kernels by symbol.
    pub fn kernels(&self) -> &BTreeMap<String, KernelCode> {
        &self.kernels
    }

    /// The kernel `name`.
    ///
    /// # Errors
    /// It is not there; the message lists those that are.
    pub fn kernel(&self, name: &str) -> Result<&KernelCode, EmuError> {
        self.kernels.get(name).ok_or_else(|| {
            let names: Vec<_> = self.kernels.keys().map(String::as_str).collect();
            EmuError::CodeObject(format!("no kernel {name}; there are {}", names.join(", ")))
        })
    }

    /// The same with other code for the kernel `name`: a fault for a test to catch.
    ///
    /// # Errors
    /// The kernel is not there.
    pub fn with_code(mut self, name: &str, code: Vec<u8>) -> Result<Self, EmuError> {
        self.kernel(name)?;
        if let Some(kernel) = self.kernels.get_mut(name) {
            kernel.code = code;
        }
        Ok(self)
    }

    /// `.text`, `.rodata` and `.note`: what two builds of the same source must share. The rest names the linker.
    pub fn code_sections(&self) -> &[(String, Vec<u8>)] {
        &self.sections
    }
}

impl KernelCode {
    fn new(name: &str, code: Vec<u8>, descriptor: &[u8]) -> Self {
        let word = |at: usize| {
            let bytes = descriptor.get(at..at + 4).unwrap_or_default();
            bytes.iter().rev().fold(0u32, |word, byte| word << 8 | u32::from(*byte))
        };
        let (resource1, resource2) = (word(48), word(52));
        Self {
            name: name.to_owned(),
            code,
            lds_bytes: word(0),
            scratch_bytes: word(4),
            argument_bytes: word(8),
            // The register file of gfx90a and later is shared out in granules of 8.
            vector_registers: (resource1 & 63) * 8 + 8,
            group_ids: [7, 8, 9].map(|bit| resource2 >> bit & 1 == 1),
            user_registers: resource2 >> 1 & 31,
            properties: word(56) as u16,
        }
    }
}

/// From the ELF header: machine 224 (AMDGPU), the processor in the low byte of the flags.
fn architecture(bytes: &[u8]) -> Result<String, EmuError> {
    let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
    if (byte(18), byte(19)) != (224, 0) {
        return Err(EmuError::CodeObject("not for an AMD GPU".to_owned()));
    }
    match byte(48) {
        0x4c => Ok("gfx942".to_owned()),
        0x4f => Ok("gfx950".to_owned()),
        other => Err(EmuError::CodeObject(format!("processor {other:#x}, want gfx942 or gfx950"))),
    }
}

fn read(file: &object::File<'_>, address: u64, bytes: u64) -> Result<Vec<u8>, EmuError> {
    let found = file.sections().find_map(|section| section.data_range(address, bytes).ok().flatten());
    let missing = || EmuError::CodeObject(format!("{bytes} bytes at {address:#x} are in no section"));
    found.map(<[u8]>::to_vec).ok_or_else(missing)
}

fn section_bytes(file: &object::File<'_>, name: &str) -> Vec<u8> {
    let section = file.section_by_name(name);
    section.and_then(|section| section.data().ok()).unwrap_or_default().to_vec()
}
