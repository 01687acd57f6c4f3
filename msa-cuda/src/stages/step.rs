//! The composite: the stages of a step, with the scores between two of them in the workspace.
//!
//! Every kernel waits for the whole of the kernel before it, and that one has waited for its own predecessor; so whatever an
//! earlier stage wrote is there, though stages are launched before their predecessors end.

use std::sync::Arc;

use msa_core::backend::Span;
use msa_core::error::{Error, Result};
use msa_core::op::{Op, OpKind, Step};
use msa_core::plan::{Plan, SelectKernel};
use msa_core::tensor::{DType, Tensor};

use super::Stage;
use crate::context::Context;
use crate::variants::{stage_ops, stage_variant};

/// The stages of `op`, each prepared as an operation of its own over the step's workspace.
pub(super) fn stages(context: &Arc<Context>, plan: &Plan, op: &Step) -> Result<Vec<Stage>> {
    if plan.windows.len() > 1 {
        let want = "a workspace that holds the scores of all rows at once (the kernels know no windows)";
        return Err(Error::invalid("options.workspace_cap", want, plan.options.cap()));
    }
    let attention_selects = plan.select_kernel == SelectKernel::Attention;
    stage_ops(op)
        .into_iter()
        .filter(|stage| !(attention_selects && stage.kind() == OpKind::Select))
        .map(|stage| {
            let variant = stage_variant(plan.traits.arch, &plan.arithmetic, &stage).ok_or_else(|| {
                let reasons = vec![format!("no {} kernel under {}", stage.name(), plan.arithmetic.name)];
                Error::Unsupported { op: "step", backend: "cuda".to_owned(), reasons }
            })?;
            let plan = Plan { op: stage, variant: variant.name.to_owned(), ..plan.clone() };
            Ok(match Stage::one(context, &plan)? {
                Stage::Decode(stage) if attention_selects => Stage::Decode(stage.selecting(&op.select)),
                stage => stage,
            })
        })
        .collect()
}

/// Where the scores of a step stand: `[rows][index heads][blocks]` f32.
pub(crate) struct Scores {
    offset: u64,
    heads: u64,
    blocks: u64,
}

impl Scores {
    /// `None` for a plan whose scores, if any, are the caller's.
    pub(crate) fn of(plan: &Plan) -> Result<Option<Self>> {
        let Op::Step(op) = &plan.op else { return Ok(None) };
        let geometry = &op.index.geometry;
        let blocks = geometry.blocks(plan.lengths()?.max_kv_len().into());
        // Without a block there are no scores, and no region.
        let offset = plan.region("scores").map_or(0, |region| region.offset);
        if blocks > 0 && offset == 0 {
            return Err(Error::Plan("workspace: want a region 'scores'".to_owned()));
        }
        Ok(Some(Self { offset, heads: geometry.index_heads.into(), blocks }))
    }

    /// Those of a run of `rows` rows.
    pub(crate) fn of_run(&self, rows: u64, workspace: Span) -> Result<Tensor> {
        let address = workspace.address + self.offset;
        Tensor::contiguous(address, DType::F32, &[rows, self.heads, self.blocks])
    }
}
