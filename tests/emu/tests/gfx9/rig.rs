//! What every test needs: kernels, random numbers, launches.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};

use msa_core::arithmetic::{Arithmetic, Named};
use msa_core::tensor::DType;
use msa_emu::gfx9::code_object::CodeObject;
use msa_emu::gfx9::{Arguments, EmuError, Kernel, Launch, Machine, Options, Statistics};
use msa_ref::sim::cdna::Generation;
use msa_rocm::parameters::Parameters;

use crate::cache::Format;

/// The arithmetic of a kernel with these queries over this cache.
pub(crate) fn arithmetic(generation: Generation, query: DType, format: Format) -> Arithmetic {
    let old = generation == Generation::Cdna3;
    let named = match (old, query == DType::Bf16, format == Format::Bf16) {
        (true, false, _) => Named::Cdna3Decode,
        (false, false, _) => Named::Cdna4Decode,
        (true, true, false) => Named::Cdna3DecodeMixed,
        (false, true, false) => Named::Cdna4DecodeMixed,
        (true, true, true) => Named::Cdna3DecodeBf16,
        (false, true, true) => Named::Cdna4DecodeBf16,
    };
    named.arithmetic()
}

/// Architectures with their matrix cores.
pub(crate) const ARCHITECTURES: [(&str, Generation); 2] =
    [("gfx942", Generation::Cdna3), ("gfx950", Generation::Cdna4)];

thread_local! {
    /// A faulty code object that takes the place of the shipped one, in this thread.
    static FAULTY: std::cell::RefCell<Option<CodeObject>> = const { std::cell::RefCell::new(None) };
}

/// Runs `work` with the kernels of `object` in place of the shipped ones of the same names. Other architectures are left
/// out, and other kernels stay as they are.
pub(crate) fn with_faulty<T>(object: CodeObject, work: impl FnOnce() -> T) -> T {
    FAULTY.with(|faulty| *faulty.borrow_mut() = Some(object));
    let result = work();
    FAULTY.with(|faulty| *faulty.borrow_mut() = None);
    result
}

/// How the tests run kernels: a fault that never ends is found soon.
pub(crate) fn options(seed: u64) -> Options {
    Options { seed, most_steps: 1 << 22, ..Options::default() }
}

/// Where `cargo xtask plugin rocm` writes.
pub(crate) fn artifacts() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("plugins").join("rocm")
}

/// A code object, or `None` with a message where it was not built.
pub(crate) fn code_object(path: &std::path::Path) -> Option<CodeObject> {
    let Ok(bytes) = std::fs::read(path) else {
        let message = format!("{} is missing: run cargo xtask plugin rocm --mutants", path.display());
        assert!(std::env::var_os("MSA_REQUIRE_KERNELS").is_none(), "{message}");
        println!("skipped: {message}");
        return None;
    };
    Some(CodeObject::parse(&bytes).unwrap())
}

/// A shipped kernel by op, formats and trick. `None`, with a message, where nothing was built.
pub(crate) fn kernel(op: &str, formats: &str, architecture: &str, trick: &str) -> Option<Kernel> {
    let symbol = format!("{op}_{formats}_{architecture}_{trick}");
    let faulty = FAULTY.with(|faulty| faulty.borrow().clone());
    if let Some(object) = &faulty {
        if object.architecture() != architecture {
            return None;
        }
        if object.kernels().contains_key(&symbol) {
            return Some(Kernel::load(object, &symbol).unwrap_or_else(|error| panic!("{error}")));
        }
    }
    static LOADED: OnceLock<Mutex<HashMap<String, Kernel>>> = OnceLock::new();
    let loaded = LOADED.get_or_init(Mutex::default);
    if let Some(kernel) = loaded.lock().unwrap().get(&symbol) {
        return Some(kernel.clone());
    }
    let source = match (op, trick) {
        ("candidate_keys", _) => "select",
        ("sparse_decode", "shared") => "sparse_decode_shared",
        _ => op,
    };
    let object = code_object(&artifacts().join(format!("{source}.{architecture}.hsaco")))?;
    let kernel = Kernel::load(&object, &symbol).unwrap_or_else(|error| panic!("{error}"));
    loaded.lock().unwrap().insert(symbol, kernel.clone());
    Some(kernel)
}

/// Launches `kernel` and returns what the interpreter says.
pub(crate) fn try_run(
    machine: &mut Machine,
    kernel: &Kernel,
    grid: [u32; 3],
    threads: u32,
    parameters: &dyn Parameters,
) -> Result<Statistics, EmuError> {
    machine.run(&launch(kernel, grid, threads, parameters))
}

/// A launch of `kernel`.
pub(crate) fn launch(kernel: &Kernel, grid: [u32; 3], threads: u32, parameters: &dyn Parameters) -> Launch {
    let arguments = Arguments::new().bytes(&parameters.to_bytes());
    Launch { kernel: kernel.clone(), grid, threads, arguments }
}

/// Launches `kernel`, which must not do anything wrong.
pub(crate) fn run(
    machine: &mut Machine,
    kernel: &Kernel,
    grid: [u32; 3],
    threads: u32,
    parameters: &dyn Parameters,
) -> Statistics {
    try_run(machine, kernel, grid, threads, parameters).unwrap_or_else(|error| panic!("{error}"))
}

/// Random numbers (xorshift).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.word() % end.max(1)
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.word() as u8
    }

    pub(crate) fn shuffle<T>(&mut self, list: &mut [T]) {
        for index in (1..list.len()).rev() {
            let other = self.below(index as u64 + 1) as usize;
            list.swap(index, other);
        }
    }

    /// A bf16 of moderate size; zeros of either sign are among them.
    pub(crate) fn bf16(&mut self) -> u16 {
        match self.below(16) {
            0 => 0,
            1 => 0x8000,
            // Exponents of 2^-6 to 2^2.
            _ => (self.word() as u16 & 0x807f) | (self.below(8) as u16 + 121) << 7,
        }
    }

    /// An FP8 code of a number of moderate size, never NaN; zeros of either sign are among them.
    pub(crate) fn fp8(&mut self, generation: Generation) -> u8 {
        let code = match self.below(16) {
            0 => 0,
            1 => 0x80,
            _ => (self.byte() & 0x87) | (self.below(6) as u8 + 4) << 3,
        };
        if generation == Generation::Cdna3 && code == 0x80 { 0 } else { code }
    }
}

/// Little-endian bytes.
pub(crate) fn bytes_of<T: Copy, const N: usize>(values: &[T], to_bytes: fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|value| to_bytes(*value)).collect()
}

/// f32 values of little-endian bytes.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()
}

/// i32 values of little-endian bytes.
pub(crate) fn integers(bytes: &[u8]) -> Vec<i32> {
    bytes.chunks_exact(4).map(|c| i32::from_le_bytes(c.try_into().unwrap())).collect()
}

/// The first difference between two lists of floats, NaN equal to NaN.
pub(crate) fn first_difference(got: &[f32], want: &[f32]) -> Option<(usize, f32, f32)> {
    assert_eq!(got.len(), want.len());
    let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    let at = got.iter().zip(want).position(|(got, want)| !same(*got, *want))?;
    Some((at, got[at], want[at]))
}
