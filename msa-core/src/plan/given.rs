use super::PlanOptions;
use super::workspace::{Need, Scratch};
use crate::device::{Arch, DeviceTraits};
use crate::error::{Result, require};
use crate::geometry::{Geometry, Grouping};
use crate::lengths::Lengths;
use crate::variant::Variant;

/// Most requests of one plan: its parts are lists, and a list that long is no batch.
pub(super) const MAX_REQUESTS: usize = 1 << 20;

/// Most units that parts are made for; no device has more, and traits may come from a text.
const MAX_UNITS: u32 = 4096;

/// What a plan is made from, apart from the operation.
#[derive(Clone, Copy)]
pub(super) struct Given<'a> {
    pub(super) lengths: &'a Lengths,
    pub(super) traits: &'a DeviceTraits,
    pub(super) options: &'a PlanOptions,
    /// Name of the variant that the plan is for.
    pub(super) variant: &'a str,
}

impl Given<'_> {
    pub(super) fn units(&self) -> u64 {
        u64::from(self.traits.units.clamp(1, MAX_UNITS))
    }

    pub(super) fn on_cpu(&self) -> bool {
        self.traits.arch == Arch::Cpu
    }

    /// Whether decode takes a page once for all rows that attend to it.
    pub(super) fn shares_pages(&self) -> bool {
        Variant::shares_pages(self.variant)
    }

    pub(super) fn on_nvidia(&self) -> bool {
        use Arch::{Sm90a, Sm100a, Sm100f, Sm103a, Sm107a};
        matches!(self.traits.arch, Sm90a | Sm100a | Sm100f | Sm103a | Sm107a)
    }

    pub(super) fn rows(&self) -> u64 {
        self.lengths.rows()
    }

    /// Blocks of the longest context.
    pub(super) fn blocks(&self, geometry: &Geometry) -> u64 {
        geometry.blocks(self.lengths.max_kv_len().into())
    }

    /// Requests with their numbers and the blocks that they can have.
    pub(super) fn request_blocks(&self, geometry: &Geometry) -> impl Iterator<Item = (u32, u32, u64)> {
        let geometry = *geometry;
        let numbered = (0_u32..).zip(self.lengths.requests());
        numbered.map(move |(i, r)| (i, r.query_len, geometry.blocks(r.kv_len.into())))
    }

    /// Everything that a workspace of an operation with requests or slots holds: `needs`, and for a checked plan the offsets
    /// that the kernels read in place of the caller's, which say that there is no row where a run is refused.
    pub(super) fn scratch(&self, needs: impl IntoIterator<Item = Need>) -> Scratch {
        let offsets = (self.lengths.requests().len() as u128 + 1) * 4;
        let checked = self.options.checked.then(|| Need::fixed("checked_offsets", offsets));
        Scratch::new(needs.into_iter().chain(checked))
    }

    pub(super) fn check_requests(&self) -> Result<()> {
        let requests = self.lengths.requests().len();
        require(requests <= MAX_REQUESTS, "lengths", format!("at most {MAX_REQUESTS} requests"), requests)
    }
}

/// Lists of block ids of a row.
pub(super) fn lists(geometry: &Geometry, grouping: Grouping) -> u32 {
    match grouping {
        Grouping::PerHead => geometry.index_heads,
        Grouping::Reduced => 1,
    }
}
