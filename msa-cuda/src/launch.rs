//! From a plan to grids: pure functions of the plan and of the kernel's limits. No result depends on them.

use msa_core::cache::CacheFormat;
use msa_core::error::{Error, Result};
use msa_core::lengths::Lengths;
use msa_core::plan::{DecodeBlocks, Plan};

use crate::context::Grid;
use crate::images::Kernel;

/// Most blocks of a cluster that Hopper and its successors schedule (above 8 by permission).
pub(crate) const MAX_CLUSTER: u32 = 16;

/// Most blocks along y of a grid (CUDA C++ Programming Guide, technical specifications).
pub(crate) const MAX_GRID_Y: u32 = 65_535;

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
/// request, shared and not: 256 blocks 4.2 us and 6.0 (an earlier kernel); 1,024 blocks with the selection after them, fp8 13.6
/// and 13.3, NVFP4 12.6 and 13.8 (a page takes a warp longer).
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

/// The kernel of sparse decode for what the plan gives a block of threads.
pub(crate) fn decode_symbol(blocks: DecodeBlocks) -> Option<&'static str> {
    match blocks {
        DecodeBlocks::None => None,
        DecodeBlocks::Full => Some("sparse_decode"),
        DecodeBlocks::Few => Some("sparse_decode_few"),
        DecodeBlocks::Lone => Some("sparse_decode_lone"),
        DecodeBlocks::Pair => Some("sparse_decode_pair"),
        DecodeBlocks::FewPair => Some("sparse_decode_few_pair"),
    }
}

/// Shared memory through which the blocks of a cluster exchange `parts` parts each: 16 heads of 128 f32, m and l, and a
/// barrier. A block on its own does without.
pub(crate) const fn exchange_bytes(parts: u32) -> u32 {
    parts * 16 * (128 * 4 + 8) + 16
}

/// One warp for each of `per_row` items of every row that the bounds allow, four to a block.
pub(crate) fn warp_grid(lengths: &Lengths, per_row: u32) -> Result<Grid> {
    let blocks = (lengths.rows() * u64::from(per_row)).div_ceil(4).max(1);
    let x = u32::try_from(blocks).ok().filter(|&x| x <= i32::MAX as u32);
    let x = x.ok_or_else(|| Error::invalid("lengths", "at most 2^31 blocks of threads", blocks))?;
    Ok(Grid { x, y: 1, cluster: 1 })
}

/// Heads that a block of `append` takes in one pass: 128 threads, eight a head.
const APPEND_HEADS: u64 = 16;

/// Most passes of a block of `append`.
const APPEND_PASSES: u64 = 8;

/// Passes of every block of `append` over `heads` (row, head) pairs: one until the machine has been filled several times.
pub(crate) fn append_passes(heads: u64, units: u32, kernel: &Kernel) -> u32 {
    let waves = heads.div_ceil(APPEND_HEADS) / u64::from((units * kernel.blocks).max(1));
    (waves / 4).clamp(1, APPEND_PASSES) as u32
}

/// How the blocks of `append` share its work: each group of `16 * passes` rows takes as many blocks, a range of them for each
/// tensor, so that tensors run side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AppendGrid {
    /// Blocks in all.
    pub(crate) blocks: u64,
    /// Blocks of a group.
    pub(crate) group_blocks: u32,
    /// The first block of each tensor in a group.
    pub(crate) first_blocks: [u32; 5],
    /// `n / group_blocks` is `n * magic >> 32 >> shift` for n below 2^31.
    pub(crate) magic: u32,
    /// See there.
    pub(crate) shift: u32,
}

/// The grid for `rows` rows of five tensors of so many heads. Fewer rows than a block has heads need fewer blocks.
pub(crate) fn append_grid(rows: u64, heads: [u32; 5], passes: u32) -> AppendGrid {
    let in_pass = rows.next_power_of_two().min(APPEND_HEADS) as u32;
    let mut first_blocks = [0; 5];
    let mut group_blocks = 0;
    for (first, heads) in first_blocks.iter_mut().zip(heads) {
        *first = group_blocks;
        let (period, row_step) = append_turn(heads);
        group_blocks += if heads == 0 { 0 } else { in_pass.div_ceil(row_step) * period };
    }
    // 2^(31 + bits) / blocks rounded up, with 2^bits at least blocks: 32 bits that are exact for 31-bit numbers.
    let bits = group_blocks.next_power_of_two().trailing_zeros().max(1);
    let magic = (1_u64 << (31 + bits)).div_ceil(group_blocks.max(2).into()) as u32;
    let blocks = rows.div_ceil(APPEND_HEADS * u64::from(passes)) * u64::from(group_blocks);
    AppendGrid { blocks, group_blocks, first_blocks, magic, shift: bits - 1 }
}

