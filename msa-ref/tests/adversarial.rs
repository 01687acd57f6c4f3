//! Three implementations of the dot-add on inputs that are meant to tell them apart: the integer model, the vector
//! kernels at every level (ragged tiles, chained steps), and a naive model written for the tests.

// Helpers outside the test functions panic as well.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod naive;

use msa_ref::arith::instruction::Behaviour;
use msa_ref::arith::tile::{ColumnPanel, TileShape, dot_tile_at};
use msa_ref::arith::{DotInstruction, Operand};
use msa_ref::simd::SimdLevel;
use naive::{NaiveModel, ZeroProducts};
use proptest::prelude::*;

/// Ragged on purpose: neither 8 nor 16 divides the columns.
const SHAPE: TileShape = TileShape { rows: 7, columns: 21, steps: 3 };
const TILES_PER_CLASS: u64 = 24;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Any code at all, NaN and infinities included; any C.
    AnyBits,
    /// Finite codes over the whole exponent range, half of them zeros of both signs.
    WideExponents,
    /// Products in pairs that cancel up to one unit in the last place.
    Cancellation,
    /// C is minus the first step's result, times 1 + 2^-k.
    NearMinusDot,
    /// Subnormal operands and subnormal C, some beside huge partners.
    Subnormals,
    /// One large term and many at the edge of the grid below it.
    TruncationBoundary,
    /// Products and accumulators around and beyond the largest f32.
    Overflow,
    /// One product among zeros with huge partners.
    ZerosWithHugePartners,
    /// All products zero, of both signs; any C.
    AllZero,
    /// Everything at the maximum and of one sign: the carry.
    SameSignMaximum,
    /// Rare infinities and NaN among ordinary values.
    RareSpecials,
    /// Exponents within a few binades: rounding decides, nothing else.
    Ordinary,
}

const CLASSES: [Class; 12] = [
    Class::AnyBits,
    Class::WideExponents,
    Class::Cancellation,
    Class::NearMinusDot,
    Class::Subnormals,
    Class::TruncationBoundary,
    Class::Overflow,
    Class::ZerosWithHugePartners,
    Class::AllZero,
    Class::SameSignMaximum,
    Class::RareSpecials,
    Class::Ordinary,
];

#[test]
fn every_level_equals_the_integer_model() {
    for (instruction, class, seed) in cases() {
        let tile = Tile::generate(instruction, class, SHAPE, seed);
        let want = tile.integer_model();
        for level in SimdLevel::available() {
            let got = tile.at(level);
            let difference = got.iter().zip(&want).position(|(got, want)| got != want);
            let detail = difference.map(|i| format!("output {i}: got {:08x}, want {:08x}", got[i], want[i]));
            assert_eq!(detail, None, "{level} {instruction} {class:?} seed {seed}");
        }
    }
}

#[test]
fn the_naive_model_equals_the_integer_model() {
    for (instruction, class, seed) in cases() {
        if !matches!(instruction.behaviour(), Behaviour::Fused(_)) {
            continue;
        }
        let tile = Tile::generate(instruction, class, SHAPE, seed);
        let naive = NaiveModel::of(instruction, ZeroProducts::Ignored);
        let context = format!("{instruction} {class:?} seed {seed}");
        assert_eq!(tile.model(|a, b, c| naive.dot_add(a, b, c)), tile.integer_model(), "{context}");
    }
}

#[test]
fn zeros_with_huge_partners_tell_a_wrong_model_apart() {
    for instruction in
        [DotInstruction::WgmmaE4m3K32, DotInstruction::WgmmaBf16K16, DotInstruction::WgmmaF16K16]
    {
        let tile = Tile::generate(instruction, Class::ZerosWithHugePartners, SHAPE, 1);
        let wrong = NaiveModel::of(instruction, ZeroProducts::Counted);
        assert_ne!(tile.model(|a, b, c| wrong.dot_add(a, b, c)), tile.integer_model(), "{instruction}");
    }
}

