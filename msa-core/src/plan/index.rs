use super::context_parallel;
use super::given::Given;
use super::workspace::row_windows;
use super::{BlockPart, Derived};
use crate::error::Result;
use crate::geometry::Geometry;
use crate::op::IndexScore;

/// Blocks that one workgroup takes at once: the four warps of a `wgmma` hold four pages of one request.
const BLOCK_QUAD: u64 = 4;

/// Query rows that share a loaded page in prefill: the M of one 64-row tile in each of two warpgroups.
const ROW_TILE: u64 = 128;

/// Workgroups of a unit. Measured on an H200 (driver 580.159): two workgroups of two warpgroups an SM are best for
/// NVFP4 keys and within noise for fp8; static rounding over 4 parts a unit costs at most 3%. On a CPU they even out
/// cores that other processes slow down.
const PARTS_PER_UNIT: u64 = 4;

/// Divides the pages of every request over the units. Scores do not depend on it.
pub(super) fn derive(op: &IndexScore, given: &Given) -> Result<Derived> {
    let scratch = given.scratch(context_parallel::needs(op, given)?);
    let each = scratch.window_rows(given.rows(), given.options.cap())?;
    let (workspace, workspace_bytes) = scratch.regions(each, given.options.cap())?;
    let windows = row_windows(given.rows(), each)?;
    Ok(Derived {
        batch_invariant: true,
        block_parts: block_parts(&op.geometry, given),
        context_parallel: context_parallel::exchange(op, given, each),
        windows,
        workspace,
        workspace_bytes,
        ..Derived::default()
    })
}

/// The blocks of this rank of every request, divided over parts of equal work.
pub(super) fn block_parts(geometry: &Geometry, given: &Given) -> Vec<BlockPart> {
    let tiles = |query_len: u32| u64::from(query_len).div_ceil(ROW_TILE).max(1);
    let work =
        given.request_blocks(geometry).map(|(_, q, blocks)| given.options.own_blocks(blocks) * tiles(q));
    let work = work.fold(0_u64, u64::saturating_add);
    let width = work.div_ceil(given.units() * PARTS_PER_UNIT).max(1).next_multiple_of(BLOCK_QUAD);
    let requests = given.request_blocks(geometry);
    requests.flat_map(|(request, _, blocks)| request_parts(request, blocks, width, given)).collect()
}

fn request_parts(
    request: u32,
    blocks: u64,
    width: u64,
    given: &Given,
) -> impl Iterator<Item = BlockPart> + use<> {
    let own = given.options.own_blocks(blocks);
    let (world, rank) = (u64::from(given.options.world.max(1)), u64::from(given.options.rank));
    // A request has at most 2^25 blocks (2^30 tokens in blocks of 32), times the world of at most 8.
    let block = move |index: u64| (index * world + rank).min(blocks) as u32;
    (0..own.div_ceil(width)).map(move |part| BlockPart {
        request,
        part: part as u32,
        block_begin: block(part * width),
        block_end: block(((part + 1) * width).min(own)),
        block_step: world as u32,
    })
}
