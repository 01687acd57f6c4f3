//! Values of rows, by class, and their encoding.

use half::{bf16, f16};
use msa_core::cache::CacheFormat;
use msa_core::format::nvfp4::Nvfp4Quantiser;
use msa_core::format::{E2m1, E4m3, E4m3Fnuz};
use msa_core::tensor::DType;

use crate::case::ValueClass;
use crate::random::Random;

/// What a row is to the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Query of the main branch.
    Query,
    /// Key of the main branch.
    Key,
    /// Value.
    Value,
    /// Query of the index branch.
    IndexQuery,
    /// Key of the index branch.
    IndexKey,
    /// A projection in front of norm and RoPE.
    Source,
}

/// Magnitudes that E2M1 holds and whose sums of products are exact in f32: at most 8192 tokens of 6.
const SMALL: [f32; 7] = [0.0, 1.0, -1.0, 2.0, -3.0, 4.0, -6.0];

/// Edge values that bf16 and f16 hold: zeros, subnormals of FP8 and bf16, ones, the largest E4M3.
const EDGES: [f32; 10] = [0.0, -0.0, 1e-39, 0.001_953_125, -0.015_625, 1.0, -1.0, 448.0, -448.0, 30.0];

/// A row of `channels` values of block `block`.
pub fn row(random: &mut Random, class: ValueClass, part: Part, channels: usize, block: u64) -> Vec<f32> {
    match class {
        ValueClass::Exact => exact_row(random, part, channels),
        ValueClass::Ties if matches!(part, Part::Key | Part::IndexKey) => tied_row(random, channels),
        ValueClass::Ties if matches!(part, Part::IndexQuery | Part::Query) => {
            (0..channels).map(|_| SMALL[random.below(4) as usize]).collect()
        }
        ValueClass::Edge if part != Part::Source => edge_row(random, part, channels),
        ValueClass::Nan => {
            let mut row = normal_row(random, part, channels, block);
            poke_nan(random, part, &mut row);
            row
        }
        _ => normal_row(random, part, channels, block),
    }
}

/// Keys of a block share a direction, so that blocks differ in score as they do in a model.
fn normal_row(random: &mut Random, part: Part, channels: usize, block: u64) -> Vec<f32> {
    let shared = match part {
        Part::Key | Part::IndexKey => 0.5,
        _ => 0.0,
    };
    let size = if part == Part::Query { 1.5 } else { 1.0 };
    let mut direction = Random::new(block, "direction of a block");
    (0..channels).map(|_| size * random.normal() + shared * direction.normal()).collect()
}

fn exact_row(random: &mut Random, part: Part, channels: usize) -> Vec<f32> {
    let mut row: Vec<f32> = (0..channels).map(|_| SMALL[random.below(7) as usize]).collect();
    match part {
        Part::Query => {
            row.fill(0.0);
            row[0] = 16.0;
        }
        Part::Key => {
            // Its whole NVFP4 group has the scale 4.
            row[..16].fill(0.0);
            row[0] = if random.one_in(6) { 16.0 } else { -16.0 };
        }
        _ => {}
    }
    row
}

fn tied_row(random: &mut Random, channels: usize) -> Vec<f32> {
    let kind = random.below(4);
    let mut shared = Random::new(kind, "one of four keys");
    let sign = if random.one_in(2) { 0.0 } else { -0.0 };
    let values = (0..channels).map(|_| if kind == 0 { sign } else { SMALL[shared.below(7) as usize] });
    values.collect()
}

fn edge_row(random: &mut Random, part: Part, channels: usize) -> Vec<f32> {
    if part == Part::Key && random.one_in(50) {
        return vec![448.0; channels];
    }
    (0..channels).map(|_| EDGES[random.below(10) as usize]).collect()
}

fn poke_nan(random: &mut Random, part: Part, row: &mut [f32]) {
    let odds = match part {
        Part::IndexKey => 3,
        Part::Key | Part::Value => 400,
        _ => return,
    };
    if random.one_in(odds) {
        let sign = if random.one_in(2) { f32::NAN } else { -f32::NAN };
        let at = random.below(row.len() as u64) as usize;
        row[at] = sign;
    }
}

