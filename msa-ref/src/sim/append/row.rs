//! Building the bytes of one row: every head of query, index query, K, V and index key.

use msa_core::abi::host::HostMemory;
use msa_core::args::{Args, Role};
use msa_core::cache::CacheFormat;
use msa_core::error::{Error, Result};
use msa_core::op::{Append, Rounding};
use msa_core::tensor::Tensor;

use super::encode::{CacheCode, CacheRow, decode_bf16, encode_query};
use super::norm_rope::{HeadNorm, HeadTransform, norm_rope_f32, norm_rope_per_step};
use super::slots::Place;

/// Builds rows; holds what does not change from row to row.
pub(super) struct RowBuilder<'a> {
    op: &'a Append,
    query: Option<Source>,
    index_query: Option<Source>,
    key: Source,
    value: Source,
    index_key: Source,
    tables: Option<(Tensor, Tensor)>,
    key_code: CacheCode,
    value_code: CacheCode,
    index_code: CacheCode,
}

/// The bytes of one row.
#[derive(Debug, Default)]
pub(super) struct RowBytes {
    /// `[Hq, D]` in the query's type; empty if the run has no query.
    pub(super) query: Vec<u8>,
    /// `[Hi, Di]` in the index query's type.
    pub(super) index_query: Vec<u8>,
    /// `[Hkv, D]`; empty if the row does not go into the KV cache.
    pub(super) key: CacheRow,
    /// `[Hkv, D]`.
    pub(super) value: CacheRow,
    /// `[1, Di]`; empty if the row does not go into the index cache.
    pub(super) index_key: CacheRow,
    /// A NaN was quantised to NVFP4.
    pub(super) saw_nan: bool,
}

/// A projection `[T, heads, channels]` in bf16 with what is done to its heads.
struct Source {
    tensor: Tensor,
    /// `[channels]`; `None` if the heads are not normed.
    weight: Option<Vec<f32>>,
    /// V is not rotated.
    rotated: bool,
}

/// Cosines and sines of one position.
#[derive(Default)]
struct Angles {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl<'a> RowBuilder<'a> {
    pub(super) fn new(op: &'a Append, memory: &HostMemory<'_>, args: &Args) -> Result<Self> {
        let source = |role, norm| Source::new(op, memory, args, role, norm);
        let optional = |role, norm| args.tensor(role).map(|_| source(role, norm)).transpose();
        let code = |format, role| cache_code(op, memory, args, format, role);
        let table = |role| tensor(args, role).copied();
        let tables = match op.rope.rotary_dim {
            0 => None,
            _ => Some((table(Role::RopeCos)?, table(Role::RopeSin)?)),
        };
        Ok(Self {
            op,
            query: optional(Role::QuerySource, Some(Role::QueryNorm))?,
            index_query: optional(Role::IndexQuerySource, Some(Role::IndexQueryNorm))?,
            key: source(Role::KeySource, Some(Role::KeyNorm))?,
            value: source(Role::ValueSource, None)?,
            index_key: source(Role::IndexKeySource, Some(Role::IndexKeyNorm))?,
            tables,
            key_code: code(op.kv, Role::KeyScale)?,
            value_code: code(op.kv, Role::ValueScale)?,
            index_code: code(op.index, Role::IndexKeyScale)?,
        })
    }

    /// The bytes of `row`. Cache rows are built only where they have a place.
    pub(super) fn build(&self, memory: &HostMemory<'_>, row: u64, place: &Place) -> Result<RowBytes> {
        let angles = self.angles(memory, place.position)?;
        let mut bytes = RowBytes::default();
        if let Some(query) = &self.query {
            self.each_head(memory, query, row, &angles, |x| {
                encode_query(self.op.query, x, &mut bytes.query)
            })?;
        }
        if let Some(query) = &self.index_query {
            self.each_head(memory, query, row, &angles, |x| {
                encode_query(self.op.index_query, x, &mut bytes.index_query)
            })?;
        }
        if place.kv.is_some() {
            bytes.key = self.cache_row(memory, &self.key, &self.key_code, row, &angles)?;
            bytes.value = self.cache_row(memory, &self.value, &self.value_code, row, &angles)?;
        }
        if place.index.is_some() {
            bytes.index_key = self.cache_row(memory, &self.index_key, &self.index_code, row, &angles)?;
        }
        bytes.saw_nan = bytes.key.saw_nan || bytes.value.saw_nan || bytes.index_key.saw_nan;
        Ok(bytes)
    }

    fn cache_row(
        &self,
        memory: &HostMemory<'_>,
        source: &Source,
        code: &CacheCode,
        row: u64,
        angles: &Angles,
    ) -> Result<CacheRow> {
        let mut built = CacheRow::default();
        self.each_head(memory, source, row, angles, |x| {
            code.encode(x, &mut built);
            Ok(())
        })?;
        Ok(built)
    }

    /// Hands every head of a row, normed and rotated, to `take`.
    fn each_head(
        &self,
        memory: &HostMemory<'_>,
        source: &Source,
        row: u64,
        angles: &Angles,
        mut take: impl FnMut(&mut [f32]) -> Result<()>,
    ) -> Result<()> {
        let norm = source.weight.as_deref().map(|weight| HeadNorm { weight, epsilon: self.op.norm.epsilon });
        let (cos, sin) = if source.rotated { (&angles.cos[..], &angles.sin[..]) } else { (&[][..], &[][..]) };
        let transform = HeadTransform { norm, cos, sin };
        let mut values = Vec::new();
        for head in 0..source.tensor.extent(1) {
            decode_bf16(memory.row(&source.tensor, &[row, head])?, &mut values);
            match self.op.rounding {
                Rounding::Once => norm_rope_f32(&mut values, &transform)?,
                Rounding::PerStep => norm_rope_per_step(&mut values, &transform)?,
            }
            take(&mut values)?;
        }
        Ok(())
    }

    fn angles(&self, memory: &HostMemory<'_>, position: u64) -> Result<Angles> {
        let Some((cos, sin)) = &self.tables else { return Ok(Angles::default()) };
        let row = |table: &Tensor| -> Result<Vec<f32>> { Ok(decode_f32(memory.row(table, &[position])?)) };
        Ok(Angles { cos: row(cos)?, sin: row(sin)? })
    }
}

impl Source {
    fn new(
        op: &Append,
        memory: &HostMemory<'_>,
        args: &Args,
        role: Role,
        norm: Option<Role>,
    ) -> Result<Self> {
        let weight = match norm.filter(|_| op.norm.enabled) {
            None => None,
            Some(role) => {
                let mut weight = Vec::new();
                decode_bf16(memory.row(tensor(args, role)?, &[])?, &mut weight);
                Some(weight)
            }
        };
        Ok(Self { tensor: *tensor(args, role)?, weight, rotated: norm.is_some() })
    }
}

/// The tensor of `role`, or the error that it is missing.
pub(super) fn tensor(args: &Args, role: Role) -> Result<&Tensor> {
    args.tensor(role).ok_or(Error::Missing { op: "append", role: role.name() })
}

fn cache_code(
    op: &Append,
    memory: &HostMemory<'_>,
    args: &Args,
    format: CacheFormat,
    role: Role,
) -> Result<CacheCode> {
    let scale = match args.tensor(role) {
        Some(scalar) => memory.f32s(scalar)?.first().copied(),
        None => None,
    };
    Ok(CacheCode { format, scale, quantiser: op.quantiser })
}

fn decode_f32(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}
