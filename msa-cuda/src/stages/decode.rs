//! Sparse decode.

use std::sync::Arc;

use msa_core::args::Role;
use msa_core::cache::{KvCache, VScaleOrder};
use msa_core::error::{Error, Result};
use msa_core::op::{Attention, LseBase, Select};
use msa_core::plan::{Plan, WorkspaceRegion};
use msa_core::tensor::DType;

use super::index::check_token_strides;
use super::{BatchPlan, Run, image, narrow};
use crate::arguments::{DecodeArguments, ListSource, ONE, output_type};
use crate::context::{Context, Function, Grid};
use crate::launch;
use crate::variants::groups;

/// A prepared `sparse_decode`.
pub(crate) struct DecodeStage {
    function: Function,
    grid: Grid,
    /// Combines parts in the workspace, where a cluster cannot.
    combine: Option<(Function, Grid)>,
    batch: BatchPlan,
    parts: u64,
    splits: u32,
    /// (Row, list) pairs that the bounds allow.
    items: u32,
    op: Attention,
    /// Of a step whose attention selects its lists.
    select: Option<Select>,
    partial_outputs: Option<WorkspaceRegion>,
    partial_states: Option<WorkspaceRegion>,
}

impl DecodeStage {
    pub(crate) fn new(context: &Arc<Context>, plan: &Plan, op: &Attention) -> Result<Self> {
        let lengths = plan.lengths()?;
        let (table, splits) = launch::split_table(plan);
        let bytes: Vec<u8> = table.iter().flatten().flat_map(|slot| slot.to_le_bytes()).collect();
        let in_workspace = splits > launch::MAX_CLUSTER;
        if in_workspace && plan.windows.len() > 1 {
            let want = format!("at most {} parts, or a workspace for all rows", launch::MAX_CLUSTER);
            return Err(Error::invalid("options.splits", want, splits));
        }
        let image = image(plan);
        let taken = plan.decode_blocks;
        let fits = splits.is_multiple_of(taken.parts()) && (taken.items() == 1 || splits == 1);
        let symbol = launch::decode_symbol(taken, plan.select_kernel).filter(|_| fits);
        let symbol = symbol.ok_or_else(|| {
            Error::Plan(format!("decode_blocks: want those of a CUDA device for {splits} parts, got {taken}"))
        })?;
        let blocks = splits / taken.parts();
        let cluster = if in_workspace { 1 } else { blocks };
        let mut function = context.function(&image, symbol)?;
        if cluster == 1 && taken.items() == 1 {
            function.kernel.shared -= launch::exchange_bytes(taken.parts());
        }
        if launch::BALANCED_CLUSTERS.contains(&cluster) {
            function.balances_clusters();
        }
        let grid = launch::row_grid(&lengths, groups(op).saturating_mul(blocks), 1)?;
        let items = grid.x / blocks;
        let grid = Grid { x: grid.x.div_ceil(taken.items()), ..grid };
        let combine = if in_workspace {
            let grid = launch::row_grid(&lengths, op.geometry.query_heads, 1)?;
            Some((context.function(&image, "combine_parts")?, Grid { x: grid.x.div_ceil(4), ..grid }))
        } else {
            None
        };
        Ok(Self {
            function,
            grid: Grid { cluster, ..grid },
            combine,
            batch: BatchPlan::new(context, &lengths)?,
            parts: context.table(&bytes)?,
            splits,
            items,
            op: op.clone(),
            select: None,
            partial_outputs: plan.region("partial_outputs").cloned(),
            partial_states: plan.region("partial_states").cloned(),
        })
    }

    /// The stage that selects the lists as well, from the scores of its run.
    pub(crate) fn selecting(self, op: &Select) -> Self {
        Self { select: Some(op.clone()), ..self }
    }

    /// The grid of its first kernel.
    pub(crate) fn grid(&self) -> Grid {
        self.grid
    }

