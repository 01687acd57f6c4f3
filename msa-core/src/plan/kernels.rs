//! Which of the kernels that give the same bits an NVIDIA device runs, but for those of decode (`decode_cost`).

use super::given::Given;
use super::{DecodeBlocks, Derived};
use crate::cache::CacheFormat;
use crate::geometry::Grouping;
use crate::op::{IndexScore, NanRule, Op, Select, SelectOrder, Step};
use crate::text::{fields, names};

/// Index scoring on NVIDIA: (row, head) pairs of a request that a block of threads scores against a page at once, and who takes
/// the page. No result depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(u32)]
pub enum IndexKernel {
    /// Another device, or nothing to score.
    #[default]
    None = 0,
    /// Eight pairs; four warps share a page, so that more warps have work.
    Shared = 1,
    /// Eight pairs; each of four warps has a page.
    Eight = 2,
    /// Sixteen pairs; each of four warps has a page.
    Sixteen = 3,
    /// Thirty-two pairs; each of four warps has a page.
    ThirtyTwo = 4,
    /// Eight pairs of NVFP4 keys; two warps share a page.
    Paired = 5,
    /// Eight pairs of fp8 keys; each of four warps has a page, in smaller copies, of which fewer are under way.
    Few = 6,
}
names!(IndexKernel {
    None = "none",
    Shared = "shared",
    Eight = "eight",
    Sixteen = "sixteen",
    ThirtyTwo = "thirty_two",
    Paired = "paired",
    Few = "few",
});

impl IndexKernel {
    /// (row, head) pairs that a block of threads scores at once.
    pub const fn pairs(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Shared | Self::Paired | Self::Few | Self::Eight => 8,
            Self::Sixteen => 16,
            Self::ThirtyTwo => 32,
        }
    }

    /// Pages that four warps take at once.
    pub const fn pages(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Shared => 1,
            Self::Paired => 2,
            Self::Few | Self::Eight | Self::Sixteen | Self::ThirtyTwo => 4,
        }
    }

    /// True if there is such a kernel for these keys.
    pub const fn reads(self, keys: CacheFormat) -> bool {
        let (nvfp4, fp8) = (matches!(keys, CacheFormat::Nvfp4), matches!(keys, CacheFormat::E4m3));
        match self {
            Self::None => false,
            Self::Shared => !nvfp4,
            Self::Paired => nvfp4,
            Self::Few => fp8,
            Self::Eight | Self::Sixteen | Self::ThirtyTwo => true,
        }
    }
}

/// Selection on NVIDIA: who selects a (row, list). No result depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum SelectKernel {
    /// Another device, or nothing to select.
    #[default]
    None = 0,
    /// A team of four warps, which keep the keys of at most 1,024 blocks in registers and at most 32 slots: lists of one head in
    /// ascending order, NaN lowest, whose slots hold all forced blocks.
    Team = 1,
    /// A block of 256 threads, which keep the keys of at most 1,024 blocks in registers.
    Small = 2,
    /// A larger block, the same for at most 4,096 blocks.
    Medium = 3,
    /// As many threads as a block has, and keys read again where registers end.
    Large = 4,
    /// A warp, the same for what a team takes: the least work for a list, where many lists fill the machine.
    Warp = 5,
    /// Eight warps, the same for at most 4,096 blocks.
    Eight = 6,
    /// Sixteen warps, the same for at most 16,384 blocks.
    Sixteen = 7,
    /// A cluster of blocks of threads, each of four warps for 4,096 blocks: the first selects from what each of them selected.
    Cluster = 8,
    /// Within a step, the blocks of threads that attend to the row, each with a team of its own: a kernel less between scoring and
    /// attention.
    Attention = 9,
}
names!(SelectKernel {
    None = "none",
    Team = "team",
    Small = "small",
    Medium = "medium",
    Large = "large",
    Warp = "warp",
    Eight = "eight",
    Sixteen = "sixteen",
    Cluster = "cluster",
    Attention = "attention",
});

