//! `append` against the equations.
//!
//! Norm and RoPE are computed in f64. An f32 execution is off by at most 16 units in the last place of the magnitudes
//! involved (sum of squares 9, square root and division 3, weight and product 3, rotation 3, halved by the root).
//! Where both ends of that interval round to the same bf16 values, the bytes of the cache are known exactly; elsewhere
//! (about one channel in a thousand) the 16 channels around are not judged.

use msa_core::args::Role;
use msa_core::cache::CacheFormat;
use msa_core::error::Result;
use msa_core::format::nvfp4::Nvfp4Quantiser;
use msa_core::op::{Append, Quantiser, Rounding};
use msa_core::tensor::DType;
use msa_ref::spec::append::{norm_rope_once, rms_norm, rope_per_step, round_to_bf16};

use super::{Oracle, spec_error};
use crate::compare::{Tally, widen};
use crate::inputs::scale_of;
use crate::inputs::values::encode;
use crate::memory::Image;
use crate::report::Evidence;
use crate::rows::{CacheSide, Side};

const UNIT: f64 = 1.0 / (1_u64 << 24) as f64;

/// Channels that are judged together: an NVFP4 group.
const GROUP: usize = 16;

/// Every written cache row, query and index query.
pub(super) fn check(oracle: &Oracle<'_>, op: &Append) -> Result<(Tally, Evidence)> {
    let mut tally = Tally::default();
    let (kv, index) = (oracle.kv_cache()?, oracle.index_cache()?);
    let g = op.geometry;
    let key = CacheSide::of_kv(&kv, Side::Key, g.head_dim);
    let value = CacheSide::of_kv(&kv, Side::Value, g.head_dim);
    let index_key = CacheSide::of_index(&index, g.index_dim);
    let sides = [
        (Role::KeySource, Some(Role::KeyNorm), Role::KeyScale, key, g.kv_heads),
        (Role::ValueSource, None, Role::ValueScale, value, g.kv_heads),
        (Role::IndexKeySource, Some(Role::IndexKeyNorm), Role::IndexKeyScale, index_key, 1),
    ];
    for (source, norm, scale, side, heads) in sides {
        let scale = scale_of(oracle.case, scale);
        for row in (0..oracle.batch.request_of.len()).filter(|&row| oracle.batch.position(row) >= 0) {
            for head in 0..heads {
                let wanted = transformed(oracle, op, source, norm, row, head)?;
                check_cache_row(oracle, op, &mut tally, &side, scale, (source, row, head), &wanted)?;
            }
        }
    }
    check_queries(oracle, op, &mut tally, Role::QuerySource, Role::QueryNorm, Role::Query)?;
    check_queries(oracle, op, &mut tally, Role::IndexQuerySource, Role::IndexQueryNorm, Role::IndexQuery)?;
    Ok((tally, Evidence::default()))
}

/// A channel after norm and RoPE: between two values, both ends rounded to bf16 where the rule rounds.
#[derive(Debug, Clone, Copy)]
struct Interval {
    low: f64,
    high: f64,
}

impl Interval {
    /// The bf16 value, if both ends round to it.
    fn bf16(&self) -> Option<f32> {
        let (low, high) = (round_to_bf16(self.low), round_to_bf16(self.high));
        (low == high).then(|| half::bf16::from_bits(low).to_f32())
    }
}

fn transformed(
    oracle: &Oracle<'_>,
    op: &Append,
    source: Role,
    norm: Option<Role>,
    row: usize,
    head: u32,
) -> Result<Vec<Interval>> {
    let tensor = Image::tensor(oracle.args, source)?;
    let x = widen(tensor.dtype, oracle.image.row(&tensor, &[row as u64, head.into()])?);
    let exact = |x: &f64| Interval { low: *x, high: *x };
    let Some(norm_role) = norm else { return Ok(x.iter().map(exact).collect()) };
    let (cos, sin) = rope_rows(oracle, op, row)?;
    let weight = if op.norm.enabled {
        let tensor = Image::tensor(oracle.args, norm_role)?;
        Some(widen(tensor.dtype, oracle.image.row(&tensor, &[])?))
    } else {
        None
    };
    match op.rounding {
        Rounding::Once => once(op, &x, weight.as_deref(), &cos, &sin),
        Rounding::PerStep => per_step(op, &x, weight.as_deref(), &cos, &sin),
    }
}

