//! `sparse_decode`: by row, or by shared page.

use msa_core::args::Role;
use msa_core::cache::VScaleOrder;
use msa_core::error::{Error, Result};
use msa_core::geometry::Grouping;
use msa_core::op;
use msa_core::plan::{RowWindow, shared};
use msa_core::variant::Variant;

use super::{
    KernelLaunch, Name, Run, Sink, before, bits_of_cache, bits_of_query, name, optional_view, planned,
    require_vectors, trick_of_cache, view,
};
use crate::parameters::{self, SharePages, SparseDecode};

/// The kernel of a descriptor that takes row by row.
pub(super) fn kernel_name(op: &op::Attention, arch: &str) -> Name {
    let (query, cache) = (bits_of_query(op.query), bits_of_cache(op.cache));
    name(format_args!("sparse_decode.q{query}kv{cache}.{arch}.{}", trick_of_cache(op.cache)))
}

/// Query heads that are worked through together share a list and a KV head.
struct Units {
    count: u32,
    lists: u32,
    kv_heads: u32,
    heads: u32,
}

impl Units {
    fn of(op: &op::Attention) -> Self {
        let g = &op.geometry;
        let lists = if op.grouping == Grouping::Reduced { 1 } else { g.index_heads };
        let count = lists.max(g.kv_heads).max(1);
        Self { count, lists: lists.max(1), kv_heads: g.kv_heads.max(1), heads: g.query_heads / count }
    }
}