impl SelectKernel {
    /// Most blocks of a row.
    pub const fn most_blocks(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Team | Self::Warp | Self::Attention | Self::Small => 1024,
            Self::Medium | Self::Eight => 4096,
            Self::Sixteen => 16_384,
            Self::Large | Self::Cluster => super::select::MAX_BLOCKS,
        }
    }

    /// True if it can rank rows of at most `blocks` blocks as `op` says.
    pub fn takes(self, op: &Select, blocks: u64) -> bool {
        let suits = matches!(self, Self::Small | Self::Medium | Self::Large) || suits_warps(op);
        self != Self::None && suits && blocks <= self.most_blocks()
    }

    /// True if blocks of threads that attend as `blocks` says can select first: of one row each.
    pub fn is_done_by(self, blocks: DecodeBlocks) -> bool {
        self != Self::Attention || !matches!(blocks, DecodeBlocks::None | DecodeBlocks::Rows)
    }

    /// Blocks of threads that share a list of a row of at most `blocks` blocks.
    pub fn ranks(self, blocks: u64) -> u32 {
        match self {
            Self::None => 0,
            Self::Cluster => blocks.min(self.most_blocks()).div_ceil(4096).next_power_of_two() as u32,
            _ => 1,
        }
    }
}

/// Append on NVIDIA: how a launch takes its rows. A run may have fewer than the plan, so that the plan has the rule and not the
/// answer. No result depends on it. All zero on another device, and where nothing is appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AppendPlan {
    /// Rows of a launch from which on a warp takes eight heads one after the other with four lanes each, if the tensors of the run
    /// can be read and written in such pieces. Fewer rows take eight lanes a head, the least for a lane to do.
    pub many_rows: u32,
    /// Of fewer rows: a block of threads takes one pass more for each of this many waves of blocks.
    pub pass_waves: u32,
    /// Of fewer rows: most passes of a block of threads.
    pub most_passes: u32,
}
fields!(AppendPlan { leaf many_rows, leaf pass_waves, leaf most_passes });

impl AppendPlan {
    /// Rows of a launch up to which slots are searched: more have a table, without which the kernel for many rows finds none.
    pub const SEARCHED_ROWS: u32 = 1024;

