use super::given::Given;
use super::select::check_blocks;
use super::workspace::{Need, product};
use super::{ContextParallel, PlanOptions};
use crate::error::{Result, require};
use crate::op::{IndexScore, Op};

/// Bytes of the flags of one rank: a line of its own, so that peers do not write to one.
pub(super) const FLAG_BYTES: u64 = 128;

/// Checks world and rank; every op but `index_score` runs on one rank.
pub(super) fn check(op: &Op, options: &PlanOptions) -> Result<()> {
    let (world, rank) = (options.world, options.rank);
    let most = PlanOptions::MAX_WORLD;
    require((1..=most).contains(&world), "options.world", format!("1 to {most}"), world)?;
    require(rank < world, "options.rank", format!("below world = {world}"), rank)?;
    let Op::IndexScore(index) = op else {
        return require(
            world == 1,
            "options.world",
            format!("1: {} is not divided over ranks", op.name()),
            world,
        );
    };
    let (page, block) = (index.geometry.page, index.geometry.block);
    let want = format!("block = {block} where pages are divided over ranks");
    require(world == 1 || page == block, "geometry.page", want, page)
}

/// What a rank keeps beside its scores: the index queries of all heads, the candidate keys of all ranks, and one line
/// of flags a rank. Nothing on a single device.
pub(super) fn needs(op: &IndexScore, given: &Given) -> Result<Vec<Need>> {
    let world = u64::from(given.options.world);
    if world <= 1 {
        return Ok(Vec::new());
    }
    check_blocks(&op.geometry, given)?;
    let g = &op.geometry;
    let queries = product(&[g.index_heads.into(), g.index_dim.into(), op.query.bytes()]);
    Ok(vec![
        Need::per_row("gathered_queries", queries),
        Need::per_row("candidate_keys", product(&[world, keys_bytes(op)])),
        Need::fixed("flags", product(&[world, FLAG_BYTES])),
    ])
}

/// The exchange of windows of `rows` rows: each rank hands over its k best keys of every row and index head.
pub(super) fn exchange(op: &IndexScore, given: &Given, rows: u64) -> ContextParallel {
    let (world, rank) = (given.options.world, given.options.rank);
    if world <= 1 {
        return ContextParallel { world, rank, keys_per_list: 0, exchange_bytes: 0 };
    }
    let exchange_bytes = keys_bytes(op).saturating_mul(rows);
    ContextParallel { world, rank, keys_per_list: op.geometry.top_k, exchange_bytes }
}

/// Bytes of a row's keys from one rank, u64 each.
fn keys_bytes(op: &IndexScore) -> u64 {
    u64::from(op.geometry.index_heads) * u64::from(op.geometry.top_k) * 8
}
