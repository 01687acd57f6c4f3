//! From a plan to grids: pure functions of the plan and of the kernel's limits. No result depends on them.

use msa_core::error::{Error, Result};
use msa_core::lengths::Lengths;
use msa_core::plan::{AppendPlan, DecodeBlocks, IndexKernel, Plan, SelectKernel};

use crate::context::Grid;
use crate::images::Kernel;

/// Most blocks of a cluster that Hopper and its successors schedule (above 8 by permission).
pub(crate) const MAX_CLUSTER: u32 = 16;

/// Most blocks along y of a grid (CUDA C++ Programming Guide, technical specifications).
pub(crate) const MAX_GRID_Y: u32 = 65_535;

/// The kernel of index scoring that the plan names.
pub(crate) fn index_symbol(kernel: IndexKernel) -> Option<&'static str> {
    match kernel {
        IndexKernel::None => None,
        IndexKernel::Shared => Some("index_score_n1_quad"),
        IndexKernel::Paired => Some("index_score_n1_pair"),
        IndexKernel::Few => Some("index_score_n1_few"),
        IndexKernel::Eight => Some("index_score_n1"),
        IndexKernel::Sixteen => Some("index_score_n2"),
        IndexKernel::ThirtyTwo => Some("index_score_n4"),
    }
}

/// A persistent grid: as many blocks as the device holds, or as there is work for on this rank.
pub(crate) fn index_grid(plan: &Plan, lengths: &Lengths, kernel: &Kernel) -> Grid {
    let (g, taken) = (plan.op.geometry(), plan.index_kernel);
    let pages = u64::from(taken.pages().max(1));
    let own_blocks = |tokens: u32| plan.options.own_blocks(g.blocks(tokens.into()));
    let units = lengths.requests().iter().map(|r| own_blocks(r.kv_len).div_ceil(pages));
    let pairs = u64::from(lengths.max_query_len()) * u64::from(g.index_heads);
    let chunks = pairs.div_ceil(taken.pairs().max(1).into()).max(1);
    let y = u32::try_from(chunks).unwrap_or(u32::MAX);
    Grid { x: index_blocks(units.sum(), kernel, plan.traits.units), y, cluster: 1 }
}

/// Whether a grid has an SM for each of its blocks. Each is to be alone on it: where the kernel before it still occupies other SMs,
/// two would share one and take twice as long, as a block has a fixed share of the work (NVFP4, eight rows of one request of 128K
/// tokens behind a selection: 13.3 us and 12.0 with an SM each; H200, driver 580.159).
pub(crate) fn has_an_sm_each(grid: Grid, sms: u32) -> bool {
    u64::from(grid.x) * u64::from(grid.y) <= sms.into()
}

/// Blocks for so many units, of which each warpgroup of a block takes one at once: the first of every SM before the second of any.
fn index_blocks(units: u64, kernel: &Kernel, sms: u32) -> u32 {
    let groups = u64::from((kernel.threads / 128).max(1));
    let sms = u64::from(sms.max(1));
    let most = sms * u64::from(kernel.blocks.max(1));
    u32::try_from(units.div_ceil(groups).max(units.min(sms)).clamp(1, most)).unwrap_or(u32::MAX)
}

/// The kernel of selection that the plan names, if there is one.
pub(crate) fn select_symbol(kernel: SelectKernel) -> Option<&'static str> {
    match kernel {
        SelectKernel::None | SelectKernel::Attention => None,
        SelectKernel::Team => Some("select_by_four"),
        SelectKernel::Warp => Some("select_by_warp"),
        SelectKernel::Eight => Some("select_by_eight"),
        SelectKernel::Sixteen => Some("select_by_sixteen"),
        SelectKernel::Cluster => Some("select_by_cluster"),
        SelectKernel::Small => Some("select_small"),
        SelectKernel::Medium => Some("select_medium"),
        SelectKernel::Large => Some("select_large"),
    }
}

/// The blocks of threads that select so many lists of at most `blocks` blocks.
pub(crate) fn select_grid(kernel: SelectKernel, lists: u32, blocks: u64) -> Result<Grid> {
    let each = if kernel == SelectKernel::Warp { 4 } else { 1 };
    let ranks = kernel.ranks(blocks);
    clusters(u64::from(lists.div_ceil(each)), ranks)
}

