//! The error bound of the `f32` arithmetic holds, is not loose, and is broken by one rounding too many.

use msa_ref::arith::exp2::{Degree, exp2};
use msa_ref::spec::bound::{AttentionCase, UNIT, attention_bound};

/// xorshift64* (Marsaglia 2003, doi:10.18637/jss.v008.i14; Vigna 2016), roughly normal by twelve uniforms.
struct Random(u64);

impl Random {
    fn normal(&mut self) -> f32 {
        let uniform = |s: &mut u64| {
            *s ^= *s >> 12;
            *s ^= *s << 25;
            *s ^= *s >> 27;
            (s.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) as f32 / (1 << 24) as f32
        };
        (0..12).map(|_| uniform(&mut self.0)).sum::<f32>() - 6.0
    }

    fn rows(&mut self, count: usize, dim: usize) -> Vec<Vec<f32>> {
        (0..count).map(|_| (0..dim).map(|_| self.normal()).collect()).collect()
    }
}

/// One state over one block in the arithmetic `f32`, written from its definition; the largest P below 1 passes
/// through `plant`.
fn attend(
    query: &[f32],
    keys: &[Vec<f32>],
    values: &[Vec<f32>],
    scale: f32,
    plant: fn(f32) -> f32,
) -> Vec<f32> {
    let slope = (f64::from(scale) * std::f64::consts::LOG2_E) as f32;
    let dot = |key: &Vec<f32>| query.iter().zip(key).fold(0.0_f32, |s, (q, k)| q.mul_add(*k, s));
    let scores: Vec<f32> = keys.iter().map(dot).collect();
    let m = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let second = scores.iter().copied().filter(|s| *s < m).fold(f32::NEG_INFINITY, f32::max);
    let mut lanes = [0.0_f32; 16];
    let mut output = vec![0.0_f32; query.len()];
    for (t, (score, value)) in scores.iter().zip(values).enumerate() {
        let p = exp2(Degree::Five, (score - m) * slope);
        let p = if *score == second { plant(p) } else { p };
        lanes[t % 16] += p;
        output.iter_mut().zip(value).for_each(|(o, v)| *o = p.mul_add(*v, *o));
    }
    for half in [8, 4, 2, 1] {
        (0..half).for_each(|i| lanes[i] += lanes[i + half]);
    }
    output.iter().map(|o| o / lanes[0]).collect()
}

/// Largest error as a fraction of its bound, over some random rows.
fn worst(plant: fn(f32) -> f32) -> f64 {
    let mut random = Random(1701);
    let mut worst: f64 = 0.0;
    for tokens in [2, 17, 100, 128] {
        for _ in 0..8 {
            let (query, keys, values) =
                (random.rows(1, 64), random.rows(tokens, 64), random.rows(tokens, 64));
            let scale = 0.125_f32;
            let wide = |rows: &[Vec<f32>]| -> Vec<Vec<f64>> {
                rows.iter().map(|r| r.iter().map(|&x| x.into()).collect()).collect()
            };
            let (q, k, v) = (wide(&query), wide(&keys), wide(&values));
            let keys64: Vec<&[f64]> = k.iter().map(Vec::as_slice).collect();
            let values64: Vec<&[f64]> = v.iter().map(Vec::as_slice).collect();
            let case = AttentionCase {
                query: &q[0],
                keys: &keys64,
                values: &values64,
                blocks: &[tokens],
                states: &[1],
                scale: scale.into(),
                output_unit: UNIT,
            };
            let Ok(bound) = attention_bound(&case) else { panic!("a case of equal lengths") };
            let got = attend(&query[0], &keys, &values, scale, plant);
            for ((got, want), bound) in got.iter().zip(&bound.output).zip(&bound.output_bound) {
                worst = worst.max((f64::from(*got) - want).abs() / bound);
            }
        }
    }
    worst
}

#[test]
fn the_bound_holds_and_is_not_loose() {
    let worst = worst(|p| p);
    println!("largest error: {worst:.4} of the bound");
    assert!(worst <= 1.0 && worst > 0.01, "{worst}");
}

#[test]
fn one_rounding_to_bf16_breaks_the_bound() {
    let worst = worst(msa_core::format::round::round_bf16);
    assert!(worst > 1.0, "{worst}");
}