/// `values` as elements of `dtype`, little-endian.
pub fn encode(dtype: DType, values: &[f32]) -> Vec<u8> {
    match dtype {
        DType::Bf16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
        DType::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
        DType::E4m3 => values.iter().map(|v| E4m3::from_f32_rne_satfinite(*v).to_bits()).collect(),
        DType::E4m3Fnuz => values.iter().map(|v| E4m3Fnuz::from_f32_rne_satfinite(*v).to_bits()).collect(),
        _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

/// A row as a cache holds it: data bytes and, for NVFP4, scale bytes.
pub fn encode_row(
    random: &mut Random,
    class: ValueClass,
    format: CacheFormat,
    values: &[f32],
) -> (Vec<u8>, Vec<u8>) {
    match format {
        CacheFormat::Bf16 => (encode(DType::Bf16, values), Vec::new()),
        CacheFormat::E4m3 => (encode(DType::E4m3, values), Vec::new()),
        CacheFormat::E4m3Fnuz => (encode(DType::E4m3Fnuz, values), Vec::new()),
        CacheFormat::Nvfp4 => {
            let groups = values.as_chunks::<16>().0.iter().map(|g| encode_group(random, class, g));
            let (codes, scales): (Vec<[u8; 8]>, Vec<u8>) = groups.unzip();
            (codes.concat(), scales)
        }
    }
}

fn encode_group(random: &mut Random, class: ValueClass, values: &[f32; 16]) -> ([u8; 8], u8) {
    let scale = match class {
        ValueClass::Exact | ValueClass::Ties => {
            let large = values.iter().any(|v| v.abs() > 6.0);
            E4m3::from_f32_rne_satfinite(if large { 4.0 } else { 1.0 })
        }
        // Zero, the smallest subnormals, one and the largest scale, under any code.
        ValueClass::Edge => E4m3::from_bits([0, 1, 7, 8, 0x38, 0x7e][random.below(6) as usize]),
        ValueClass::Nan if values.iter().any(|v| v.is_nan()) => E4m3::NAN,
        _ => {
            let group = Nvfp4Quantiser::Vendor.quantise_unchecked(values, 1.0).group;
            return (group.codes, group.scale.to_bits());
        }
    };
    if class == ValueClass::Edge {
        return (random.bits().to_le_bytes(), scale.to_bits());
    }
    let code = |v: f32| {
        if scale.is_nan() { E2m1::from_bits(1) } else { E2m1::from_f32_rne_satfinite(v / scale.to_f32()) }
    };
    let (pairs, _) = values.as_chunks::<2>();
    (std::array::from_fn(|i| E2m1::pack(code(pairs[i][0]), code(pairs[i][1]))), scale.to_bits())
}

#[cfg(test)]
mod tests {
    use super::*;
    use msa_core::format::dequant::dequantise_row_exact_f32;

    #[test]
    fn exact_rows_are_exact_in_every_format() {
        let mut random = Random::new(3, "test");
        for part in [Part::Query, Part::Key, Part::Value, Part::IndexKey, Part::IndexQuery] {
            for _ in 0..50 {
                let values = row(&mut random, ValueClass::Exact, part, 64, 0);
                let (codes, scales) = encode_row(&mut random, ValueClass::Exact, CacheFormat::Nvfp4, &values);
                let mut back = vec![0.0; 64];
                if part != Part::Query {
                    dequantise_row_exact_f32(&codes, &scales, &mut back).unwrap();
                    assert_eq!(back, values);
                }
                assert!(values.iter().all(|v| bf16::from_f32(*v).to_f32() == *v));
                assert!(values.iter().all(|v| E4m3::from_f32_rne_satfinite(*v).to_f32() == *v));
            }
        }
    }

    #[test]
    fn few_distinct_keys_tie() {
        let mut random = Random::new(5, "test");
        let rows: std::collections::HashSet<Vec<u32>> = (0..100)
            .map(|_| {
                row(&mut random, ValueClass::Ties, Part::IndexKey, 64, 0)
                    .iter()
                    .map(|v| (v + 0.0).to_bits())
                    .collect()
            })
            .collect();
        assert_eq!(rows.len(), 4);
    }
}
