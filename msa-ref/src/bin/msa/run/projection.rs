//! Files that hold projections: norm, RoPE and insertion, held to the file's own bits.

use std::sync::Arc;

use msa_core::abi::owned::{Call, OwnedCaches, OwnedTensor};
use msa_core::args::Role;
use msa_core::backend::Device;
use msa_core::cache::CacheFormat;
use msa_core::error::{Error, Result};
use msa_core::geometry::Geometry;
use msa_core::lengths::Lengths;
use msa_core::op::{Append, Norm, Op, Rope, Rounding};
use msa_core::rope::{cos_sin, inverse_frequencies};
use msa_core::tensor::DType;
use msa_ref::input::{Branch, Metadata, Precision, Projection, Step, Tensor};
use msa_ref::sim::append::{HeadNorm, HeadTransform, norm_rope_f32};

use super::Options;
use super::caches::{PageTables, read_back};
use super::stages::{prepare, timed};
use crate::table::{AgreementRow, Report, Verdict, Work};

/// Units in the last place that the unrounded result of `once` may differ from an f32 evaluation.
const F32_ULPS: u32 = 4;

/// Appends the projected tokens with per-step rounding, compares with the file's rotated tensors bit for bit, and the
/// unrounded single-rounding path with the file's f32 tensors.
pub(crate) fn run(
    device: &Arc<dyn Device>,
    metadata: &Metadata,
    file: &Projection,
    options: &Options,
    report: &mut Report,
) -> Result<()> {
    let Some(inputs) = Inputs::of(metadata, file)? else { return Ok(()) };
    let format = options.cache.unwrap_or(CacheFormat::Bf16);
    let appended = append(device, &inputs, format, options, report)?;
    for (branch, got) in [
        (Branch::Q, appended.query),
        (Branch::IndexQ, appended.index_query),
        (Branch::K, appended.key),
        (Branch::IndexK, appended.index_key),
        (Branch::V, appended.value),
    ] {
        let step = if branch == Branch::V { Step::Proj } else { Step::Rope };
        let Some(want) = file.staged(branch, step, Precision::Bf16) else { continue };
        let cached = !matches!(branch, Branch::Q | Branch::IndexQ);
        let judged = !cached || format == CacheFormat::Bf16;
        report.agreement.push(equal_row(branch, &got, &want.to_f32(), judged));
    }
    for branch in [Branch::Q, Branch::K, Branch::IndexQ, Branch::IndexK] {
        report.agreement.extend(f32_row(metadata, file, &inputs, branch)?);
    }
    Ok(())
}

/// What `append` needs of the file.
struct Inputs<'a> {
    geometry: Geometry,
    tokens: u64,
    epsilon: f32,
    rotary_dim: u32,
    /// `[tokens, rotary_dim/2]`.
    cos: Vec<f32>,
    /// `[tokens, rotary_dim/2]`.
    sin: Vec<f32>,
    file: &'a Projection,
}

impl<'a> Inputs<'a> {
    /// `None` if the file has no projections in bf16.
    fn of(metadata: &Metadata, file: &'a Projection) -> Result<Option<Self>> {
        if Branch::ALL.iter().any(|&b| file.staged(b, Step::Proj, Precision::Bf16).is_none()) {
            return Ok(None);
        }
        let number = |value: usize| value as u32;
        let geometry = Geometry {
            query_heads: number(metadata.num_q_heads),
            kv_heads: number(metadata.num_kv_heads),
            index_heads: number(metadata.num_index_heads),
            head_dim: number(metadata.head_dim),
            index_dim: number(metadata.index_head_dim),
            block: number(metadata.block_size),
            page: number(metadata.block_size),
            top_k: metadata.topk.map_or(Geometry::M3.top_k, number),
        }
        .validated()?;
        let missing = |what: &str| Error::invalid(format!("metadata.{what}"), "a number", "none");
        let rotary_dim = number(metadata.rotary_dim.ok_or_else(|| missing("rotary_dim"))?);
        let frequencies = match &file.inv_freq {
            Some(tensor) => tensor.to_f32(),
            None => {
                inverse_frequencies(metadata.rope_theta.ok_or_else(|| missing("rope_theta"))?, rotary_dim)?
            }
        };
        let angles = file
            .positions
            .iter()
            .flat_map(|&p| frequencies.iter().map(move |&f| cos_sin(p.max(0) as u32, f)));
        let (cos, sin) = angles.unzip();
        Ok(Some(Self {
            geometry,
            tokens: file.positions.len() as u64,
            epsilon: metadata.rms_norm_eps.ok_or_else(|| missing("rms_norm_eps"))? as f32,
            rotary_dim,
            cos,
            sin,
            file,
        }))
    }