fn rope_rows(oracle: &Oracle<'_>, op: &Append, row: usize) -> Result<(Vec<f64>, Vec<f64>)> {
    if op.rope.rotary_dim == 0 {
        return Ok((Vec::new(), Vec::new()));
    }
    let position = oracle.batch.position(row).max(0) as u64;
    let table = |role| -> Result<Vec<f64>> {
        let tensor = Image::tensor(oracle.args, role)?;
        Ok(widen(DType::F32, oracle.image.row(&tensor, &[position])?))
    };
    Ok((table(Role::RopeCos)?, table(Role::RopeSin)?))
}

fn once(op: &Append, x: &[f64], weight: Option<&[f64]>, cos: &[f64], sin: &[f64]) -> Result<Vec<Interval>> {
    let rotary = op.rope.rotary_dim as usize;
    let exact = match weight {
        Some(w) => norm_rope_once(x, w, op.norm.epsilon.into(), cos, sin, rotary).map_err(spec_error)?,
        None => msa_ref::spec::append::rope(x, cos, sin, rotary).map_err(spec_error)?,
    };
    let normed = match weight {
        Some(w) => rms_norm(x, w, op.norm.epsilon.into()).map_err(spec_error)?,
        None => x.to_vec(),
    };
    let half = rotary / 2;
    let steps = if weight.is_some() { 16.0 } else { 3.0 };
    let bound = |i: usize| {
        if i >= rotary {
            return if weight.is_some() { steps * UNIT * exact[i].abs() } else { 0.0 };
        }
        let pair = i % half;
        let magnitude = normed[pair].abs() * cos[pair].abs().max(sin[pair].abs())
            + normed[pair + half].abs() * cos[pair].abs().max(sin[pair].abs());
        steps * UNIT * magnitude + 1e-44
    };
    Ok((0..x.len()).map(|i| Interval { low: exact[i] - bound(i), high: exact[i] + bound(i) }).collect())
}

/// Exact from the normed bf16 row on; a pair whose norm is between two bf16 values is left open.
fn per_step(
    op: &Append,
    x: &[f64],
    weight: Option<&[f64]>,
    cos: &[f64],
    sin: &[f64],
) -> Result<Vec<Interval>> {
    let normed: Vec<Interval> = match weight {
        Some(w) => {
            let exact = rms_norm(x, w, op.norm.epsilon.into()).map_err(spec_error)?;
            exact
                .iter()
                .map(|v| Interval { low: v - 16.0 * UNIT * v.abs(), high: v + 16.0 * UNIT * v.abs() })
                .collect()
        }
        None => x.iter().map(|v| Interval { low: *v, high: *v }).collect(),
    };
    let rotary = op.rope.rotary_dim as usize;
    let bits: Vec<u16> = normed.iter().map(|n| round_to_bf16(n.low)).collect();
    let rotated = rope_per_step(&bits, cos, sin, rotary).map_err(spec_error)?;
    let known = |i: usize| normed[i].bf16().is_some();
    let of = |i: usize| {
        let half = rotary / 2;
        let sure = if i < rotary { known(i % half) && known(i % half + half) } else { known(i) };
        let value = half::bf16::from_bits(rotated[i]).to_f64();
        if sure { Interval { low: value, high: value } } else { Interval { low: f64::MIN, high: f64::MAX } }
    };
    Ok((0..x.len()).map(of).collect())
}

