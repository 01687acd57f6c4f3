//! From the f32 values of a head to the bytes of an output or of a cache row.

use half::bf16;
use msa_core::cache::{CacheFormat, NVFP4_GROUP};
use msa_core::error::{Error, Result};
use msa_core::format::round::{bf16_from_f32_rne, f16_from_f32_rne, f32_from_bf16, round_bf16};
use msa_core::format::{CANONICAL_NAN_F32, E4m3, E4m3Fnuz, Nvfp4Quantiser};
use msa_core::op::Quantiser;
use msa_core::tensor::DType;

/// Appends the values of a query head in `dtype` to `bytes`.
pub(super) fn encode_query(dtype: DType, values: &[f32], bytes: &mut Vec<u8>) -> Result<()> {
    match dtype {
        DType::Bf16 => append_each(bytes, values, |x| bf16_from_f32_rne(x).to_le_bytes()),
        DType::F16 => append_each(bytes, values, |x| f16_from_f32_rne(x).to_le_bytes()),
        DType::F32 => append_each(bytes, values, |x| canonical(x).to_le_bytes()),
        DType::E4m3 => append_each(bytes, values, |x| [e4m3(round_bf16(x))]),
        DType::E4m3Fnuz => append_each(bytes, values, |x| [e4m3fnuz(round_bf16(x))]),
        other => return Err(Error::invalid("append.query", "bf16, f16, e4m3, e4m3fnuz or f32", other)),
    }
    Ok(())
}

/// Decodes bf16 bytes, replacing what `values` held.
pub(super) fn decode_bf16(bytes: &[u8], values: &mut Vec<f32>) {
    values.clear();
    values.extend(bytes.as_chunks().0.iter().map(|&b| f32_from_bf16(bf16::from_le_bytes(b))));
}

/// How the rows of one cache tensor are stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct CacheCode {
    pub(super) format: CacheFormat,
    /// The tensor scale: what is stored, times this, is the value.
    pub(super) scale: Option<f32>,
    pub(super) quantiser: Quantiser,
}

/// All heads of one cache tensor of one token.
#[derive(Debug, Default)]
pub(super) struct CacheRow {
    /// `[heads, row_bytes]`.
    pub(super) data: Vec<u8>,
    /// `[heads, channels/16]` E4M3; empty unless NVFP4.
    pub(super) scales: Vec<u8>,
    /// A NaN was quantised to NVFP4.
    pub(super) saw_nan: bool,
}

impl CacheCode {
    /// Appends one head to `row`; `values` is overwritten.
    pub(super) fn encode(&self, values: &mut [f32], row: &mut CacheRow) {
        values.iter_mut().for_each(|x| *x = round_bf16(*x));
        if let Some(scale) = self.scale.filter(|_| !self.quantiser_scales()) {
            values.iter_mut().for_each(|x| *x /= scale);
        }
        match self.format {
            CacheFormat::Bf16 => {
                append_each(&mut row.data, values, |x| bf16_from_f32_rne(x).to_le_bytes());
            }
            CacheFormat::E4m3 => append_each(&mut row.data, values, |x| [e4m3(x)]),
            CacheFormat::E4m3Fnuz => append_each(&mut row.data, values, |x| [e4m3fnuz(x)]),
            CacheFormat::Nvfp4 => self.quantise(values, row),
        }
    }

    fn quantise(&self, values: &[f32], row: &mut CacheRow) {
        let rule = match self.quantiser {
            Quantiser::Vendor => Nvfp4Quantiser::Vendor,
            Quantiser::Reciprocal => Nvfp4Quantiser::Reciprocal,
        };
        let (groups, _) = values.as_chunks::<{ NVFP4_GROUP as usize }>();
        for group in groups {
            let quantised = rule.quantise_unchecked(group, self.scale.unwrap_or(1.0));
            row.data.extend(quantised.group.codes);
            row.scales.push(quantised.group.scale.to_bits());
            row.saw_nan |= quantised.saw_nan;
        }
    }

    /// True if the quantiser applies the tensor scale by a rule of its own.
    fn quantiser_scales(&self) -> bool {
        self.format == CacheFormat::Nvfp4 && self.quantiser == Quantiser::Reciprocal
    }
}

