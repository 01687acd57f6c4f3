//! Vector instructions that read or write more than a function of their lanes.

use msa_core::format::{E4m3, E4m3Fnuz};

use super::super::super::error::Fault;
use super::super::super::text::Instruction;
use super::super::LANES;
use super::super::program::{Problem, scalar_of, vector_of};
use super::super::registers::{Lanes, Registers, Source, ones};
use super::{Input, division, input};

/// One of them.
#[derive(Debug, Clone)]
pub(in super::super) enum Special {
    /// The second source where the mask has a bit, else the first.
    Select {
        target: u16,
        inputs: [Input; 2],
        mask: u16,
    },
    /// Addition or subtraction with carries in scalar registers.
    Carry {
        target: u16,
        out: u16,
        inputs: [Input; 2],
        carry_in: Option<u16>,
        kind: CarryKind,
    },
    /// 32 x 32 + 64 bits.
    MultiplyAdd {
        target: u16,
        out: u16,
        inputs: [Input; 3],
    },
    /// The first active lane's value to a scalar register.
    FirstLane {
        target: u16,
        input: Input,
    },
    /// A lane's value to a scalar register.
    ReadLane {
        target: u16,
        input: Input,
        lane: Source,
    },
    /// Bits of a mask below the own lane, plus a number. `high`: of lanes 32 to 63.
    CountBelow {
        target: u16,
        inputs: [Input; 2],
        high: bool,
    },
    /// Any function of three bits, in the bits of the mask.
    AnyLogic {
        target: u16,
        inputs: [Input; 3],
        truth: u32,
        mask: u32,
    },
    /// Two f32 to two FP8 bytes in one half of the target.
    PackFp8 {
        target: u16,
        inputs: [Input; 2],
        high: bool,
        fnuz: bool,
    },
    /// Two FP8 bytes of one half of the source to two f32.
    UnpackFp8 {
        target: u16,
        input: Input,
        high: bool,
        fnuz: bool,
    },
    /// Two f32 operations on register pairs.
    Packed {
        target: u16,
        sources: Vec<PackedSource>,
        function: PackedFunction,
    },
    DivideScale {
        target: u16,
        mask: u16,
        inputs: [Input; 3],
    },
    DivideFused {
        target: u16,
        inputs: [Input; 3],
    },
}

/// What a carry instruction does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum CarryKind {
    Add,
    Subtract,
    SubtractReversed,
}

/// A source of a packed operation: which of its two registers each half takes, and with which sign.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct PackedSource {
    source: Source,
    high: [bool; 2],
    negated: [bool; 2],
}

type PackedFunction = fn(f32, f32, f32) -> f32;

impl Special {
    pub(super) fn decode(instruction: &Instruction) -> Result<Option<Self>, Problem> {
        let name = instruction.mnemonic.as_str();
        let read = |at: usize, number: usize| input(instruction, at, number, false);
        let pair = |first: usize| Ok([read(first, 0)?, read(first + 1, 1)?]);
        let triple = |first: usize| Ok([read(first, 0)?, read(first + 1, 1)?, read(first + 2, 2)?]);
        let target = || vector_of(instruction, 0);
        let special = match name {
            "v_cndmask_b32" => {
                Self::Select { target: target()?, inputs: pair(1)?, mask: scalar_of(instruction, 3)? }
            }
            "v_mad_u64_u32" => {
                Self::MultiplyAdd { target: target()?, out: scalar_of(instruction, 1)?, inputs: triple(2)? }
            }
            "v_readfirstlane_b32" => {
                Self::FirstLane { target: scalar_of(instruction, 0)?, input: read(1, 0)? }
            }
            "v_readlane_b32" => {
                let lane = instruction.arguments.get(2).ok_or(Problem)?;
                let lane = Source::of(lane, false).ok_or(Problem)?;
                Self::ReadLane { target: scalar_of(instruction, 0)?, input: read(1, 0)?, lane }
            }
            "v_mbcnt_lo_u32_b32" | "v_mbcnt_hi_u32_b32" => {
                Self::CountBelow { target: target()?, inputs: pair(1)?, high: name.contains("_hi_") }
            }
            "v_bitop3_b32" | "v_bitop3_b16" => {
                let truth = instruction.modifier("bitop3").ok_or(Problem)?;
                let truth = match truth.strip_prefix("0x") {
                    Some(digits) => u32::from_str_radix(digits, 16),
                    None => truth.parse(),
                };
                let truth = truth.map_err(|_| Problem)?;
                let mask = if name.ends_with("_b16") { 0xffff } else { u32::MAX };
                if instruction.flag("op_sel") {
                    return Err(Problem);
                }
                Self::AnyLogic { target: target()?, inputs: triple(1)?, truth, mask }
            }
            "v_cvt_pk_fp8_f32" => {
                let high = instruction.bits("op_sel").is_some_and(|bits| bits.last() == Some(&true));
                Self::PackFp8 { target: target()?, inputs: pair(1)?, high, fnuz: false }
            }
            "v_cvt_pk_f32_fp8" => {
                let sdwa = instruction.modifier("src0_sel");
                let op_sel = instruction.bits("op_sel").is_some_and(|bits| bits.first() == Some(&true));
                let high = op_sel || sdwa == Some("WORD_1");
                // The part is taken here: the whole register is read.
                let input = Input { part: super::WHOLE, ..read(1, 0)? };
                Self::UnpackFp8 { target: target()?, input, high, fnuz: false }
            }
            "v_div_scale_f32" => {
                Self::DivideScale { target: target()?, mask: scalar_of(instruction, 1)?, inputs: triple(2)? }
            }
            "v_div_fmas_f32" => Self::DivideFused { target: target()?, inputs: triple(1)? },
            _ => return packed(instruction).or_else(|| carry(instruction)).transpose(),
        };
        Ok(Some(special))
    }

