//! Scalar arithmetic: one value a wave.

use super::super::error::Fault;
use super::super::text::Instruction;
use super::program::{Problem, scalar_of};
use super::registers::{EXEC, Registers, Source};

/// 32 or 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Width {
    Single,
    Double,
}
use Width::{Double, Single};

/// Result and, where the instruction sets it, the new condition code.
type Outcome = (u64, Option<bool>);

/// `(first source, second source, condition code)`; the code is false where it is not read.
type Function = fn(u64, u64, bool) -> Outcome;

/// A scalar instruction.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScalarAction {
    target: Option<u16>,
    width: Width,
    sources: [Option<(Source, Width)>; 2],
    function: Function,
    reads_condition: bool,
    /// The old exec goes to the target, the result to exec.
    saves_exec: bool,
    /// The first source is the target's old value.
    updates: bool,
    /// How the written bits of a mask's sources make those of the result.
    bits: Option<BitRule>,
}

/// Which bit of either source decides the result alone, if any does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BitRule {
    first: Option<bool>,
    second: Option<bool>,
}

impl BitRule {
    /// Of the 64-bit logic that masks of lanes are made with.
    fn of(name: &str) -> Option<Self> {
        let rule = |first, second| Some(Self { first, second });
        match name {
            "s_and_b64" | "s_and_saveexec_b64" => rule(Some(false), Some(false)),
            "s_or_b64" | "s_or_saveexec_b64" => rule(Some(true), Some(true)),
            "s_andn2_b64" | "s_andn2_saveexec_b64" => rule(Some(false), Some(true)),
            "s_orn2_b64" => rule(Some(true), Some(false)),
            "s_xor_b64" | "s_mov_b64" | "s_not_b64" => rule(None, None),
            _ => None,
        }
    }

    /// The bits of the result that depend on written bits only; each source as (value, written).
    fn written(self, first: (u64, u64), second: (u64, u64)) -> u64 {
        let decides = |deciding: Option<bool>, (value, written): (u64, u64)| match deciding {
            None => 0,
            Some(true) => value & written,
            Some(false) => !value & written,
        };
        first.1 & second.1 | decides(self.first, first) | decides(self.second, second)
    }
}

/// What the table says of a mnemonic.
struct Row {
    result: Option<Width>,
    sources: &'static [Width],
    function: Function,
    reads_condition: bool,
}

const fn row(result: Width, sources: &'static [Width], function: Function) -> Row {
    Row { result: Some(result), sources, function, reads_condition: false }
}

impl ScalarAction {
    pub(super) fn decode(instruction: &Instruction) -> Result<Self, Problem> {
        let name = instruction.mnemonic.as_str();
        let saves_exec = name.contains("_saveexec_");
        let updates = ["s_addk_i32", "s_bitset1_b32", "s_bitset0_b32"].contains(&name);
        let row = compare(name).or_else(|| table(name)).ok_or(Problem)?;
        let target = row.result.map(|_| scalar_of(instruction, 0)).transpose()?;
        let first = usize::from(row.result.is_some());
        let mut sources = [None; 2];
        for (index, width) in row.sources.iter().enumerate() {
            let argument = instruction.arguments.get(first + index).ok_or(Problem)?;
            sources[index] = Some((Source::of(argument, false).ok_or(Problem)?, *width));
        }
        if updates {
            sources = [Some((Source::Scalar(target.ok_or(Problem)?), Single)), sources[0]];
        }
        Ok(Self {
            target,
            width: row.result.unwrap_or(Single),
            sources,
            function: row.function,
            reads_condition: row.reads_condition,
            saves_exec,
            updates,
            bits: BitRule::of(name),
        })
    }

    pub(super) fn run(&self, registers: &mut Registers) -> Result<(), Fault> {
        if let (Some(rule), Some(target)) = (self.bits, self.target) {
            return self.run_bits(rule, target, registers);
        }
        let read = |source: Option<(Source, Width)>| match source {
            None => Ok(0),
            Some((source, Single)) => registers.uniform(source).map(u64::from),
            Some((source, Double)) => registers.uniform_wide(source),
        };
        let (first, mut second) = (read(self.sources[0])?, read(self.sources[1])?);
        if self.updates {
            second = second as u16 as i16 as i64 as u64;
        }
        let old_exec = registers.exec();
        if self.saves_exec {
            second = old_exec;
        }
        let condition = if self.reads_condition { registers.condition()? } else { false };
        let (result, code) = (self.function)(first, second, condition);
        if let Some(code) = code {
            registers.set_condition(code);
        }
        let Some(target) = self.target else { return Ok(()) };
        if self.saves_exec {
            registers.set_scalar_pair(target, old_exec)?;
            return registers.set_scalar_pair(EXEC, result);
        }
        match self.width {
            Single => registers.set_scalar(target, result as u32),
            Double => registers.set_scalar_pair(target, result),
        }
    }
}

