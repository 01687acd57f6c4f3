//! From a plan to grids: pure functions of the plan and of the kernel's limits. No result depends on them.

use msa_core::cache::CacheFormat;
use msa_core::error::{Error, Result};
use msa_core::geometry::Grouping;
use msa_core::lengths::Lengths;
use msa_core::op::{NanRule, Select, SelectOrder};
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
    let pairs = u64::from(lengths.max_query_len()) * u64::from(g.index_heads);
    let chunks = pairs.div_ceil(choice.pairs.into()).max(1);
    let y = u32::try_from(chunks).unwrap_or(u32::MAX);
    Grid { x: index_blocks(units.sum(), kernel, plan.traits.units), y, cluster: 1 }
}

/// Blocks for so many units, of which each warpgroup of a block takes one at once.
fn index_blocks(units: u64, kernel: &Kernel, sms: u32) -> u32 {
    let groups = u64::from((kernel.threads / 128).max(1));
    let most = u64::from(sms.max(1)) * u64::from(kernel.blocks.max(1));
    u32::try_from(units.div_ceil(groups).clamp(1, most)).unwrap_or(u32::MAX)
}

/// All blocks that the bounds allow.
pub(crate) fn total_blocks(plan: &Plan, lengths: &Lengths) -> u64 {
    lengths.requests().iter().map(|r| plan.op.geometry().blocks(r.kv_len.into())).sum()
}

/// Most lists that teams of warps select, of requests of one row and of more. Measured on an H200 (driver 580.159) behind fp8
/// scoring at 128K tokens, against a block of 256 threads a list: up to 512 lists of one row faster; four rows of 1, 8, 32 requests 9%
/// faster, 2% and 1% slower.
const MOST_TEAMS: [u64; 2] = [512, 32];

/// Whether teams of warps select `lists` lists of rows of at most `blocks` blocks, of requests of at most `rows` rows: what
/// `warp_select.cuh` is written for.
fn selects_by_team(op: &Select, blocks: u64, lists: u64, rows: u32) -> bool {
    let plain = op.grouping == Grouping::PerHead
        && op.order == SelectOrder::Ascending
        && op.nan_rule == NanRule::Lowest;
    let (slots, forced) =
        (u64::from(op.geometry.top_k), u64::from(op.init_blocks) + u64::from(op.local_blocks));
    plain && blocks <= 1024 && lists <= MOST_TEAMS[usize::from(rows > 1)] && slots <= 32 && forced <= slots
}

/// The selection kernel for `lists` lists of rows of at most `blocks` blocks, of requests of at most `rows` rows. Where a team of
/// four warps does not do, the first keeps 1,024 keys in registers, the second 4,096.
pub(crate) fn select_symbol(op: &Select, blocks: u64, lists: u64, rows: u32) -> &'static str {
    match blocks {
        _ if selects_by_team(op, blocks, lists, rows) => "select_by_four",
        0..=1024 => "select_small",
        1025..=4096 => "select_medium",
        _ => "select_large",
    }
}

