//! The local data share of a group, and the instructions that reach it.

use super::super::error::Fault;
use super::super::text::Instruction;
use super::program::{Problem, vector_of};
use super::registers::{Registers, Source, Span, ones};
use super::wait::{Effect, Unit, Waits};
use super::{LANES, registers::Lanes};

const WORD: usize = 4;

/// LDS of one group. Every word knows who touched it since the last barrier.
pub(super) struct Lds {
    bytes: Vec<u8>,
    written: Vec<bool>,
    touches: Vec<Touch>,
    /// Barriers passed so far, plus one.
    phase: u32,
}

/// Who touched a word, and in which phase.
#[derive(Clone, Copy, Default)]
struct Touch {
    store_phase: u32,
    store_wave: u8,
    load_phase: u32,
    load_waves: u32,
}

impl Lds {
    pub(super) fn new(bytes: u32) -> Self {
        let bytes = bytes as usize;
        let touches = vec![Touch::default(); bytes.div_ceil(WORD)];
        Self { bytes: vec![0; bytes], written: vec![false; bytes], touches, phase: 1 }
    }

    /// All waves have passed a barrier.
    pub(super) fn next_phase(&mut self) {
        self.phase += 1;
    }

    fn range(&self, offset: u64, bytes: usize) -> Result<std::ops::Range<usize>, Fault> {
        let end = offset.checked_add(bytes as u64).filter(|&end| end <= self.bytes.len() as u64);
        let end = end.ok_or(Fault::LdsOutOfBounds { offset, size: self.bytes.len() })?;
        if !offset.is_multiple_of(bytes as u64) {
            return Err(Fault::Misaligned { address: offset, want: bytes as u32 });
        }
        Ok(offset as usize..end as usize)
    }

    fn load(&mut self, offset: u64, bytes: usize, wave: usize) -> Result<u128, Fault> {
        let range = self.range(offset, bytes)?;
        if let Some(at) = range.clone().find(|&at| !self.written[at]) {
            return Err(Fault::LdsUninitialised { offset: at as u64 });
        }
        for word in range.start / WORD..range.end.div_ceil(WORD) {
            let (phase, touch) = (self.phase, &mut self.touches[word]);
            if touch.store_phase == phase && usize::from(touch.store_wave) != wave {
                let other = usize::from(touch.store_wave);
                return Err(Fault::LdsRace { offset: (word * WORD) as u64, other });
            }
            if touch.load_phase != phase {
                (touch.load_phase, touch.load_waves) = (phase, 0);
            }
            touch.load_waves |= 1 << wave;
        }
        Ok(self.bytes[range].iter().rev().fold(0, |value, byte| value << 8 | u128::from(*byte)))
    }

    fn store(&mut self, offset: u64, value: u128, bytes: usize, wave: usize) -> Result<(), Fault> {
        let range = self.range(offset, bytes)?;
        for word in range.start / WORD..range.end.div_ceil(WORD) {
            let (phase, touch) = (self.phase, &mut self.touches[word]);
            let others = if touch.load_phase == phase { touch.load_waves & !(1 << wave) } else { 0 };
            let stored = touch.store_phase == phase && usize::from(touch.store_wave) != wave;
            if others != 0 || stored {
                let other =
                    if stored { usize::from(touch.store_wave) } else { others.trailing_zeros() as usize };
                return Err(Fault::LdsRace { offset: (word * WORD) as u64, other });
            }
            (touch.store_phase, touch.store_wave) = (phase, wave as u8);
        }
        self.written[range.clone()].fill(true);
        for (byte, at) in range.enumerate() {
            self.bytes[at] = (value >> (8 * byte)) as u8;
        }
        Ok(())
    }

    /// An addition that no other wave's addition disturbs.
    fn add(&mut self, offset: u64, value: u32) -> Result<u32, Fault> {
        let range = self.range(offset, WORD)?;
        if let Some(at) = range.clone().find(|&at| !self.written[at]) {
            return Err(Fault::LdsUninitialised { offset: at as u64 });
        }
        let old = self.bytes[range.clone()].iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte));
        self.bytes[range].copy_from_slice(&old.wrapping_add(value).to_le_bytes());
        Ok(old)
    }
}

/// An instruction of the LDS unit.
#[derive(Debug, Clone)]
pub(super) enum LdsAction {
    /// Loads `bytes` at each offset, one after the other into consecutive registers.
    Load { target: u16, address: Source, bytes: usize, offsets: Vec<u64> },
    /// Stores the registers of each source.
    Store { address: Source, data: Vec<u16>, bytes: usize, offsets: Vec<u64> },
    /// Adds 32 bits; the old value goes to `target`.
    Add { target: Option<u16>, address: Source, data: u16, offset: u64 },
    /// Every lane takes the value of the lane that its address names. Uses no LDS.
    Permute { target: u16, address: Source, data: Source, offset: u64 },
}