fn check_cache_row(
    oracle: &Oracle<'_>,
    op: &Append,
    tally: &mut Tally,
    side: &CacheSide,
    scale: f32,
    (source, row, head): (Role, usize, u32),
    wanted: &[Interval],
) -> Result<()> {
    let request = oracle.batch.request_of[row];
    let (page, offset) = oracle.batch.place(request, oracle.batch.position(row) as u64);
    let place = side.row(page, head.into(), offset);
    let data = oracle.image.bytes(place.data, place.bytes)?;
    let bytes = data.len() * GROUP / side.channels as usize;
    for (group, channels) in wanted.chunks(GROUP).enumerate() {
        let values: Option<Vec<f32>> = channels.iter().map(Interval::bf16).collect();
        let Some(values) = values else { continue };
        let (codes, block_scale) = stored(op, side.format, &values, scale);
        let at = format!("{}[t={row},h={head},group={group}]", source.name());
        tally.equal(&at, &&data[group * bytes..][..bytes], &&codes[..]);
        if let (Some(want), Some(address)) = (block_scale, place.scales.get(group)) {
            let got = oracle.image.bytes(*address, 1)?[0];
            tally.equal(format!("scale of {at}"), &got, &want);
        }
    }
    Ok(())
}

/// Bytes of 16 channels, and the block scale.
fn stored(op: &Append, format: CacheFormat, values: &[f32], scale: f32) -> (Vec<u8>, Option<u8>) {
    let divided: Vec<f32> = values.iter().map(|v| if scale == 1.0 { *v } else { v / scale }).collect();
    match format {
        CacheFormat::Bf16 => (encode(DType::Bf16, &divided), None),
        CacheFormat::E4m3 => (encode(DType::E4m3, &divided), None),
        CacheFormat::E4m3Fnuz => (encode(DType::E4m3Fnuz, &divided), None),
        CacheFormat::Nvfp4 => {
            let group = match op.quantiser {
                Quantiser::Vendor => Nvfp4Quantiser::Vendor.quantise_unchecked(&sixteen(&divided), 1.0),
                Quantiser::Reciprocal => {
                    Nvfp4Quantiser::Reciprocal.quantise_unchecked(&sixteen(values), scale)
                }
            };
            (group.group.codes.to_vec(), Some(group.group.scale.to_bits()))
        }
    }
}

fn sixteen(values: &[f32]) -> [f32; GROUP] {
    std::array::from_fn(|i| values.get(i).copied().unwrap_or(0.0))
}

fn check_queries(
    oracle: &Oracle<'_>,
    op: &Append,
    tally: &mut Tally,
    source: Role,
    norm: Role,
    output: Role,
) -> Result<()> {
    let tensor = Image::tensor(oracle.args, output)?;
    for row in 0..oracle.batch.request_of.len() {
        for head in 0..tensor.extent(1) {
            let wanted = transformed(oracle, op, source, Some(norm), row, head as u32)?;
            let got = widen(tensor.dtype, oracle.image.row(&tensor, &[row as u64, head])?);
            for (channel, (got, want)) in got.into_iter().zip(&wanted).enumerate() {
                let place = || format!("{}[t={row},h={head},d={channel}]", output.name());
                let middle = (want.low + want.high) / 2.0;
                match (tensor.dtype, want.bf16()) {
                    (DType::F32, _) if op.rounding == Rounding::Once => {
                        tally.within(tensor.dtype, place(), got, middle, want.high - middle);
                    }
                    (DType::F16, _) if op.rounding == Rounding::Once => {
                        let off = want.high - middle + middle.abs() / 2048.0 + 2f64.powi(-25);
                        tally.within(tensor.dtype, place(), got, middle, off);
                    }
                    (_, Some(value)) => {
                        let want = widen(tensor.dtype, &encode(tensor.dtype, &[value]))[0];
                        tally.within(tensor.dtype, place(), got, want, 0.0);
                    }
                    (_, None) => {}
                }
            }
        }
    }
    Ok(())
}
