//! Index scoring.

use std::sync::Arc;

use msa_core::args::Role;
use msa_core::cache::{self, IndexCache};
use msa_core::error::{Error, Result};
use msa_core::op::{Dequantise, IndexScore};
use msa_core::plan::Plan;
use msa_core::tensor::DType;

use super::{BatchPlan, Run, image, narrow};
use crate::arguments::{IndexArguments, ONE, View};
use crate::context::{Context, Function, Grid};
use crate::launch;
use crate::variants::ranks_image;

/// A prepared `index_score`.
pub(crate) struct IndexStage {
    function: Function,
    grid: Grid,
    batch: BatchPlan,
    heads: u32,
    query_is_e4m3: bool,
    exact: bool,
    ranks: u32,
}

impl IndexStage {
    pub(crate) fn new(context: &Arc<Context>, plan: &Plan, op: &IndexScore) -> Result<Self> {
        let lengths = plan.lengths()?;
        let heads = op.geometry.index_heads;
        let blocks = lengths.requests().iter().map(|r| op.geometry.blocks(r.kv_len.into()));
        let blocks = blocks.fold(0, u64::saturating_add);
        if blocks > u64::from(u32::MAX) {
            return Err(Error::invalid(
                "lengths",
                "at most 2^32 - 1 blocks in all (the kernel counts them)",
                blocks,
            ));
        }
        let taken = plan.index_kernel;
        let symbol = launch::index_symbol(taken);
        let symbol = symbol
            .ok_or_else(|| Error::Plan(format!("index_kernel: want one of a CUDA device, got {taken}")))?;
        let image = if plan.options.world > 1 { ranks_image(&image(plan)) } else { image(plan) };
        let mut function = context.function(&image, symbol)?;
        let grid = launch::index_grid(plan, &lengths, &function.kernel);
        if launch::has_an_sm_each(grid, plan.traits.units) {
            function.keeps_an_sm();
        }
        if grid.y > launch::MAX_GRID_Y {
            let want =
                format!("at most {} rows a request", launch::MAX_GRID_Y * taken.pairs() / heads.max(1));
            return Err(Error::invalid("lengths.query_len", want, lengths.max_query_len()));
        }
        Ok(Self {
            function,
            grid,
            batch: BatchPlan::new(context, &lengths)?,
            heads,
            query_is_e4m3: op.query == DType::E4m3,
            exact: op.dequantise == Dequantise::Exact,
            ranks: plan.options.rank << 16 | plan.options.world,
        })
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
        unsafe { self.function.launch(run.stream, self.grid, &arguments) }
    }

    /// The kernel's parameter, or what of the run it cannot take.
    pub(crate) fn arguments(&self, run: &Run<'_>) -> Result<IndexArguments> {
        let cache = run.args.index_cache.ok_or(Error::Missing { op: "index_score", role: "index_cache" })?;
        let (key, scale) = views(&cache)?;
        let (query, scores) = (run.vectors(Role::IndexQuery)?, run.tensor(Role::Scores)?);
        Ok(IndexArguments {
            batch: self.batch.arguments(run, cache.pages, cache.null_page)?,
            key,
            scale,
            query: query.address,
            query_row: query.stride(0),
            query_head: query.stride(1),
            scores: scores.address,
            scores_row: scores.stride(0),
            scores_head: scores.stride(1),
            query_factor: run.address(Role::IndexQueryScale),
            key_factor: run.address(Role::IndexKeyScale),
            blocks: narrow(scores.extent(2), "scores.shape[2]")?,
            heads: self.heads,
            query_is_e4m3: self.query_is_e4m3.into(),
            exact: self.exact.into(),
            one: ONE,
            ranks: self.ranks,
        })
    }
}

/// Key and scale views; their strides were validated, what remains is what this kernel alone asks for.
fn views(cache: &IndexCache) -> Result<(View, View)> {
    let scale = cache.key_scale.unwrap_or(cache.key);
    super::index::check_token_strides(
        "index_cache",
        cache.format,
        &[("index_key", cache.key)],
        cache.key_scale.as_ref(),
    )?;
    Ok((cache.key.into(), scale.into()))
}

/// Rows are copied in vectors of 16 bytes; the scales of a page are one piece.
pub(super) fn check_token_strides(
    cache: &str,
    format: cache::CacheFormat,
    data: &[(&str, cache::View)],
    scale: Option<&cache::View>,
) -> Result<()> {
    for (name, view) in data {
        if !view.token_stride.is_multiple_of(16) {
            let field = format!("{cache}.{name}.token_stride");
            return Err(Error::invalid(field, "a multiple of 16 bytes (bulk copies)", view.token_stride));
        }
    }
    let row = format.scale_row_bytes(128);
    match scale {
        Some(view) if view.token_stride != row => {
            let field = format!("{cache}.key_scale.token_stride");
            Err(Error::invalid(field, format!("{row} bytes (one bulk copy)"), view.token_stride))
        }
        _ => Ok(()),
    }
}
