//! From a plan to grids: pure functions of the plan and of the kernel's limits. No result depends on them.

use msa_core::cache::CacheFormat;
use msa_core::error::{Error, Result};
use msa_core::lengths::Lengths;
use msa_core::plan::Plan;

use crate::context::Grid;
use crate::images::Kernel;

/// Most blocks of a cluster that Hopper and its successors schedule (above 8 by permission).
pub(crate) const MAX_CLUSTER: u32 = 16;

/// A choice of index kernel: symbol and pairs of (row, head) that it takes at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IndexChoice {
    /// Symbol.
    pub(crate) symbol: &'static str,
    /// (row, head) pairs a block.
    pub(crate) pairs: u32,
    /// Pages that one warpgroup takes at once.
    pub(crate) pages: u32,
}

/// Blocks in all up to which four warps share a page, so that more warps have work. Measured on an H200, driver 580.159, one
/// request, shared and not: 256 blocks of fp8 keys 4.9 us and 6; 1,024 blocks with the selection after them, fp8 13.6 and 13.3,
/// NVFP4 12.6 and 13.8 (a page takes a warp longer).
const fn shared_blocks(keys: CacheFormat) -> u64 {
    match keys {
        CacheFormat::Nvfp4 => 1100,
        _ => 768,
    }
}

/// The index kernel for at most `rows` rows of a request.
pub(crate) fn index_choice(rows: u32, heads: u32, keys: CacheFormat, blocks: u64) -> IndexChoice {
    let pairs = u64::from(rows) * u64::from(heads);
    match pairs {
        0..=8 if blocks <= shared_blocks(keys) => {
            IndexChoice { symbol: "index_score_n1_quad", pairs: 8, pages: 1 }
        }
        0..=8 => IndexChoice { symbol: "index_score_n1", pairs: 8, pages: 4 },
        9..=16 => IndexChoice { symbol: "index_score_n2", pairs: 16, pages: 4 },
        _ => IndexChoice { symbol: "index_score_n4", pairs: 32, pages: 4 },
    }
}

/// A persistent grid: as many blocks as the device holds, or as there is work for.
pub(crate) fn index_grid(plan: &Plan, lengths: &Lengths, choice: &IndexChoice, kernel: &Kernel) -> Grid {
    let g = plan.op.geometry();
    let units = lengths.requests().iter().map(|r| g.blocks(r.kv_len.into()).div_ceil(choice.pages.into()));
    let groups = units.sum::<u64>().div_ceil(2).max(1);
    let most = u64::from(plan.traits.units.max(1) * kernel.blocks);
    let chunks = (lengths.max_query_len() * g.index_heads).div_ceil(choice.pairs).max(1);
    Grid { x: groups.min(most) as u32, y: chunks, cluster: 1 }
}

/// All blocks that the bounds allow.
pub(crate) fn total_blocks(plan: &Plan, lengths: &Lengths) -> u64 {
    lengths.requests().iter().map(|r| plan.op.geometry().blocks(r.kv_len.into())).sum()
}

/// The selection kernel for rows of at most `blocks` blocks: the first keeps 1,024 keys in registers, the second 4,096.
pub(crate) fn select_symbol(blocks: u64) -> &'static str {
    match blocks {
        0..=1024 => "select_small",
        1025..=4096 => "select_medium",
        _ => "select_large",
    }
}

/// One block of threads for each of `per_row` items of every row that the bounds allow.
pub(crate) fn row_grid(lengths: &Lengths, per_row: u32, cluster: u32) -> Result<Grid> {
    let rows = lengths.requests().len() as u64 * u64::from(lengths.max_query_len());
    let blocks = rows * u64::from(per_row) * u64::from(cluster);
    let x = u32::try_from(blocks).ok().filter(|&x| x <= i32::MAX as u32);
    let x = x.ok_or_else(|| Error::invalid("lengths", "at most 2^31 blocks of threads", blocks))?;
    Ok(Grid { x, y: 1, cluster })
}

/// One warp for each of `per_row` items of every row that the bounds allow, four to a block.
pub(crate) fn warp_grid(lengths: &Lengths, per_row: u32) -> Result<Grid> {
    let blocks = (lengths.rows() * u64::from(per_row)).div_ceil(4).max(1);
    let x = u32::try_from(blocks).ok().filter(|&x| x <= i32::MAX as u32);
    let x = x.ok_or_else(|| Error::invalid("lengths", "at most 2^31 blocks of threads", blocks))?;
    Ok(Grid { x, y: 1, cluster: 1 })
}

/// Heads that a block of `append` takes in one pass: 256 threads, eight a head.
const APPEND_HEADS: u64 = 32;

/// Most passes of a block of `append`.
const APPEND_PASSES: u64 = 8;

/// Passes of every block of `append` over `heads` (row, head) pairs: one until the machine has been filled several times.
pub(crate) fn append_passes(heads: u64, units: u32, kernel: &Kernel) -> u32 {
    let waves = heads.div_ceil(APPEND_HEADS) / u64::from((units * kernel.blocks).max(1));
    (waves / 4).clamp(1, APPEND_PASSES) as u32
}

/// How the blocks of `append` share the heads of one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AppendShare {
    /// Blocks.
    pub(crate) blocks: u64,
    /// Blocks after which head 0 is first again.
    pub(crate) period: u32,
    /// Rows that so many blocks take in a pass: a lane keeps its head.
    pub(crate) row_step: u32,
}