    /// Passes of a block of threads for a launch of fewer rows that fills the machine `waves` times.
    pub fn passes(&self, waves: u64) -> u32 {
        let passes = waves / u64::from(self.pass_waves.max(1));
        passes.clamp(1, u64::from(self.most_passes.max(1))) as u32
    }
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

/// Blocks in all up to which fp8 keys have the kernel for few pages. Measured on an H200, driver 580.159, few and not: one request of
/// 1,024 and 4,096 blocks 6.9 us and 7.5, 18.8 and 19.3; 8 and 32 requests of 1,024 blocks 34.1 and 34.6, 126.0 and 124.8.
const FEW_BLOCKS: u64 = 1 << 13;

/// Most lists that a team of warps selects each; of more, each has one warp. Measured on an H200 (driver 580.159) as what selection
/// adds to scoring at 128K tokens, team and warp: 32 lists 2.3 and 2.6 us (fp8), 128 lists 2.9 and 2.9 (of one row) and 4.8 and 4.2
/// (of four rows), 512 lists of one row 5.2 and 4.5, 1,024 lists 7.9 and 5.8, 4,096 lists 20.2 and 13.4.
const MOST_TEAMS: u64 = 64;

/// Slots of a list that warps select (`warp_select.cuh`: a slot a lane).
const WARP_SLOTS: u64 = 32;

/// Rows from which on a warp takes eight heads at once: more than are searched for their slots. Measured on an H200 (driver
/// 580.159), few and many, in fp8: 1,024 rows 17 and 32 us, 4,096 rows 48 and 44, 32,768 rows 308 and 270.
const APPEND_MANY: u32 = 4096;
const _: () = assert!(APPEND_MANY > AppendPlan::SEARCHED_ROWS);

/// Few rows take one pass until the machine has been filled several times, and then so many at most.
const APPEND: AppendPlan = AppendPlan { many_rows: APPEND_MANY, pass_waves: 4, most_passes: 8 };

/// Chooses the kernels of an operation; nothing on another device.
pub(super) fn choose(op: &Op, given: &Given, derived: Derived) -> Derived {
    if !given.on_nvidia() {
        return derived;
    }
    match op {
        Op::IndexScore(op) => Derived { index_kernel: index(op, given), ..derived },
        Op::Select(op) => Derived { select_kernel: select(op, given), ..derived },
        Op::Append(_) => Derived { append: APPEND, ..derived },
        Op::Step(step) => Derived {
            index_kernel: index(&step.index, given),
            select_kernel: select_in_step(step, given, derived.decode_blocks),
            append: if step.appends { APPEND } else { AppendPlan::default() },
            ..derived
        },
        Op::SparseDecode(_) | Op::SparsePrefill(_) | Op::Merge(_) | Op::SelectMerge(_) => derived,
    }
}

/// Of several ranks each counts the blocks that it scores.
fn index(op: &IndexScore, given: &Given) -> IndexKernel {
    let heads = u64::from(op.geometry.index_heads);
    let pairs = u64::from(given.lengths.max_query_len()) * heads;
    let blocks = given.request_blocks(&op.geometry).map(|(.., blocks)| given.options.own_blocks(blocks));
    let blocks = blocks.fold(0, u64::saturating_add);
    match (pairs, op.keys) {
        (0..=8, CacheFormat::Nvfp4) if blocks <= shared_blocks(op.keys) => IndexKernel::Paired,
        (0..=8, _) if blocks <= shared_blocks(op.keys) => IndexKernel::Shared,
        (0..=8, CacheFormat::E4m3) if blocks <= FEW_BLOCKS => IndexKernel::Few,
        (0..=8, _) => IndexKernel::Eight,
        (9..=16, _) => IndexKernel::Sixteen,
        _ => IndexKernel::ThirtyTwo,
    }
}

/// The fewest warps that keep the scores in registers; where they do not do, the smallest block that keeps the keys there. Measured on an
/// H200 (driver 580.159), one and eight requests: 4,096 blocks eight warps 2.2 and 2.3 us, sixteen 2.5 and 2.6, medium 4.6 and 4.7; 16,384
/// blocks sixteen warps 3.4 and 3.7, a cluster 4.1 and 4.8, large 11.5 and 11.9; 65,536 blocks a cluster 4.3 and 7.0, of blocks of
/// eight warps 4.6 and 9.5, large 40.6 and 41.2.
fn select(op: &Select, given: &Given) -> SelectKernel {
    let rows = given.lengths.max_query_len();
    let requests = given.lengths.requests().len() as u64;
    let lists = requests.saturating_mul(rows.into()).saturating_mul(op.lists().into());
    let blocks = given.blocks(&op.geometry);
    let warps = if lists <= MOST_TEAMS { SelectKernel::Team } else { SelectKernel::Warp };
    use SelectKernel::{Cluster, Eight, Medium, Sixteen, Small};
    let mut candidates = [warps, Eight, Sixteen, Cluster, Small, Medium].into_iter();
    candidates.find(|kernel| kernel.takes(op, blocks)).unwrap_or(SelectKernel::Large)
}

/// Measured on an H200 (driver 580.159) with and without append, one row a request of 128K tokens, by attention and by a kernel of its
/// own: 1 / 8 / 32 / 128 requests in fp8 16.9 / 49.7 / 150.8 / 546 and 17.9 / 50.3 / 152.8 / 553 us, in NVFP4 without append 14.6 / 37.5 /
/// 102.7 / 384 and 14.6 / 37.5 / 103.1 / 377.
fn select_in_step(step: &Step, given: &Given, blocks: DecodeBlocks) -> SelectKernel {
    match select(&step.select, given) {
        SelectKernel::Team | SelectKernel::Warp if SelectKernel::Attention.is_done_by(blocks) => {
            SelectKernel::Attention
        }
        own => own,
    }
}

/// What `warp_select.cuh` and `block_select.cuh` are written for, the number of blocks apart.
fn suits_warps(op: &Select) -> bool {
    let (slots, forced) =
        (u64::from(op.geometry.top_k), u64::from(op.init_blocks) + u64::from(op.local_blocks));
    op.grouping == Grouping::PerHead
        && op.order == SelectOrder::Ascending
        && op.nan_rule == NanRule::Lowest
        && slots <= WARP_SLOTS
        && forced <= slots
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Arch, DeviceTraits};
    use crate::lengths::{Lengths, RequestBound};
    use crate::plan::PlanOptions;

    fn chosen(op: &Op, lengths: &Lengths, arch: Arch) -> Derived {
        chosen_with(op, lengths, arch, &PlanOptions::default())
    }

    fn chosen_with(op: &Op, lengths: &Lengths, arch: Arch, options: &PlanOptions) -> Derived {
        let traits = DeviceTraits { arch, ..DeviceTraits::h200() };
        let given = Given { lengths, traits: &traits, options, variant: "" };
        choose(op, &given, Derived::default())
    }

