//! `append`, and the kernels that fill its table of slots.

use msa_core::args::{Args, Role};
use msa_core::cache::{CacheFormat, IndexCache, KvCache, VScaleOrder};
use msa_core::error::Result;
use msa_core::geometry::Geometry;
use msa_core::lengths::{Lengths, RequestBound};
use msa_core::op::{Append, Norm, Op, Quantiser, Rope, Rounding};
use msa_core::plan::PlanOptions;
use msa_core::tensor::{DType, Tensor};

use super::arguments::{AppendArguments, AppendTensor, RowArguments};
use super::batch::with_scalar;
use super::{Fault, Job, Reach, parameter};
use crate::launch::Launch;

/// Inserts the rows of this launch. Launches come in order, so that the last row of a slot is the last to be written.
pub(super) fn run(launch: &Launch, reach: &mut Reach<'_>) -> Result<(), Fault> {
    let a: &AppendArguments = parameter(launch)?;
    let end = a.rows.row_end.min(real_rows(a, reach)?);
    let count = end.saturating_sub(a.rows.row_begin);
    if count == 0 {
        reach.bytes_mut("status", a.status, 4 * u64::from(a.own_status))?.fill(0);
        return Ok(());
    }
    let op = operation(a, launch)?;
    let args = Rows { first: a.rows.row_begin.into(), count: count.into() }.arguments(a, &op)?;
    let lengths = Lengths::new([RequestBound { query_len: count, kv_len: 0 }])?;
    let job = Job { op: Op::Append(op), lengths: &lengths, args, status: a.status, own_status: a.own_status };
    job.run(launch, reach, &[PlanOptions::default()], |_| true)
}

/// The table that these kernels fill is not used here; what they read must be there.
pub(super) fn find_winners(launch: &Launch, reach: &mut Reach<'_>) -> Result<(), Fault> {
    let a: &RowArguments = parameter(launch)?;
    reach.check("slots", a.slots, u64::from(a.rows) * 8)?;
    reach.check("slot_winners", a.winners, u64::from(a.winner_mask) + 1)
}

/// Rows that are not padding: all, or as many as the last offset says.
fn real_rows(a: &AppendArguments, reach: &Reach<'_>) -> Result<u32, Fault> {
    if a.rows.last_offset == 0 {
        return Ok(a.rows.rows);
    }
    let last = reach.words("query_offsets", a.rows.last_offset, 1)?[0] as i32;
    Ok(u32::try_from(last).unwrap_or(0).min(a.rows.rows))
}

fn operation(a: &AppendArguments, launch: &Launch) -> Result<Append, Fault> {
    let [key, value, index_key, index_query, query] = &a.tensors;
    if value.heads != key.heads || index_key.heads != 1 {
        return Err(Fault::new(format!(
            "{} K, {} V, {} index keys",
            key.heads, value.heads, index_key.heads
        )));
    }
    let index_heads = if index_query.heads > 0 { index_query.heads } else { key.heads };
    let query_heads = if query.heads > 0 { query.heads } else { index_heads };
    let geometry = Geometry { query_heads, kv_heads: key.heads, index_heads, ..Geometry::M3 };
    Ok(Append {
        geometry,
        kv: cache_format(key.format)?,
        index: cache_format(index_key.format)?,
        query: query_type(query.format)?,
        index_query: query_type(index_query.format)?,
        norm: Norm { enabled: key.norm != 0, epsilon: a.epsilon },
        rope: Rope { rotary_dim: a.half * 2 },
        rounding: match launch.symbol.as_str() {
            "append_once" | "append_once_many" => Rounding::Once,
            _ => Rounding::PerStep,
        },
        quantiser: if a.reciprocal != 0 { Quantiser::Reciprocal } else { Quantiser::Vendor },
        block_scale_shift: 0,
    })
}

/// Codes of `Stored` in the kernels.
fn cache_format(stored: u32) -> Result<CacheFormat, Fault> {
    match stored {
        0 => Ok(CacheFormat::Bf16),
        2 => Ok(CacheFormat::E4m3),
        3 => Ok(CacheFormat::Nvfp4),
        other => Err(Fault::new(format!("a cache of type {other}"))),
    }
}

