//! Kernels that can do what they were chosen for, on the device that has them.

use super::holds;
use crate::device::Arch;
use crate::error::Result;
use crate::op::{Op, Select};
use crate::plan::{AppendPlan, DecodeBlocks, IndexKernel, Plan, SelectKernel};

/// Most parts that a cluster of blocks of threads combines.
const MAX_CLUSTER: u32 = 16;

pub(super) fn check(plan: &Plan) -> Result<()> {
    use Arch::{Sm90a, Sm100a, Sm100f, Sm103a, Sm107a};
    let nvidia = matches!(plan.traits.arch, Sm90a | Sm100a | Sm100f | Sm103a | Sm107a);
    let (scores, select, appends, decodes) = match &plan.op {
        Op::IndexScore(op) => (Some(op.keys), None, false, false),
        Op::Select(op) => (None, Some(op), false, false),
        Op::Append(_) => (None, None, true, false),
        Op::SparseDecode(_) => (None, None, false, true),
        Op::Step(step) => (Some(step.index.keys), Some(&step.select), step.appends, !step.prefill),
        Op::SparsePrefill(_) | Op::Merge(_) | Op::SelectMerge(_) => (None, None, false, false),
    };
    let (arch, index) = (plan.traits.arch, plan.index_kernel);
    let fits = match scores.filter(|_| nvidia) {
        Some(keys) => index.reads(keys),
        None => index == IndexKernel::None,
    };
    holds(fits, || format!("index_kernel: {index} for {} on {arch}", plan.op.name()))?;
    check_select(plan, select.filter(|_| nvidia))?;
    check_append(plan, nvidia && appends)?;
    check_decode(plan, nvidia && decodes)
}

/// `op` is what an NVIDIA device selects, if it does.
fn check_select(plan: &Plan, op: Option<&Select>) -> Result<()> {
    let kernel = plan.select_kernel;
    let Some(op) = op else {
        let (op, arch) = (plan.op.name(), plan.traits.arch);
        return holds(kernel == SelectKernel::None, || format!("select_kernel: {kernel} for {op} on {arch}"));
    };
    let attends = plan.decode_blocks;
    holds(kernel.is_done_by(attends), || {
        format!("select_kernel: {kernel} for {} with decode_blocks {attends}", plan.op.name())
    })?;
    let longest = plan.requests.iter().map(|request| u64::from(request.kv_len)).max().unwrap_or(0);
    let blocks = op.geometry.blocks(longest);
    holds(kernel.takes(op, blocks), || {
        format!("select_kernel: {kernel} cannot select these lists from {blocks} blocks")
    })
}

fn check_append(plan: &Plan, appends: bool) -> Result<()> {
    let own = plan.append;
    if !appends {
        let (op, arch) = (plan.op.name(), plan.traits.arch);
        return holds(own == AppendPlan::default(), || format!("append: {own:?} for {op} on {arch}"));
    }
    let (rows, least) = (own.many_rows, AppendPlan::SEARCHED_ROWS);
    holds(rows > least, || format!("append.many_rows: {rows}, where up to {least} rows have no table"))?;
    holds(own.pass_waves > 0 && own.most_passes > 0, || format!("append: no passes in {own:?}"))
}

fn check_decode(plan: &Plan, decodes: bool) -> Result<()> {
    let own = plan.decode_blocks;
    let most = plan.slot_parts.iter().map(|part| part.part + 1).max().unwrap_or(0);
    let able = match own {
        DecodeBlocks::None => !decodes || most == 0,
        DecodeBlocks::Rows => decodes && most == 1,
        DecodeBlocks::Quad => decodes && most == 4,
        _ => decodes && (own.parts() == 1 || (2..=MAX_CLUSTER).contains(&most)),
    };
    holds(able, || format!("decode_blocks: {own} for {} parts on {}", most, plan.traits.arch))
}