/// Within a group, blocks of a tensor of `heads` heads after which head 0 is first again, and the rows that so many blocks
/// take in a pass: a lane keeps its head.
pub(crate) fn append_turn(heads: u32) -> (u32, u32) {
    if heads == 0 {
        return (1, 1);
    }
    // The greatest power of two in both.
    let common = 1 << heads.trailing_zeros().min(APPEND_HEADS.trailing_zeros());
    (heads / common, APPEND_HEADS as u32 / common)
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
        let kernel = Kernel { symbol: "append_once", threads: 128, shared: 0, blocks: 8 };
        let passes = |rows: u64| append_passes(77 * rows, 132, &kernel);
        assert_eq!([1, 128, 1024, 32_768].map(passes), [1, 1, 1, 8]);
    }

    /// Walks the blocks as append.cu does.
    #[test]
    fn blocks_of_append_cover_every_head_of_every_row_once() {
        let (m3, odd, small) = ([4, 4, 1, 4, 64], [3, 3, 1, 6, 24], [1, 1, 1, 0, 5]);
        for (rows, heads, passes) in
            [(1, m3, 1), (5, m3, 1), (128, m3, 1), (100, m3, 3), (65, odd, 2), (7, small, 1), (40, small, 1)]
        {
            let grid = append_grid(rows, heads, passes);
            let mut seen = [(); 5].map(|()| std::collections::HashMap::new());
            for number in 0..grid.blocks as u32 {
                let (group, block) = (number / grid.group_blocks, number % grid.group_blocks);
                let kind = (1..5).filter(|&k| block >= grid.first_blocks[k]).count();
                let (heads, (period, row_step)) = (heads[kind], append_turn(heads[kind]));
                let unit = block - grid.first_blocks[kind];
                let first = group * passes * APPEND_HEADS as u32 + unit / period * passes * row_step;
                for pair in (0..APPEND_HEADS as u32).map(|lane| unit % period * APPEND_HEADS as u32 + lane) {
                    for row in (0..passes).map(|pass| u64::from(first + pair / heads + pass * row_step)) {
                        *seen[kind].entry((row, pair % heads)).or_insert(0) += u32::from(row < rows);
                    }
                }
            }
            for (seen, heads) in seen.iter().zip(heads) {
                let times = seen.values().filter(|&&times| times > 0);
                assert_eq!(times.clone().count() as u64, rows * u64::from(heads), "{rows} {heads} {passes}");
                assert!(times.into_iter().all(|&times| times == 1), "{rows} {heads} {passes}");
            }
        }
    }

    #[test]
    fn few_rows_take_few_blocks() {
        let blocks = |rows| append_grid(rows, [4, 4, 1, 4, 64], 1).blocks;
        assert_eq!([1, 2, 8, 16, 17, 128].map(blocks), [8, 12, 39, 77, 154, 616]);
        assert!((1..300).all(|rows| blocks(rows) <= blocks(rows + 1)));
    }

    #[test]
    fn blocks_are_divided_by_those_of_a_group_exactly() {
        for heads in (2..300).chain([1 << 20, (1 << 20) + 16]) {
            let AppendGrid { group_blocks, magic, shift, .. } = append_grid(16, [heads, 0, 1, 0, 0], 1);
            let near =
                [group_blocks - 1, group_blocks, 7 * group_blocks - 1, 7 * group_blocks, (1 << 31) - 1];
            for n in (0..40_u32).map(|i| i * 53_687_091).chain(near) {
                let quotient = (u64::from(n) * u64::from(magic)) >> 32 >> shift;
                assert_eq!(quotient as u32, n / group_blocks, "{n} / {group_blocks}");
            }
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