    fn projected(&self, branch: Branch) -> Result<&'a Tensor> {
        let found = self.file.staged(branch, Step::Proj, Precision::Bf16);
        found.ok_or_else(|| Error::invalid(format!("{}_proj_bf16", branch.name()), "a tensor", "none"))
    }
}

/// Results of `append`, as f32 `[tokens, heads, channels]`.
struct Appended {
    query: Vec<f32>,
    index_query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    index_key: Vec<f32>,
}

fn append(
    device: &Arc<dyn Device>,
    inputs: &Inputs<'_>,
    format: CacheFormat,
    options: &Options,
    report: &mut Report,
) -> Result<Appended> {
    let (g, tokens) = (inputs.geometry, inputs.tokens);
    let op = Append {
        norm: Norm { enabled: true, epsilon: inputs.epsilon },
        rope: Rope { rotary_dim: inputs.rotary_dim },
        rounding: Rounding::PerStep,
        ..Append::plain(g, format, format)
    };
    let count = tokens as i32;
    let (prepared, mut workspace) =
        prepare(device, Op::Append(op), &Lengths::from_lists(&[count], &[count])?, options)?;
    let tables = PageTables::for_lengths(&[count], g.page.into(), options.seed);
    let mut caches = OwnedCaches::new(device, &g, format, format, tables.pages())?;
    let source = |branch: Branch, heads: u32, channels: u32| {
        let tensor = inputs.projected(branch)?;
        OwnedTensor::from_bytes(device, DType::Bf16, &[tokens, heads.into(), channels.into()], tensor.bytes())
    };
    let weight = |branch: Branch| {
        let tensor = inputs.file.norm_weight(branch);
        let tensor =
            tensor.ok_or_else(|| Error::invalid(format!("g_{}", branch.name()), "a tensor", "none"))?;
        OwnedTensor::from_bytes(device, DType::Bf16, &[tensor.len() as u64], tensor.bytes())
    };
    let table = |values: &[f32]| {
        OwnedTensor::from_f32s(device, DType::F32, &[tokens, u64::from(inputs.rotary_dim) / 2], values)
    };
    let zeros = |heads: u32, channels: u32| {
        OwnedTensor::zeros(device, DType::Bf16, &[tokens, heads.into(), channels.into()])
    };
    let q = source(Branch::Q, g.query_heads, g.head_dim)?;
    let k = source(Branch::K, g.kv_heads, g.head_dim)?;
    let v = source(Branch::V, g.kv_heads, g.head_dim)?;
    let iq = source(Branch::IndexQ, g.index_heads, g.index_dim)?;
    let ik = source(Branch::IndexK, 1, g.index_dim)?;
    let weights = [weight(Branch::Q)?, weight(Branch::K)?, weight(Branch::IndexQ)?, weight(Branch::IndexK)?];
    let (cos, sin) = (table(&inputs.cos)?, table(&inputs.sin)?);
    // The tables hold one row a token, so the table's row is the token's number.
    let positions = OwnedTensor::from_i32s(device, &[tokens], &(0..count).collect::<Vec<_>>())?;
    let slots: Vec<i64> = (0..tokens).map(|t| tables.slot(0, t) as i64).collect();
    let slots = OwnedTensor::from_i64s(device, &[tokens], &slots)?;
    let (mut query, mut index_query) =
        (zeros(g.query_heads, g.head_dim)?, zeros(g.index_heads, g.index_dim)?);
    let call = Call::new(&*prepared)
        .input(Role::QuerySource, &q)
        .input(Role::KeySource, &k)
        .input(Role::ValueSource, &v)
        .input(Role::IndexQuerySource, &iq)
        .input(Role::IndexKeySource, &ik)
        .input(Role::QueryNorm, &weights[0])
        .input(Role::KeyNorm, &weights[1])
        .input(Role::IndexQueryNorm, &weights[2])
        .input(Role::IndexKeyNorm, &weights[3])
        .input(Role::RopeCos, &cos)
        .input(Role::RopeSin, &sin)
        .input(Role::Positions, &positions)
        .input(Role::Slots, &slots)
        .output(Role::Query, &mut query)
        .output(Role::IndexQuery, &mut index_query)
        .caches_mut(&mut caches);
    let bytes = Branch::ALL
        .iter()
        .filter_map(|&b| inputs.projected(b).ok())
        .map(|t| 2 * t.bytes().len() as u64)
        .sum();
    report.stages.push(timed("append", &*prepared, call, &mut workspace, Work::Bytes(bytes))?);
    let cached = read_back(&caches, &g, &tables, 0, tokens)?;
    let flat = |rows: Vec<Vec<f64>>| rows.into_iter().flatten().map(|x| x as f32).collect();
    Ok(Appended {
        query: query.to_f32s()?,
        index_query: index_query.to_f32s()?,
        key: flat(cached.keys),
        value: flat(cached.values),
        index_key: flat(cached.index_keys),
    })
}

