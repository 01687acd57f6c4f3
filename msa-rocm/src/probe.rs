//! Recorded inputs and outputs of the matrix instructions and of the transcendental unit: what this project needs from
//! somebody with an AMD GPU.
#![allow(unsafe_code)]

use std::fmt::Write as _;

use msa_core::backend::{Memory, Stream};
use msa_core::device::Arch;
use msa_core::error::Result;

use crate::context::{Context, Ready};
use crate::hip::Hip;
use crate::images::Images;
use crate::launch::{KernelLaunch, name};
use crate::memory::Uploaded;
use crate::parameters::Bytes;

/// Kernels of `kernels/probe.cpp`, as (formats, trick). The last one has no model in the interpreter.
pub const KERNELS: [(&str, &str); 4] =
    [("fp8k32", "mfma"), ("fp8k128", "mfma"), ("bf16k32", "mfma"), ("f32", "native")];

/// Waves, each one matrix product.
const CASES: usize = 96;
const LANES: usize = 64;

/// Bytes of a lane's operands and of its part of an accumulator.
const OPERAND: usize = 32;
const ACCUMULATOR: usize = 16;

/// Runs `kernels` on device `ordinal` and writes what went in and what came out as text: a line for the device, then one
/// for each kernel, case and lane, `kernel case lane a b c d` in hexadecimal words.
///
/// # Errors
/// An architecture without kernels, code objects without the probe, the runtime's errors.
pub fn record(hip: &'static Hip, ordinal: u32, images: Images, kernels: &[(&str, &str)]) -> Result<String> {
    let (product, architecture, _, _) = hip.describe_device(ordinal)?;
    let arch = Arch::from_name(&architecture)?;
    let context = Context::new(hip, ordinal, arch, images);
    let mut text = format!("# {product} {architecture}\n");
    for (number, (formats, trick)) in kernels.iter().enumerate() {
        let inputs = Inputs::new(number as u64, formats);
        let [a, b, c] = [&inputs.a, &inputs.b, &inputs.c].map(|bytes| Uploaded::new(&context, bytes));
        let (a, b, c) = (a?, b?, c?);
        let d = Uploaded::new(&context, &vec![0; inputs.c.len()])?;
        let status = Uploaded::new(&context, &[0; 256])?;
        let mut arguments = Bytes::default();
        arguments.wide(&[a.address, b.address, c.address, d.address]);
        let launch = KernelLaunch {
            source: "probe",
            variant: name(format_args!("probe.{formats}.{}.{trick}", arch.name())),
            grid: [CASES as u32, 1, 1],
            threads: LANES as u32,
            arguments: arguments.finish(),
        };
        let ready = Ready::new(&context, "msa probe", [("probe", launch.variant)])?;
        // SAFETY: the addresses are those of the tables above, which the kernel's indices do not leave.
        unsafe { context.enqueue(&ready, Stream(0), status.address, &|to| to(launch.clone())) }?;
        let mut outputs = vec![0; inputs.c.len()];
        context.read(d.address, &mut outputs)?;
        inputs.print(&mut text, &launch.variant, &outputs);
    }
    Ok(text)
}

/// Operands and accumulators of all cases.
struct Inputs {
    a: Vec<u8>,
    b: Vec<u8>,
    c: Vec<u8>,
}

impl Inputs {
    /// A third of the cases has any bits, a third moderate values with a large accumulator, a third one large product
    /// among small ones: that tells truncation from rounding, and the order of sums.
    fn new(seed: u64, formats: &str) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let wide = formats.starts_with("bf16");
        let (mut a, mut b, mut c) = (Vec::new(), Vec::new(), Vec::new());
        for case in 0..CASES {
            for _ in 0..LANES {
                for operand in [&mut a, &mut b] {
                    operand.extend((0..OPERAND).map(|at| random.operand(case % 3, wide, at)));
                }
                for _ in 0..ACCUMULATOR / 4 {
                    c.extend(random.accumulator(case % 3).to_le_bytes());
                }
            }
        }
        Self { a, b, c }
    }

    fn print(&self, text: &mut String, variant: &str, d: &[u8]) {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let operands = self.a.chunks(OPERAND).zip(self.b.chunks(OPERAND));
        let sums = self.c.chunks(ACCUMULATOR).zip(d.chunks(ACCUMULATOR));
        for (index, ((a, b), (c, d))) in operands.zip(sums).enumerate() {
            let (case, lane) = (index / LANES, index % LANES);
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{variant} {case} {lane} {} {} {} {}", hex(a), hex(b), hex(c), hex(d));
        }
    }
}

/// Random numbers (xorshift), the same on every machine.
struct Random(u64);

impl Random {
    fn word(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 24) as u32
    }

    /// Byte `at` of an operand: FP8, or the halves of bf16.
    fn operand(&mut self, class: usize, wide: bool, at: usize) -> u8 {
        let word = self.word();
        let byte = word as u8;
        match (class, wide) {
            (0, _) => byte,
            (1, false) => (byte & 0x87) | 0x30,
            (_, false) if word >> 8 & 15 == 0 => (byte & 0x87) | 0x70,
            (_, false) => (byte & 0x87) | 0x10,
            // The upper half of a bf16 holds sign and exponent.
            (_, true) if at.is_multiple_of(2) => byte,
            (1, true) => (byte & 0x80) | 0x3f,
            (_, true) if word >> 8 & 15 == 0 => (byte & 0x80) | 0x43,
            (_, true) => (byte & 0x80) | 0x3c,
        }
    }

    fn accumulator(&mut self, class: usize) -> u32 {
        let word = self.word();
        match class {
            0 => word,
            1 => (word & 0x807f_ffff) | 0x4480_0000,
            _ => (word & 0x807f_ffff) | 0x3e80_0000,
        }
    }
}