#[test]
fn the_classes_reach_what_they_are_for() {
    let results = |class| {
        let seeds = 0..TILES_PER_CLASS;
        let tiles = seeds.map(move |seed| Tile::generate(DotInstruction::WgmmaBf16K16, class, SHAPE, seed));
        tiles.flat_map(|tile| tile.integer_model()).collect::<Vec<u32>>()
    };
    let magnitude = |bits: u32| bits & 0x7fff_ffff;
    let some =
        |class, test: fn(u32) -> bool| results(class).into_iter().filter(|&bits| test(bits)).count() > 20;
    assert!(some(Class::AnyBits, |bits| bits == 0x7fff_ffff));
    assert!(
        some(Class::Overflow, |bits| bits == 0x7f80_0000)
            && some(Class::Overflow, |bits| bits == 0xff80_0000)
    );
    assert!(some(Class::Subnormals, |bits| (1..0x80_0000).contains(&(bits & 0x7fff_ffff))));
    assert!(some(Class::Cancellation, |bits| bits != 0));
    assert!(some(Class::AllZero, |bits| bits == 0));
    assert!(results(Class::AllZero).iter().all(|&bits| bits != 0x8000_0000), "no model returns -0 here");
    assert!(results(Class::SameSignMaximum).iter().all(|&bits| magnitude(bits) > 0x4000_0000));
}