fn equal_row(branch: Branch, got: &[f32], want: &[f32], judged: bool) -> AgreementRow {
    let pairs = || got.iter().zip(want);
    let mismatches = pairs().filter(|(a, b)| a.to_bits() != b.to_bits()).count() as u64;
    let largest = pairs().map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
    let same = mismatches == 0 && got.len() == want.len();
    let step = if branch == Branch::V { "proj" } else { "rope" };
    AgreementRow {
        quantity: format!("{}_{step}_bf16, rounding per step", branch.name()),
        compared: want.len() as u64,
        mismatches,
        largest_error: Some(largest),
        bound: judged.then_some(0.0),
        verdict: match (judged, same) {
            (false, _) => Verdict::Reported,
            (true, true) => Verdict::Agrees,
            (true, false) => Verdict::Differs,
        },
    }
}

/// The single-rounding path before its rounding, from the file's f32 projections, in units in the last place of the
/// file's f32 result; for rotated channels, in those of the larger channel that goes into the rotation.
fn f32_row(
    metadata: &Metadata,
    file: &Projection,
    inputs: &Inputs<'_>,
    branch: Branch,
) -> Result<Option<AgreementRow>> {
    let staged = |step| file.staged(branch, step, Precision::F32);
    let (Some(from), Some(want), Some(weight)) =
        (staged(Step::Proj), staged(Step::Rope), file.norm_weight(branch))
    else {
        return Ok(None);
    };
    let (heads, channels, pairs) =
        (branch.heads(metadata), branch.dim(metadata), inputs.rotary_dim as usize / 2);
    let (mut values, want, weight) = (from.to_f32(), want.to_f32(), weight.to_f32());
    let (mut mismatches, mut worst) = (0, (0.0, 0.0));
    for (row, (got, want)) in values.chunks_exact_mut(channels).zip(want.chunks_exact(channels)).enumerate() {
        let token = row / heads * pairs..(row / heads + 1) * pairs;
        let norm = Some(HeadNorm { weight: &weight, epsilon: inputs.epsilon });
        let mut normed = got.to_vec();
        norm_rope_f32(&mut normed, &HeadTransform { norm, cos: &[], sin: &[] })?;
        let (cos, sin) = (&inputs.cos[token.clone()], &inputs.sin[token]);
        norm_rope_f32(got, &HeadTransform { norm, cos, sin })?;
        for (c, (&a, &b)) in got.iter().zip(want).enumerate() {
            // A rotated channel is a difference of two products that may cancel: its rounding is that of the pair.
            let partner = if c < pairs { c + pairs } else { c.saturating_sub(pairs) };
            let scale = if c < 2 * pairs { normed[c].abs().max(normed[partner].abs()) } else { b.abs() };
            let (error, bound) = (f64::from((a - b).abs()), f64::from(F32_ULPS) * ulp(scale));
            mismatches += u64::from(error > bound);
            if error * worst.1 >= worst.0 * bound {
                worst = (error, bound);
            }
        }
    }
    Ok(Some(AgreementRow {
        quantity: format!("{}_rope_f32, rounding once, unrounded", branch.name()),
        compared: want.len() as u64,
        mismatches,
        largest_error: Some(worst.0),
        bound: Some(worst.1),
        verdict: if mismatches == 0 { Verdict::Agrees } else { Verdict::Differs },
    }))
}

fn ulp(x: f32) -> f64 {
    f64::from(f32::from_bits(x.abs().to_bits() + 1)) - f64::from(x.abs())
}
