//! Vector arithmetic: a function for every lane.

mod compare;
mod division;
mod special;
mod table;

use super::super::error::Fault;
use super::super::text::{Argument, Instruction};
use super::LANES;
use super::program::{Problem, vector_of};
use super::registers::{Lanes, Registers, Source, ones};

use compare::Comparison;
use special::Special;
use table::Compute;

/// A source with its modifiers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Input {
    source: Source,
    negated: bool,
    absolute: bool,
    part: Part,
}

/// The part of a register that a sub-word instruction takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    shift: u32,
    mask: u32,
}

const WHOLE: Part = Part { shift: 0, mask: u32::MAX };

/// A vector instruction.
#[derive(Debug, Clone)]
pub(super) enum VectorAction {
    /// A function of 32-bit lanes.
    Map { target: u16, compute: Compute, inputs: Vec<Input> },
    /// A comparison: a mask of lanes to scalar registers.
    Compare { target: u16, comparison: Comparison, inputs: [Input; 2] },
    /// What does not fit.
    Special(Special),
}

impl VectorAction {
    pub(super) fn decode(instruction: &Instruction) -> Result<Self, Problem> {
        refuse_output_modifiers(instruction)?;
        let plain = !instruction.flag("clamp") && !is_upper_half(instruction);
        if let Some(special) = Special::decode(instruction)?.filter(|_| plain) {
            return Ok(Self::Special(special));
        }
        let comparison = Comparison::decode(&instruction.mnemonic).filter(|_| plain);
        if let Some(comparison) = comparison {
            let target = super::program::scalar_of(instruction, 0)?;
            let inputs = [input(instruction, 1, 0, false)?, input(instruction, 2, 1, false)?];
            return Ok(Self::Compare { target, comparison, inputs });
        }
        let target = vector_of(instruction, 0)?;
        let clamp = if instruction.flag("clamp") { " clamp" } else { "" };
        let half = if is_upper_half(instruction) { " WORD_1" } else { "" };
        let compute = table::lookup(&format!("{}{clamp}{half}", instruction.mnemonic)).ok_or(Problem)?;
        let double = instruction.mnemonic.ends_with("_f64");
        let count = compute.inputs();
        let inputs =
            (0..count).map(|index| input(instruction, 1 + index, index, double)).collect::<Result<_, _>>()?;
        Ok(Self::Map { target, compute, inputs })
    }

    pub(super) fn run(&self, registers: &mut Registers) -> Result<(), Fault> {
        match self {
            Self::Map { target, compute, inputs } => map(registers, *target, *compute, inputs),
            Self::Compare { target, comparison, inputs } => {
                let mask = comparison.mask(registers, inputs)?;
                registers.set_scalar_pair(*target, mask)
            }
            Self::Special(special) => special.run(registers),
        }
    }
}

impl Input {
    /// The values of all lanes; only those of exec mean anything.
    fn read(&self, registers: &Registers) -> Result<Lanes, Fault> {
        let mut broadcast = [0; LANES];
        let lanes = *registers.lanes(self.source, &mut broadcast)?;
        if self.part == WHOLE && !self.negated && !self.absolute {
            return Ok(lanes);
        }
        let clear = if self.absolute { 0x7fff_ffff } else { u32::MAX };
        let flip = u32::from(self.negated) << 31;
        Ok(lanes.map(|value| ((value >> self.part.shift & self.part.mask) & clear) ^ flip))
    }

    /// One lane, whether or not it is active.
    fn read_lane(&self, registers: &Registers, lane: usize) -> Result<u32, Fault> {
        match self.source {
            Source::Vector(register) => registers.vector_lane(register, lane),
            other => registers.uniform(other),
        }
    }

    fn read_wide(&self, registers: &Registers) -> Result<[u64; LANES], Fault> {
        let lanes = registers.lanes_wide(self.source)?;
        let clear = if self.absolute { u64::MAX >> 1 } else { u64::MAX };
        let flip = u64::from(self.negated) << 63;
        Ok(lanes.map(|value| (value & clear) ^ flip))
    }
}