/// So many clusters of `cluster` blocks of threads.
fn clusters(count: u64, cluster: u32) -> Result<Grid> {
    let blocks = count.saturating_mul(cluster.into());
    let x = u32::try_from(blocks).ok().filter(|&x| x <= i32::MAX as u32);
    let x = x.ok_or_else(|| Error::invalid("lengths", "at most 2^31 blocks of threads", blocks))?;
    Ok(Grid { x, y: 1, cluster })
}

/// One block of threads for each of `per_row` items of every row that the bounds allow.
pub(crate) fn row_grid(lengths: &Lengths, per_row: u32, cluster: u32) -> Result<Grid> {
    let rows = lengths.requests().len() as u64 * u64::from(lengths.max_query_len());
    clusters(rows.saturating_mul(per_row.into()), cluster)
}

/// Blocks of the clusters of sparse decode that are balanced over SMs: four and eight.
///
/// Left to itself the device puts two blocks on one SM while others stay idle, in this run and so in every run after it. On an H200 (driver
/// 580.159) eight requests of NVFP4 in clusters of four stood on 78 SMs of 132; balanced, eight in fp8 take 9.1 us for 9.6, and sixteen in
/// NVFP4 12.2 for 18.4. Clusters of two are level, and the one of a lone row, of sixteen, takes 0.3 us more. Not measured on other devices.
pub(crate) const BALANCED_CLUSTERS: std::ops::Range<u32> = 4..MAX_CLUSTER;

