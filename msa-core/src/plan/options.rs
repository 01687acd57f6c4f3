use crate::text::{fields, names};

/// Prefill schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum Schedule {
    /// A tile of adjacent queries streams the union of its blocks once.
    #[default]
    Union = 0,
    /// A tile for each (KV head, block) over the gathered queries; partial states, then a combine.
    KvOuter = 1,
    /// Blocks that one query of a quad selected alone go to KV-outer, the rest to union; combined at the end.
    Hybrid = 2,
}
names!(Schedule { Union = "union", KvOuter = "kv_outer", Hybrid = "hybrid" });

/// What the caller asks of the schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum ScheduleChoice {
    /// The record's cost rule, per segment and KV head.
    #[default]
    Auto = 0,
    /// Always union.
    Union = 1,
    /// Always KV-outer.
    KvOuter = 2,
    /// Always hybrid.
    Hybrid = 3,
}
names!(ScheduleChoice { Auto = "auto", Union = "union", KvOuter = "kv_outer", Hybrid = "hybrid" });

/// What a caller may ask of a plan. Explicit choices are honoured or refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PlanOptions {
    /// A variant by name.
    pub variant: Option<String>,
    /// Parts that the slots of a request are divided into (decode).
    pub splits: Option<u32>,
    /// Prefill schedule.
    pub schedule: ScheduleChoice,
    /// Pin splits and schedule to the request alone.
    pub batch_invariant: bool,
    /// Look at the device-resident values before the work, and do nothing if one is wrong: the run writes its status word
    /// alone, which has [`Status::REFUSED`](crate::Status::REFUSED) and a bit for each kind of finding. Without it, which is
    /// the default, what is out of range is skipped and reported, and everything else is done.
    ///
    /// Looked at, for what the operation is given:
    ///
    /// * `query_offsets`: the first is 0, none is below the one before, none is above the rows, and a request has at most
    ///   the rows of its bound; `kv_lengths`: 0 to the bound (`LENGTH`).
    /// * `block_table` of `index_score` and `step`: every page below the length of a request that has rows (`PAGE`).
    /// * `block_indices` that attention is given, for rows of requests: no id below -1 or beyond the length (`BLOCK`), no id
    ///   of 0 or more twice in a list (`DUPLICATE`), and the pages of the others (`PAGE`).
    /// * `slots` and, if heads are rotated, `positions` of the rows that are appended, padding apart: in range of both
    ///   caches (`SLOT`) and of the tables (`POSITION`). The same slot twice is no finding: the last row wins.
    /// * Sources of NVFP4 caches, for rows with a slot that is not dropped: no NaN (`NAN`), no infinity (`INFINITE`).
    ///   A NaN that norm weights, tables or scales bring in is found only when it is quantised, as without validation.
    ///
    /// `merge` and `select_merge` have nothing that could be wrong, and are the same with it.
    pub checked: bool,
    /// Most bytes of workspace; `None` for 256 MiB.
    pub workspace_cap: Option<u64>,
    /// A named arithmetic instead of the variant's own (reference only).
    pub arithmetic: Option<String>,
    /// Ranks that share the index pages of `index_score`, 1 to [`PlanOptions::MAX_WORLD`]; 1 is a single device.
    pub world: u32,
    /// This rank, below `world`.
    pub rank: u32,
}
fields!(PlanOptions {
    leaf variant, leaf splits, leaf schedule, leaf batch_invariant, leaf checked, leaf workspace_cap, leaf arithmetic,
    leaf world, leaf rank,
});

impl PlanOptions {
    /// Workspace cap if none is given.
    pub const DEFAULT_WORKSPACE_CAP: u64 = 256 << 20;

    /// Most ranks of indexer context parallelism: the GPUs that one host maps into each other.
    pub const MAX_WORLD: u32 = 8;

    /// The workspace cap in force, bytes.
    pub fn cap(&self) -> u64 {
        self.workspace_cap.unwrap_or(Self::DEFAULT_WORKSPACE_CAP)
    }

    /// Of the first `blocks` blocks of a request, those of this rank: block j belongs to rank j mod `world`.
    pub fn own_blocks(&self, blocks: u64) -> u64 {
        let (world, rank) = (u64::from(self.world.max(1)), u64::from(self.rank));
        blocks.saturating_add(world - 1).saturating_sub(rank) / world
    }
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self {
            variant: None,
            splits: None,
            schedule: ScheduleChoice::Auto,
            batch_invariant: false,
            checked: false,
            workspace_cap: None,
            arithmetic: None,
            world: 1,
            rank: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_all_ranks_are_those_of_one_device() {
        for (blocks, world) in (0..70_u64).flat_map(|blocks| (1..=8).map(move |world| (blocks, world))) {
            for rank in 0..world {
                let own = (0..blocks).filter(|block| block % u64::from(world) == u64::from(rank)).count();
                let options = PlanOptions { world, rank, ..PlanOptions::default() };
                assert_eq!(options.own_blocks(blocks), own as u64, "{blocks} {rank} of {world}");
            }
        }
        let options = PlanOptions { world: 8, rank: 7, ..PlanOptions::default() };
        assert_eq!(options.own_blocks(u64::MAX), u64::MAX / 8);
        assert_eq!(PlanOptions { world: 0, rank: 0, ..options }.own_blocks(9), 9, "as one device");
    }
}