/// One block of threads for each of `per_row` items of every row that the bounds allow.
pub(crate) fn row_grid(lengths: &Lengths, per_row: u32, cluster: u32) -> Result<Grid> {
    let rows = lengths.requests().len() as u64 * u64::from(lengths.max_query_len());
    let blocks = rows.saturating_mul(per_row.into()).saturating_mul(cluster.into());
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
    let filled = u64::from(units.max(1)) * u64::from(kernel.blocks.max(1));
    let waves = heads.div_ceil(APPEND_HEADS) / filled;
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
        let own = if heads == 0 { 0 } else { in_pass.div_ceil(row_step).saturating_mul(period) };
        // More than can be counted are more than a grid has: the driver refuses them.
        group_blocks = u32::saturating_add(group_blocks, own);
    }
    // 2^(31 + bits) / blocks rounded up, with 2^bits at least blocks: 32 bits that are exact for 31-bit numbers.
    let bits = u64::from(group_blocks).next_power_of_two().trailing_zeros().max(1);
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

    /// Sixteen requests of 8.7K tokens once took 16 of 152 SMs. Where there are as many blocks as SMs, 15 of 16 SMs have work at
    /// least: a block of threads takes two units, so that a few may be left.
    #[test]
    fn p03_index_grids_fill_the_machine() {
        let traits = msa_core::device::DeviceTraits::h200();
        let units = traits.units;
        let op = msa_core::op::Op::IndexScore(Default::default());
        let plan = Plan { op, traits, ..Plan::default() };
        for (keys, blocks) in [(CacheFormat::E4m3, 1), (CacheFormat::Nvfp4, 2), (CacheFormat::Bf16, 1)] {
            for (requests, kv) in
                [1, 4, 16].into_iter().flat_map(|b| [8_700, 32_768, 262_144].map(|kv| (b, kv)))
            {
                let lengths = Lengths::upto(requests, 1, kv).unwrap();
                let all = total_blocks(&plan, &lengths);
                let choice = index_choice(1, 4, keys, all);
                let kernel = Kernel { symbol: choice.symbol, threads: 256, shared: 0, blocks };
                let grid = index_grid(&plan, &lengths, &choice, &kernel);
                let wanted = u64::from(units - units / 16).min(all / 2);
                assert!(u64::from(grid.x) >= wanted, "{keys:?} {requests} of {kv}: {} blocks", grid.x);
            }
        }
    }

    #[test]
    fn every_warpgroup_of_a_grid_has_a_unit() {
        let kernel = |threads, blocks| Kernel { symbol: "index_score_n1", threads, shared: 0, blocks };
        let blocks = |units| [(256, 2), (512, 1)].map(|(t, b)| index_blocks(units, &kernel(t, b), 132));
        assert_eq!([0, 1, 10, 256, 1 << 20].map(blocks), [[1, 1], [1, 1], [5, 3], [128, 64], [264, 132]]);
    }

    #[test]
    fn teams_of_warps_select_few_lists_of_the_usual_kind() {
        let plain = Select::default();
        let symbols = [0, 1024, 1025, 4096, 4097].map(|blocks| select_symbol(&plain, blocks, 512, 1));
        let (four, medium) = ("select_by_four", "select_medium");
        assert_eq!(symbols, [four, four, medium, medium, "select_large"]);
        let most = [(512, 1), (513, 1), (32, 8), (33, 2)];
        let symbols = most.map(|(lists, rows)| select_symbol(&plain, 1024, lists, rows));
        assert_eq!(symbols, [four, "select_small", four, "select_small"]);
        type Change = fn(&mut Select);
        let others: [Change; 5] = [
            |op| op.order = SelectOrder::ScoreThenOwn,
            |op| op.nan_rule = NanRule::Highest,
            |op| op.grouping = Grouping::Reduced,
            |op| op.init_blocks = 16,
            |op| op.geometry.top_k = 33,
        ];
        for change in others {
            let mut op = plain.clone();
            change(&mut op);
            assert_eq!(select_symbol(&op, 1024, 4, 1), "select_small", "{op:?}");
        }
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
    fn d07_more_blocks_than_a_grid_has_are_refused_with_the_limit() {
        let bound = |query_len| msa_core::lengths::RequestBound { query_len, kv_len: 1 };
        // One long request among many: a block for each row that the longest of them could have.
        let lengths = |requests: usize| {
            let rest = std::iter::repeat_n(bound(0), requests - 1);
            Lengths::new(std::iter::once(bound(1 << 20)).chain(rest)).unwrap()
        };
        assert_eq!(row_grid(&lengths(511), 4, 1).unwrap().x, (511 * 4) << 20);
        let error = row_grid(&lengths(512), 4, 1).unwrap_err().to_string();
        assert_eq!(error, "lengths: want at most 2^31 blocks of threads, got 2147483648");
        assert!(row_grid(&lengths(2), u32::MAX, 16).is_err());
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

    /// Counts of heads and of units are the caller's: whatever they are, a grid is whole or refused, and nothing wraps.
    #[test]
    fn d05_counts_beyond_32_bits_are_saturated_or_refused() {
        let mut traits = msa_core::device::DeviceTraits::h200();
        traits.units = u32::MAX;
        let mut op = msa_core::op::IndexScore::default();
        (op.geometry.query_heads, op.geometry.index_heads) = (1 << 30, 1 << 30);
        let plan = Plan { op: msa_core::op::Op::IndexScore(op), traits, ..Plan::default() };
        let lengths = Lengths::upto(4, 8, 1 << 20).unwrap();
        let kernel = Kernel { symbol: "index_score_n4", threads: 256, shared: 0, blocks: 2 };
        let choice = index_choice(8, 1 << 30, CacheFormat::Nvfp4, total_blocks(&plan, &lengths));
        assert_eq!(index_grid(&plan, &lengths, &choice, &kernel).y, 1 << 28);
        assert!(row_grid(&lengths, u32::MAX, 16).is_err());
        assert_eq!(append_passes(u64::MAX, u32::MAX, &kernel), 8);
        let grid = append_grid(1024, [u32::MAX; 5], 1);
        assert_eq!((grid.group_blocks, grid.blocks), (u32::MAX, 64 * u64::from(u32::MAX)));
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
