//! Machine code to text, by the LLVM library that the pinned Rust toolchain ships.
//!
//! Only LLVM's stable C interface is used (`llvm-c/Disassembler.h`). Nothing has to be installed, and a decoder that the
//! compiler's authors maintain cannot share a misreading with this interpreter.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;

use libloading::Library;

use super::error::EmuError;

/// One instruction of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Offset from the start of the code.
    pub address: u64,
    /// Length.
    pub bytes: usize,
    /// LLVM's text, white space collapsed.
    pub text: String,
}

type Create = unsafe extern "C" fn(
    *const c_char,
    *const c_char,
    *const c_char,
    *mut c_void,
    c_int,
    *mut c_void,
    *mut c_void,
) -> *mut c_void;
type Instruction = unsafe extern "C" fn(*mut c_void, *const u8, u64, u64, *mut c_char, usize) -> usize;
type Dispose = unsafe extern "C" fn(*mut c_void);

/// A disassembler for one processor.
pub struct Disassembler {
    context: *mut c_void,
    instruction: Instruction,
    dispose: Dispose,
    // Declared last: dropped after `context` was disposed of.
    _library: Library,
}

impl Disassembler {
    /// For `gfx942` or `gfx950`.
    ///
    /// # Errors
    /// The toolchain's LLVM library is missing or lacks the AMD target.
    pub fn new(processor: &str) -> Result<Self, EmuError> {
        let path = llvm_library()?;
        let failed =
            |error: libloading::Error| EmuError::Disassembler(format!("{}: {error}", path.display()));
        // SAFETY: LLVM's library has no initialisers with preconditions; it is the one that the running compiler uses.
        let library = unsafe { Library::new(&path) }.map_err(failed)?;
        for part in ["TargetInfo", "TargetMC", "Disassembler"] {
            let name = format!("LLVMInitializeAMDGPU{part}");
            // SAFETY: the C interface declares these as functions without arguments and result.
            let initialise = unsafe { library.get::<unsafe extern "C" fn()>(&name) }.map_err(failed)?;
            // SAFETY: they may be called any number of times.
            unsafe { initialise() };
        }
        // SAFETY: the types are those of llvm-c/Disassembler.h.
        let create = *unsafe { library.get::<Create>("LLVMCreateDisasmCPUFeatures") }.map_err(failed)?;
        // SAFETY: as above.
        let instruction = *unsafe { library.get::<Instruction>("LLVMDisasmInstruction") }.map_err(failed)?;
        // SAFETY: as above.
        let dispose = *unsafe { library.get::<Dispose>("LLVMDisasmDispose") }.map_err(failed)?;
        let context = create_context(create, processor)?;
        Ok(Self { context, instruction, dispose, _library: library })
    }

    /// The listing of `code`.
    ///
    /// # Errors
    /// Bytes that are no instruction; the message gives their offset.
    pub fn listing(&self, code: &[u8]) -> Result<Vec<Line>, EmuError> {
        let mut lines = Vec::new();
        let mut address = 0;
        while address < code.len() {
            let line = self.line(&code[address..], address as u64).ok_or_else(|| {
                EmuError::Disassembler(format!("the bytes at {address:#x} are no instruction"))
            })?;
            address += line.bytes;
            lines.push(line);
        }
        Ok(lines)
    }

    fn line(&self, code: &[u8], address: u64) -> Option<Line> {
        let mut text = [0 as c_char; 512];
        // SAFETY: `code` and `text` are valid for the lengths passed, and the context lives as long as `self`.
        let bytes = unsafe {
            (self.instruction)(
                self.context,
                code.as_ptr(),
                code.len() as u64,
                address,
                text.as_mut_ptr(),
                text.len(),
            )
        };
        if bytes == 0 {
            return None;
        }
        // SAFETY: LLVM ends the text with a zero within the length passed.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy();
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        Some(Line { address, bytes, text })
    }
}

impl Drop for Disassembler {
    fn drop(&mut self) {
        // SAFETY: the context was made by LLVM and is disposed of once.
        unsafe { (self.dispose)(self.context) };
    }
}

fn create_context(create: Create, processor: &str) -> Result<*mut c_void, EmuError> {
    let text = |text: &str| CString::new(text).map_err(|error| EmuError::Disassembler(error.to_string()));
    let (target, processor_text, features) = (text("amdgcn-amd-amdhsa")?, text(processor)?, text("")?);
    let none = std::ptr::null_mut();
    // SAFETY: the three texts outlive the call, and the interface allows null callbacks.
    let context =
        unsafe { create(target.as_ptr(), processor_text.as_ptr(), features.as_ptr(), none, 0, none, none) };
    if context.is_null() {
        return Err(EmuError::Disassembler(format!("LLVM knows no processor {processor}")));
    }
    Ok(context)
}

fn llvm_library() -> Result<PathBuf, EmuError> {
    let folder = sysroot()?.join("lib");
    let entries = std::fs::read_dir(&folder)
        .map_err(|error| EmuError::Disassembler(format!("{}: {error}", folder.display())))?;
    let is_llvm = |path: &Path| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("libLLVM"))
    };
    let mut found: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| is_llvm(path)).collect();
    found.sort();
    found.pop().ok_or_else(|| EmuError::Disassembler(format!("no libLLVM in {}", folder.display())))
}

/// Of the toolchain that built this program: cargo says so in `RUSTC`, otherwise the pinned `rustc` of the folder.
fn sysroot() -> Result<PathBuf, EmuError> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .args(["--print", "sysroot"])
        .output()
        .map_err(|error| EmuError::Disassembler(format!("rustc: {error}")))?;
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_encodings_have_their_text() {
        let known = [
            ("gfx950", vec![0xbf81_0000u32], "s_endpgm"),
            (
                "gfx950",
                vec![0xd3ad_0000, 0x0202_1d06],
                "v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[6:13], v[14:21], 0",
            ),
            (
                "gfx942",
                vec![0xd3f3_0000, 0x0202_1d0a],
                "v_mfma_f32_16x16x32_fp8_fp8 v[0:3], v[10:11], v[14:15], 0",
            ),
        ];
        for (processor, words, text) in known {
            let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let listing = Disassembler::new(processor).unwrap().listing(&code).unwrap();
            assert_eq!(listing, [Line { address: 0, bytes: code.len(), text: text.to_owned() }]);
        }
    }

    #[test]
    fn bytes_that_are_no_instruction_are_an_error() {
        let error = Disassembler::new("gfx950").unwrap().listing(&[0xff; 8]).unwrap_err();
        assert!(error.to_string().contains("at 0x0"), "{error}");
    }
}