fn query_type(stored: u32) -> Result<DType, Fault> {
    match stored {
        0 => Ok(DType::Bf16),
        1 => Ok(DType::F16),
        2 => Ok(DType::E4m3),
        other => Err(Fault::new(format!("a query of type {other}"))),
    }
}

/// Rows of a launch.
struct Rows {
    first: u64,
    count: u64,
}

impl Rows {
    fn arguments(&self, a: &AppendArguments, op: &Append) -> Result<Args> {
        let [key, value, index_key, index_query, query] = &a.tensors;
        let slots = Tensor::contiguous(a.rows.slots + self.first * 8, DType::I64, &[self.count])?;
        let mut args = Args::new()
            .with(Role::Slots, slots)
            .with(Role::KeySource, self.source(key)?)
            .with(Role::ValueSource, self.source(value)?)
            .with(Role::IndexKeySource, self.source(index_key)?)
            .with_kv_cache(kv_cache(a, op.kv))
            .with_index_cache(index_cache(index_key, op.index));
        let queries = [
            (query, Role::QuerySource, Role::Query, op.query),
            (index_query, Role::IndexQuerySource, Role::IndexQuery, op.index_query),
        ];
        for (tensor, source, to, dtype) in queries.into_iter().filter(|(tensor, ..)| tensor.heads > 0) {
            args = args.with(source, self.source(tensor)?).with(to, self.output(tensor, dtype)?);
        }
        if op.norm.enabled {
            // A query that is not there has no weight either.
            let weights = [
                (Role::KeyNorm, key),
                (Role::QueryNorm, query),
                (Role::IndexQueryNorm, index_query),
                (Role::IndexKeyNorm, index_key),
            ];
            for (role, tensor) in weights {
                let address = if tensor.norm == 0 { key.norm } else { tensor.norm };
                args = args.with(role, Tensor::contiguous(address, DType::Bf16, &[128])?);
            }
        }
        if a.half > 0 {
            let table = |address, stride: u64| {
                let shape = [a.rows.positions_end.into(), a.half.into()];
                Tensor::strided(address, DType::F32, &shape, &[stride * 4, 4])
            };
            let positions = Tensor::contiguous(a.rows.positions + self.first * 4, DType::I32, &[self.count])?;
            args = args
                .with(Role::RopeCos, table(a.cosines, a.cosine_row)?)
                .with(Role::RopeSin, table(a.sines, a.sine_row)?)
                .with(Role::Positions, positions);
        }
        let args = with_scalar(args, Role::KeyScale, key.factor)?;
        let args = with_scalar(args, Role::ValueScale, value.factor)?;
        with_scalar(args, Role::IndexKeyScale, index_key.factor)
    }

    fn source(&self, tensor: &AppendTensor) -> Result<Tensor> {
        let address = tensor.source + self.first * tensor.source_row;
        let strides = [tensor.source_row, tensor.source_head, 2];
        Tensor::strided(address, DType::Bf16, &[self.count, tensor.heads.into(), 128], &strides)
    }

    fn output(&self, tensor: &AppendTensor, dtype: DType) -> Result<Tensor> {
        let view = &tensor.output;
        let address = view.address + self.first * view.page_stride;
        let strides = [view.page_stride, view.head_stride, dtype.bytes()];
        Tensor::strided(address, dtype, &[self.count, tensor.heads.into(), 128], &strides)
    }
}

fn kv_cache(a: &AppendArguments, format: CacheFormat) -> KvCache {
    let [key, value, ..] = &a.tensors;
    let scales = format == CacheFormat::Nvfp4;
    KvCache {
        format,
        pages: key.pages,
        key: key.output.into(),
        value: value.output.into(),
        key_scale: scales.then(|| key.scale.into()),
        value_scale: scales.then(|| value.scale.into()),
        v_scale_order: if value.scale_is_quad != 0 { VScaleOrder::TokenQuad } else { VScaleOrder::Linear },
        null_page: u32::try_from(key.null_page).ok(),
    }
}

fn index_cache(key: &AppendTensor, format: CacheFormat) -> IndexCache {
    IndexCache {
        format,
        pages: key.pages,
        key: key.output.into(),
        key_scale: (format == CacheFormat::Nvfp4).then(|| key.scale.into()),
        null_page: u32::try_from(key.null_page).ok(),
    }
}
