//! Where the kernels' numbers come from: tensors and paged caches in host memory.

use half::{bf16, f16};
use msa_core::abi::host::HostMemory;
use msa_core::args::{Args, Role};
use msa_core::backend::Status;
use msa_core::cache::IndexCache;
use msa_core::error::{Error, Result};
use msa_core::format::{E4m3, E4m3Fnuz};
use msa_core::op::{Attention, IndexScore};
use msa_core::tensor::{DType, Tensor};

use crate::sim::batch::Batch;
use crate::sim::block::{BlockSource, QuerySource};
use crate::sim::paged::{Decoding, PagedRows};

/// Rows `[T, heads, channels]` of a tensor, widened to f32.
pub(super) struct TensorRows<'m> {
    memory: &'m HostMemory<'m>,
    tensor: Tensor,
}

impl<'m> TensorRows<'m> {
    pub(super) fn new(memory: &'m HostMemory<'m>, tensor: Tensor) -> Result<Self> {
        Ok(Self { memory, tensor })
    }
}

impl QuerySource for TensorRows<'_> {
    fn query(&self, row: u32, head: u32, out: &mut [f32]) -> Result<()> {
        let bytes = self.memory.row(&self.tensor, &[row.into(), head.into()])?;
        let halves = bytes.as_chunks().0.iter();
        match self.tensor.dtype {
            DType::Bf16 => {
                out.iter_mut().zip(halves).for_each(|(o, b)| *o = bf16::from_le_bytes(*b).to_f32())
            }
            DType::F16 => out.iter_mut().zip(halves).for_each(|(o, b)| *o = f16::from_le_bytes(*b).to_f32()),
            DType::F32 => {
                let words = bytes.as_chunks().0.iter();
                out.iter_mut().zip(words).for_each(|(o, b)| *o = f32::from_le_bytes(*b));
            }
            DType::E4m3 => out.iter_mut().zip(bytes).for_each(|(o, &b)| *o = E4m3::from_bits(b).to_f32()),
            DType::E4m3Fnuz => {
                out.iter_mut().zip(bytes).for_each(|(o, &b)| *o = E4m3Fnuz::from_bits(b).to_f32())
            }
            other => return Err(Error::invalid("query.dtype", "a floating-point type", other)),
        }
        Ok(())
    }
}

/// Tensor scales of attention and where they go.
pub(super) struct AttentionFactors {
    /// `((softmax scale * q scale) * k factor)`, the k factor being what is not applied before rounding.
    pub(super) scale: f32,
    /// Factor of the output.
    pub(super) value: f32,
    keys: Decoding,
    values: Decoding,
}

impl AttentionFactors {
    pub(super) fn read(memory: &HostMemory<'_>, args: &Args, op: &Attention) -> Result<Self> {
        let decoding = |role| -> Result<(Decoding, f32)> {
            let scale = scalar(memory, args, role)?;
            Ok(Decoding::of(op.cache, op.dequantise, op.block_scale_shift, op.scale_fold, scale))
        };
        let (keys, key_factor) = decoding(Role::KeyScale)?;
        let (values, value) = decoding(Role::ValueScale)?;
        let scale = op.scale() * scalar(memory, args, Role::QueryScale)? * key_factor;
        Ok(Self { scale, value, keys, values })
    }
}

/// Keys and values of a KV cache.
pub(super) struct PagedBlocks<'m> {
    keys: PagedRows<'m>,
    values: PagedRows<'m>,
}

impl<'m> PagedBlocks<'m> {
    pub(super) fn new(
        memory: &'m HostMemory<'m>,
        batch: &'m Batch,
        args: &Args,
        op: &Attention,
        factors: &AttentionFactors,
    ) -> Result<Self> {
        let cache = args.kv_cache.ok_or(Error::Missing { op: "attention", role: "kv_cache" })?;
        Ok(Self {
            keys: PagedRows::keys(memory, batch, &op.geometry, &cache, factors.keys)?,
            values: PagedRows::values(memory, batch, &op.geometry, &cache, factors.values)?,
        })
    }

    pub(super) fn status(&self) -> Status {
        self.keys.status().with(self.values.status())
    }
}

impl BlockSource for PagedBlocks<'_> {
    fn keys(&self, request: u32, kv_head: u32, block: u32, rows: &mut [f32]) -> Result<bool> {
        self.keys.decode(request, kv_head, block, rows)
    }

    fn values(&self, request: u32, kv_head: u32, block: u32, rows: &mut [f32]) -> Result<bool> {
        self.values.decode(request, kv_head, block, rows)
    }
}

/// Index keys.
pub(super) struct PagedIndex<'m> {
    keys: PagedRows<'m>,
    /// Factor of the scores: the tensor scales of both sides, as far as they are not applied before rounding.
    pub(super) factor: f32,
}

impl<'m> PagedIndex<'m> {
    pub(super) fn new(
        memory: &'m HostMemory<'m>,
        batch: &'m Batch,
        args: &Args,
        op: &IndexScore,
    ) -> Result<Self> {
        let cache: IndexCache =
            args.index_cache.ok_or(Error::Missing { op: "index_score", role: "index_cache" })?;
        let scale = scalar(memory, args, Role::IndexKeyScale)?;
        let (how, rest) = Decoding::of(op.keys, op.dequantise, op.block_scale_shift, op.scale_fold, scale);
        let factor = scalar(memory, args, Role::IndexQueryScale)? * rest;
        Ok(Self { keys: PagedRows::index(memory, batch, &op.geometry, &cache, how)?, factor })
    }

    pub(super) fn status(&self) -> Status {
        self.keys.status()
    }
}

impl BlockSource for PagedIndex<'_> {
    fn keys(&self, request: u32, _: u32, block: u32, rows: &mut [f32]) -> Result<bool> {
        self.keys.decode(request, 0, block, rows)
    }

    fn values(&self, _: u32, _: u32, _: u32, _: &mut [f32]) -> Result<bool> {
        Ok(false)
    }
}

/// An optional f32 scalar, 1 if it is not there.
fn scalar(memory: &HostMemory<'_>, args: &Args, role: Role) -> Result<f32> {
    match args.tensor(role) {
        Some(tensor) => Ok(f32::from_le_bytes(memory.array(tensor.address)?)),
        None => Ok(1.0),
    }
}