/// Grows `bytes` once, so that the loop over the values is one that vectorises.
fn append_each<const N: usize>(bytes: &mut Vec<u8>, values: &[f32], code: impl Fn(f32) -> [u8; N]) {
    let start = bytes.len();
    bytes.resize(start + N * values.len(), 0);
    let (elements, _) = bytes[start..].as_chunks_mut::<N>();
    elements.iter_mut().zip(values).for_each(|(element, &x)| *element = code(x));
}

fn e4m3(x: f32) -> u8 {
    E4m3::from_f32_rne_satfinite(x).to_bits()
}

fn e4m3fnuz(x: f32) -> u8 {
    E4m3Fnuz::from_f32_rne_satfinite(x).to_bits()
}

fn canonical(x: f32) -> f32 {
    if x.is_nan() { CANONICAL_NAN_F32 } else { x }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(
        format: CacheFormat,
        scale: Option<f32>,
        quantiser: Quantiser,
        mut values: Vec<f32>,
    ) -> CacheRow {
        let mut row = CacheRow::default();
        CacheCode { format, scale, quantiser }.encode(&mut values, &mut row);
        row
    }

    #[test]
    fn fp8_casts_the_bf16_rounded_value() {
        // Just above a tie of E4M3 in f32, but on the tie, hence to even, once rounded to bf16.
        let above_tie = 1.0625_f32.next_up();
        assert_eq!(e4m3(above_tie), 0x39);
        let mut bytes = Vec::new();
        encode_query(DType::E4m3, &[above_tie], &mut bytes).unwrap();
        encode_query(DType::E4m3Fnuz, &[above_tie], &mut bytes).unwrap();
        assert_eq!(bytes, [0x38, 0x40]);
        assert_eq!(stored(CacheFormat::E4m3, None, Quantiser::Vendor, vec![above_tie]).data, [0x38]);
        assert_eq!(stored(CacheFormat::E4m3Fnuz, None, Quantiser::Vendor, vec![above_tie]).data, [0x40]);
    }

    #[test]
    fn queries_round_once_to_sixteen_bits_and_not_at_all_to_f32() {
        let x = f32::from_bits(0x3f80_1fff);
        let bytes = |dtype| {
            let mut bytes = Vec::new();
            encode_query(dtype, &[x, -f32::NAN], &mut bytes).unwrap();
            bytes
        };
        assert_eq!(bytes(DType::F32), [0x3f80_1fff_u32, 0x7fff_ffff].map(u32::to_le_bytes).concat());
        assert_eq!(bytes(DType::F16), [0x3c01_u16, 0x7fff].map(u16::to_le_bytes).concat());
        assert_eq!(bytes(DType::Bf16), [0x3f80_u16, 0x7fff].map(u16::to_le_bytes).concat());
        assert_eq!(bytes(DType::E4m3), [0x38, 0x7f]);
        assert_eq!(bytes(DType::E4m3Fnuz), [0x40, 0x80]);
        assert!(encode_query(DType::I32, &[x], &mut Vec::new()).is_err());
    }

    #[test]
    fn the_quotient_by_the_scale_is_not_rounded_to_bf16_again() {
        // 1.0625/1.0001 lies below the tie between 1 and 1.125, but rounds to it in bf16.
        let row = stored(CacheFormat::E4m3, Some(0.999_9), Quantiser::Vendor, vec![1.0625]);
        assert_eq!(row.data, [0x39]);
    }

    #[test]
    fn nvfp4_quantises_the_quotient_and_reports_nan() {
        let row = stored(CacheFormat::Nvfp4, Some(2.0), Quantiser::Vendor, vec![12.0; 16]);
        assert_eq!((row.data, row.scales, row.saw_nan), (vec![0x77; 8], vec![0x38], false));
        let row = stored(CacheFormat::Nvfp4, Some(2.0), Quantiser::Reciprocal, vec![12.0; 16]);
        assert_eq!((row.data, row.scales, row.saw_nan), (vec![0x77; 8], vec![0x38], false));
        let mut values = vec![0.0; 32];
        values[17] = f32::NAN;
        let row = stored(CacheFormat::Nvfp4, None, Quantiser::Vendor, values);
        assert_eq!((row.data[8], &row.scales[..], row.saw_nan), (0x70, &[0x01, 0x7e][..], true));
    }
}
