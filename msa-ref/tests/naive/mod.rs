//! A third, naive implementation of the fused dot-add, for tests only: terms as (sign, u128 mantissa, exponent of its
//! unit), truncated one by one. Written from the published algorithm, sharing no code with the crate, and able to be
//! wrong on purpose.
#![allow(dead_code)]

use msa_ref::arith::instruction::Behaviour;
use msa_ref::arith::{DotInstruction, DotModel, Operand};

/// Whether a zero product takes part in the search for the largest exponent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ZeroProducts {
    /// What the hardware does.
    Ignored,
    /// What it does not do.
    Counted,
}

/// The fused model of one instruction.
pub(crate) struct NaiveModel {
    operand: Operand,
    model: DotModel,
    zero_products: ZeroProducts,
}

#[derive(Clone, Copy)]
enum Number {
    /// sign, mantissa, exponent of the mantissa's unit, nominal exponent
    Finite(bool, u128, i32, i32),
    Infinite(bool),
    Nan,
}

impl NaiveModel {
    /// The model of an instruction with one fused sum per step.
    pub(crate) fn of(instruction: DotInstruction, zero_products: ZeroProducts) -> NaiveModel {
        let Behaviour::Fused(model) = instruction.behaviour() else { panic!("{instruction} is not one sum") };
        NaiveModel { operand: instruction.operand(), model, zero_products }
    }

    /// One step.
    pub(crate) fn dot_add(&self, a: &[u16], b: &[u16], c: u32) -> u32 {
        let mut terms: Vec<Number> =
            a.iter().zip(b).map(|(&a, &b)| multiply(self.decode(a), self.decode(b))).collect();
        terms.push(decode(c, 23, 8, 127, true));
        if let Some(special) = special(&terms) {
            return special;
        }
        let finite = terms.iter().enumerate().filter_map(|(index, term)| match *term {
            Number::Finite(sign, mantissa, unit, nominal) => Some((index, sign, mantissa, unit, nominal)),
            _ => None,
        });
        let counts = |index: usize, mantissa: u128| {
            mantissa != 0 || (self.zero_products == ZeroProducts::Counted && index < a.len())
        };
        let exponents = finite.clone().filter(|t| counts(t.0, t.2)).map(|t| t.4);
        let Some(top) = exponents.max() else { return 0 };
        let top = self.model.emin.map_or(top, |emin| top.max(emin));
        let lsb = top - self.model.fraction_bits as i32;
        let sum = finite.fold(0i128, |sum, (_, sign, mantissa, unit, _)| {
            let shift = unit - lsb;
            let aligned = if mantissa == 0 {
                0
            } else if shift >= 0 {
                mantissa << shift
            } else if shift > -128 {
                mantissa >> -shift
            } else {
                0
            };
            if sign { sum - aligned as i128 } else { sum + aligned as i128 }
        });
        self.pack(sum, lsb)
    }

    /// Truncation by search: the largest representable magnitude that does not exceed the sum.
    fn pack(&self, sum: i128, lsb: i32) -> u32 {
        let mut magnitude = sum.unsigned_abs();
        let mut unit = lsb;
        let smallest = -126 - self.model.output_bits as i32;
        while magnitude >> (self.model.output_bits + 1) != 0 || unit < smallest {
            magnitude >>= 1;
            unit += 1;
        }
        if magnitude == 0 {
            return 0;
        }
        let sign = u32::from(sum < 0) << 31;
        // Exact in f64: at most 24 bits, and the exponent is far inside its range.
        let value = magnitude as f64 * 2f64.powi(unit);
        if value >= 2f64.powi(128) { sign | 0x7f80_0000 } else { sign | (value as f32).to_bits() }
    }

    fn decode(&self, code: u16) -> Number {
        match self.operand {
            Operand::E4m3 if code & 0x7f == 0x7f => Number::Nan,
            Operand::E4m3 => decode(code.into(), 3, 4, 7, false),
            Operand::Bf16 => decode(code.into(), 7, 8, 127, true),
            Operand::F16 => decode(code.into(), 10, 5, 15, true),
            Operand::E4m3Fnuz => panic!("not an NVIDIA format"),
        }
    }
}

fn decode(code: u32, fraction_bits: i32, exponent_bits: i32, bias: i32, ieee: bool) -> Number {
    let fraction = code % (1 << fraction_bits);
    let field = code >> fraction_bits & ((1 << exponent_bits) - 1);
    let negative = code >> (fraction_bits + exponent_bits) & 1 == 1;
    if ieee && field == (1 << exponent_bits) - 1 {
        return if fraction == 0 { Number::Infinite(negative) } else { Number::Nan };
    }
    let (mantissa, exponent) = match field {
        0 => (fraction, 1 - bias),
        _ => (fraction + (1 << fraction_bits), field as i32 - bias),
    };
    Number::Finite(negative, mantissa.into(), exponent - fraction_bits, exponent)
}

fn multiply(a: Number, b: Number) -> Number {
    match (a, b) {
        (Number::Nan, _) | (_, Number::Nan) => Number::Nan,
        (Number::Infinite(p), Number::Infinite(q)) => Number::Infinite(p != q),
        (Number::Infinite(_), Number::Finite(_, 0, ..)) | (Number::Finite(_, 0, ..), Number::Infinite(_)) => {
            Number::Nan
        }
        (Number::Infinite(p), Number::Finite(q, ..)) | (Number::Finite(p, ..), Number::Infinite(q)) => {
            Number::Infinite(p != q)
        }
        (Number::Finite(p, m, u, e), Number::Finite(q, n, v, f)) => {
            Number::Finite(p != q, m * n, u + v, e + f)
        }
    }
}

fn special(terms: &[Number]) -> Option<u32> {
    let any = |test: fn(&Number) -> bool| terms.iter().any(test);
    let plus = any(|term| matches!(term, Number::Infinite(false)));
    let minus = any(|term| matches!(term, Number::Infinite(true)));
    if any(|term| matches!(term, Number::Nan)) || (plus && minus) {
        Some(0x7fff_ffff)
    } else if plus {
        Some(0x7f80_0000)
    } else if minus {
        Some(0xff80_0000)
    } else {
        None
    }
}