impl ScalarAction {
    /// Logic of masks, some bits of which nobody may have written.
    fn run_bits(&self, rule: BitRule, target: u16, registers: &mut Registers) -> Result<(), Fault> {
        let read = |source: Option<(Source, Width)>| match source {
            None => Ok((0, u64::MAX)),
            Some((source, _)) => registers.uniform_bits(source),
        };
        let old_exec = registers.exec();
        let first = read(self.sources[0])?;
        let second = if self.saves_exec { (old_exec, u64::MAX) } else { read(self.sources[1])? };
        let (result, code) = (self.function)(first.0, second.0, false);
        let written = rule.written(first, second);
        match code {
            Some(code) if written == u64::MAX => registers.set_condition(code),
            Some(_) => registers.forget_condition(),
            None => {}
        }
        if !self.saves_exec {
            return registers.set_scalar_pair_bits(target, result, written);
        }
        if written != u64::MAX {
            return Err(Fault::Uninitialised { register: "a bit of the new exec".to_owned() });
        }
        registers.set_scalar_pair(target, old_exec)?;
        registers.set_scalar_pair(EXEC, result)
    }
}

/// Logic sets the condition code to "not zero".
fn logic(value: u64) -> Outcome {
    (value, Some(value != 0))
}

fn single(value: u64) -> Outcome {
    logic(value & 0xffff_ffff)
}

fn signed(x: u64) -> i32 {
    x as u32 as i32
}

fn plain(value: u64) -> Outcome {
    (value, None)
}

fn table(name: &str) -> Option<Row> {
    moves(name).or_else(|| arithmetic(name)).or_else(|| logical(name)).or_else(|| save_exec(name))
}

fn moves(name: &str) -> Option<Row> {
    let conditional = |width: Width, sources| Row {
        result: Some(width),
        sources,
        function: |a, b, c| plain(if c { a } else { b }),
        reads_condition: true,
    };
    Some(match name {
        "s_mov_b32" => row(Single, &[Single], |a, _, _| plain(a)),
        "s_mov_b64" => row(Double, &[Double], |a, _, _| plain(a)),
        "s_movk_i32" => row(Single, &[Single], |a, _, _| plain(a as u16 as i16 as i64 as u64)),
        "s_cselect_b32" => conditional(Single, &[Single, Single]),
        "s_cselect_b64" => conditional(Double, &[Double, Double]),
        "s_bcnt1_i32_b64" => row(Single, &[Double], |a, _, _| logic(u64::from(a.count_ones()))),
        "s_bcnt1_i32_b32" => row(Single, &[Single], |a, _, _| logic(u64::from(a.count_ones()))),
        "s_ff1_i32_b64" => row(Single, &[Double], |a, _, _| plain(first_one(a, 64))),
        "s_ff1_i32_b32" => row(Single, &[Single], |a, _, _| plain(first_one(a, 32))),
        "s_sext_i32_i16" => row(Single, &[Single], |a, _, _| plain(a as u16 as i16 as i64 as u64)),
        "s_sext_i32_i8" => row(Single, &[Single], |a, _, _| plain(a as u8 as i8 as i64 as u64)),
        "s_bitset1_b32" => row(Single, &[Single], |a, b, _| plain(a | 1 << (b & 31))),
        "s_bitset0_b32" => row(Single, &[Single], |a, b, _| plain(a & !(1 << (b & 31)))),
        _ => return None,
    })
}

fn first_one(value: u64, width: u32) -> u64 {
    if value == 0 { u64::from(u32::MAX) } else { u64::from(value.trailing_zeros().min(width)) }
}

