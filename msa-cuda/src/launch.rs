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

/// Blocks in all up to which warps share a page, so that more have work: two warps for NVFP4 keys, else four. Measured on an H200,
/// driver 580.159, one request, shared and not: NVFP4 of 256, 512, 768 and 1,024 blocks 4.2 us and 5.2, 4.7 and 5.4, 5.7 and 6.2, 7.0 and
/// 7.0 (four warps a page 4.5, 5.3, 6.2 and 7.6); fp8 of 256 and 512 blocks 3.8 and 4.3, 5.4 and 5.0; bf16 of 256 and 512 blocks 5.4 and
/// 6.0, 8.6 and 7.5.
const fn shared_blocks(keys: CacheFormat) -> u64 {
    match keys {
        CacheFormat::Nvfp4 => 960,
        _ => 384,
    }
}

/// Blocks in all up to which fp8 keys are scored by the kernel for few pages; measured beside its geometry in index_score.cu.
const FEW_BLOCKS: u64 = 1 << 13;

/// The index kernel for at most `rows` rows of a request.
pub(crate) fn index_choice(rows: u32, heads: u32, keys: CacheFormat, blocks: u64) -> IndexChoice {
    let pairs = u64::from(rows) * u64::from(heads);
    let shared = blocks <= shared_blocks(keys);
    match (pairs, keys) {
        (0..=8, CacheFormat::Nvfp4) if shared => {
            IndexChoice { symbol: "index_score_n1_pair", pairs: 8, pages: 2 }
        }
        (0..=8, _) if shared => IndexChoice { symbol: "index_score_n1_quad", pairs: 8, pages: 1 },
        (0..=8, CacheFormat::E4m3) if blocks <= FEW_BLOCKS => {
            IndexChoice { symbol: "index_score_n1_few", pairs: 8, pages: 4 }
        }
        (0..=8, _) => IndexChoice { symbol: "index_score_n1", pairs: 8, pages: 4 },
        (9..=16, _) => IndexChoice { symbol: "index_score_n2", pairs: 16, pages: 4 },
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

/// Blocks for so many units, of which each warpgroup of a block takes one at once: the first of every SM before the second of any.
fn index_blocks(units: u64, kernel: &Kernel, sms: u32) -> u32 {
    let groups = u64::from((kernel.threads / 128).max(1));
    let sms = u64::from(sms.max(1));
    let most = sms * u64::from(kernel.blocks.max(1));
    u32::try_from(units.div_ceil(groups).max(units.min(sms)).clamp(1, most)).unwrap_or(u32::MAX)
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

/// How `append` takes its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AppendRows {
    /// Eight lanes a head, a block of threads as many passes: the least for a lane to do.
    Few {
        /// Passes.
        passes: u32,
    },
    /// Four lanes a head, a warp eight heads after the other: the fewest instructions.
    Many,
}

/// Heads that a block of few rows takes in one pass.
const APPEND_HEADS: u64 = 16;

/// Rows of a group of many, the heads that one of its warps takes at once, and its blocks for a tensor of so many heads or more.
const MANY_ROWS: u64 = 32;
const MANY_HEADS: u32 = 8;
const MANY_BLOCKS: u32 = 8;

/// Rows from which on a warp takes eight heads at once: more than are searched for their slots. Measured on an H200 (driver
/// 580.159), few and many, in fp8: 1,024 rows 17 and 32 us, 4,096 rows 48 and 44, 32,768 rows 308 and 270.
const APPEND_MANY: u64 = 4096;

/// Most passes of a block of `append`.
const APPEND_PASSES: u64 = 8;

impl AppendRows {
    /// For a launch of `rows` rows of so many heads, which suit the kernel for many or not. Few take one
    /// pass until the machine has been filled several times.
    pub(crate) fn of(rows: u64, heads: [u32; 5], suits: bool, units: u32, kernel: &Kernel) -> Self {
        if suits && rows >= APPEND_MANY && heads.iter().all(|heads| *heads == 0 || heads.is_power_of_two()) {
            return Self::Many;
        }
        let pairs = rows.saturating_mul(heads.iter().map(|&heads| u64::from(heads)).sum());
        let filled = u64::from(units.max(1)) * u64::from(kernel.blocks.max(1));
        let waves = pairs.div_ceil(APPEND_HEADS) / filled;
        Self::Few { passes: (waves / 4).clamp(1, APPEND_PASSES) as u32 }
    }

    /// Rows of a group of blocks.
    fn group(self) -> u64 {
        match self {
            Self::Few { passes } => APPEND_HEADS * u64::from(passes),
            Self::Many => MANY_ROWS,
        }
    }
}

/// How the blocks of `append` share its work: each group of rows takes as many blocks, a range of them for each tensor, so that
/// tensors run side by side.
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
pub(crate) fn append_grid(rows: u64, heads: [u32; 5], how: AppendRows) -> AppendGrid {
    let mut first_blocks = [0; 5];
    let mut group_blocks = 0;
    for (first, heads) in first_blocks.iter_mut().zip(heads) {
        *first = group_blocks;
        // More than can be counted are more than a grid has: the driver refuses them.
        group_blocks = u32::saturating_add(group_blocks, group_blocks_of(rows, heads, how));
    }
    // 2^(31 + bits) / blocks rounded up, with 2^bits at least blocks: 32 bits that are exact for 31-bit numbers.
    let bits = u64::from(group_blocks).next_power_of_two().trailing_zeros().max(1);
    let magic = (1_u64 << (31 + bits)).div_ceil(group_blocks.max(2).into()) as u32;
    let blocks = rows.div_ceil(how.group()) * u64::from(group_blocks);
    AppendGrid { blocks, group_blocks, first_blocks, magic, shift: bits - 1 }
}

fn group_blocks_of(rows: u64, heads: u32, how: AppendRows) -> u32 {
    match how {
        _ if heads == 0 => 0,
        AppendRows::Few { .. } => {
            let (period, row_step) = append_turn(heads);
            (rows.next_power_of_two().min(APPEND_HEADS) as u32).div_ceil(row_step).saturating_mul(period)
        }
        AppendRows::Many if heads >= MANY_HEADS => MANY_BLOCKS,
        AppendRows::Many => 1,
    }
}

/// Of many rows, passes of a warp over a tensor of `heads` heads, and how many rows each goes on: 0 if it goes on in a row.
pub(crate) fn append_passes(heads: u32) -> (u32, u32) {
    match heads {
        0 => (1, 0),
        MANY_HEADS.. => (heads / MANY_HEADS, 0),
        _ => (heads, MANY_HEADS / heads),
    }
}

/// Heads that a pass over many rows goes on within a row.
pub(crate) const APPEND_HEAD_STEP: u64 = MANY_HEADS as u64;

/// Within a group of few rows, blocks of a tensor of `heads` heads after which head 0 is first again, and the rows that so many blocks
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
    fn few_pages_are_shared_by_warps() {
        assert_eq!(index_choice(1, 4, CacheFormat::E4m3, 256).symbol, "index_score_n1_quad");
        assert_eq!(index_choice(1, 4, CacheFormat::E4m3, 1024).symbol, "index_score_n1_few");
        assert_eq!(index_choice(1, 4, CacheFormat::E4m3, 1 << 14).symbol, "index_score_n1");
        assert_eq!(index_choice(1, 4, CacheFormat::Nvfp4, 1024).symbol, "index_score_n1");
        assert_eq!(index_choice(1, 4, CacheFormat::Nvfp4, 768).symbol, "index_score_n1_pair");
        assert_eq!(index_choice(1, 4, CacheFormat::Bf16, 512).symbol, "index_score_n1");
        assert_eq!(index_choice(8, 4, CacheFormat::Nvfp4, 64).pairs, 32);
        assert_eq!(index_choice(1, 1, CacheFormat::Nvfp4, 1 << 20).pages, 4);
    }

    /// Sixteen requests of 8.7K tokens once took 16 of 152 SMs. Where there are as many blocks as SMs, 15 of 16 SMs have work at
    /// least: a block of threads takes two units or four, so that a few may be left.
    #[test]
    fn p03_index_grids_fill_the_machine() {
        let traits = msa_core::device::DeviceTraits::h200();
        let units = traits.units;
        let op = msa_core::op::Op::IndexScore(Default::default());
        let plan = Plan { op, traits, ..Plan::default() };
        for keys in [CacheFormat::E4m3, CacheFormat::Nvfp4, CacheFormat::Bf16] {
            for (requests, kv) in
                [1, 4, 16].into_iter().flat_map(|b| [8_700, 32_768, 262_144].map(|kv| (b, kv)))
            {
                let lengths = Lengths::upto(requests, 1, kv).unwrap();
                let all = total_blocks(&plan, &lengths);
                let choice = index_choice(1, 4, keys, all);
                // As in images.toml.
                let threads = match (keys, choice.symbol) {
                    (CacheFormat::Nvfp4, _) | (_, "index_score_n1_few") => 512,
                    _ => 256,
                };
                let kernel = Kernel { symbol: choice.symbol, threads, shared: 0, blocks: 1 };
                let grid = index_grid(&plan, &lengths, &choice, &kernel);
                let wanted = u64::from(units - units / 16).min(all / 2);
                assert!(u64::from(grid.x) >= wanted, "{keys:?} {requests} of {kv}: {} blocks", grid.x);
            }
        }
    }

    #[test]
    fn every_sm_has_a_unit_before_one_has_two() {
        let kernel = |threads, blocks| Kernel { symbol: "index_score_n1", threads, shared: 0, blocks };
        let blocks = |units| [(256, 2), (512, 1)].map(|(t, b)| index_blocks(units, &kernel(t, b), 132));
        assert_eq!([0, 1, 10, 256].map(blocks), [[1, 1], [1, 1], [10, 10], [132, 132]]);
        assert_eq!([300, 500, 1 << 20].map(blocks), [[150, 132], [250, 132], [264, 132]]);
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
        let how = |rows: u64, aligned| AppendRows::of(rows, [4, 4, 1, 4, 64], aligned, 132, &kernel);
        let few = [1, 128, 1024, 32_768].map(|rows| how(rows, false));
        assert_eq!(few, [1, 1, 1, 8].map(|passes| AppendRows::Few { passes }));
        assert_eq!(
            [4095, 4096].map(|rows| how(rows, true)),
            [AppendRows::Few { passes: 4 }, AppendRows::Many]
        );
        let odd = AppendRows::of(4096, [3, 3, 1, 6, 24], true, 132, &kernel);
        assert_eq!(odd, AppendRows::Few { passes: 2 });
    }

    /// Times that each head of each row of a tensor is taken.
    type Seen = std::collections::HashMap<(u64, u32), u32>;

    /// Walks the blocks of few rows as append.cu does.
    fn walk_few(rows: u64, heads: [u32; 5], passes: u32) -> [Seen; 5] {
        let grid = append_grid(rows, heads, AppendRows::Few { passes });
        let mut seen = [(); 5].map(|()| Seen::new());
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
        seen
    }

    /// Walks the blocks of many rows as append_many.cuh does.
    fn walk_many(rows: u64, heads: [u32; 5]) -> [Seen; 5] {
        let grid = append_grid(rows, heads, AppendRows::Many);
        let mut seen = [(); 5].map(|()| Seen::new());
        for number in 0..grid.blocks as u32 {
            let (group, block) = (number / grid.group_blocks, number % grid.group_blocks);
            let kind = (1..5).filter(|&k| block >= grid.first_blocks[k]).count();
            let (heads, (passes, row_step)) = (heads[kind], append_passes(heads[kind]));
            for (warp, unit) in (0..4).flat_map(|warp| (0..8).map(move |unit| (warp, unit))) {
                let block = block - grid.first_blocks[kind];
                let mut row =
                    group * 32 + if row_step > 0 { 8 * warp + unit / heads } else { 4 * block + warp };
                let mut head = unit % heads;
                for _ in 0..passes {
                    let taken = seen[kind].entry((row.into(), head)).or_insert(0);
                    *taken += u32::from(u64::from(row) < rows);
                    row += row_step;
                    head += if row_step > 0 { 0 } else { 8 };
                }
            }
        }
        seen
    }

    #[test]
    fn blocks_of_append_cover_every_head_of_every_row_once() {
        let (m3, odd, small) = ([4, 4, 1, 4, 64], [3, 3, 1, 6, 24], [1, 1, 1, 0, 5]);
        let few =
            [(1, m3, 1), (5, m3, 1), (128, m3, 1), (100, m3, 3), (65, odd, 2), (7, small, 1), (40, small, 1)];
        let few = few.map(|(rows, heads, passes)| (rows, heads, walk_few(rows, heads, passes)));
        let many =
            [(256, m3), (300, m3), (31, [1, 1, 1, 1, 16]), (77, [2, 2, 1, 2, 32]), (40, [8, 8, 1, 0, 128])];
        let many = many.map(|(rows, heads)| (rows, heads, walk_many(rows, heads)));
        for (rows, heads, seen) in few.into_iter().chain(many) {
            for (seen, heads) in seen.iter().zip(heads) {
                let times = seen.values().filter(|&&times| times > 0);
                assert_eq!(times.clone().count() as u64, rows * u64::from(heads), "{rows} {heads}");
                assert!(times.into_iter().all(|&times| times == 1), "{rows} {heads}");
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
        let blocks = |rows| append_grid(rows, [4, 4, 1, 4, 64], AppendRows::Few { passes: 1 }).blocks;
        assert_eq!([1, 2, 8, 16, 17, 128].map(blocks), [8, 12, 39, 77, 154, 616]);
        // The bound of the status words of a run is that of few rows.
        let many = |rows| append_grid(rows, [4, 4, 1, 4, 64], AppendRows::Many).blocks;
        assert!((1..300).all(|rows| blocks(rows) <= blocks(rows + 1)));
        assert!((APPEND_MANY..6000).all(|rows| many(rows) <= blocks(rows)));
    }

    #[test]
    fn blocks_are_divided_by_those_of_a_group_exactly() {
        for heads in (2..300).chain([1 << 20, (1 << 20) + 16]) {
            let AppendGrid { group_blocks, magic, shift, .. } =
                append_grid(16, [heads, 0, 1, 0, 0], AppendRows::Few { passes: 1 });
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
        let few = AppendRows::of(u64::MAX, [u32::MAX; 5], true, u32::MAX, &kernel);
        assert_eq!(few, AppendRows::Few { passes: 8 });
        let grid = append_grid(1024, [u32::MAX; 5], AppendRows::Few { passes: 1 });
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