impl LdsAction {
    pub(super) fn decode(instruction: &Instruction) -> Result<Self, Problem> {
        let name = instruction.mnemonic.as_str();
        let source = |index: usize| {
            instruction.arguments.get(index).and_then(|argument| Source::of(argument, false)).ok_or(Problem)
        };
        let register = |index: usize| vector_of(instruction, index);
        let offset = instruction.number("offset") as u64;
        match name {
            "ds_bpermute_b32" => {
                return Ok(Self::Permute {
                    target: register(0)?,
                    address: source(1)?,
                    data: source(2)?,
                    offset,
                });
            }
            "ds_add_u32" => {
                return Ok(Self::Add { target: None, address: source(0)?, data: register(1)?, offset });
            }
            "ds_add_rtn_u32" => {
                return Ok(Self::Add {
                    target: Some(register(0)?),
                    address: source(1)?,
                    data: register(2)?,
                    offset,
                });
            }
            _ => {}
        }
        let (kind, rest) = name.strip_prefix("ds_").and_then(|rest| rest.split_once('_')).ok_or(Problem)?;
        let bytes = size(rest)?;
        let offsets = offsets(instruction, kind, bytes)?;
        if kind.starts_with("read") {
            return Ok(Self::Load { target: register(0)?, address: source(1)?, bytes, offsets });
        }
        let data = (1..=offsets.len()).map(register).collect::<Result<_, _>>()?;
        Ok(Self::Store { address: source(0)?, data, bytes, offsets })
    }

    pub(super) fn run(
        &self,
        registers: &mut Registers,
        waits: &mut Waits,
        lds: &mut Lds,
        wave: usize,
    ) -> Result<(), Fault> {
        let exec = registers.exec();
        match self {
            Self::Load { target, address, bytes, offsets } => {
                let addresses = addresses(registers, *address)?;
                let words = bytes.div_ceil(WORD) as u16;
                for lane in ones(exec) {
                    for (index, offset) in (0..).zip(offsets) {
                        let value = lds.load(wrapped(addresses[lane], *offset), *bytes, wave)?;
                        for word in 0..words {
                            let register = target + index * words + word;
                            registers.set_lane(register, lane, (value >> (32 * word)) as u32)?;
                        }
                    }
                }
                let count = words * offsets.len() as u16;
                waits.begin(Unit::Lds, Effect::Load(Span::Vector { first: *target, count }), registers);
            }
            Self::Store { address, data, bytes, offsets } => {
                let addresses = addresses(registers, *address)?;
                let words = bytes.div_ceil(WORD) as u16;
                for lane in ones(exec) {
                    for (first, offset) in data.iter().zip(offsets) {
                        let mut value = 0;
                        for word in (0..words).rev() {
                            value = value << 32 | u128::from(registers.vector_lane(first + word, lane)?);
                        }
                        lds.store(wrapped(addresses[lane], *offset), value, *bytes, wave)?;
                    }
                }
                waits.begin(Unit::Lds, Effect::Store, registers);
            }
            Self::Add { target, address, data, offset } => {
                let addresses = addresses(registers, *address)?;
                for lane in ones(exec) {
                    let value = registers.vector_lane(*data, lane)?;
                    let old = lds.add(wrapped(addresses[lane], *offset), value)?;
                    if let Some(target) = target {
                        registers.set_lane(*target, lane, old)?;
                    }
                }
                let load = target.map(|first| Effect::Load(Span::Vector { first, count: 1 }));
                waits.begin(Unit::Lds, load.unwrap_or(Effect::Store), registers);
            }
            Self::Permute { target, address, data, offset } => {
                permute(registers, *target, *address, *data, *offset)?;
                waits.begin(Unit::Lds, Effect::Load(Span::Vector { first: *target, count: 1 }), registers);
            }
        }
        Ok(())
    }
}

/// LDS addresses are sums of 32 bits: compilers fold an offset into a base that is negative without it (LLVM's
/// test/CodeGen/AMDGPU/ds-sub-offset.ll expects that from gfx7 on).
fn wrapped(address: u32, offset: u64) -> u64 {
    u64::from(address.wrapping_add(offset as u32))
}

/// A lane that takes from a lane outside exec takes 0.
fn permute(
    registers: &mut Registers,
    target: u16,
    address: Source,
    data: Source,
    offset: u64,
) -> Result<(), Fault> {
    let exec = registers.exec();
    let addresses = addresses(registers, address)?;
    let mut broadcast = [0; LANES];
    let values = *registers.lanes(data, &mut broadcast)?;
    let mut result = [0; LANES];
    for lane in ones(exec) {
        let from = (u64::from(addresses[lane]) + offset) / WORD as u64 % LANES as u64;
        result[lane] = if exec >> from & 1 == 1 { values[from as usize] } else { 0 };
    }
    registers.set_lanes(target, &result, exec)
}

fn addresses(registers: &Registers, address: Source) -> Result<Lanes, Fault> {
    let mut broadcast = [0; LANES];
    registers.lanes(address, &mut broadcast).copied()
}

fn size(name: &str) -> Result<usize, Problem> {
    match name {
        "u8" | "b8" => Ok(1),
        "u16" | "b16" => Ok(2),
        "b32" => Ok(4),
        "b64" => Ok(8),
        "b128" => Ok(16),
        _ => Err(Problem),
    }
}

fn offsets(instruction: &Instruction, kind: &str, bytes: usize) -> Result<Vec<u64>, Problem> {
    let unit = match kind {
        "read" | "write" => return Ok(vec![instruction.number("offset") as u64]),
        "read2" | "write2" => bytes as u64,
        "read2st64" | "write2st64" => 64 * bytes as u64,
        _ => return Err(Problem),
    };
    Ok(["offset0", "offset1"].map(|name| instruction.number(name) as u64 * unit).into())
}