    /// For a processor whose FP8 is FNUZ.
    pub(in super::super) fn with_fnuz(mut self, is_fnuz: bool) -> Self {
        if let Self::PackFp8 { fnuz, .. } | Self::UnpackFp8 { fnuz, .. } = &mut self {
            *fnuz = is_fnuz;
        }
        self
    }

    pub(super) fn run(&self, registers: &mut Registers) -> Result<(), Fault> {
        match self {
            Self::Select { target, inputs, mask } => {
                let mask = registers.lane_mask(*mask)?;
                let (a, b) = (inputs[0].read(registers)?, inputs[1].read(registers)?);
                let result =
                    std::array::from_fn(|lane| if mask >> lane & 1 == 1 { b[lane] } else { a[lane] });
                registers.set_lanes(*target, &result, registers.exec())
            }
            Self::Carry { target, out, inputs, carry_in, kind } => {
                run_carry(registers, *target, *out, inputs, *carry_in, *kind)
            }
            Self::MultiplyAdd { target, out, inputs } => run_multiply_add(registers, *target, *out, inputs),
            Self::FirstLane { target, input } => run_first_lane(registers, *target, input),
            Self::ReadLane { target, input, lane } => {
                let lane = registers.uniform(*lane)? as usize % LANES;
                // As the hardware does, whatever exec says.
                let value = input.read_lane(registers, lane)?;
                registers.set_scalar(*target, value)
            }
            Self::CountBelow { target, inputs, high } => {
                let (mask, add) = (inputs[0].read(registers)?, inputs[1].read(registers)?);
                let result = std::array::from_fn(|lane| {
                    let below = if *high { lane.saturating_sub(32) } else { lane.min(32) };
                    let bits = u64::from(mask[lane]) & ((1 << below) - 1);
                    bits.count_ones().wrapping_add(add[lane])
                });
                registers.set_lanes(*target, &result, registers.exec())
            }
            Self::AnyLogic { target, inputs, truth, mask } => {
                let [a, b, c] = [0, 1, 2].map(|index| inputs[index].read(registers));
                let (a, b, c) = (a?, b?, c?);
                let result = std::array::from_fn(|lane| any_logic(*truth, a[lane], b[lane], c[lane]) & mask);
                registers.set_lanes(*target, &result, registers.exec())
            }
            Self::PackFp8 { target, inputs, high, fnuz } => {
                run_pack(registers, *target, inputs, *high, *fnuz)
            }
            Self::UnpackFp8 { target, input, high, fnuz } => {
                run_unpack(registers, *target, input, *high, *fnuz)
            }
            Self::Packed { target, sources, function } => run_packed(registers, *target, sources, *function),
            Self::DivideScale { target, mask, inputs } => division::scale(registers, *target, *mask, inputs),
            Self::DivideFused { target, inputs } => division::fused_and_scaled(registers, *target, inputs),
        }
    }
}

