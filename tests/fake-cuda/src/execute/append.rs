//! `append`. The table of winners stays as it is: the reference finds the last row of a slot itself.

use msa_core::args::{Args, Role};
use msa_core::cache::{CacheFormat, IndexCache, KvCache, VScaleOrder};
use msa_core::geometry::Geometry;
use msa_core::lengths::Lengths;
use msa_core::op::{Append, Norm, Op, Quantiser, Rope, Rounding};
use msa_core::plan::PlanOptions;
use msa_core::tensor::{DType, Tensor};

use super::arguments::{AppendArguments, AppendTensor};
use super::batch::with_scalar;
use super::{Fault, Job, Reach, parameter};
use crate::launch::Launch;

pub(super) fn run(launch: &Launch, reach: &mut Reach<'_>) -> Result<(), Fault> {
    let a: &AppendArguments = parameter(launch)?;
    if a.rows.row_end < a.rows.rows {
        return Ok(()); // the launch of the last rows runs them all: later rows win over earlier ones
    }
    let [key, value, index, index_query, query] = &a.tensors;
    // Heads of queries that are left out do not matter.
    let index_heads = if index_query.heads > 0 { index_query.heads } else { key.heads };
    let query_heads = if query.heads > 0 { query.heads } else { index_heads };
    let op = Append {
        geometry: Geometry { query_heads, kv_heads: key.heads, index_heads, ..Geometry::M3 },
        kv: cache_format(key)?,
        index: cache_format(index)?,
        query: query_type(query),
        index_query: query_type(index_query),
        norm: Norm { enabled: key.norm != 0, epsilon: a.epsilon },
        rope: Rope { rotary_dim: 2 * a.half },
        rounding: if launch.symbol == "append_once" { Rounding::Once } else { Rounding::PerStep },
        quantiser: if a.reciprocal != 0 { Quantiser::Reciprocal } else { Quantiser::Vendor },
        block_scale_shift: 0,
    };
    let rows = live_rows(a, reach)?;
    if rows == 0 {
        return Ok(reach.bytes_mut("status", a.status, 4 * u64::from(a.own_status))?.fill(0));
    }
    let mut args = caches(Args::new(), &op, a);
    for (tensor, source, norm, output) in [
        (key, Role::KeySource, Some(Role::KeyNorm), None),
        (value, Role::ValueSource, None, None),
        (index, Role::IndexKeySource, Some(Role::IndexKeyNorm), None),
        (
            index_query,
            Role::IndexQuerySource,
            Some(Role::IndexQueryNorm),
            Some((Role::IndexQuery, op.index_query)),
        ),
        (query, Role::QuerySource, Some(Role::QueryNorm), Some((Role::Query, op.query))),
    ] {
        args = with_tensor(args, tensor, rows, source, output)?;
        // The contract has weights of queries that are left out too; those of the keys stand in, unread.
        if let Some(role) = norm.filter(|_| op.norm.enabled) {
            let address = if tensor.norm != 0 { tensor.norm } else { key.norm };
            args = args.with(role, Tensor::contiguous(address, DType::Bf16, &[128])?);
        }
    }
    args = with_places(args, a, rows)?;
    let lengths = Lengths::upto(1, rows as u32, 1)?;
    let job = Job { op: Op::Append(op), lengths: &lengths, args, status: a.status, own_status: a.own_status };
    job.run(launch, reach, &[PlanOptions::default()], |_| true)
}

/// Rows before the last offset, where there is one.
fn live_rows(a: &AppendArguments, reach: &Reach<'_>) -> Result<u64, Fault> {
    if a.rows.last_offset == 0 {
        return Ok(a.rows.rows.into());
    }
    let last = reach.words("last offset", a.rows.last_offset, 1)?[0] as i32;
    Ok(u64::try_from(last).unwrap_or(0).min(a.rows.rows.into()))
}

fn caches(args: Args, op: &Append, a: &AppendArguments) -> Args {
    let [key, value, index, ..] = &a.tensors;
    let null_page = |tensor: &AppendTensor| u32::try_from(tensor.null_page).ok();
    let scale = |format, tensor: &AppendTensor| (format == CacheFormat::Nvfp4).then(|| tensor.scale.into());
    let kv = KvCache {
        format: op.kv,
        pages: key.pages,
        key: key.output.into(),
        value: value.output.into(),
        key_scale: scale(op.kv, key),
        value_scale: scale(op.kv, value),
        v_scale_order: if value.scale_is_quad != 0 { VScaleOrder::TokenQuad } else { VScaleOrder::Linear },
        null_page: null_page(key),
    };
    let index = IndexCache {
        format: op.index,
        pages: index.pages,
        key: index.output.into(),
        key_scale: scale(op.index, index),
        null_page: null_page(index),
    };
    args.with_kv_cache(kv).with_index_cache(index)
}

fn with_tensor(
    args: Args,
    tensor: &AppendTensor,
    rows: u64,
    source: Role,
    output: Option<(Role, DType)>,
) -> Result<Args, Fault> {
    if tensor.heads == 0 {
        return Ok(args);
    }
    let shape = [rows, tensor.heads.into(), 128];
    let strides = [tensor.source_row, tensor.source_head, 2];
    let args = args.with(source, Tensor::strided(tensor.source, DType::Bf16, &shape, &strides)?);
    let Some((role, dtype)) = output else { return Ok(args) };
    let view = tensor.output;
    let strides = [view.page_stride, view.head_stride, dtype.bytes()];
    Ok(args.with(role, Tensor::strided(view.address, dtype, &shape, &strides)?))
}

fn with_places(args: Args, a: &AppendArguments, rows: u64) -> Result<Args, Fault> {
    let mut args = args.with(Role::Slots, Tensor::contiguous(a.rows.slots, DType::I64, &[rows])?);
    if a.half > 0 {
        let table = |address, row: u64| {
            let shape = [a.rows.positions_end.into(), a.half.into()];
            Tensor::strided(address, DType::F32, &shape, &[4 * row, 4])
        };
        args = args
            .with(Role::Positions, Tensor::contiguous(a.rows.positions, DType::I32, &[rows])?)
            .with(Role::RopeCos, table(a.cosines, a.cosine_row)?)
            .with(Role::RopeSin, table(a.sines, a.sine_row)?);
    }
    let [key, value, index, ..] = &a.tensors;
    let args = with_scalar(args, Role::KeyScale, key.factor)?;
    let args = with_scalar(args, Role::ValueScale, value.factor)?;
    Ok(with_scalar(args, Role::IndexKeyScale, index.factor)?)
}

/// Codes of `Stored` in append.cu.
fn cache_format(tensor: &AppendTensor) -> Result<CacheFormat, Fault> {
    match tensor.format {
        0 => Ok(CacheFormat::Bf16),
        2 => Ok(CacheFormat::E4m3),
        3 => Ok(CacheFormat::Nvfp4),
        other => Err(Fault::new(format!("a cache of format {other}"))),
    }
}

fn query_type(tensor: &AppendTensor) -> DType {
    match tensor.format {
        1 => DType::F16,
        2 => DType::E4m3,
        _ => DType::Bf16,
    }
}