    /// # Safety
    /// As for `Prepared::enqueue`, with the context current.
    pub(crate) unsafe fn enqueue(&self, run: &Run<'_>) -> Result<()> {
        let arguments = self.arguments(run)?;
        // SAFETY: the layout is the kernel's; the caller answers for the addresses.
        unsafe { self.function.launch(run.stream, self.grid, &arguments) }?;
        match &self.combine {
            // SAFETY: as above.
            Some((function, grid)) => unsafe { function.launch(run.stream, *grid, &arguments) },
            None => Ok(()),
        }
    }

    /// The kernel's parameter, or what of the run it cannot take.
    pub(crate) fn arguments(&self, run: &Run<'_>) -> Result<DecodeArguments> {
        let op = &self.op;
        let cache = run.args.kv_cache.ok_or(Error::Missing { op: "sparse_decode", role: "kv_cache" })?;
        check_strides(&cache)?;
        let (query, output) = (run.vectors(Role::Query)?, run.vectors(Role::Output)?);
        let (indices, lse) = (run.tensor(Role::BlockIndices)?, run.args.tensor(Role::Lse));
        let lse = lse.filter(|_| op.output.lse);
        let group_heads = op.geometry.query_heads / groups(op);
        Ok(DecodeArguments {
            batch: self.batch.arguments(run, cache.pages, cache.null_page)?,
            key: cache.key.into(),
            value: cache.value.into(),
            key_scale: cache.key_scale.unwrap_or(cache.key).into(),
            value_scale: cache.value_scale.unwrap_or(cache.value).into(),
            query: query.address,
            query_row: query.stride(0),
            query_head: query.stride(1),
            output: output.address,
            output_row: output.stride(0),
            output_head: output.stride(1),
            lse: lse.map_or(0, |lse| lse.address),
            lse_row: lse.map_or(0, |lse| lse.stride(0)),
            lse_head: lse.map_or(0, |lse| lse.stride(1)),
            indices: indices.address,
            indices_row: indices.stride(0),
            indices_list: indices.stride(1),
            source: self.source(run)?,
            parts: self.parts,
            query_factor: run.address(Role::QueryScale),
            key_factor: run.address(Role::KeyScale),
            value_factor: run.address(Role::ValueScale),
            partial_outputs: run.region(self.partial_outputs.as_ref()),
            partial_states: run.region(self.partial_states.as_ref()),
            softmax_scale: op.scale(),
            k: op.geometry.top_k,
            groups: groups(op),
            group_heads,
            heads_per_kv: op.geometry.group(),
            lists: indices.extent(1) as u32,
            splits: self.splits,
            query_is_e4m3: (op.query == DType::E4m3).into(),
            output_type: output_type(op.output.dtype),
            lse_base_two: (op.output.lse_base == LseBase::Two).into(),
            v_scale_linear: (cache.v_scale_order == VScaleOrder::Linear).into(),
            one: ONE,
            combine_in_workspace: self.combine.is_some().into(),
            items: self.items,
        })
    }

    fn source(&self, run: &Run<'_>) -> Result<ListSource> {
        let Some(op) = &self.select else { return Ok(ListSource::default()) };
        let scores = run.tensor(Role::Scores)?;
        Ok(ListSource {
            scores: scores.address,
            scores_row: scores.stride(0),
            scores_list: scores.stride(1),
            blocks: narrow(scores.extent(2), "scores.shape[2]")?,
            init_blocks: op.init_blocks,
            local_blocks: op.local_blocks,
            pad: 0,
        })
    }
}

/// Most bytes from a token to the next: the kernel counts within a page in 32 bits.
const MAX_TOKEN_STRIDE: u64 = 1 << 24;

fn check_strides(cache: &KvCache) -> Result<()> {
    let data = [("key", cache.key), ("value", cache.value)];
    if let Some((name, view)) = data.iter().find(|(_, view)| view.token_stride > MAX_TOKEN_STRIDE) {
        let field = format!("kv_cache.{name}.token_stride");
        return Err(Error::invalid(field, format!("at most {MAX_TOKEN_STRIDE} bytes"), view.token_stride));
    }
    check_token_strides("kv_cache", cache.format, &data, cache.key_scale.as_ref())?;
    check_token_strides("kv_cache", cache.format, &data, cache.value_scale.as_ref())
}