fn carry(instruction: &Instruction) -> Option<Result<Special, Problem>> {
    let (kind, reads) = match instruction.mnemonic.as_str() {
        "v_add_co_u32" => (CarryKind::Add, false),
        "v_addc_co_u32" => (CarryKind::Add, true),
        "v_sub_co_u32" => (CarryKind::Subtract, false),
        "v_subb_co_u32" => (CarryKind::Subtract, true),
        "v_subrev_co_u32" => (CarryKind::SubtractReversed, false),
        "v_subbrev_co_u32" => (CarryKind::SubtractReversed, true),
        _ => return None,
    };
    let decode = || {
        Ok(Special::Carry {
            target: vector_of(instruction, 0)?,
            out: scalar_of(instruction, 1)?,
            inputs: [input(instruction, 2, 0, false)?, input(instruction, 3, 1, false)?],
            carry_in: if reads { Some(scalar_of(instruction, 4)?) } else { None },
            kind,
        })
    };
    Some(decode())
}

fn run_carry(
    registers: &mut Registers,
    target: u16,
    out: u16,
    inputs: &[Input; 2],
    carry_in: Option<u16>,
    kind: CarryKind,
) -> Result<(), Fault> {
    let exec = registers.exec();
    let carries = carry_in.map_or(Ok(0), |register| registers.lane_mask(register))?;
    let (a, b) = (inputs[0].read(registers)?, inputs[1].read(registers)?);
    let (mut result, mut carried) = ([0; LANES], 0);
    for lane in ones(exec) {
        let (a, b, carry) = (i64::from(a[lane]), i64::from(b[lane]), (carries >> lane & 1) as i64);
        let value = match kind {
            CarryKind::Add => a + b + carry,
            CarryKind::Subtract => a - b - carry,
            CarryKind::SubtractReversed => b - a - carry,
        };
        result[lane] = value as u32;
        carried |= u64::from(!(0..=i64::from(u32::MAX)).contains(&value)) << lane;
    }
    registers.set_scalar_pair(out, carried)?;
    registers.set_lanes(target, &result, exec)
}

fn run_multiply_add(
    registers: &mut Registers,
    target: u16,
    out: u16,
    inputs: &[Input; 3],
) -> Result<(), Fault> {
    let exec = registers.exec();
    let (a, b) = (inputs[0].read(registers)?, inputs[1].read(registers)?);
    // The lower half of the sum does not depend on the upper half of the addend, and compilers leave that unwritten
    // where they want the lower half only: then the upper half of the result counts as unwritten too.
    let unwritten = match inputs[2].source {
        Source::Vector(register) => exec & !registers.written(register + 1),
        _ => 0,
    };
    let c = if unwritten == 0 {
        inputs[2].read_wide(registers)?
    } else {
        inputs[2].read(registers)?.map(u64::from)
    };
    let (mut result, mut carried) = ([0; LANES], 0);
    for lane in ones(exec) {
        let (sum, carry) = (u64::from(a[lane]) * u64::from(b[lane])).overflowing_add(c[lane]);
        result[lane] = sum;
        carried |= u64::from(carry) << lane;
    }
    registers.set_scalar_pair(out, carried)?;
    registers.set_lanes_wide(target, &result, exec)?;
    registers.forget(target + 1, unwritten);
    Ok(())
}

fn run_first_lane(registers: &mut Registers, target: u16, input: &Input) -> Result<(), Fault> {
    let exec = registers.exec();
    let lane = if exec == 0 { 0 } else { exec.trailing_zeros() as usize };
    let value = input.read_lane(registers, lane)?;
    registers.set_scalar(target, value)
}

fn any_logic(truth: u32, a: u32, b: u32, c: u32) -> u32 {
    (0..8).filter(|row| truth >> row & 1 == 1).fold(0, |result, row| {
        let pick = |bit: u32, value: u32| if row >> bit & 1 == 1 { value } else { !value };
        result | pick(2, a) & pick(1, b) & pick(0, c)
    })
}

