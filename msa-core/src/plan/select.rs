use super::Derived;
use super::given::{Given, lists};
use super::workspace::{Need, Scratch, product, row_windows};
use crate::error::{Result, require};
use crate::geometry::{Geometry, Grouping};
use crate::op::Select;

/// Most blocks of a row that is selected from: candidate keys name a block in 16 bits.
pub(super) const MAX_BLOCKS: u64 = 1 << 16;

/// Blocks whose candidate keys one workgroup ranks in shared memory: 8,192 scores are 32 KiB, which even a quarter of
/// the 160 KiB LDS of gfx950 holds, with room for the histogram.
pub(super) const RANKED_BLOCKS: u64 = 8192;

/// Rows in windows; a row with more than [`RANKED_BLOCKS`] blocks is ranked in parts whose best k are ranked again.
pub(super) fn derive(op: &Select, given: &Given) -> Result<Derived> {
    check_blocks(&op.geometry, given)?;
    let scratch = Scratch::new([need_for(&op.geometry, op.grouping, given.blocks(&op.geometry), given)]);
    let each = scratch.window_rows(given.rows(), given.options.cap())?;
    let (workspace, workspace_bytes) = scratch.regions(each, given.options.cap())?;
    let windows = row_windows(given.rows(), each)?;
    Ok(Derived { batch_invariant: true, windows, workspace, workspace_bytes, ..Derived::default() })
}

/// Candidate keys ([`crate::candidate`]) of the parts of a row, 8 bytes each; a CPU ranks a row in one go.
pub(super) fn need_for(geometry: &Geometry, grouping: Grouping, blocks: u64, given: &Given) -> Need {
    let parts = candidate_parts(blocks, given);
    let keys = [u64::from(lists(geometry, grouping)), parts, u64::from(geometry.top_k), 8];
    Need::per_row("candidates", product(&keys))
}

fn candidate_parts(blocks: u64, given: &Given) -> u64 {
    let parts = blocks.div_ceil(RANKED_BLOCKS);
    if given.on_cpu() || parts <= 1 { 0 } else { parts }
}

/// Refuses contexts of more than [`MAX_BLOCKS`] blocks.
pub(super) fn check_blocks(geometry: &Geometry, given: &Given) -> Result<()> {
    let most = MAX_BLOCKS * u64::from(geometry.block);
    let want = format!("at most {most} tokens, {MAX_BLOCKS} blocks");
    require(given.blocks(geometry) <= MAX_BLOCKS, "lengths.kv_len", want, given.lengths.max_kv_len())
}