/// The share of a tensor of `heads` heads, of `rows` rows.
pub(crate) fn append_share(rows: u64, heads: u32, passes: u32) -> AppendShare {
    if heads == 0 {
        return AppendShare { blocks: 0, period: 1, row_step: 1 };
    }
    // The greatest power of two in both.
    let common = 1 << heads.trailing_zeros().min(APPEND_HEADS.trailing_zeros());
    let (period, row_step) = (heads / common, APPEND_HEADS as u32 / common);
    AppendShare { blocks: rows.div_ceil(u64::from(passes * row_step)) * u64::from(period), period, row_step }
}

/// Rows of a launch of `append`: what the table of `table_bytes` finds the last rows of, so that no count of heads leaves
/// 32 bits.
pub(crate) fn append_rows(table_bytes: u64, most_heads: u32) -> u64 {
    let entries = table_bytes / WINNER_BYTES;
    let rows = if entries == 0 { 0 } else { (1 << entries.ilog2()) / 2 };
    rows.min((1 << 30) / u64::from(most_heads.max(1)))
}

/// Entries of the table for `rows` rows, at most half of which are taken: a power of two.
pub(crate) fn winner_entries(rows: u64) -> u64 {
    (2 * rows).next_power_of_two()
}

/// Bytes of an entry.
pub(crate) const WINNER_BYTES: u64 = 16;

/// Parts of the slots: `[requests][splits]` of (first slot, one past the last), and `splits`, a power of two if a cluster
/// can hold them.
pub(crate) fn split_table(plan: &Plan) -> (Vec<[u32; 2]>, u32) {
    let most = plan.slot_parts.iter().map(|part| part.part + 1).max().unwrap_or(1);
    let splits = if most <= MAX_CLUSTER { most.next_power_of_two() } else { most };
    let mut table = vec![[0, 0]; plan.requests.len() * splits as usize];
    for part in &plan.slot_parts {
        if let Some(entry) = table.get_mut((part.request * splits + part.part) as usize) {
            *entry = [part.slot_begin, part.slot_end];
        }
    }
    (table, splits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use msa_core::plan::SlotPart;

    #[test]
    fn few_pages_are_shared_by_four_warps() {
        assert_eq!(index_choice(1, 4, CacheFormat::E4m3, 256).symbol, "index_score_n1_quad");
        assert_eq!(index_choice(1, 4, CacheFormat::E4m3, 1024).symbol, "index_score_n1");
        assert_eq!(index_choice(1, 4, CacheFormat::Nvfp4, 1024).symbol, "index_score_n1_quad");
        assert_eq!(index_choice(8, 4, CacheFormat::Nvfp4, 64).pairs, 32);
        assert_eq!(index_choice(1, 1, CacheFormat::Nvfp4, 1 << 20).pages, 4);
    }

    #[test]
    fn append_takes_one_pass_until_the_machine_is_full() {
        let kernel = Kernel { symbol: "append_once", threads: 256, shared: 0, blocks: 4 };
        let passes = |rows: u64| append_passes(77 * rows, 132, &kernel);
        assert_eq!([1, 128, 1024, 32_768].map(passes), [1, 1, 1, 8]);
    }

    #[test]
    fn blocks_of_append_cover_every_head_of_every_row_once() {
        for (rows, heads, passes) in
            [(1, 64, 1), (128, 4, 1), (33, 1, 2), (100, 6, 3), (65, 24, 2), (7, 5, 1), (9, 0, 1)]
        {
            let share = append_share(rows, heads, passes);
            let mut seen = vec![0; (rows * u64::from(heads)) as usize];
            for block in 0..share.blocks {
                for lane in 0..APPEND_HEADS {
                    let pair = block % u64::from(share.period) * APPEND_HEADS + lane;
                    let first = block / u64::from(share.period) * u64::from(passes * share.row_step);
                    for pass in 0..u64::from(passes) {
                        let row = first + pair / u64::from(heads) + pass * u64::from(share.row_step);
                        if row < rows {
                            seen[(row * u64::from(heads) + pair % u64::from(heads)) as usize] += 1;
                        }
                    }
                }
            }
            assert!(seen.iter().all(|&times| times == 1), "{rows} {heads} {passes}: {share:?}");
        }
    }

    #[test]
    fn append_launches_hold_the_rows_that_the_table_can_tell_apart() {
        assert_eq!(append_rows(64 * 1000, 64), 1024);
        assert_eq!(append_rows(64, 64), 2);
        assert_eq!(append_rows(0, 64), 0);
        assert_eq!(append_rows(u64::MAX, 64), 1 << 24);
        for rows in [1, 2, 3, 1000, 1025] {
            assert!(winner_entries(rows) * WINNER_BYTES <= 64 * rows && winner_entries(rows) >= 2 * rows);
            assert!(append_rows(winner_entries(rows) * WINNER_BYTES, 1) >= rows);
        }
    }

    #[test]
    fn parts_are_padded_to_a_cluster() {
        let part = |request, part, slot_begin, slot_end| SlotPart { request, part, slot_begin, slot_end };
        let plan = Plan {
            requests: vec![Default::default(); 2],
            slot_parts: vec![part(0, 0, 0, 16), part(1, 0, 0, 6), part(1, 1, 6, 12), part(1, 2, 12, 16)],
            ..Plan::default()
        };
        let (table, splits) = split_table(&plan);
        assert_eq!(splits, 4);
        assert_eq!(table, [[0, 16], [0, 0], [0, 0], [0, 0], [0, 6], [6, 12], [12, 16], [0, 0]]);
    }
}