impl Run<'_> {
    pub(super) fn decode(&self, op: &op::Attention, to: &mut Sink<'_>) -> Result<()> {
        let rows = self.tensor(Role::Query)?.extent(0);
        let (variant, shares) = (planned(self.plan), Variant::shares_pages(&self.plan.variant));
        for window in self.windows(rows) {
            if shares {
                self.decode_shared(op, variant, window, to)?;
            } else {
                self.decode_rows(op, variant, window, to)?;
            }
        }
        Ok(())
    }

    /// Row by row; the parts of a row are merged.
    pub(super) fn decode_rows(
        &self,
        op: &op::Attention,
        variant: Name,
        window: RowWindow,
        to: &mut Sink<'_>,
    ) -> Result<()> {
        let mut parameters = self.decode_parameters(op, window)?;
        let grid = [self.tables.groups, Units::of(op).count, self.tables.most_rows];
        let launch = |parameters| KernelLaunch::new("sparse_decode", variant, grid, parameters);
        if self.tables.splits <= 1 {
            return to(launch(&parameters));
        }
        let merge = self.write_partial_states(op, &mut parameters, self.tables.splits, window)?;
        to(launch(&parameters))?;
        to(merge)
    }

    /// Page by page: the record, a partial state for every slot, and the merge.
    fn decode_shared(
        &self,
        op: &op::Attention,
        variant: Name,
        window: RowWindow,
        to: &mut Sink<'_>,
    ) -> Result<()> {
        let mut parameters = self.decode_parameters(op, window)?;
        let k = op.geometry.top_k;
        let merge = self.write_partial_states(op, &mut parameters, k, window)?;
        parameters.record = self.region("shared_pages")?;
        let (units, rows) = (Units::of(op), window.row_end - window.row_begin);
        let tiles = rows.div_ceil(shared::TILE_ROWS);
        let share = SharePages {
            batch: parameters.batch,
            lists: parameters.lists,
            record: parameters.record,
            lse: parameters.lse,
            list_row_stride: parameters.list_row_stride,
            list_head_stride: parameters.list_head_stride,
            lse_part_stride: parameters.lse_part_stride,
            lse_row_stride: parameters.lse_row_stride,
            heads_per_list: op.geometry.query_heads / units.lists,
            list_count: units.lists,
            top_k: k,
            row_begin: window.row_begin,
            row_end: window.row_end,
        };
        let record = name(format_args!("share_pages.i32.{}.sort", self.arch()));
        let pages = rows.min(shared::TILE_ROWS) * k;
        let grid = [pages, units.count, tiles];
        to(KernelLaunch::new("share_pages", record, [tiles, units.lists, 1], &share))?;
        to(KernelLaunch::new("sparse_decode_shared", variant, grid, &parameters))?;
        to(merge)
    }

    /// Makes the launch write partial states `[rows][states]`, normalised outputs and LSEs, and returns their merge.
    fn write_partial_states(
        &self,
        op: &op::Attention,
        parameters: &mut SparseDecode,
        states: u32,
        window: RowWindow,
    ) -> Result<KernelLaunch> {
        let (heads, channels) = (u64::from(op.geometry.query_heads), u64::from(op.geometry.head_dim));
        let (state_bytes, row_states) = (heads * channels * 4, u64::from(states));
        let first = window.row_begin;
        let merge = parameters::Merge {
            outputs: before(self.region("partial_outputs")?, first, row_states * state_bytes),
            lses: before(self.region("partial_states")?, first, row_states * heads * 4),
            sums: 0,
            output: parameters.output,
            lse: parameters.lse,
            batch: parameters.batch,
            partial_state_stride: state_bytes,
            partial_row_stride: row_states * state_bytes,
            partial_head_stride: channels * 4,
            lse_state_stride: heads,
            lse_row_stride: row_states * heads,
            sum_state_stride: 0,
            sum_row_stride: 0,
            output_row_stride: parameters.output_row_stride,
            output_head_stride: parameters.output_head_stride,
            out_lse_row_stride: parameters.lse_row_stride,
            row_begin: first,
            states,
            partial_bf16: false,
            element: parameters.element,
            base_two: false,
        };
        (parameters.output, parameters.lse) = (merge.outputs, merge.lses);
        parameters.output_part_stride = merge.partial_state_stride;
        parameters.output_row_stride = merge.partial_row_stride;
        parameters.output_head_stride = merge.partial_head_stride;
        (parameters.lse_part_stride, parameters.lse_row_stride) =
            (merge.lse_state_stride, merge.lse_row_stride);
        parameters.element = parameters::Element::F32;
        let grid = [window.row_end - first, op.geometry.query_heads, 1];
        Ok(self.merge_launch(grid, &merge))
    }

    fn decode_parameters(&self, op: &op::Attention, window: RowWindow) -> Result<SparseDecode> {
        let cache = self.args.kv_cache.ok_or(Error::Missing { op: "sparse_decode", role: "kv_cache" })?;
        let (query, lists, output) =
            (self.tensor(Role::Query)?, self.tensor(Role::BlockIndices)?, self.tensor(Role::Output)?);
        require_vectors("query", query)?;
        require_vectors("output", output)?;
        let units = Units::of(op);
        let (group_stride, token_stride) = match cache.v_scale_order {
            VScaleOrder::TokenQuad => (4, 1),
            VScaleOrder::Linear => (1, op.geometry.head_dim / 16),
        };
        Ok(SparseDecode {
            query: query.address,
            keys: view(&cache.key),
            key_scales: optional_view(cache.key_scale.as_ref()),
            values: view(&cache.value),
            value_scales: optional_view(cache.value_scale.as_ref()),
            batch: self.batch(query.extent(0), cache.pages, cache.null_page)?,
            parts: self.at.parts,
            lists: lists.address,
            table: self.at.magnitudes,
            query_scale: self.optional(Role::QueryScale),
            key_scale: self.optional(Role::KeyScale),
            value_scale: self.optional(Role::ValueScale),
            output: output.address,
            lse: self.optional(Role::Lse),
            record: 0,
            query_row_stride: query.stride(0),
            query_head_stride: query.stride(1),
            list_row_stride: lists.stride(0) / 4,
            list_head_stride: lists.stride(1) / 4,
            output_part_stride: 0,
            output_row_stride: output.stride(0),
            output_head_stride: output.stride(1),
            lse_part_stride: 0,
            lse_row_stride: self.args.tensor(Role::Lse).map_or(0, |t| t.stride(0) / 4),
            unit_heads: units.heads,
            units_per_list: units.count / units.lists,
            units_per_kv_head: units.count / units.kv_heads,
            list_count: units.lists,
            top_k: op.geometry.top_k,
            row_begin: window.row_begin,
            row_end: window.row_end,
            value_scale_group_stride: group_stride,
            value_scale_token_stride: token_stride,
            element: parameters::Element::of(op.output.dtype),
            softmax_scale: op.scale(),
        })
    }
}
