//! The three instructions that a correctly rounded f32 division is made of, as the CDNA3 instruction set document has
//! them (`V_DIV_SCALE_F32`, `V_DIV_FMAS_F32`, `V_DIV_FIXUP_F32`).

use super::super::super::error::Fault;
use super::super::LANES;
use super::super::registers::{Registers, VCC, ones};
use super::Input;

const SIGN: u32 = 1 << 31;

fn f(bits: u32) -> f32 {
    f32::from_bits(bits)
}

fn exponent(bits: u32) -> i32 {
    (bits >> 23 & 0xff) as i32
}

fn is_subnormal(x: f32) -> bool {
    x.is_subnormal()
}

/// `2^power` for a power in the normal range.
fn power_of_two(power: i32) -> f32 {
    f32::from_bits(((127 + power) as u32) << 23)
}

/// What to divide with instead of `value`, and whether the quotient must be scaled back.
fn scaled(value: u32, denominator: u32, numerator: u32) -> (u32, bool) {
    let (d, n) = (f(denominator), f(numerator));
    let up = || (f(value) * power_of_two(64)).to_bits();
    let is_denominator = value == denominator;
    if n == 0.0 || d == 0.0 {
        return (f32::NAN.to_bits(), false);
    }
    if exponent(numerator) - exponent(denominator) >= 96 {
        return (if is_denominator { up() } else { value }, true);
    }
    if is_subnormal(d) {
        return (up(), false);
    }
    let reciprocal_is_subnormal = is_subnormal((1.0 / f64::from(d)) as f32);
    let quotient_is_subnormal = is_subnormal((f64::from(n) / f64::from(d)) as f32);
    if reciprocal_is_subnormal && quotient_is_subnormal {
        return (if is_denominator { up() } else { value }, true);
    }
    if reciprocal_is_subnormal {
        return ((f(value) * power_of_two(-64)).to_bits(), false);
    }
    if quotient_is_subnormal {
        return (if value == numerator { up() } else { value }, true);
    }
    if exponent(numerator) <= 23 { (up(), false) } else { (value, false) }
}

/// `v_div_scale_f32`: the result and the lanes to scale back go to `target` and `mask`.
pub(super) fn scale(
    registers: &mut Registers,
    target: u16,
    mask: u16,
    inputs: &[Input; 3],
) -> Result<(), Fault> {
    let exec = registers.exec();
    let [value, denominator, numerator] = [0, 1, 2].map(|index| inputs[index].read(registers));
    let (value, denominator, numerator) = (value?, denominator?, numerator?);
    let (mut result, mut lanes) = ([0; LANES], 0);
    for lane in ones(exec) {
        let (bits, back) = scaled(value[lane], denominator[lane], numerator[lane]);
        result[lane] = bits;
        lanes |= u64::from(back) << lane;
    }
    registers.set_scalar_pair(mask, lanes)?;
    registers.set_lanes(target, &result, exec)
}

/// `v_div_fmas_f32`: a fused multiply-add, scaled back in the lanes of vcc.
pub(super) fn fused_and_scaled(
    registers: &mut Registers,
    target: u16,
    inputs: &[Input; 3],
) -> Result<(), Fault> {
    let exec = registers.exec();
    let back = registers.scalar_pair(VCC)?;
    let [a, b, c] = [0, 1, 2].map(|index| inputs[index].read(registers));
    let (a, b, c) = (a?, b?, c?);
    let mut result = [0; LANES];
    for lane in ones(exec) {
        let sum = f(a[lane]).mul_add(f(b[lane]), f(c[lane]));
        let power = if exponent(c[lane]) > 127 { 64 } else { -64 };
        result[lane] = if back >> lane & 1 == 1 { sum * power_of_two(power) } else { sum }.to_bits();
    }
    registers.set_lanes(target, &result, exec)
}

/// `v_div_fixup_f32`: the special cases of a quotient.
pub(super) fn fix_up(quotient: u32, denominator: u32, numerator: u32) -> u32 {
    let (d, n) = (f(denominator), f(numerator));
    let sign = (denominator ^ numerator) & SIGN;
    let quiet = |bits: u32| bits | 0x0040_0000;
    if n.is_nan() {
        quiet(numerator)
    } else if d.is_nan() {
        quiet(denominator)
    } else if (d == 0.0 && n == 0.0) || (d.is_infinite() && n.is_infinite()) {
        0xffc0_0000
    } else if d == 0.0 || n.is_infinite() {
        sign | f32::INFINITY.to_bits()
    } else if d.is_infinite() || n == 0.0 {
        sign
    } else {
        sign | quotient & !SIGN
    }
}
