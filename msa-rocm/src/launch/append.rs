//! `append`: one launch for each tensor that is written.

use msa_core::args::Role;
use msa_core::cache::{CacheFormat, VScaleOrder, View};
use msa_core::error::{Error, Result};
use msa_core::op;
use msa_core::tensor::{DType, Tensor};

use super::{KernelLaunch, Run, Sink, name, optional_view};
use crate::parameters::{self, Batch, PagedView, Parameters};

/// One tensor that `append` writes.
struct Written {
    source: Role,
    norm: Option<Role>,
    /// V is not rotated.
    rotates: bool,
    format: &'static str,
    output: u64,
    strides: [u64; 3],
    scales: PagedView,
    scale_strides: [u32; 3],
    tensor_scale: u64,
    pages: Option<u64>,
    null_page: Option<u32>,
}

/// Pages of a cache.
struct Pages {
    format: &'static str,
    count: u64,
    null: Option<u32>,
}

impl Run<'_> {
    pub(super) fn append(&self, op: &op::Append, to: &mut Sink<'_>) -> Result<()> {
        let (kv, index) = (self.args.kv_cache.as_ref(), self.args.index_cache.as_ref());
        let kv = kv.ok_or(Error::Missing { op: "append", role: "kv_cache" })?;
        let index = index.ok_or(Error::Missing { op: "append", role: "index_cache" })?;
        let cache = |source, norm, data: &View, scales: Option<&View>, scale, pages: &Pages, linear: bool| {
            let scales = optional_view(scales);
            let token = scales.token_stride as u32;
            // K and index keys have their scales token by token; V has four tokens together, in one of two orders.
            let quad = if linear { [4 * token, token, 1] } else { [4 * op.geometry.head_dim / 16, 1, 4] };
            Written {
                source,
                norm,
                rotates: norm.is_some(),
                format: pages.format,
                output: data.address,
                strides: [data.page_stride, data.head_stride, data.token_stride],
                scales,
                scale_strides: quad,
                tensor_scale: self.optional(scale),
                pages: Some(pages.count),
                null_page: pages.null,
            }
        };
        let kv_pages = Pages { format: cache_format(op.kv), count: kv.pages, null: kv.null_page };
        let index_pages = Pages { format: cache_format(op.index), count: index.pages, null: index.null_page };
        let linear = kv.v_scale_order == VScaleOrder::Linear;
        let caches = [
            cache(
                Role::KeySource,
                Some(Role::KeyNorm),
                &kv.key,
                kv.key_scale.as_ref(),
                Role::KeyScale,
                &kv_pages,
                true,
            ),
            cache(
                Role::ValueSource,
                None,
                &kv.value,
                kv.value_scale.as_ref(),
                Role::ValueScale,
                &kv_pages,
                linear,
            ),
            cache(
                Role::IndexKeySource,
                Some(Role::IndexKeyNorm),
                &index.key,
                index.key_scale.as_ref(),
                Role::IndexKeyScale,
                &index_pages,
                true,
            ),
        ];
        for written in &caches {
            to(self.append_one(op, written)?)?;
        }
        for (source, norm, role, dtype) in [
            (Role::QuerySource, Role::QueryNorm, Role::Query, op.query),
            (Role::IndexQuerySource, Role::IndexQueryNorm, Role::IndexQuery, op.index_query),
        ] {
            if let (Some(_), Some(output)) = (self.args.tensor(source), self.args.tensor(role)) {
                to(self.append_one(op, &Written::query(source, norm, output, dtype))?)?;
            }
        }
        Ok(())
    }

    /// Alone, all rows are appended; in a step, those up to the last one of a request.
    fn append_batch(&self, rows: u64) -> Result<Batch> {
        if self.args.tensor(Role::QueryOffsets).is_some() {
            return self.batch(rows, 0, None);
        }
        Ok(Batch { status: self.workspace.address, ..Batch::default() })
    }

    fn append_one(&self, op: &op::Append, written: &Written) -> Result<KernelLaunch> {
        let source = self.tensor(written.source)?;
        let norm = written.norm.filter(|_| op.norm.enabled);
        let table_stride = |role| self.args.tensor(role).map_or(0, |table| table.stride(0) / 4);
        let tables = [Role::RopeCos, Role::RopeSin].into_iter().filter_map(|role| self.args.tensor(role));
        let table_rows = tables.map(|table| table.extent(0) as u32).min();
        let [row_stride, head_stride, token_stride] = written.strides;
        let [scale_quad_stride, scale_token_stride, scale_group_stride] = written.scale_strides;
        let parameters = parameters::Append {
            source: source.address,
            norm: norm.map_or(0, |role| self.optional(role)),
            cosines: self.optional(Role::RopeCos),
            sines: self.optional(Role::RopeSin),
            // Without RoPE positions play no part.
            positions: if op.rope.rotary_dim > 0 { self.optional(Role::Positions) } else { 0 },
            slots: if written.pages.is_some() { self.tensor(Role::Slots)?.address } else { 0 },
            live: self.live_rows()?,
            tensor_scale: written.tensor_scale,
            output: written.output,
            scales: written.scales.base,
            batch: self.append_batch(source.extent(0))?,
            source_row_stride: source.stride(0),
            source_head_stride: source.stride(1),
            cosine_stride: table_stride(Role::RopeCos),
            sine_stride: table_stride(Role::RopeSin),
            row_stride,
            head_stride,
            token_stride,
            scale_page_stride: written.scales.page_stride,
            scale_head_stride: written.scales.head_stride,
            scale_quad_stride,
            scale_token_stride,
            scale_group_stride,
            rows: source.extent(0) as u32,
            pages: written.pages.unwrap_or(0) as u32,
            half: if written.rotates { op.rope.rotary_dim / 2 } else { 0 },
            table_rows: table_rows.unwrap_or(u32::MAX),
            per_step: op.rounding == op::Rounding::PerStep,
            epsilon: op.norm.epsilon,
            null_page: written.null_page,
        };
        Ok(KernelLaunch {
            source: "append",
            variant: name(format_args!("append.{}.{}.row", written.format, self.arch())),
            grid: [source.extent(0) as u32, source.extent(1) as u32, 1],
            threads: 64,
            arguments: parameters.to_bytes(),
        })
    }
}

impl Written {
    fn query(source: Role, norm: Role, output: &Tensor, dtype: DType) -> Self {
        Self {
            source,
            norm: Some(norm),
            rotates: true,
            format: if dtype == DType::Bf16 { "bf16" } else { "fp8" },
            output: output.address,
            strides: [output.stride(0), output.stride(1), 0],
            scales: PagedView::default(),
            scale_strides: [0; 3],
            tensor_scale: 0,
            pages: None,
            null_page: None,
        }
    }
}

fn cache_format(format: CacheFormat) -> &'static str {
    match format {
        CacheFormat::Bf16 => "bf16",
        CacheFormat::E4m3 | CacheFormat::E4m3Fnuz => "fp8",
        CacheFormat::Nvfp4 => "nvfp4",
    }
}