fn run_pack(
    registers: &mut Registers,
    target: u16,
    inputs: &[Input; 2],
    high: bool,
    fnuz: bool,
) -> Result<(), Fault> {
    let exec = registers.exec();
    let (a, b) = (inputs[0].read(registers)?, inputs[1].read(registers)?);
    let fp8 = |bits: u32| -> u32 {
        let x = f32::from_bits(bits);
        let byte = if fnuz {
            E4m3Fnuz::from_f32_rne_satfinite(x).to_bits()
        } else {
            E4m3::from_f32_rne_satfinite(x).to_bits()
        };
        u32::from(byte)
    };
    let shift = if high { 16 } else { 0 };
    let mut result: Lanes = [0; LANES];
    for lane in ones(exec) {
        // The first of two conversions writes half of a register that nobody has written.
        let old = registers.vector_lane(target, lane).unwrap_or(0);
        result[lane] = old & !(0xffff << shift) | (fp8(a[lane]) | fp8(b[lane]) << 8) << shift;
    }
    registers.set_lanes(target, &result, exec)
}

fn run_unpack(
    registers: &mut Registers,
    target: u16,
    input: &Input,
    high: bool,
    fnuz: bool,
) -> Result<(), Fault> {
    let exec = registers.exec();
    let words = input.read(registers)?;
    let value =
        |byte: u8| if fnuz { E4m3Fnuz::from_bits(byte).to_f32() } else { E4m3::from_bits(byte).to_f32() };
    let first = if high { 2 } else { 0 };
    let mut results: [Lanes; 2] = [[0; LANES]; 2];
    for lane in ones(exec) {
        let bytes = words[lane].to_le_bytes();
        (results[0][lane], results[1][lane]) =
            (value(bytes[first]).to_bits(), value(bytes[first + 1]).to_bits());
    }
    registers.set_lanes(target, &results[0], exec)?;
    registers.set_lanes(target + 1, &results[1], exec)
}

fn packed(instruction: &Instruction) -> Option<Result<Special, Problem>> {
    let (function, count): (PackedFunction, usize) = match instruction.mnemonic.as_str() {
        "v_pk_mul_f32" => (|a, b, _| a * b, 2),
        "v_pk_add_f32" => (|a, b, _| a + b, 2),
        "v_pk_fma_f32" => (f32::mul_add, 3),
        _ => return None,
    };
    let bit = |name: &str, index: usize, default: bool| {
        instruction.bits(name).and_then(|bits| bits.get(index).copied()).unwrap_or(default)
    };
    let source = |index: usize| {
        let argument = instruction.arguments.get(1 + index).ok_or(Problem)?;
        Ok(PackedSource {
            source: Source::of(argument, false).ok_or(Problem)?,
            high: [bit("op_sel", index, false), bit("op_sel_hi", index, true)],
            negated: [bit("neg_lo", index, false), bit("neg_hi", index, false)],
        })
    };
    let decode = || {
        let sources = (0..count).map(source).collect::<Result<_, _>>()?;
        Ok(Special::Packed { target: vector_of(instruction, 0)?, sources, function })
    };
    Some(decode())
}

fn run_packed(
    registers: &mut Registers,
    target: u16,
    sources: &[PackedSource],
    function: PackedFunction,
) -> Result<(), Fault> {
    let exec = registers.exec();
    let mut results = [[0; LANES]; 2];
    for (half, result) in results.iter_mut().enumerate() {
        let mut values = [[0; LANES]; 3];
        for (value, source) in values.iter_mut().zip(sources) {
            *value = source.read(registers, half)?;
        }
        for lane in ones(exec) {
            let [a, b, c] = [0, 1, 2].map(|index| f32::from_bits(values[index][lane]));
            result[lane] = function(a, b, c).to_bits();
        }
    }
    registers.set_lanes(target, &results[0], exec)?;
    registers.set_lanes(target + 1, &results[1], exec)
}

impl PackedSource {
    fn read(&self, registers: &Registers, half: usize) -> Result<Lanes, Fault> {
        let step = u16::from(self.high[half]);
        let source = match self.source {
            Source::Vector(register) => Source::Vector(register + step),
            Source::Scalar(register) => Source::Scalar(register + step),
            other => other,
        };
        let mut broadcast = [0; LANES];
        let flip = u32::from(self.negated[half]) << 31;
        Ok(registers.lanes(source, &mut broadcast)?.map(|value| value ^ flip))
    }
}