/// The kernel of sparse decode for what the plan gives a block of threads.
pub(crate) fn decode_symbol(blocks: DecodeBlocks, select: SelectKernel) -> Option<&'static str> {
    match blocks {
        DecodeBlocks::None => None,
        DecodeBlocks::Full => Some("sparse_decode"),
        DecodeBlocks::Few => Some("sparse_decode_few"),
        DecodeBlocks::Lone if select == SelectKernel::Attention => Some("sparse_decode_lone_selects"),
        DecodeBlocks::Lone => Some("sparse_decode_lone"),
        DecodeBlocks::Pair => Some("sparse_decode_pair"),
        DecodeBlocks::Rows => Some("sparse_decode_rows"),
        DecodeBlocks::Quad => Some("sparse_decode_quad"),
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

/// How a launch of `append` takes its rows, by the plan's rule.
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

impl AppendRows {
    /// For a launch of `rows` rows of so many heads, which suit the kernel for many or not.
    pub(crate) fn of(plan: &AppendPlan, rows: u64, heads: [u32; 5], suits: bool, filled: u64) -> Self {
        if suits && rows >= plan.many_rows.into() {
            return Self::Many;
        }
        let pairs = rows.saturating_mul(heads.iter().map(|&heads| u64::from(heads)).sum());
        Self::Few { passes: plan.passes(pairs.div_ceil(APPEND_HEADS) / filled.max(1)) }
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
    use std::collections::BTreeSet;

    use super::*;
    use msa_core::device::Arch;
    use msa_core::op::Op;
    use msa_core::plan::SlotPart;
    use msa_core::predict::Machine;
    use msa_core::tensor::DType;

    /// What images.toml says of a kernel.
    fn kernel_of(image: &str, symbol: &'static str) -> Kernel {
        let images = include_str!("../kernels/images.toml");
        let own = images.split("[[image]]").find(|text| text.contains(&format!("name = \"{image}\"")));
        let line = own.and_then(|own| own.lines().find(|line| line.contains(&format!("\"{symbol}\","))));
        let line = line.unwrap_or_else(|| panic!("images.toml has no {symbol} of {image}"));
        let number = |field: &str| {
            let rest = line.split_once(&format!("{field} = ")).unwrap().1;
            rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
        };
        Kernel { symbol, threads: number("threads"), shared: number("shared"), blocks: number("blocks") }
    }

    /// Every index operation that there is a kernel for.
    fn index_ops() -> Vec<msa_core::op::IndexScore> {
        use msa_core::cache::CacheFormat::{Bf16, E4m3, Nvfp4};
        use msa_core::op::{IndexScore, ScorePrecision};
        let pairs = [(DType::E4m3, Nvfp4), (DType::E4m3, E4m3), (DType::Bf16, Nvfp4), (DType::Bf16, E4m3)];
        let plain = pairs.into_iter().chain([(DType::Bf16, Bf16)]);
        let plain = plain.map(|(query, keys)| IndexScore { query, keys, ..IndexScore::default() });
        let fast = pairs[..2].iter().map(|&(query, keys)| IndexScore {
            query,
            keys,
            precision: ScorePrecision::Fast,
            ..IndexScore::default()
        });
        plain.chain(fast).collect()
    }

    /// Kernel, requests, tokens, blocks of threads: where those are fewer than the SMs of an H200, though pages are not.
    type Short = (IndexKernel, u32, u32, u32);

    /// The batches of P03, each of `rows` rows a request, on every kind of device, with what is [`Short`].
    fn short_grids(rows: u32, kernels: &mut BTreeSet<(String, &'static str)>) -> Vec<Short> {
        let mut short = BTreeSet::new();
        let batches = [1, 4, 16].into_iter().flat_map(|b| [8_700, 32_768, 262_144].map(|kv| (b, kv)));
        for ((requests, kv), op) in
            batches.flat_map(|batch| index_ops().into_iter().map(move |op| (batch, op)))
        {
            let (lengths, op) = (Lengths::upto(requests, rows, kv).unwrap(), Op::IndexScore(op));
            for traits in [Machine::h200(), Machine::b200(), Machine::gb300()].map(|machine| machine.traits) {
                let (variants, options) = (crate::variants(traits.arch), Default::default());
                let plan = msa_core::plan::plan(&op, &lengths, &traits, variants, &options, "cuda").unwrap();
                let image = crate::variants::image_of(&plan.variant, traits.arch);
                let kernel = kernel_of(&image, index_symbol(plan.index_kernel).unwrap());
                kernels.insert((image, kernel.symbol));
                let (grid, sms) = (index_grid(&plan, &lengths, &kernel), traits.units);
                // The kernel deals units of pages over the warpgroups of the grid, the first of every block before the second of any.
                let units = requests * kv.div_ceil(128 * plan.index_kernel.pages());
                let of_units =
                    units.div_ceil(kernel.threads / 128).max(units.min(sms)).min(sms * kernel.blocks);
                assert_eq!(grid.x, of_units, "{}: {requests} of {kv}", plan.variant);
                if requests * kv.div_ceil(128) >= sms && grid.x * grid.y < sms && traits.arch == Arch::Sm90a {
                    short.insert((plan.index_kernel, requests, kv, grid.x * grid.y));
                }
            }
        }
        short.into_iter().collect()
    }

    /// Sixteen requests of 8.7K tokens once took 16 of 152 SMs. Where there are as many blocks of tokens as SMs, every SM has a block
    /// of threads; in one case, of 256 pages by twos, four of 132 have none, and no SM would have fewer pages. Several rows take
    /// pages by fours, and one short request then leaves SMs idle.
    #[test]
    fn p03_index_grids_fill_the_machine() {
        use IndexKernel::{Paired, Sixteen, ThirtyTwo};
        let mut kernels = BTreeSet::new();
        let one = short_grids(1, &mut kernels);
        assert_eq!(one, [(Paired, 1, 32_768, 128)]);
        for (rows, kernel) in [(4, Sixteen), (8, ThirtyTwo)] {
            let short = [(1, 32_768, 64), (4, 8_700, 68)];
            let short = short.map(|(requests, kv, blocks)| (kernel, requests, kv, blocks));
            assert_eq!(short_grids(rows, &mut kernels), short, "{rows} rows");
        }
        // Every kernel of every image.
        let images: BTreeSet<&str> = kernels.iter().map(|(image, _)| image.as_str()).collect();
        let named = |what| include_str!("../kernels/images.toml").matches(what).count();
        let (own, symbols) = (named("name = \"index_score."), named("symbol = \"index_score_n"));
        // Those of a rank are the same, of the same shapes.
        for (image, symbol) in &kernels {
            assert_eq!(kernel_of(&crate::variants::ranks_image(image), symbol), kernel_of(image, symbol));
        }
        assert_eq!((2 * images.len(), 2 * kernels.len()), (own, symbols), "{kernels:?}");
    }

    #[test]
    fn a_rank_has_blocks_for_its_own_pages() {
        let lengths = Lengths::upto(3, 1, 128 * 513).unwrap();
        let (op, kernel) = (
            Op::IndexScore(msa_core::op::IndexScore::default()),
            Kernel { symbol: "index_score_n1", threads: 128, shared: 0, blocks: 100 },
        );
        let grid = |world, rank| {
            let options = msa_core::plan::PlanOptions { world, rank, ..Default::default() };
            let traits = msa_core::device::DeviceTraits::h200();
            let plan =
                Plan { op: op.clone(), traits, options, index_kernel: IndexKernel::Eight, ..Plan::default() };
            index_grid(&plan, &lengths, &kernel).x
        };
        // Of four pages each: 513 of a request are 129 units, and of four ranks the first has 129 pages, 33 units.
        assert_eq!([grid(1, 0), grid(4, 0), grid(4, 1)], [3 * 129, 3 * 33, 3 * 32]);
    }

    #[test]
    fn warps_share_a_block_of_threads_and_others_have_one_a_list_or_more() {
        let blocks = |kernel| [1, 4, 5, 4096].map(|lists| select_grid(kernel, lists, 1000).unwrap().x);
        assert_eq!(blocks(SelectKernel::Team), [1, 4, 5, 4096]);
        assert_eq!(blocks(SelectKernel::Warp), [1, 1, 2, 1024]);
        let grid = |lists, blocks| select_grid(SelectKernel::Cluster, lists, blocks);
        assert_eq!(grid(5, 65_536).unwrap(), Grid { x: 80, y: 1, cluster: 16 });
        assert_eq!(grid(5, 32_768).unwrap(), Grid { x: 40, y: 1, cluster: 8 });
        assert!(grid(1 << 27, 65_536).is_err());
    }

    #[test]
    fn a_grid_has_an_sm_for_each_block_up_to_their_number() {
        let has = |x, y| has_an_sm_each(Grid { x, y, cluster: 1 }, 132);
        assert!(has(132, 1) && has(66, 2));
        assert!(!has(133, 1) && !has(67, 2) && !has(u32::MAX, u32::MAX));
    }

    #[test]
    fn every_sm_has_a_unit_before_one_has_two() {
        let kernel = |threads, blocks| Kernel { symbol: "index_score_n1", threads, shared: 0, blocks };
        let blocks = |units| [(256, 2), (512, 1)].map(|(t, b)| index_blocks(units, &kernel(t, b), 132));
        assert_eq!([0, 1, 10, 256].map(blocks), [[1, 1], [1, 1], [10, 10], [132, 132]]);
        assert_eq!([300, 500, 1 << 20].map(blocks), [[150, 132], [250, 132], [264, 132]]);
    }

    #[test]
    fn append_takes_one_pass_until_the_machine_is_full() {
        let plan = AppendPlan { many_rows: 4096, pass_waves: 4, most_passes: 8 };
        let how = |rows: u64, suits| AppendRows::of(&plan, rows, [4, 4, 1, 4, 64], suits, 132 * 8);
        let few = [1, 128, 1024, 32_768].map(|rows| how(rows, false));
        assert_eq!(few, [1, 1, 1, 8].map(|passes| AppendRows::Few { passes }));
        assert_eq!(
            [4095, 4096].map(|rows| how(rows, true)),
            [AppendRows::Few { passes: 4 }, AppendRows::Many]
        );
        let other = AppendPlan { many_rows: 20, pass_waves: 1, most_passes: 3 };
        let how = |rows| AppendRows::of(&other, rows, [4, 4, 1, 4, 64], false, 2);
        assert_eq!([8, 19].map(how), [AppendRows::Few { passes: 3 }; 2], "the rule is the plan's");
        assert_eq!(AppendRows::of(&other, 20, [1; 5], true, 2), AppendRows::Many);
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
        assert!((1025..6000).all(|rows| many(rows) <= blocks(rows)));
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
        let mut op = msa_core::op::IndexScore::default();
        (op.geometry.query_heads, op.geometry.index_heads) = (1 << 30, 1 << 30);
        let lengths = Lengths::upto(4, 8, 1 << 20).unwrap();
        let traits =
            msa_core::device::DeviceTraits { units: u32::MAX, ..msa_core::device::DeviceTraits::h200() };
        let op = msa_core::op::Op::IndexScore(op);
        let plan = Plan { op, traits, index_kernel: IndexKernel::ThirtyTwo, ..Plan::default() };
        let kernel = Kernel { symbol: "index_score_n4", threads: 256, shared: 0, blocks: 2 };
        assert_eq!(index_grid(&plan, &lengths, &kernel).y, 1 << 28);
        assert!(row_grid(&lengths, u32::MAX, 16).is_err());
        let rule = AppendPlan { many_rows: u32::MAX, pass_waves: 1, most_passes: 8 };
        let few = AppendRows::of(&rule, u64::MAX, [u32::MAX; 5], false, u64::MAX);
        assert_eq!(few, AppendRows::Few { passes: 1 });
        assert_eq!(AppendRows::of(&rule, u64::MAX, [u32::MAX; 5], false, 0), AppendRows::Few { passes: 8 });
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