fn arithmetic(name: &str) -> Option<Row> {
    const TWO: &[Width] = &[Single, Single];
    let carrying = |function| Row { result: Some(Single), sources: TWO, function, reads_condition: true };
    Some(match name {
        "s_add_u32" => row(Single, TWO, |a, b, _| (a + b, Some(a + b > 0xffff_ffff))),
        "s_addc_u32" => carrying(|a, b, c| (a + b + u64::from(c), Some(a + b + u64::from(c) > 0xffff_ffff))),
        "s_sub_u32" => row(Single, TWO, |a, b, _| (a.wrapping_sub(b), Some(b > a))),
        "s_subb_u32" => carrying(|a, b, c| {
            let b = b + u64::from(c);
            (a.wrapping_sub(b), Some(b > a))
        }),
        "s_add_i32" => row(Single, TWO, |a, b, _| {
            let (sum, overflow) = signed(a).overflowing_add(signed(b));
            (sum as u64, Some(overflow))
        }),
        "s_sub_i32" => row(Single, TWO, |a, b, _| {
            let (difference, overflow) = signed(a).overflowing_sub(signed(b));
            (difference as u64, Some(overflow))
        }),
        "s_addk_i32" => row(Single, &[Single], |a, b, _| {
            let (sum, overflow) = signed(a).overflowing_add(signed(b));
            (sum as u64, Some(overflow))
        }),
        "s_mul_i32" => row(Single, TWO, |a, b, _| plain(a.wrapping_mul(b))),
        "s_mul_hi_u32" => row(Single, TWO, |a, b, _| plain((a * b) >> 32)),
        "s_mul_hi_i32" => {
            row(Single, TWO, |a, b, _| plain(((i64::from(signed(a)) * i64::from(signed(b))) >> 32) as u64))
        }
        "s_min_u32" => row(Single, TWO, |a, b, _| (a.min(b), Some(a <= b))),
        "s_max_u32" => row(Single, TWO, |a, b, _| (a.max(b), Some(a >= b))),
        "s_min_i32" => {
            row(Single, TWO, |a, b, _| (signed(a).min(signed(b)) as u64, Some(signed(a) <= signed(b))))
        }
        "s_max_i32" => {
            row(Single, TWO, |a, b, _| (signed(a).max(signed(b)) as u64, Some(signed(a) >= signed(b))))
        }
        "s_abs_i32" => row(Single, &[Single], |a, _, _| single(u64::from(signed(a).unsigned_abs()))),
        "s_bfe_u32" => row(Single, TWO, |a, b, _| {
            let (offset, width) = (b & 31, b >> 16 & 127);
            single(a >> offset & ((1u64 << width.min(32)) - 1))
        }),
        "s_lshl1_add_u32" => row(Single, TWO, |a, b, _| shift_add(a, b, 1)),
        "s_lshl2_add_u32" => row(Single, TWO, |a, b, _| shift_add(a, b, 2)),
        "s_lshl3_add_u32" => row(Single, TWO, |a, b, _| shift_add(a, b, 3)),
        "s_lshl4_add_u32" => row(Single, TWO, |a, b, _| shift_add(a, b, 4)),
        _ => return None,
    })
}

fn shift_add(a: u64, b: u64, shift: u32) -> Outcome {
    let sum = (a << shift) + b;
    (sum, Some(sum > 0xffff_ffff))
}

