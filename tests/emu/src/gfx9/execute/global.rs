//! Loads, stores and atomics of global memory, and scalar loads.

use super::super::error::Fault;
use super::super::text::{Instruction, Operand};
use super::LANES;
use super::memory::Memory;
use super::program::{Problem, scalar_of, vector_of};
use super::registers::{Registers, Source, Span, ones};
use super::wait::{Effect, Unit, Waits};

/// Where the lanes' addresses come from.
#[derive(Debug, Clone, Copy)]
enum Base {
    /// 64-bit addresses in a pair of vector registers.
    Vector(u16),
    /// A 64-bit scalar base and 32-bit offsets.
    Scalar { base: u16, offset: u16 },
}

/// An access of the vector memory unit.
#[derive(Debug, Clone, Copy)]
pub(super) struct GlobalAction {
    base: Base,
    offset: i64,
    bytes: usize,
    system: bool,
    access: Access,
}

#[derive(Debug, Clone, Copy)]
enum Access {
    /// `signed` extends a byte or a halfword.
    Load {
        target: u16,
        signed: bool,
    },
    Store {
        data: u16,
    },
    Or {
        data: u16,
    },
}

/// A scalar load.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScalarLoad {
    target: u16,
    count: u16,
    base: u16,
    offset: Source,
}

impl GlobalAction {
    pub(super) fn decode(instruction: &Instruction) -> Result<Self, Problem> {
        let name = instruction.mnemonic.strip_prefix("global_").ok_or(Problem)?;
        let (kind, what) = name.split_once('_').ok_or(Problem)?;
        let (at, access, bytes) = match kind {
            "load" => {
                let (bytes, signed) = load_size(what)?;
                (1, Access::Load { target: vector_of(instruction, 0)?, signed }, bytes)
            }
            "store" => (0, Access::Store { data: vector_of(instruction, 1)? }, store_size(what)?),
            "atomic" if what == "or" && !instruction.flag("sc0") => {
                (0, Access::Or { data: vector_of(instruction, 1)? }, 4)
            }
            _ => return Err(Problem),
        };
        let scalar_at = if matches!(access, Access::Load { .. }) { 2 } else { at + 2 };
        let base = match instruction.arguments.get(scalar_at).map(|argument| argument.operand) {
            Some(Operand::Off) => Base::Vector(vector_of(instruction, at)?),
            Some(Operand::Scalar { first, count: 2 }) => {
                Base::Scalar { base: first, offset: vector_of(instruction, at)? }
            }
            _ => return Err(Problem),
        };
        let system = instruction.flag("sc0") && instruction.flag("sc1");
        Ok(Self { base, offset: instruction.number("offset"), bytes, system, access })
    }

    pub(super) fn run(
        &self,
        registers: &mut Registers,
        waits: &mut Waits,
        memory: &mut Memory,
        gpu: usize,
    ) -> Result<(), Fault> {
        let addresses = self.addresses(registers)?;
        let words = self.bytes.div_ceil(4) as u16;
        let align = self.bytes.min(4) as u64;
        for lane in ones(registers.exec()) {
            let address = addresses[lane].wrapping_add(self.offset as u64);
            if !address.is_multiple_of(align) {
                return Err(Fault::Misaligned { address, want: align as u32 });
            }
            match self.access {
                Access::Load { target, signed } => {
                    let mut data = [0; 16];
                    memory.load(gpu, address, &mut data[..self.bytes], self.system)?;
                    for word in 0..words {
                        let value = word_at(&data, word);
                        let value = if signed { extended(value, self.bytes) } else { value };
                        registers.set_lane(target + word, lane, value)?;
                    }
                }
                Access::Store { data } => {
                    let mut bytes = [0; 16];
                    for word in 0..words {
                        let value = registers.vector_lane(data + word, lane)?.to_le_bytes();
                        bytes[usize::from(word) * 4..][..4].copy_from_slice(&value);
                    }
                    memory.store(gpu, address, &bytes[..self.bytes], self.system)?;
                }
                Access::Or { data } => {
                    let value = registers.vector_lane(data, lane)?;
                    let mut old = [0; 4];
                    memory.load(gpu, address, &mut old, self.system)?;
                    let new = u32::from_le_bytes(old) | value;
                    memory.store(gpu, address, &new.to_le_bytes(), self.system)?;
                }
            }
        }
        let effect = match self.access {
            Access::Load { target, .. } => Effect::Load(Span::Vector { first: target, count: words }),
            Access::Store { .. } | Access::Or { .. } => Effect::Store,
        };
        waits.begin(Unit::Vector, effect, registers);
        Ok(())
    }

    fn addresses(&self, registers: &Registers) -> Result<[u64; LANES], Fault> {
        match self.base {
            Base::Vector(register) => registers.lanes_wide(Source::Vector(register)),
            Base::Scalar { base, offset } => {
                let base = registers.scalar_pair(base)?;
                let mut broadcast = [0; LANES];
                let offsets = registers.lanes(Source::Vector(offset), &mut broadcast)?;
                Ok(offsets.map(|offset| base.wrapping_add(u64::from(offset))))
            }
        }
    }
}

impl ScalarLoad {
    pub(super) fn decode(instruction: &Instruction) -> Result<Self, Problem> {
        let count = instruction.mnemonic.strip_prefix("s_load_dword").ok_or(Problem)?;
        let count = if count.is_empty() { "1" } else { count.strip_prefix('x').ok_or(Problem)? };
        let offset = instruction.arguments.get(2).ok_or(Problem)?;
        Ok(Self {
            target: scalar_of(instruction, 0)?,
            count: count.parse().map_err(|_| Problem)?,
            base: scalar_of(instruction, 1)?,
            offset: Source::of(offset, false).ok_or(Problem)?,
        })
    }

    pub(super) fn run(
        &self,
        registers: &mut Registers,
        waits: &mut Waits,
        memory: &mut Memory,
        gpu: usize,
    ) -> Result<(), Fault> {
        let base = registers.scalar_pair(self.base)?;
        let offset = match self.offset {
            Source::Constant(value) => value,
            other => u64::from(registers.uniform(other)?),
        };
        let address = base.wrapping_add(offset);
        if !address.is_multiple_of(4) {
            return Err(Fault::Misaligned { address, want: 4 });
        }
        for register in 0..self.count {
            let mut word = [0; 4];
            memory.load(gpu, address + 4 * u64::from(register), &mut word, false)?;
            registers.set_scalar(self.target + register, u32::from_le_bytes(word))?;
        }
        let span = Span::Scalar { first: self.target, count: self.count };
        waits.begin(Unit::Scalar, Effect::Load(span), registers);
        Ok(())
    }
}

fn word_at(data: &[u8; 16], word: u16) -> u32 {
    let bytes = &data[usize::from(word) * 4..][..4];
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

fn extended(value: u32, bytes: usize) -> u32 {
    let unused = 32 - 8 * bytes as u32;
    ((value << unused) as i32 >> unused) as u32
}

fn load_size(name: &str) -> Result<(usize, bool), Problem> {
    Ok(match name {
        "ubyte" => (1, false),
        "sbyte" => (1, true),
        "ushort" => (2, false),
        "sshort" => (2, true),
        other => (store_size(other)?, false),
    })
}

fn store_size(name: &str) -> Result<usize, Problem> {
    Ok(match name {
        "byte" => 1,
        "short" => 2,
        "dword" => 4,
        "dwordx2" => 8,
        "dwordx3" => 12,
        "dwordx4" => 16,
        _ => return Err(Problem),
    })
}
