//! The batch of a kernel's parameter, as arguments of the reference.

use msa_core::args::{Args, Role};
use msa_core::cache;
use msa_core::error::Result;
use msa_core::lengths::{Lengths, RequestBound};
use msa_core::tensor::{DType, Tensor};

use super::arguments::{Batch, View};
use super::{Fault, Reach};

impl Batch {
    /// Bounds of `requests` requests, as the host's table has them.
    ///
    /// Rows behind those of the requests are padding, which further requests of the plan have room for: one stands for them.
    pub(super) fn lengths(&self, reach: &Reach<'_>, requests: u32) -> Result<Lengths, Fault> {
        let words = reach.words("bounds", self.bounds, u64::from(requests) * 2)?;
        let bounds = words.as_chunks().0.iter();
        let mut bounds: Vec<RequestBound> =
            bounds.map(|&[query_len, kv_len]| RequestBound { query_len, kv_len }).collect();
        let rows: u32 = bounds.iter().map(|bound| bound.query_len).sum();
        if self.rows > rows {
            bounds.push(RequestBound { query_len: self.rows - rows, kv_len: 0 });
        }
        Ok(Lengths::new(bounds)?)
    }

    pub(super) fn arguments(&self) -> Result<Args> {
        let (rows, requests) = (u64::from(self.rows), u64::from(self.requests));
        let i32s = |address, shape: &[u64]| Tensor::contiguous(address, DType::I32, shape);
        let mut args = Args::new()
            .with(Role::QueryOffsets, i32s(self.query_offsets, &[requests + 1])?)
            .with(Role::KvLengths, i32s(self.kv_lengths, &[requests])?);
        if self.positions != 0 {
            args = args.with(Role::Positions, i32s(self.positions, &[rows])?);
        }
        if self.block_table != 0 {
            let shape = [requests, self.table_width.into()];
            let table = Tensor::strided(self.block_table, DType::I32, &shape, &[self.table_stride * 4, 4])?;
            args = args.with(Role::BlockTable, table);
        }
        Ok(args)
    }

    pub(super) fn null_page(&self) -> Option<u32> {
        u32::try_from(self.null_page).ok()
    }
}

impl From<View> for cache::View {
    fn from(view: View) -> Self {
        let View { address, page_stride, head_stride, token_stride } = view;
        Self { address, page_stride, head_stride, token_stride }
    }
}

/// `args` with an f32 scalar, if there is one.
pub(super) fn with_scalar(args: Args, role: Role, address: u64) -> Result<Args> {
    if address == 0 {
        return Ok(args);
    }
    Ok(args.with(role, Tensor::contiguous(address, DType::F32, &[1])?))
}