fn logical(name: &str) -> Option<Row> {
    const TWO: &[Width] = &[Single, Single];
    const WIDE: &[Width] = &[Double, Double];
    Some(match name {
        "s_and_b32" => row(Single, TWO, |a, b, _| logic(a & b)),
        "s_or_b32" => row(Single, TWO, |a, b, _| logic(a | b)),
        "s_xor_b32" => row(Single, TWO, |a, b, _| logic(a ^ b)),
        "s_andn2_b32" => row(Single, TWO, |a, b, _| logic(a & !b)),
        "s_orn2_b32" => row(Single, TWO, |a, b, _| single(a | !b)),
        "s_not_b32" => row(Single, &[Single], |a, _, _| single(!a)),
        "s_and_b64" => row(Double, WIDE, |a, b, _| logic(a & b)),
        "s_or_b64" => row(Double, WIDE, |a, b, _| logic(a | b)),
        "s_xor_b64" => row(Double, WIDE, |a, b, _| logic(a ^ b)),
        "s_andn2_b64" => row(Double, WIDE, |a, b, _| logic(a & !b)),
        "s_orn2_b64" => row(Double, WIDE, |a, b, _| logic(a | !b)),
        "s_nand_b64" => row(Double, WIDE, |a, b, _| logic(!(a & b))),
        "s_nor_b64" => row(Double, WIDE, |a, b, _| logic(!(a | b))),
        "s_xnor_b64" => row(Double, WIDE, |a, b, _| logic(!(a ^ b))),
        "s_not_b64" => row(Double, &[Double], |a, _, _| logic(!a)),
        "s_lshl_b32" => row(Single, TWO, |a, b, _| single(a << (b & 31))),
        "s_lshr_b32" => row(Single, TWO, |a, b, _| logic(a >> (b & 31))),
        "s_ashr_i32" => row(Single, TWO, |a, b, _| single((signed(a) >> (b & 31)) as u64)),
        "s_lshl_b64" => row(Double, &[Double, Single], |a, b, _| logic(a << (b & 63))),
        "s_lshr_b64" => row(Double, &[Double, Single], |a, b, _| logic(a >> (b & 63))),
        "s_ashr_i64" => row(Double, &[Double, Single], |a, b, _| logic((a as i64 >> (b & 63)) as u64)),
        "s_bfm_b32" => row(Single, TWO, |a, b, _| plain(((1u64 << (a & 31)) - 1) << (b & 31))),
        _ => return None,
    })
}

/// The second source is exec.
fn save_exec(name: &str) -> Option<Row> {
    Some(match name {
        "s_and_saveexec_b64" => row(Double, &[Double], |a, exec, _| logic(a & exec)),
        "s_or_saveexec_b64" => row(Double, &[Double], |a, exec, _| logic(a | exec)),
        "s_xor_saveexec_b64" => row(Double, &[Double], |a, exec, _| logic(a ^ exec)),
        "s_andn2_saveexec_b64" => row(Double, &[Double], |a, exec, _| logic(a & !exec)),
        _ => return None,
    })
}

fn compare(name: &str) -> Option<Row> {
    fn test(sources: &'static [Width], function: Function) -> Option<Row> {
        Some(Row { result: None, sources, function, reads_condition: false })
    }
    const TWO: &[Width] = &[Single, Single];
    match name {
        "s_cmp_eq_u64" => return test(&[Double, Double], |a, b, _| (0, Some(a == b))),
        "s_cmp_lg_u64" => return test(&[Double, Double], |a, b, _| (0, Some(a != b))),
        "s_bitcmp0_b32" => return test(TWO, |a, b, _| (0, Some(a >> (b & 31) & 1 == 0))),
        "s_bitcmp1_b32" => return test(TWO, |a, b, _| (0, Some(a >> (b & 31) & 1 == 1))),
        "s_bitcmp0_b64" => return test(&[Double, Single], |a, b, _| (0, Some(a >> (b & 63) & 1 == 0))),
        "s_bitcmp1_b64" => return test(&[Double, Single], |a, b, _| (0, Some(a >> (b & 63) & 1 == 1))),
        _ => {}
    }
    // The forms with a 16-bit constant extend it by the type's sign, as the listing shows it.
    let rest = name.strip_prefix("s_cmp_").or_else(|| name.strip_prefix("s_cmpk_"))?;
    match rest {
        "eq_i32" | "eq_u32" => test(TWO, |a, b, _| (0, Some(a == b))),
        "lg_i32" | "lg_u32" => test(TWO, |a, b, _| (0, Some(a != b))),
        "lt_u32" => test(TWO, |a, b, _| (0, Some(a < b))),
        "le_u32" => test(TWO, |a, b, _| (0, Some(a <= b))),
        "gt_u32" => test(TWO, |a, b, _| (0, Some(a > b))),
        "ge_u32" => test(TWO, |a, b, _| (0, Some(a >= b))),
        "lt_i32" => test(TWO, |a, b, _| (0, Some(signed(a) < signed(b)))),
        "le_i32" => test(TWO, |a, b, _| (0, Some(signed(a) <= signed(b)))),
        "gt_i32" => test(TWO, |a, b, _| (0, Some(signed(a) > signed(b)))),
        "ge_i32" => test(TWO, |a, b, _| (0, Some(signed(a) >= signed(b)))),
        _ => None,
    }
}
