//! The schedule records of a case: what its device builds, from the case's lists or from those that its steps select.

use std::sync::Arc;

use msa_core::args::Role;
use msa_core::backend::Device;
use msa_core::error::{Error, Result};
use msa_core::plan::Plan;
use msa_core::plan::record::{BatchRows, ScheduleRecord};

use super::Run;
use crate::case::Case;
use crate::compare::i32s;
use crate::inputs::{self, Inputs};
use crate::memory::Image;
use crate::oracle::simulate::reference_plan;

/// The plan of `case` on `device`, with the record of each of its windows; none if the operation has no record. The lists
/// of a step are those that the reference selects under the plan.
///
/// Errors: the device does not plan the case, or the reference does not execute it.
pub fn resolve(device: &Arc<dyn Device>, case: &Case) -> Result<(Plan, Vec<ScheduleRecord>)> {
    let op = case.descriptor()?;
    let plan = device.plan(&op, &case.bounds()?, &case.plan_options())?;
    if plan.prefill.windows.is_empty() {
        return Ok((plan, Vec::new()));
    }
    let inputs = inputs::generate(case, &op)?;
    let given = inputs.tensors.iter().find(|t| t.role == Role::BlockIndices).and_then(|t| t.bytes.as_ref());
    let selection = match given {
        Some(bytes) => i32s(bytes),
        None => selected(case, &plan, &inputs)?,
    };
    let batch = &inputs.batch;
    let unsigned = |values: &[i32]| values.iter().map(|v| v.unsigned_abs()).collect::<Vec<_>>();
    let (query_offsets, kv_lengths) = (unsigned(&batch.offsets), unsigned(&batch.kv_lens));
    // A step that appends is given position 0 for rows in front of the first token.
    let first = if case.choices.appends { 0 } else { i64::MIN };
    let position = |row| batch.position(row).max(first) as i32;
    let positions: Vec<i32> = (0..batch.request_of.len()).map(position).collect();
    let rows = BatchRows {
        query_offsets: &query_offsets,
        kv_lengths: &kv_lengths,
        positions: &positions,
        selection: &selection,
    };
    let windows = 0..plan.prefill.windows.len() as u32;
    let records = windows.map(|window| ScheduleRecord::build(&plan, window, &rows)).collect::<Result<_>>()?;
    Ok((plan, records))
}

/// `[T][lists][k]` of the requests' rows, as the reference selects them.
fn selected(case: &Case, plan: &Plan, inputs: &Inputs) -> Result<Vec<i32>> {
    let run = Run::start(&msa_ref::device(), case, &reference_plan(plan)?, inputs)?;
    let contents = run.read()?;
    let image = Image::new(&contents);
    let tensor = Image::tensor(&run.placement.args, Role::BlockIndices)?;
    let row = |row: u64| -> Result<Vec<i32>> {
        let lists = (0..tensor.extent(1)).map(|list| Ok(i32s(image.row(&tensor, &[row, list])?)));
        Ok(lists.collect::<Result<Vec<_>>>()?.concat())
    };
    let rows: Vec<Vec<i32>> = (0..u64::from(case.rows())).map(row).collect::<Result<_>>()?;
    if rows.is_empty() {
        return Err(Error::invalid("case.len", "at least one row", 0));
    }
    Ok(rows.concat())
}
