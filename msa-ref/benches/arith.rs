//! Throughput of the arithmetic models on one core, at every SIMD level of this machine.
//!
//! `dot_tile/*`: multiply-accumulates per second of a 64 x 128 x 128 tile, packing of both operands included;
//! `dot_packed/*`: the same with B packed beforehand. `ex2`, `exp2`: results per second. `nvfp4`: bytes of codes per
//! second.

// The macros of criterion emit an undocumented function.
#![allow(missing_docs)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use msa_ref::arith::exp2::{Degree, exp2_slice_at};
use msa_ref::arith::mufu::ex2_slice_at;
use msa_ref::arith::qmul4::dequantise_e4m3_at;
use msa_ref::arith::tile::{ColumnPanel, TileShape, dot_tile_at};
use msa_ref::arith::{DotInstruction, Operand};
use msa_ref::simd::SimdLevel;

const ROWS: usize = 64;
const COLUMNS: usize = 128;
const DEPTH: usize = 128;

fn dot_tiles(criterion: &mut Criterion) {
    for instruction in [
        DotInstruction::WgmmaE4m3K32,
        DotInstruction::WgmmaBf16K16,
        DotInstruction::WgmmaF16K16,
        DotInstruction::Tcgen05E4m3K32,
    ] {
        let shape = TileShape { rows: ROWS, columns: COLUMNS, steps: DEPTH / instruction.k() };
        let (a, b) =
            (codes(instruction.operand(), ROWS * DEPTH), codes(instruction.operand(), COLUMNS * DEPTH));
        let mut c = vec![0; ROWS * COLUMNS];
        for level in SimdLevel::available() {
            let mut group = criterion.benchmark_group(format!("dot_tile/{instruction}"));
            group.throughput(Throughput::Elements((ROWS * COLUMNS * DEPTH) as u64));
            group.bench_function(level.to_string(), |bencher| {
                bencher.iter(|| {
                    c.fill(0);
                    dot_tile_at(level, instruction, shape, &a, &b, &mut c)
                });
            });
            group.finish();
            let mut group = criterion.benchmark_group(format!("dot_packed/{instruction}"));
            group.throughput(Throughput::Elements((ROWS * COLUMNS * DEPTH) as u64));
            let Ok(panel) = ColumnPanel::pack(level, instruction, COLUMNS, shape.steps, &b) else { continue };
            group.bench_function(level.to_string(), |bencher| {
                bencher.iter(|| {
                    c.fill(0);
                    panel.accumulate(ROWS, &a, &mut c)
                });
            });
            group.finish();
        }
    }
}

fn exponentials(criterion: &mut Criterion) {
    let x: Vec<f32> = (0..16384).map(|i| -(i as f32) / 1031.0).collect();
    let bits: Vec<u32> = x.iter().map(|x| x.to_bits()).collect();
    let (mut out, mut out_bits) = (vec![0f32; x.len()], vec![0u32; x.len()]);
    for level in SimdLevel::available() {
        let mut group = criterion.benchmark_group("exponential");
        group.throughput(Throughput::Elements(x.len() as u64));
        group.bench_function(format!("ex2/{level}"), |bencher| {
            bencher.iter(|| ex2_slice_at(level, &bits, &mut out_bits));
        });
        for degree in Degree::ALL {
            group.bench_function(format!("exp2/{degree:?}/{level}"), |bencher| {
                bencher.iter(|| exp2_slice_at(level, degree, &x, &mut out));
            });
        }
        group.finish();
    }
}

fn nvfp4(criterion: &mut Criterion) {
    let scales: Vec<u8> = (0..2048u32).map(|i| (i * 37 % 127) as u8).collect();
    let codes: Vec<u8> =
        (0..scales.len() as u32 * 8).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
    let mut out = vec![0; scales.len() * 16];
    for level in SimdLevel::available() {
        let mut group = criterion.benchmark_group("nvfp4");
        group.throughput(Throughput::Bytes(codes.len() as u64));
        group.bench_function(level.to_string(), |bencher| {
            bencher.iter(|| dequantise_e4m3_at(level, &codes, &scales, &mut out));
        });
        group.finish();
    }
}

/// Finite codes over a few binades around one.
fn codes(operand: Operand, count: usize) -> Vec<u16> {
    let one = match operand {
        Operand::E4m3 => 0x38,
        Operand::E4m3Fnuz => 0x40,
        Operand::Bf16 => 0x3f80,
        Operand::F16 => 0x3c00,
    };
    let sign = 1 << (operand.bits() - 1);
    let spread = 4 << operand.fraction_bits();
    let code = |i: u32| {
        let random = i.wrapping_mul(0x9e37_79b9) >> 11;
        let magnitude = one - spread / 2 + (random % u32::from(spread)) as u16;
        if random >> 20 & 1 == 1 { magnitude | sign } else { magnitude }
    };
    (0..count as u32).map(code).collect()
}

criterion_group!(benches, dot_tiles, exponentials, nvfp4);
criterion_main!(benches);