    fn index_kernel(keys: CacheFormat, requests: u32, rows: u32, kv: u32) -> IndexKernel {
        let op = Op::IndexScore(IndexScore { keys, ..IndexScore::default() });
        chosen(&op, &Lengths::upto(requests, rows, kv).unwrap(), Arch::Sm90a).index_kernel
    }

    #[test]
    fn few_pages_are_shared_by_warps() {
        use CacheFormat::{Bf16, E4m3, Nvfp4};
        use IndexKernel::{Eight, Few, Paired, Shared, Sixteen, ThirtyTwo};
        let borders = [
            (E4m3, 384, Shared, Few),
            (E4m3, 8192, Few, Eight),
            (Bf16, 384, Shared, Eight),
            (Nvfp4, 960, Paired, Eight),
        ];
        for (keys, last, until, then) in borders {
            assert_eq!(index_kernel(keys, 1, 1, last * 128), until, "{keys:?}");
            assert_eq!(index_kernel(keys, 1, 1, last * 128 + 1), then, "{keys:?}");
            assert_eq!(index_kernel(keys, 2, 2, last * 64), until, "all requests, {keys:?}");
            assert_eq!(index_kernel(keys, 2, 2, last * 64 + 1), then, "all requests, {keys:?}");
            assert_eq!(index_kernel(keys, 1, 3, 128), Sixteen, "{keys:?}");
            assert_eq!(index_kernel(keys, 1, 5, 128), ThirtyTwo, "{keys:?}");
            assert!([until, then, Sixteen, ThirtyTwo].iter().all(|kernel| kernel.reads(keys)), "{keys:?}");
        }
        assert!(!Shared.reads(Nvfp4) && !Paired.reads(Bf16) && !Few.reads(Bf16));
        assert!(!IndexKernel::None.reads(E4m3));
        let kernels = [Shared, Paired, Few, Eight, Sixteen, ThirtyTwo];
        let shapes = kernels.map(|kernel| (kernel.pairs(), kernel.pages()));
        assert_eq!(shapes, [(8, 1), (8, 2), (8, 4), (8, 4), (16, 4), (32, 4)]);
    }

    #[test]
    fn a_rank_counts_its_own_blocks() {
        use CacheFormat::{E4m3, Nvfp4};
        use IndexKernel::{Eight, Few, Paired, Shared};
        let of = |keys, blocks: u32, world, rank| {
            let op = Op::IndexScore(IndexScore { keys, ..IndexScore::default() });
            let options = PlanOptions { world, rank, ..PlanOptions::default() };
            let lengths = Lengths::upto(3, 1, blocks * 128).unwrap();
            chosen_with(&op, &lengths, Arch::Sm90a, &options).index_kernel
        };
        // Of 513 blocks of each of three requests rank 0 of four has 129, the others 128: 387 and 384 in all.
        assert_eq!([0, 1, 3].map(|rank| of(E4m3, 128 * 4, 4, rank)), [Shared; 3]);
        assert_eq!([0, 1, 3].map(|rank| of(E4m3, 128 * 4 + 1, 4, rank)), [Few, Shared, Shared]);
        assert_eq!([0, 1, 2].map(|rank| of(E4m3, 128 * 4 + 2, 4, rank)), [Few, Few, Shared]);
        assert_eq!([0, 7].map(|rank| of(Nvfp4, 320 * 8 + 1, 8, rank)), [Eight, Paired]);
        assert_eq!(of(E4m3, 128 * 4, 1, 0), Few, "one device");
    }

    #[test]
    fn warps_select_short_plain_rows_few_in_teams() {
        let of = |op: &Select, requests, rows, blocks: u32| {
            let lengths = Lengths::upto(requests, rows, blocks * 128).unwrap();
            chosen(&Op::Select(op.clone()), &lengths, Arch::Sm100a).select_kernel
        };
        let plain = Select::default();
        assert_eq!(of(&plain, 16, 1, 1024), SelectKernel::Team);
        assert_eq!(of(&plain, 17, 1, 1024), SelectKernel::Warp);
        assert_eq!(of(&plain, 8, 2, 1024), SelectKernel::Team);
        assert_eq!(of(&plain, 9, 2, 1024), SelectKernel::Warp);
        for other in [
            Select { grouping: Grouping::Reduced, ..plain.clone() },
            Select { order: SelectOrder::ScoreThenOwn, ..plain.clone() },
            Select { nan_rule: NanRule::Highest, ..plain.clone() },
            Select { init_blocks: 16, ..plain.clone() },
        ] {
            assert_eq!(of(&other, 1, 1, 64), SelectKernel::Small, "{other:?}");
            assert_eq!(of(&other, 1, 1, 1025), SelectKernel::Medium, "{other:?}");
            assert_eq!(of(&other, 1, 1, 4097), SelectKernel::Large, "{other:?}");
        }
        let mut wide = plain.clone();
        wide.geometry.top_k = 33;
        assert_eq!(of(&wide, 1, 1, 64), SelectKernel::Small);
        wide.geometry.top_k = 32;
        assert_eq!(of(&Select { init_blocks: 31, ..wide }, 1, 1, 64), SelectKernel::Team);
    }