#[test]
fn packed_columns_serve_many_rows() {
    for level in SimdLevel::available() {
        for instruction in DotInstruction::ALL {
            let tile = Tile::generate(instruction, Class::WideExponents, SHAPE, 5);
            let panel = ColumnPanel::pack(level, instruction, SHAPE.columns, SHAPE.steps, &tile.b).unwrap();
            let mut c = tile.c.clone();
            let row_length = SHAPE.steps * instruction.k();
            for (a, c) in tile.a.chunks(row_length).zip(c.chunks_mut(SHAPE.columns)) {
                panel.accumulate(1, a, c).unwrap();
            }
            assert_eq!(c, tile.integer_model(), "{level} {instruction}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn any_shape(rows in 0usize..5, columns in 0usize..40, steps in 0usize..5, class in 0..CLASSES.len(),
                 instruction in 0..DotInstruction::ALL.len(), seed: u64) {
        let shape = TileShape { rows, columns, steps };
        let tile = Tile::generate(DotInstruction::ALL[instruction], CLASSES[class], shape, seed);
        for level in SimdLevel::available() {
            prop_assert_eq!(tile.at(level), tile.integer_model(), "{}", level);
        }
    }
}

fn cases() -> impl Iterator<Item = (DotInstruction, Class, u64)> {
    let pairs =
        DotInstruction::ALL.into_iter().flat_map(|instruction| CLASSES.map(|class| (instruction, class)));
    pairs.flat_map(|(instruction, class)| (0..TILES_PER_CLASS).map(move |seed| (instruction, class, seed)))
}

struct Tile {
    instruction: DotInstruction,
    shape: TileShape,
    a: Vec<u16>,
    b: Vec<u16>,
    c: Vec<u32>,
}

impl Tile {
    fn generate(instruction: DotInstruction, class: Class, shape: TileShape, seed: u64) -> Tile {
        let (operand, state) = (instruction.operand(), seed ^ (class as u64) << 32);
        let mut source = Source { operand, class, variant: seed % 3, state };
        let row_length = shape.steps * instruction.k();
        let mut codes = |side, rows: usize| -> Vec<u16> {
            (0..rows * row_length).map(|index| source.code(side, index % row_length)).collect()
        };
        let (a, b) = (codes(Side::A, shape.rows), codes(Side::B, shape.columns));
        let c = (0..shape.rows * shape.columns).map(|_| source.accumulator()).collect();
        let mut tile = Tile { instruction, shape, a, b, c };
        if class == Class::NearMinusDot {
            tile.negate_first_step(&mut source);
        }
        tile
    }

    fn negate_first_step(&mut self, source: &mut Source) {
        let k = self.instruction.k();
        for index in 0..self.c.len() {
            let (Some(a), Some(b)) =
                (self.row(index / self.shape.columns), self.column(index % self.shape.columns))
            else {
                return;
            };
            let Ok(dot) = self.instruction.dot_add(&a[..k.min(a.len())], &b[..k.min(b.len())], 0) else {
                return;
            };
            let ulps = (1u32 << source.below(12)) * source.below(3) as u32;
            self.c[index] = (dot ^ 0x8000_0000).wrapping_add(ulps);
        }
    }

    fn row(&self, index: usize) -> Option<&[u16]> {
        self.a.chunks(self.shape.steps.max(1) * self.instruction.k()).nth(index)
    }

    fn column(&self, index: usize) -> Option<&[u16]> {
        self.b.chunks(self.shape.steps.max(1) * self.instruction.k()).nth(index)
    }

    fn integer_model(&self) -> Vec<u32> {
        self.model(|a, b, c| self.instruction.dot_add(a, b, c).unwrap())
    }

    fn model(&self, dot_add: impl Fn(&[u16], &[u16], u32) -> u32) -> Vec<u32> {
        let k = self.instruction.k();
        let output = |index: usize| {
            let row = self.row(index / self.shape.columns).unwrap_or(&[]);
            let column = self.column(index % self.shape.columns).unwrap_or(&[]);
            row.chunks(k).zip(column.chunks(k)).fold(self.c[index], |c, (a, b)| dot_add(a, b, c))
        };
        (0..self.c.len()).map(output).collect()
    }

    fn at(&self, level: SimdLevel) -> Vec<u32> {
        let mut c = self.c.clone();
        dot_tile_at(level, self.instruction, self.shape, &self.a, &self.b, &mut c).unwrap();
        c
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    A,
    B,
}

/// Pseudo-random codes of one class.
struct Source {
    operand: Operand,
    class: Class,
    /// Some classes have sub-classes, one per tile.
    variant: u64,
    state: u64,
}

impl Source {
    /// Code number `k` of a row of A or a column of B.
    fn code(&mut self, side: Side, k: usize) -> u16 {
        let (low, high) = self.exponent_range();
        match self.class {
            Class::AnyBits => self.next() as u16 & self.mask(),
            Class::WideExponents => self.zero_or(2, low, high),
            Class::Cancellation => self.cancelling(side, k),
            Class::NearMinusDot | Class::Ordinary => self.finite(-2, 2),
            Class::Subnormals => match (self.variant, side) {
                (0, Side::A) => self.subnormal(),
                (0, Side::B) => self.finite(high - 10, high),
                (1, _) => self.finite(-76, -60),
                _ if self.below(4) == 0 => self.finite(high - 1, high),
                _ => self.subnormal(),
            },
            Class::TruncationBoundary => match (side, k % 8) {
                (Side::A, 0) => self.finite(3, 4),
                (Side::A, _) => self.finite(-24, -8),
                (Side::B, _) => self.finite(0, 0),
            },
            // Products whose sum overflows though none of them does, or products far beyond the range.
            Class::Overflow if self.variant == 0 => self.finite(62, 63) & !self.sign(),
            Class::Overflow => self.finite(high - 3, high),
            Class::ZerosWithHugePartners => match (side, k % 8) {
                (_, 3) => self.finite(low.max(-60), low.max(-60) + 2),
                (Side::A, _) => self.next() as u16 & self.sign(),
                (Side::B, _) => self.finite(high - 2, high),
            },
            Class::AllZero => match side {
                Side::A => self.next() as u16 & self.sign(),
                Side::B => self.finite(low, high),
            },
            Class::SameSignMaximum => self.largest_finite() - self.below(2) as u16,
            Class::RareSpecials => match self.below(40) {
                0 => self.next() as u16 & self.mask() | self.operand_specials(),
                _ => self.finite(-3, 3),
            },
        }
    }

    fn accumulator(&mut self) -> u32 {
        let bits = self.next() as u32;
        let with_exponent = |field: u64| bits & 0x807f_ffff | (field as u32) << 23;
        match self.class {
            Class::AnyBits | Class::AllZero => match self.below(4) {
                0 => bits & 0x8000_0000,
                1 => bits & 0x807f_ffff,
                _ => bits,
            },
            Class::WideExponents | Class::ZerosWithHugePartners => match self.below(3) {
                0 => bits & 0x8000_0000,
                _ => with_exponent(self.below(255)),
            },
            Class::Subnormals => with_exponent(self.below(3)),
            Class::Overflow => with_exponent(240 + self.below(15)),
            Class::SameSignMaximum => bits % 0x4f00_0000,
            _ => with_exponent(110 + self.below(30)),
        }
    }

    /// Even k: anything; odd k: its negation up to one unit in the last place. B is one, so that pairs cancel.
    fn cancelling(&mut self, side: Side, k: usize) -> u16 {
        if side == Side::B {
            return self.encode(false, 0, 0);
        }
        let pair_seed = self.state;
        let mut pair = Source { state: (k as u64 / 2) ^ 0x5555, ..*self };
        let code = pair.finite(-4, 4);
        self.state = pair_seed;
        let perturbed = code ^ (self.below(2) as u16);
        if k.is_multiple_of(2) { perturbed } else { perturbed ^ self.sign() }
    }

    fn subnormal(&mut self) -> u16 {
        let fraction = (1 << self.operand.fraction_bits()) - 1;
        self.next() as u16 & (self.sign() | fraction)
    }

    fn zero_or(&mut self, one_in: u64, low: i32, high: i32) -> u16 {
        if self.below(one_in) == 0 { self.next() as u16 & self.sign() } else { self.finite(low, high) }
    }

    /// A finite code with an exponent in `low..=high`, clamped to the format.
    fn finite(&mut self, low: i32, high: i32) -> u16 {
        let exponent = low + self.below((high - low + 1) as u64) as i32;
        let (negative, fraction) = (self.below(2) == 1, self.next() as u16);
        self.encode(negative, exponent, fraction)
    }

    fn encode(&self, negative: bool, exponent: i32, fraction: u16) -> u16 {
        let (low, high) = self.exponent_range();
        let bits = self.operand.fraction_bits();
        let field = (exponent.clamp(low, high) - low + 1) as u16;
        let code = field << bits | fraction & ((1 << bits) - 1);
        // The top binade of E4M3 ends at the NaN.
        let code = code.min(self.largest_finite());
        if negative { code | self.sign() } else { code }
    }

    /// Exponents of normal numbers.
    fn exponent_range(&self) -> (i32, i32) {
        match self.operand {
            Operand::E4m3 => (-6, 8),
            Operand::E4m3Fnuz => (-7, 7),
            Operand::Bf16 => (-126, 127),
            Operand::F16 => (-14, 15),
        }
    }

    fn largest_finite(&self) -> u16 {
        match self.operand {
            Operand::E4m3 => 0x7e,
            Operand::E4m3Fnuz => 0x7f,
            Operand::Bf16 => 0x7f7f,
            Operand::F16 => 0x7bff,
        }
    }

    fn operand_specials(&self) -> u16 {
        match self.operand {
            Operand::E4m3 => 0x7f,
            Operand::E4m3Fnuz => 0x80,
            Operand::Bf16 => 0x7f80,
            Operand::F16 => 0x7c00,
        }
    }

    fn sign(&self) -> u16 {
        1 << (self.operand.bits() - 1)
    }

    fn mask(&self) -> u16 {
        (self.sign() - 1) | self.sign()
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 16) % bound
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}
