//! What a case moves and computes at least.

use msa_core::args::{Axis, Role, contract};
use msa_core::cache::CacheFormat;
use msa_core::error::Result;
use msa_core::lengths::RequestBound;
use msa_core::op::OpKind;

use crate::case::Case;

/// Least work of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Bytes of tensors and of the cache rows that it must touch.
    pub bytes: u64,
    /// Multiplications and additions of its dot products.
    pub flops: u64,
}

impl Cost {
    /// Of a case: every tensor once (of tables that rows pick from, one line a row), and the cache rows of all tokens that
    /// are scored, appended, or attended to by rows that all chose the same blocks.
    pub fn of(case: &Case) -> Result<Self> {
        Ok(Self { bytes: tensor_bytes(case)? + cache_bytes(case), flops: flops(case) })
    }
}

fn tensor_bytes(case: &Case) -> Result<u64> {
    let rows = u64::from(case.rows());
    let requests = case.lengths.0.len() as u64;
    let longest = case.lengths.0.iter().map(|r| u64::from(r.kv_len)).max().unwrap_or(0);
    let extent = |role: Role, axis: &Axis| match (*axis, role) {
        (Axis::Rows, _) => rows,
        (Axis::Requests, _) => requests,
        (Axis::Offsets, _) => requests + 1,
        (Axis::Exactly(n), _) => n,
        (Axis::AtLeast(_), Role::RopeCos | Role::RopeSin) => rows,
        (Axis::AtLeast(_), Role::BlockTable) => case.geometry.pages(longest),
        (Axis::AtLeast(_), Role::Scores) => case.geometry.blocks(longest),
        (Axis::AtLeast(n), _) => n,
        (Axis::States(_), _) => case.choices.states.into(),
    };
    let specs = contract(&case.descriptor()?, &case.bounds()?);
    let bytes = specs.iter().filter(|spec| spec.required).map(|spec| {
        spec.axes.iter().map(|axis| extent(spec.role, axis)).product::<u64>() * spec.dtype.bytes()
    });
    Ok(bytes.sum())
}

/// Tokens that one row of a request attends to at most.
fn attended(case: &Case, kv_len: u32) -> u64 {
    u64::from(kv_len.min(case.geometry.top_k.saturating_mul(case.geometry.block)))
}

fn flops(case: &Case) -> u64 {
    let g = &case.geometry;
    let attention = |tokens: u64| 4 * tokens * u64::from(g.query_heads) * u64::from(g.head_dim);
    let index = |tokens: u64| 2 * tokens * u64::from(g.index_heads) * u64::from(g.index_dim);
    let row = |kv_len: u32| match case.op {
        OpKind::IndexScore => index(kv_len.into()),
        OpKind::SparseDecode | OpKind::SparsePrefill => attention(attended(case, kv_len)),
        OpKind::Step => index(kv_len.into()) + attention(attended(case, kv_len)),
        _ => 0,
    };
    case.lengths.0.iter().map(|r| u64::from(r.query_len) * row(r.kv_len)).sum()
}

fn cache_bytes(case: &Case) -> u64 {
    let (g, t) = (&case.geometry, &case.types);
    let row = |format: CacheFormat, channels| format.row_bytes(channels) + format.scale_row_bytes(channels);
    let kv = 2 * u64::from(g.kv_heads) * row(t.kv, g.head_dim);
    let index = row(t.index, g.index_dim);
    let of = |r: &RequestBound| match case.op {
        _ if r.query_len == 0 => 0,
        OpKind::Append => u64::from(r.query_len) * (kv + index),
        OpKind::IndexScore => u64::from(r.kv_len) * index,
        OpKind::SparseDecode | OpKind::SparsePrefill => attended(case, r.kv_len) * kv,
        OpKind::Step => u64::from(r.kv_len) * index + attended(case, r.kv_len) * kv,
        _ => 0,
    };
    case.lengths.0.iter().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(line: &str) -> Cost {
        Cost::of(&line.parse().unwrap()).unwrap()
    }

    #[test]
    fn bytes_are_those_of_m3() {
        // DESIGN's bytes a token and layer: NVFP4 576 + 72, fp8 1024 + 128.
        let one = |line: &str| cost(line).bytes;
        let cache = |op: &str, types: &str| {
            one(&format!("{op}({types},len=[1x2048])")) - one(&format!("{op}({types},len=[1x0])"))
        };
        let lists = 4 * (2048 / 128);
        assert_eq!(cache("sparse_decode", "kv=nvfp4"), 2048 * 576 + lists);
        assert_eq!(cache("index_score", "ik=fp8") - lists, 2048 * 128 + 4 * 4 * 16);
        assert_eq!(cost("index_score(len=[2x1000])").flops, 2 * 2 * 1000 * 4 * 128);
    }

    #[test]
    fn a_rope_table_is_read_a_line_a_row() {
        let (one, long) = (cost("append(len=[1x100])").bytes, cost("append(len=[1x100000])").bytes);
        assert_eq!(one, long);
    }
}
