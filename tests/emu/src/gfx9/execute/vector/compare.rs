//! Comparisons of lanes.

use std::cmp::Ordering;

use super::super::super::error::Fault;
use super::super::registers::{Registers, ones};
use super::Input;

/// What is compared, and which outcomes count.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Comparison {
    kind: Kind,
    less: bool,
    equal: bool,
    greater: bool,
    unordered: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    F32,
    I32,
    U32,
    U16,
    I64,
    U64,
    /// The second source is a mask of classes of floats.
    Class,
}

impl Comparison {
    pub(super) fn decode(mnemonic: &str) -> Option<Self> {
        let (test, kind) = mnemonic.strip_prefix("v_cmp_")?.split_once('_')?;
        let kind = match kind {
            "f32" => Kind::F32,
            "i32" => Kind::I32,
            "u32" => Kind::U32,
            "u16" => Kind::U16,
            "i64" => Kind::I64,
            "u64" => Kind::U64,
            _ => return None,
        };
        let of = |less, equal, greater, unordered| Some(Self { kind, less, equal, greater, unordered });
        match test {
            "class" if kind == Kind::F32 => {
                Some(Self { kind: Kind::Class, less: false, equal: false, greater: false, unordered: false })
            }
            "lt" => of(true, false, false, false),
            "le" => of(true, true, false, false),
            "eq" => of(false, true, false, false),
            "gt" => of(false, false, true, false),
            "ge" => of(false, true, true, false),
            "lg" => of(true, false, true, false),
            // Integers have no unordered outcome.
            "ne" => of(true, false, true, true),
            "o" => of(true, true, true, false),
            "u" => of(false, false, false, true),
            "nlt" => of(false, true, true, true),
            "nle" => of(false, false, true, true),
            "neq" => of(true, false, true, true),
            "ngt" => of(true, true, false, true),
            "nge" => of(true, false, false, true),
            "nlg" => of(false, true, false, true),
            _ => None,
        }
    }

    /// The lanes of exec in which it holds.
    pub(super) fn mask(&self, registers: &Registers, inputs: &[Input; 2]) -> Result<u64, Fault> {
        let exec = registers.exec();
        if matches!(self.kind, Kind::I64 | Kind::U64) {
            let (a, b) = (inputs[0].read_wide(registers)?, inputs[1].read_wide(registers)?);
            return Ok(mask(exec, |lane| self.holds_wide(a[lane], b[lane])));
        }
        let (a, b) = (inputs[0].read(registers)?, inputs[1].read(registers)?);
        Ok(match self.kind {
            Kind::F32 => {
                mask(exec, |lane| self.counts(f32::from_bits(a[lane]).partial_cmp(&f32::from_bits(b[lane]))))
            }
            Kind::I32 => mask(exec, |lane| self.counts(Some((a[lane] as i32).cmp(&(b[lane] as i32))))),
            Kind::U16 => mask(exec, |lane| self.counts(Some((a[lane] as u16).cmp(&(b[lane] as u16))))),
            Kind::Class => mask(exec, |lane| class(a[lane]) & b[lane] != 0),
            _ => mask(exec, |lane| self.counts(Some(a[lane].cmp(&b[lane])))),
        })
    }

    fn holds_wide(&self, a: u64, b: u64) -> bool {
        let order = if self.kind == Kind::I64 { (a as i64).cmp(&(b as i64)) } else { a.cmp(&b) };
        self.counts(Some(order))
    }

    fn counts(&self, order: Option<Ordering>) -> bool {
        match order {
            Some(Ordering::Less) => self.less,
            Some(Ordering::Equal) => self.equal,
            Some(Ordering::Greater) => self.greater,
            None => self.unordered,
        }
    }
}

fn mask(exec: u64, holds: impl Fn(usize) -> bool) -> u64 {
    ones(exec).fold(0, |mask, lane| mask | u64::from(holds(lane)) << lane)
}

/// The bit of the class: signalling NaN, quiet NaN, -inf, -normal, -subnormal, -0, +0, +subnormal, +normal, +inf.
fn class(bits: u32) -> u32 {
    use std::num::FpCategory;
    let x = f32::from_bits(bits);
    let (negative, positive) = match x.classify() {
        FpCategory::Nan => return if bits & 0x0040_0000 == 0 { 1 } else { 2 },
        FpCategory::Infinite => (2, 9),
        FpCategory::Normal => (3, 8),
        FpCategory::Subnormal => (4, 7),
        FpCategory::Zero => (5, 6),
    };
    1 << if x.is_sign_negative() { negative } else { positive }
}
