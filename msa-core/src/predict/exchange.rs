//! Indexer context parallelism: what ranks hand each other, and how long it takes.

use super::cost::{Costs, SMALL_KERNEL, launches};
use super::{Basis, Batch, Bound, Deployment, Machine, Stage};
use crate::geometry::Geometry;

/// Bytes of a candidate key.
const KEY_BYTES: f64 = 8.0;

/// Bytes of an index query's channel: bf16.
const QUERY_BYTES: f64 = 2.0;

/// Hops of one step: the index queries of all heads out, the candidate keys back.
pub(super) const HOPS: u32 = 2;

/// The stages around the score of divided pages.
pub(super) struct Exchange {
    /// Index queries to every rank.
    pub(super) gather: Stage,
    /// k candidate keys of every row and head to every rank, and the merge of all ranks' keys.
    pub(super) merge: Stage,
    /// Bytes that a rank sends.
    pub(super) bytes: u64,
}

/// `None` on one rank.
pub(super) fn exchange(
    deployment: &Deployment,
    rank: &Geometry,
    batch: &Batch,
    machine: &Machine,
) -> Option<Exchange> {
    if deployment.world <= 1 {
        return None;
    }
    let (whole, peers) = (&deployment.geometry, f64::from(deployment.world) - 1.0);
    let own = f64::from(rank.index_heads) * f64::from(whole.index_dim) * QUERY_BYTES;
    let queries = batch.rows() * own * peers;
    let list = f64::from(whole.top_k) * KEY_BYTES;
    let keys = batch.rows() * f64::from(whole.index_heads) * list * peers;
    let merged = batch.rows() * f64::from(rank.index_heads) * list * (peers + 1.0);
    let hop = machine.hop.value;
    let costs = |name, bytes, fixed| Costs { name, bytes, flops: 0.0, fixed, basis: Basis::Extrapolated };
    let link = |bytes: f64| bytes / machine.link.value;
    let kernel = launches(machine, 1.0, SMALL_KERNEL) - SMALL_KERNEL + machine.launch.value;
    let gather = costs("gather_queries", queries, hop).stage(machine, &[(Bound::Link, link(queries))]);
    let read = merged / machine.hbm_read.value;
    let merge = costs("select_merge", keys, hop + kernel)
        .stage(machine, &[(Bound::Link, link(keys)), (Bound::Hbm, read)]);
    Some(Exchange { gather, merge, bytes: (queries + keys) as u64 })
}
