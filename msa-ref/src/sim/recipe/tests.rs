//! The executor against scalar transcriptions of the recipes, written from their texts with loops and the integer models,
//! and against the other two implementations that exist: the f32 kernels and the AMD recipes.

mod decode;
mod fields;
mod others;
mod prefill;

use half::{bf16, f16};
use msa_core::format::dequant::dequantise_e4m3;
use msa_core::format::{E2m1, E4m3};

use super::{SelectedBlock, Shape};
use crate::arith::DotInstruction;
use crate::arith::mufu::ex2_approx_ftz;

const D: usize = 128;

/// Xorshift.
pub(super) struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 11) as usize % n
    }

    /// A sum of three uniforms, variance 9/4.
    fn number(&mut self) -> f32 {
        let uniform = |r: &mut Self| (r.next() >> 40) as f32 / (1 << 24) as f32 - 0.5;
        3.0 * (uniform(self) + uniform(self) + uniform(self))
    }

    fn fp8(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| E4m3::from_f32_rne_satfinite(self.number()).to_f32()).collect()
    }

    fn bf16(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| bf16::from_f32(self.number()).to_f32()).collect()
    }

    /// Random codes under random block scales, some of them subnormal.
    fn nvfp4(&mut self, n: usize) -> Vec<f32> {
        let group = |r: &mut Self| {
            let scale =
                E4m3::from_bits(if r.below(8) == 0 { 1 + r.below(7) } else { 0x28 + r.below(24) } as u8);
            std::array::from_fn::<f32, 16, _>(|_| {
                dequantise_e4m3(E2m1::from_bits(r.below(16) as u8), scale, 0).to_f32()
            })
        };
        (0..n / 16).flat_map(|_| group(self)).collect()
    }

    fn cache(&mut self, kind: Cache, n: usize) -> Vec<f32> {
        match kind {
            Cache::Bf16 => self.bf16(n),
            Cache::Fp8 => self.fp8(n),
            Cache::Nvfp4 => self.nvfp4(n),
        }
    }

    /// A block of which some tokens are hidden: those hold NaN.
    fn block(&mut self, kind: Cache, visible: usize) -> SelectedBlock {
        let (mut keys, mut values) = (self.cache(kind, 128 * D), self.cache(kind, 128 * D));
        keys[visible * D..].fill(f32::NAN);
        values[visible * D..].fill(f32::NAN);
        SelectedBlock { keys, values, visible }
    }

    /// The last one is ragged.
    fn blocks(&mut self, kind: Cache, count: usize) -> Vec<SelectedBlock> {
        let last = 1 + self.below(128);
        (1..=count).map(|i| self.block(kind, if i < count { 128 } else { last })).collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Cache {
    Bf16,
    Fp8,
    Nvfp4,
}

fn shape(scale: f32) -> Shape {
    Shape { tokens: 128, channels: D, scale, value: 1.0, nvfp4: false }
}

type Attended = (Vec<f32>, Vec<f32>);

/// NaN counts as equal to NaN; -0 is not +0.
fn assert_same(got: &Attended, want: &Attended, what: &str) {
    let bits = |x: &[f32]| -> Vec<u32> { x.iter().map(|x| x.to_bits()).collect() };
    assert_eq!(bits(&got.1), bits(&want.1), "LSE, {what}");
    let different = bits(&got.0).iter().zip(bits(&want.0)).filter(|(a, b)| **a != *b).count();
    assert_eq!(different, 0, "of {} outputs, {what}", got.0.len());
}

fn ex2(x: f32) -> f32 {
    f32::from_bits(ex2_approx_ftz(x.to_bits()))
}

fn maximum(a: f32, b: f32) -> f32 {
    if b > a || a.is_nan() { b } else { a }
}

fn log2e(scale: f32) -> f32 {
    (f64::from(scale) * std::f64::consts::LOG2_E) as f32
}

/// One instruction over gathered elements.
fn step(instruction: DotInstruction, a: &[f32], b: &[f32], c: f32) -> f32 {
    use crate::arith::Operand;
    let code = |x: &f32| match instruction.operand() {
        Operand::F16 => f16::from_f32(*x).to_bits(),
        Operand::Bf16 => bf16::from_f32(*x).to_bits(),
        Operand::E4m3 | Operand::E4m3Fnuz => E4m3::from_f32_rne_satfinite(*x).to_bits().into(),
    };
    let (a, b): (Vec<u16>, Vec<u16>) = (a.iter().map(code).collect(), b.iter().map(code).collect());
    f32::from_bits(instruction.dot_add(&a, &b, c.to_bits()).unwrap())
}