    #[test]
    fn long_plain_rows_have_more_warps() {
        use SelectKernel::{Cluster, Eight, Sixteen};
        let op = Op::Select(Select::default());
        let of = |requests, blocks: u32| {
            let lengths = Lengths::upto(requests, 1, blocks * 128).unwrap();
            chosen(&op, &lengths, Arch::Sm90a).select_kernel
        };
        for requests in [1, 1000] {
            let sizes = [1025, 4096, 4097, 16_384, 16_385, 65_536].map(|blocks| of(requests, blocks));
            assert_eq!(sizes, [Eight, Eight, Sixteen, Sixteen, Cluster, Cluster]);
        }
        assert_eq!([1, 16_385, 32_768, 65_536, 1 << 40].map(|n| Cluster.ranks(n)), [1, 8, 8, 16, 16]);
        assert_eq!((Eight.ranks(4096), SelectKernel::None.ranks(1)), (1, 0));
    }

    #[test]
    fn attention_selects_the_short_plain_rows_of_a_step() {
        let by = |step: &Step, requests, blocks: u32, attends| {
            let lengths = Lengths::upto(requests, 1, blocks * 128).unwrap();
            let traits = DeviceTraits::h200();
            let given =
                Given { lengths: &lengths, traits: &traits, options: &PlanOptions::default(), variant: "" };
            let derived = Derived { decode_blocks: attends, ..Derived::default() };
            choose(&Op::Step(step.clone()), &given, derived).select_kernel
        };
        let of = |step: &Step, requests, blocks| by(step, requests, blocks, DecodeBlocks::Full);
        let plain = Step::default();
        assert_eq!([1, 500].map(|requests| of(&plain, requests, 1024)), [SelectKernel::Attention; 2]);
        assert_eq!(of(&plain, 1, 1025), SelectKernel::Eight);
        assert_eq!(by(&plain, 1, 1024, DecodeBlocks::Quad), SelectKernel::Attention);
        assert_eq!(by(&plain, 500, 1024, DecodeBlocks::Rows), SelectKernel::Warp, "four rows a block");
        assert_eq!(by(&plain, 1, 1024, DecodeBlocks::None), SelectKernel::Team, "prefill");
        let reduced = Select { grouping: Grouping::Reduced, ..Select::default() };
        assert_eq!(of(&Step { select: reduced, ..plain }, 1, 1024), SelectKernel::Small);
    }

    #[test]
    fn other_devices_and_operations_have_none() {
        let lengths = Lengths::upto(1, 1, 1000).unwrap();
        for kind in crate::op::OpKind::ALL {
            for arch in [Arch::Cpu, Arch::Gfx942, Arch::Gfx950] {
                assert_eq!(chosen(&Op::of(kind), &lengths, arch), Derived::default(), "{kind}");
            }
            let own = chosen(&Op::of(kind), &lengths, Arch::Sm107a);
            let has = matches!(kind.name(), "append" | "index_score" | "select" | "step");
            assert_eq!(own != Derived::default(), has, "{kind}");
        }
    }

    #[test]
    fn no_extent_overflows() {
        let bound = RequestBound { query_len: 1 << 20, kv_len: 1 << 30 };
        let lengths = Lengths::new([bound; 3]).unwrap();
        let mut select = Select::default();
        (select.geometry.query_heads, select.geometry.index_heads) = (1 << 30, 1 << 30);
        assert_eq!(chosen(&Op::Select(select), &lengths, Arch::Sm90a).select_kernel, SelectKernel::Large);
        assert_eq!(APPEND.passes(u64::MAX), 8);
        assert_eq!([0, 7, 8, 12].map(|waves| APPEND.passes(waves)), [1, 1, 2, 3]);
        assert_eq!(AppendPlan::default().passes(u64::MAX), 1);
    }
}
