//! Where the parts of every rank stand, as tables for the kernels.

use super::plan::IndexerPlan;
use super::shared::UNIT;

/// Device addresses of the tables that [`peer_tables`] fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PeerAddresses {
    /// `[world]` where each rank's part of the first exchange begins.
    pub(super) queries: u64,
    /// `[world]` where each rank's part of the last exchange begins.
    pub(super) keys: u64,
    /// `[world]` each rank's flags.
    pub(super) flags: u64,
    /// `[replicas][heads]` scores of row 0.
    pub(super) head_scores: u64,
}

/// The contents of the tables, in the order of [`PeerAddresses`]; `ranks` holds the address of each rank's shared memory as
/// this rank sees it.
pub(super) fn peer_tables(plan: &IndexerPlan, ranks: &[u64]) -> [Vec<u64>; 4] {
    let (shared, rank) = (&plan.shared, u64::from(plan.options.rank));
    let world = u64::from(shared.world);
    // The exchange adds (parity * world + rank) * units. Queries are pushed in odd epochs, and where queries are pushed,
    // keys are in even ones, so that each has one place and the distance between ranks is that of the layout.
    let queries = |base: &u64| {
        let place = base + shared.queries() + rank * shared.rank_query_bytes();
        place.wrapping_sub((world + rank) * UNIT * query_units(plan))
    };
    let heads = 0..shared.heads;
    let replicas = if shared.score_blocks > 0 { shared.replicas() } else { 0 };
    let head_scores = (0..replicas).flat_map(|replica| {
        heads.clone().map(move |head| {
            let owner = owner_of(plan, head) + replica;
            let offset = u64::from(head - shared.heads_of(owner).start) * u64::from(shared.score_blocks) * 4;
            ranks[owner as usize] + shared.scores() + offset + 4 * rank
        })
    });
    [
        ranks.iter().map(queries).collect(),
        ranks.to_vec(),
        ranks.iter().map(|base| base + shared.flags()).collect(),
        head_scores.collect(),
    ]
}

/// The first rank that holds a head.
pub(super) fn owner_of(plan: &IndexerPlan, head: u32) -> u32 {
    if plan.shared.heads >= plan.shared.world {
        head / plan.shared.heads_each()
    } else {
        head * plan.shared.replicas()
    }
}

/// 16-byte units of the queries that a rank pushes.
pub(super) fn query_units(plan: &IndexerPlan) -> u64 {
    let head = u64::from(plan.shared.heads_each()) * u64::from(plan.shared.query_bytes);
    (u64::from(plan.rows()) * head).div_ceil(UNIT)
}
