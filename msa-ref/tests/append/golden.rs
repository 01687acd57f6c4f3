//! Against Hugging Face transformers 5.24.0: `tests/golden/m3_qkv_norm_rope.safetensors`, described beside it.

use std::path::Path;

use half::bf16;
use msa_core::args::Role;
use msa_core::op::{Append, Rounding};
use msa_core::rope::{cos_sin, inverse_frequencies};
use msa_ref::sim::append::{HeadNorm, HeadTransform, norm_rope_f32};
use safetensors::{Dtype, SafeTensors};

use super::rig::{Rig, SMALL, Sources, Stored};

const ROWS: usize = 64;

#[test]
fn frequencies_and_tables_are_the_model_s() {
    let golden = Golden::read();
    assert_eq!(inverse_frequencies(5e6, 64).unwrap(), golden.floats("inv_freq"));
    let (cos, sin) = golden.tables();
    let mut farthest = 0;
    for (ours, name) in [(cos, "cos_f32"), (sin, "sin_f32")] {
        let theirs = golden.floats(name);
        for (row, theirs) in ours.chunks_exact(32).zip(theirs.chunks_exact(64)) {
            farthest = row.iter().zip(theirs).map(|(a, b)| ulps(*a, *b)).max().unwrap().max(farthest);
        }
    }
    println!("cos and sin: at most {farthest} ulp from the model's");
    assert!(farthest <= 2, "{farthest} ulp");
}

#[test]
fn per_step_equals_the_model_in_bf16_bit_for_bit() {
    let golden = Golden::read();
    let op = Append { geometry: SMALL, rounding: Rounding::PerStep, ..Append::default() };
    let slots: Vec<i64> = (0..ROWS as i64).map(|t| t * 37 % 80).collect();
    let (cos, sin) = golden.tables();
    let rig = Rig::new(op, 5, &slots)
        .sources(&golden.sources())
        .weights([
            &golden.floats("g_q"),
            &golden.floats("g_k"),
            &golden.floats("g_index_q"),
            &golden.floats("g_index_k"),
        ])
        .rope(&cos, &sin, &(0..ROWS as i32).collect::<Vec<_>>());
    assert!(rig.run().is_clean());
    assert_eq!(rig.bytes_of(Role::Query), golden.bytes("q_rope_bf16"));
    assert_eq!(rig.bytes_of(Role::IndexQuery), golden.bytes("index_q_rope_bf16"));
    let cached = |what, heads| -> Vec<u8> {
        let rows = slots.iter().flat_map(|&s| (0..heads).map(move |h| (s, h)));
        rows.flat_map(|(slot, head)| rig.stored(what, slot, head).0).collect()
    };
    assert_eq!(cached(Stored::Key, 2), golden.bytes("k_rope_bf16"));
    assert_eq!(cached(Stored::Value, 2), golden.bytes("v_proj_bf16"));
    assert_eq!(cached(Stored::IndexKey, 1), golden.bytes("index_k_rope_bf16"));
    rig.assert_only(&slots);
}

