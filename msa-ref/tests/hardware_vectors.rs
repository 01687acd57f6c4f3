//! The dot-add models against what an H200 computed: every word of every tile, by the integer model and at every SIMD
//! level; and wrong models against the same words, which must fail.

// Helpers outside the test functions panic as well.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod naive;

use std::path::Path;

use msa_ref::arith::instruction::Behaviour;
use msa_ref::arith::tile::{TileShape, dot_tile_at};
use msa_ref::arith::{DotInstruction, DotModel};
use msa_ref::simd::SimdLevel;
use naive::{NaiveModel, ZeroProducts};

const ROWS: usize = 64;
const COLUMNS: usize = 8;
const ROW_BYTES: usize = 128;
const STEPS: usize = 4;
const OUTPUTS: usize = ROWS * COLUMNS;
const RECORD_BYTES: usize = (ROWS + COLUMNS) * ROW_BYTES + (5 * OUTPUTS + 4) * 4;
const TILES: usize = 40;

const TYPES: [(&str, DotInstruction, DotInstruction); 3] = [
    ("e4m3", DotInstruction::WgmmaE4m3K32, DotInstruction::MmaE4m3K32EmulatedSm90a),
    ("bf16", DotInstruction::WgmmaBf16K16, DotInstruction::MmaBf16K16),
    ("f16", DotInstruction::WgmmaF16K16, DotInstruction::MmaF16K16),
];

/// One record; its fields are described beside the files.
struct Tile {
    /// 64 rows of four k-steps.
    a: Vec<Vec<u16>>,
    /// 8 columns of four k-steps.
    b: Vec<Vec<u16>>,
    c: Vec<u32>,
    wgmma: Vec<u32>,
    wgmma_chained: Vec<u32>,
    mma: Vec<u32>,
    mma_chained: Vec<u32>,
}

#[test]
fn record_size_is_the_documented_one() {
    assert_eq!(RECORD_BYTES, 19_472);
}

#[test]
fn integer_model_gives_every_word() {
    for (name, wgmma, mma) in TYPES {
        for (index, tile) in load(name).iter().enumerate() {
            for (instruction, single, chained) in recorded(tile, wgmma, mma) {
                let context = format!("{name} tile {index} {instruction}");
                assert_eq!(&scalar(instruction, tile, 1), single, "{context}");
                assert_eq!(&scalar(instruction, tile, STEPS), chained, "{context} chained");
            }
        }
    }
}

#[test]
fn every_simd_level_gives_every_word() {
    for level in SimdLevel::available() {
        for (name, wgmma, mma) in TYPES {
            for (index, tile) in load(name).iter().enumerate() {
                for (instruction, single, chained) in recorded(tile, wgmma, mma) {
                    let context = format!("{level} {name} tile {index} {instruction}");
                    assert_eq!(&tiled(level, instruction, tile, 1), single, "{context}");
                    assert_eq!(&tiled(level, instruction, tile, STEPS), chained, "{context} chained");
                }
            }
        }
    }
}

#[test]
fn wrong_parameters_fail() {
    for (name, wgmma, _) in TYPES {
        let Behaviour::Fused(right) = wgmma.behaviour() else { panic!("{wgmma} is one sum") };
        let tiles = load(name);
        let mismatches = |model: DotModel| {
            count_mismatches(&tiles, wgmma.k(), |a, b, c| model.dot_add(wgmma.operand(), a, b, c))
        };
        assert_eq!(mismatches(right), 0);
        for fraction_bits in [right.fraction_bits - 1, right.fraction_bits + 1] {
            let wrong = mismatches(DotModel { fraction_bits, ..right });
            assert!(wrong > 100, "{name} F={fraction_bits}: {wrong}");
        }
        let output_bits = if right.output_bits == 23 { 13 } else { 23 };
        let wrong = mismatches(DotModel { output_bits, ..right });
        assert!(wrong > 1000, "{name} out={output_bits}: {wrong}");
    }
}