fn map(registers: &mut Registers, target: u16, compute: Compute, inputs: &[Input]) -> Result<(), Fault> {
    let exec = registers.exec();
    if exec == 0 {
        return Ok(());
    }
    let read = |index: usize| inputs[index].read(registers);
    let result = match compute {
        Compute::One(f) => f(&read(0)?),
        Compute::Two(f) => f(&read(0)?, &read(1)?),
        Compute::Three(f) => f(&read(0)?, &read(1)?, &read(2)?),
        Compute::Accumulate(f) => {
            let mut broadcast = [0; LANES];
            f(&read(0)?, &read(1)?, registers.lanes(Source::Vector(target), &mut broadcast)?)
        }
        Compute::Wide { wide, result_is_wide, f } => {
            return map_wide(registers, target, wide, result_is_wide, f, inputs);
        }
    };
    registers.set_lanes(target, &result, exec)
}

fn map_wide(
    registers: &mut Registers,
    target: u16,
    wide: &[bool],
    result_is_wide: bool,
    f: fn(u64, u64, u64) -> u64,
    inputs: &[Input],
) -> Result<(), Fault> {
    let exec = registers.exec();
    let mut values = [[0; LANES]; 3];
    for ((value, input), wide) in values.iter_mut().zip(inputs).zip(wide) {
        *value = if *wide { input.read_wide(registers)? } else { input.read(registers)?.map(u64::from) };
    }
    let mut result = [0; LANES];
    ones(exec).for_each(|lane| result[lane] = f(values[0][lane], values[1][lane], values[2][lane]));
    if result_is_wide {
        registers.set_lanes_wide(target, &result, exec)
    } else {
        registers.set_lanes(target, &result.map(|value| value as u32), exec)
    }
}

/// Operand `at`, which is source number `number` of the instruction.
fn input(instruction: &Instruction, at: usize, number: usize, double: bool) -> Result<Input, Problem> {
    let argument: &Argument = instruction.arguments.get(at).ok_or(Problem)?;
    let part = match instruction.modifier(["src0_sel", "src1_sel", "src2_sel"][number.min(2)]) {
        None | Some("DWORD") => WHOLE,
        Some("BYTE_0") => Part { shift: 0, mask: 0xff },
        Some("BYTE_1") => Part { shift: 8, mask: 0xff },
        Some("BYTE_2") => Part { shift: 16, mask: 0xff },
        Some("BYTE_3") => Part { shift: 24, mask: 0xff },
        Some("WORD_0") => Part { shift: 0, mask: 0xffff },
        Some("WORD_1") => Part { shift: 16, mask: 0xffff },
        Some(_) => return Err(Problem),
    };
    Ok(Input {
        source: Source::of(argument, double).ok_or(Problem)?,
        negated: argument.negated,
        absolute: argument.absolute,
        part,
    })
}

/// Those of inputs, and of the few instructions in [`special`] that look at them.
const KNOWN_MODIFIERS: [&str; 10] = [
    "bitop3",
    "clamp",
    "dst_sel",
    "dst_unused",
    "neg_hi",
    "neg_lo",
    "op_sel",
    "op_sel_hi",
    "src0_sel",
    "src1_sel",
];

/// The result goes to the upper half of the target, and the lower one becomes zero.
fn is_upper_half(instruction: &Instruction) -> bool {
    instruction.modifier("dst_sel") == Some("WORD_1")
        && instruction.modifier("dst_unused") == Some("UNUSED_PAD")
}

/// Nothing that the kernels use scales its result or keeps a part of a register.
fn refuse_output_modifiers(instruction: &Instruction) -> Result<(), Problem> {
    let whole = instruction.modifier("dst_sel").is_none_or(|part| part == "DWORD");
    let all = instruction.modifiers.iter().all(|(name, _)| KNOWN_MODIFIERS.contains(&name.as_str()));
    if (whole || is_upper_half(instruction)) && all { Ok(()) } else { Err(Problem) }
}

impl VectorAction {
    /// For a processor whose FP8 is FNUZ.
    pub(super) fn with_fnuz(self, fnuz: bool) -> Self {
        match self {
            Self::Special(special) => Self::Special(special.with_fnuz(fnuz)),
            other => other,
        }
    }
}