/// Channels past the rotation carry the error of the norm alone. A rotated channel is a difference of two products, so
/// that its error is measured in units of the larger product, not of a difference that may have cancelled.
#[test]
fn once_before_its_rounding_is_within_4_ulp_of_the_model_in_f32() {
    let golden = Golden::read();
    let (cos, sin) = golden.tables();
    let (mut passed, mut rotated, mut of_result) = (0.0_f64, 0.0_f64, 0.0_f64);
    for (name, heads) in [("q", 4), ("k", 2), ("index_q", 2), ("index_k", 1)] {
        let weight = golden.floats(&format!("g_{name}"));
        let norm = Some(HeadNorm { weight: &weight, epsilon: 1e-6 });
        let projections = golden.floats(&format!("{name}_proj_f32"));
        let normed = golden.floats(&format!("{name}_norm_f32"));
        let want = golden.floats(&format!("{name}_rope_f32"));
        for (i, row) in projections.chunks_exact(128).enumerate() {
            let angles = 32 * (i / heads)..32 * (i / heads) + 32;
            let mut row = row.to_vec();
            let transform = HeadTransform { norm, cos: &cos[angles.clone()], sin: &sin[angles] };
            norm_rope_f32(&mut row, &transform).unwrap();
            for (c, x) in row.iter().enumerate() {
                of_result = of_result.max(in_ulps(*x - want[i * 128 + c], want[i * 128 + c]));
                let (want, error) = (want[i * 128 + c], |unit: f32| in_ulps(*x - want[i * 128 + c], unit));
                if c >= 64 {
                    passed = passed.max(error(want));
                } else {
                    let pair = [c % 32, c % 32 + 32].map(|c| normed[i * 128 + c].abs());
                    rotated = rotated.max(error(pair[0].max(pair[1])));
                }
            }
        }
    }
    println!("largest distance in f32: {passed} ulp past the rotation, {rotated} ulp of the pair within it");
    println!("in units of the result itself, cancelled or not: {of_result} ulp");
    assert!(passed > 0.0 && passed <= 4.0 && rotated <= 4.0, "{passed} {rotated}");
}

/// The rotation alone, on the model's own norm and tables: two products and a sum, each rounded to f32.
#[test]
fn the_rotation_equals_the_model_in_f32_bit_for_bit() {
    let golden = Golden::read();
    let (cos, sin) = (golden.floats("cos_f32"), golden.floats("sin_f32"));
    for (name, heads) in [("q", 4), ("k", 2), ("index_q", 2), ("index_k", 1)] {
        let want = golden.floats(&format!("{name}_rope_f32"));
        let mut got = golden.floats(&format!("{name}_norm_f32"));
        for (i, row) in got.chunks_exact_mut(128).enumerate() {
            let angles = 64 * (i / heads)..64 * (i / heads) + 32;
            let transform = HeadTransform { norm: None, cos: &cos[angles.clone()], sin: &sin[angles] };
            norm_rope_f32(row, &transform).unwrap();
        }
        assert!(got.iter().map(|x| x.to_bits()).eq(want.iter().map(|x| x.to_bits())), "{name}");
    }
}

struct Golden {
    file: Vec<u8>,
}

impl Golden {
    fn read() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/m3_qkv_norm_rope.safetensors");
        Self { file: std::fs::read(path).unwrap() }
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        SafeTensors::deserialize(&self.file).unwrap().tensor(name).unwrap().data().to_vec()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        let dtype = SafeTensors::deserialize(&self.file).unwrap().tensor(name).unwrap().dtype();
        let bytes = self.bytes(name);
        match dtype {
            Dtype::BF16 => {
                bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
            }
            Dtype::F32 => {
                bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
            }
            other => panic!("{name} is {other:?}"),
        }
    }

    fn sources(&self) -> Sources {
        let of = |name: &str| self.floats(&format!("{name}_proj_bf16"));
        Sources {
            query: of("q"),
            key: of("k"),
            value: of("v"),
            index_query: of("index_q"),
            index_key: of("index_k"),
        }
    }

    /// Rows of the RoPE tables for the file's positions alone: a table up to the last of them would take 128 MiB.
    fn tables(&self) -> (Vec<f32>, Vec<f32>) {
        let positions = self.bytes("positions");
        let positions = positions
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect::<Vec<_>>();
        assert_eq!((positions.len(), positions[ROWS - 1]), (ROWS, 1_048_575));
        let frequencies = inverse_frequencies(5e6, 64).unwrap();
        positions.iter().flat_map(|&p| frequencies.iter().map(move |&f| cos_sin(p, f))).unzip()
    }
}

/// Representable numbers between two of the same sign.
fn ulps(a: f32, b: f32) -> u32 {
    assert!(a == b || a.signum() == b.signum(), "{a} {b}");
    a.to_bits().abs_diff(b.to_bits())
}

/// `difference` in units of the last place of `unit`.
fn in_ulps(difference: f32, unit: f32) -> f64 {
    f64::from(difference.abs()) / f64::from(unit.abs().next_up() - unit.abs())
}