#[test]
fn counting_the_exponents_of_zero_products_fails() {
    for (name, wgmma, _) in TYPES {
        let tiles = load(name);
        let mismatches = |zero_products| {
            let model = NaiveModel::of(wgmma, zero_products);
            count_mismatches(&tiles, wgmma.k(), |a, b, c| model.dot_add(a, b, c))
        };
        assert_eq!(mismatches(ZeroProducts::Ignored), 0, "{name}: the naive model agrees with silicon");
        // The recorded bf16 tiles hold no zero beside a partner large enough to tell; `adversarial.rs` makes some.
        if name != "bf16" {
            let wrong = mismatches(ZeroProducts::Counted);
            assert!(wrong > 100, "{name}: {wrong}");
        }
    }
}

#[test]
fn wgmma_and_mma_sync_are_one_function_except_for_e4m3() {
    for (name, ..) in TYPES {
        let differs = |tile: &Tile| tile.wgmma != tile.mma || tile.wgmma_chained != tile.mma_chained;
        assert_eq!(load(name).iter().any(differs), name == "e4m3", "{name}");
    }
}

/// Each instruction with its recorded single-step and four-step words.
fn recorded(
    tile: &Tile,
    wgmma: DotInstruction,
    mma: DotInstruction,
) -> [(DotInstruction, &Vec<u32>, &Vec<u32>); 2] {
    [(wgmma, &tile.wgmma, &tile.wgmma_chained), (mma, &tile.mma, &tile.mma_chained)]
}

fn scalar(instruction: DotInstruction, tile: &Tile, steps: usize) -> Vec<u32> {
    let k = instruction.k();
    let output = |index: usize| {
        let (a, b) = (&tile.a[index / COLUMNS], &tile.b[index % COLUMNS]);
        let chunks = a.chunks(k).zip(b.chunks(k)).take(steps);
        chunks.fold(tile.c[index], |c, (a, b)| instruction.dot_add(a, b, c).unwrap())
    };
    (0..OUTPUTS).map(output).collect()
}

fn tiled(level: SimdLevel, instruction: DotInstruction, tile: &Tile, steps: usize) -> Vec<u32> {
    let shape = TileShape { rows: ROWS, columns: COLUMNS, steps };
    let first_steps = |rows: &[Vec<u16>]| -> Vec<u16> {
        rows.iter().flat_map(|row| &row[..steps * instruction.k()]).copied().collect()
    };
    let mut c = tile.c.clone();
    dot_tile_at(level, instruction, shape, &first_steps(&tile.a), &first_steps(&tile.b), &mut c).unwrap();
    c
}

/// Words of the first wgmma step that a function gets wrong.
fn count_mismatches(tiles: &[Tile], k: usize, dot_add: impl Fn(&[u16], &[u16], u32) -> u32) -> usize {
    let is_wrong = |tile: &Tile, index: usize| {
        let (a, b) = (&tile.a[index / COLUMNS][..k], &tile.b[index % COLUMNS][..k]);
        dot_add(a, b, tile.c[index]) != tile.wgmma[index]
    };
    tiles.iter().map(|tile| (0..OUTPUTS).filter(|&index| is_wrong(tile, index)).count()).sum()
}

fn load(name: &str) -> Vec<Tile> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/vectors");
    let bytes = std::fs::read(folder.join(format!("tensorcore_{name}_h200.bin"))).unwrap();
    assert_eq!(bytes.len(), TILES * RECORD_BYTES);
    bytes.chunks(RECORD_BYTES).map(|record| parse(record, name == "e4m3")).collect()
}

fn parse(record: &[u8], one_byte_codes: bool) -> Tile {
    let (a, rest) = record.split_at(ROWS * ROW_BYTES);
    let (b, rest) = rest.split_at(COLUMNS * ROW_BYTES);
    let words: Vec<u32> = rest.as_chunks::<4>().0.iter().map(|&word| u32::from_le_bytes(word)).collect();
    let codes = |row: &[u8]| -> Vec<u16> {
        if one_byte_codes {
            row.iter().map(|&code| code.into()).collect()
        } else {
            row.as_chunks::<2>().0.iter().map(|&code| u16::from_le_bytes(code)).collect()
        }
    };
    let field = |index: usize| words[index * OUTPUTS..][..OUTPUTS].to_vec();
    Tile {
        a: a.chunks(ROW_BYTES).map(codes).collect(),
        b: b.chunks(ROW_BYTES).map(codes).collect(),
        c: field(0),
        wgmma: field(1),
        wgmma_chained: field(2),
        mma: field(3),
        mma_chained: field(4),
    }
}
