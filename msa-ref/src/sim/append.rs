//! `append`: norm, RoPE, cast or NVFP4-quantise, and insert of K, V and index keys; cast of query and index query.
//!
//! What a device has to reproduce bit for bit, all of it in IEEE f32, to nearest even, with subnormals kept:
//!
//! 1. **Norm and RoPE** of query, key, index query and index key as [`norm_rope_f32`] (`rounding = once`) or
//!    [`norm_rope_per_step`] (`per_step`) state them. Values `V` take no part.
//! 2. **Queries** are rounded once to bf16, f16 or f32; for FP8 the bf16-rounded value is cast, with unit scale.
//! 3. **Cache rows** are rounded to bf16; then divided (`div.rn`) by the tensor scale, if `key_scale`, `value_scale` or
//!    `index_key_scale` is given, so that a reader who multiplies by the scale gets the value back; then cast to the
//!    cache's format or quantised in groups of 16 channels. The `reciprocal` quantiser takes the scale as its global
//!    scale instead, as its definition has it. Block scales are those of the quantiser whatever the
//!    `block_scale_shift`: a reader takes 2^s out of them and folds it back.
//! 4. **NaN**, wherever it is written, is the one NaN that the format's conversions give; as NVFP4 it is code +6 under
//!    scale 448 and sets [`Status::NAN`].
//! 5. **Rows**: the result is that of appending the rows one after the other.
//!    - A position that is negative or beyond the table sets [`Status::POSITION`], and nothing is written for the row.
//!    - Slot -1 and slots of a null page are dropped: the queries are written, the caches are not.
//!    - Any other slot outside a cache sets [`Status::SLOT`] and is dropped from that cache.
//!    - Of several rows with one slot the last one that has a valid position wins; the others leave no trace in the
//!      cache, and a NaN in them sets no bit.

mod encode;
mod norm_rope;
mod row;
mod slots;
mod validate;
mod write;

pub use norm_rope::{HeadNorm, HeadTransform, norm_rope_f32, norm_rope_per_step};
pub(crate) use validate::findings;

use msa_core::abi::host::{HostKernel, HostMemory};
use msa_core::args::{Args, Extents};
use msa_core::backend::{Span, Status};
use msa_core::error::{Error, Result};
use msa_core::op::{Append, Op};
use msa_core::plan::Plan;
use rayon::prelude::*;

use row::RowBuilder;
use slots::{SameSlot, place_rows};
use write::Writer;

/// `append` as a kernel on host memory.
#[derive(Debug, Clone)]
pub struct AppendKernel {
    plan: Plan,
}

impl AppendKernel {
    /// A kernel that executes `plan`. Error: the plan appends nothing.
    pub fn new(plan: Plan) -> Result<Self> {
        append_of(&plan.op)?;
        Ok(Self { plan })
    }
}

impl HostKernel for AppendKernel {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn run(
        &self,
        memory: &mut HostMemory<'_>,
        args: &Args,
        extents: Extents,
        _workspace: Span,
    ) -> Result<Status> {
        run(&self.plan, memory, args, extents)
    }
}

/// Executes the `append` of `plan`, be it alone or part of a step, on all `extents.rows` rows.
///
/// Device-resident values that are wrong are skipped and reported; a checked plan has refused them before. Errors: the
/// plan has no append, or `args` did not pass its contract.
pub(crate) fn run(plan: &Plan, memory: &mut HostMemory<'_>, args: &Args, extents: Extents) -> Result<Status> {
    let op = append_of(&plan.op)?;
    if extents.rows == 0 {
        return Ok(Status::default());
    }
    let builder = RowBuilder::new(op, memory, args)?;
    let writer = Writer::new(op, args)?;
    let (places, mut status) = place_rows(op, memory, args, extents.rows, SameSlot::Last)?;
    for (window, places) in places.chunks(WINDOW_ROWS).enumerate() {
        let first = window * WINDOW_ROWS;
        let shared = &*memory;
        let rows = places
            .par_iter()
            .enumerate()
            .filter_map(|(i, place)| Some((first + i, place.as_ref()?)))
            .map(|(row, place)| Ok((row, place, builder.build(shared, row as u64, place)?)))
            .collect::<Result<Vec<_>>>()?;
        for (row, place, bytes) in &rows {
            writer.write(memory, *row as u64, place, bytes)?;
            status.0 |= if bytes.saw_nan { Status::NAN } else { 0 };
        }
    }
    Ok(status)
}

fn append_of(op: &Op) -> Result<&Append> {
    match op {
        Op::Append(op) => Ok(op),
        Op::Step(step) if step.appends => Ok(&step.append),
        other => Err(Error::invalid("plan.op", "append, or a step that appends", other.name())),
    }
}

/// Rows that are built before they are written: at M3's heads 20 MiB of bf16. Bounds the memory, changes no result.
const WINDOW_ROWS: usize = 1024;
