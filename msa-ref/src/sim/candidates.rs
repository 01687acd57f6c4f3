//! Indexer context parallelism: every rank scores some of the blocks, and the ranks' best candidates merge into the
//! selection that one device would have made, bit for bit.
//!
//! Rank r holds the blocks j with `j mod W == r`. It keeps the `k` largest keys of each (row, index head), with the own
//! block, where it holds it, and the other forced blocks pinned by their forced bit. Keys are unique in a row and their
//! order is total ([`Ranking`]), so a block among the `k` largest of all ranks is among the `k` largest of its own rank:
//! the merge loses nothing, whatever the order in which ranks arrive. A rank without blocks hands over `k` empty keys.

#[cfg(test)]
mod tests;

use msa_core::abi::host::HostMemory;
use msa_core::args::{Args, Extents, Role};
use msa_core::backend::Status;
use msa_core::candidate::CandidateKey;
use msa_core::error::{Error, Result, require};
use msa_core::geometry::Grouping;
use msa_core::op::{Op, Select, SelectMerge, TieRule};
use msa_core::plan::Plan;
use rayon::prelude::*;

use super::select::{MAX_BLOCKS, Ranking, TopKeys, row_windows, store_ids, write_list};

/// The keys that rank `rank` of `world` hands over for one row and index head: `[k]`, descending, then
/// [`CandidateKey::EMPTY`].
///
/// `scores[i]` is the score of block `i * world + rank`, and all blocks of the rank up to `own` must be there. `own` is
/// the row's own block in the whole context, `None` if the row sees nothing: each row of a request has its own, from
/// its global position. Under [`Grouping::Reduced`] the lists stay per head, and the merge reduces.
///
/// # Errors
/// Too few scores, a rank outside the world, `own` beyond [`MAX_BLOCKS`], and [`TieRule::RowRange16`], whose ranks
/// depend on the range of the whole row, which no rank knows.
pub fn local_keys(
    scores: &[f32],
    rank: u32,
    world: u32,
    own: Option<u32>,
    op: &Select,
) -> Result<Vec<CandidateKey>> {
    require(
        op.tie_rule == TieRule::Exact,
        "select.tie_rule",
        "exact over several ranks",
        op.tie_rule.name(),
    )?;
    require(rank < world, "rank", format!("below {world}"), rank)?;
    let k = op.geometry.top_k as usize;
    let mut best = TopKeys::new(k);
    if let Some(own) = own {
        require(own < MAX_BLOCKS, "own block", format!("below {MAX_BLOCKS}"), own)?;
        let held = blocks_held(own + 1, rank, world);
        let scores = scores.get(..held as usize);
        let scores = scores.ok_or_else(|| Error::invalid("scores", format!("at least {held}"), "fewer"))?;
        let ranking = Ranking::new(op, own, None);
        let blocks = (rank..).step_by(world as usize);
        blocks.zip(scores).for_each(|(block, &score)| best.push(ranking.key(block, score)));
    }
    let mut keys = best.into_sorted();
    keys.resize(k, CandidateKey::EMPTY);
    Ok(keys)
}

/// Of `blocks` blocks, how many rank `rank` of `world` holds: those with `j mod world == rank`.
pub const fn blocks_held(blocks: u32, rank: u32, world: u32) -> u32 {
    if blocks > rank { (blocks - rank).div_ceil(world) } else { 0 }
}

/// Merges the keys of all ranks into the list of one row: `out [k]`, ids in the order of `op.order`, then -1.
///
/// `keys` holds the `k` keys of every rank, in any order; under [`Grouping::Reduced`] those of every index head too,
/// and a block's best key counts. Empty keys are skipped, and a key that comes twice counts once.
///
/// # Errors
/// `out` is not `k` long.
pub fn merge_keys(keys: impl IntoIterator<Item = CandidateKey>, op: &Select, out: &mut [i32]) -> Result<()> {
    let k = op.geometry.top_k as usize;
    require(out.len() == k, "block_indices", format!("{k} slots"), out.len())?;
    let mut keys: Vec<CandidateKey> = keys.into_iter().filter(|&key| key != CandidateKey::EMPTY).collect();
    // One key a block: of several the largest, that is the score that a maximum over the heads gives.
    keys.sort_unstable_by(|a, b| a.block().cmp(&b.block()).then(b.cmp(a)));
    keys.dedup_by_key(|key| key.block());
    keys.sort_unstable_by(|a, b| b.cmp(a));
    keys.truncate(k);
    write_list(&keys, op.order, out);
    Ok(())
}

/// Runs [`Op::SelectMerge`]: `candidate_keys [W, T, Hi, k]` to `block_indices [T, lists, k]`. All `T` rows are written.
///
/// # Errors
/// A plan of another op, [`TieRule::RowRange16`], a missing argument, memory outside the run.
pub fn run(plan: &Plan, memory: &mut HostMemory<'_>, args: &Args, extents: Extents) -> Result<Status> {
    let Op::SelectMerge(op) = &plan.op else {
        return Err(Error::Plan(format!("a plan of {}, want select_merge", plan.op.name())));
    };
    let tie_rule = op.select.tie_rule;
    require(tie_rule == TieRule::Exact, "select.tie_rule", "exact over several ranks", tie_rule.name())?;
    let missing = |role: Role| Error::Missing { op: "select_merge", role: role.name() };
    let indices = *args.tensor(Role::BlockIndices).ok_or_else(|| missing(Role::BlockIndices))?;
    for window in row_windows(plan, extents.rows as usize) {
        let shared: &HostMemory<'_> = memory;
        let merged: Vec<Vec<i32>> = window
            .clone()
            .into_par_iter()
            .map(|row| merge_row(op, shared, args, row as u64))
            .collect::<Result<_>>()?;
        for (row, lists) in window.zip(merged) {
            for (list, ids) in lists.chunks(op.geometry.top_k.max(1) as usize).enumerate() {
                store_ids(memory.row_mut(&indices, &[row as u64, list as u64])?, ids);
            }
        }
    }
    Ok(Status::default())
}

fn merge_row(op: &SelectMerge, memory: &HostMemory<'_>, args: &Args, row: u64) -> Result<Vec<i32>> {
    let (heads, k) = (u64::from(op.geometry.index_heads), op.geometry.top_k as usize);
    let keys_of = |heads: std::ops::Range<u64>| -> Result<Vec<CandidateKey>> {
        let mut keys = Vec::new();
        for rank in 0..u64::from(op.world) {
            for head in heads.clone() {
                keys.extend(load_keys(memory, args, &[rank, row, head])?);
            }
        }
        Ok(keys)
    };
    let mut lists = vec![-1; op.select.lists() as usize * k];
    match op.select.grouping {
        Grouping::Reduced => merge_keys(keys_of(0..heads)?, &op.select, &mut lists)?,
        Grouping::PerHead => {
            for (head, list) in (0..heads).zip(lists.chunks_mut(k.max(1))) {
                merge_keys(keys_of(head..head + 1)?, &op.select, list)?;
            }
        }
    }
    Ok(lists)
}

fn load_keys(memory: &HostMemory<'_>, args: &Args, index: &[u64; 3]) -> Result<Vec<CandidateKey>> {
    let tensor = args
        .tensor(Role::CandidateKeys)
        .ok_or(Error::Missing { op: "select_merge", role: Role::CandidateKeys.name() })?;
    let bytes = memory.row(tensor, index)?.chunks_exact(8);
    Ok(bytes
        .filter_map(|c| c.try_into().ok())
        .map(|c| CandidateKey::from_bits(u64::from_le_bytes(c)))
        .collect())
}
