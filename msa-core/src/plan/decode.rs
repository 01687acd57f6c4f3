use super::decode_cost::{NvidiaCost, Place};
use super::given::{Given, lists};
use super::workspace::{Need, Scratch, product, row_windows};
use super::{DecodeBlocks, Derived, SlotPart, shared};
use crate::cache::CacheFormat;
use crate::error::{Result, require};
use crate::op::Attention;

/// Parts of a request when its bits must not depend on the batch.
///
/// Measured with a prototype on an H200 (driver 580.159, NVFP4, one row a request, B = 1 / 8 / 32 / 128): four parts take 9.6 / 13.4 / 29.8 /
/// 82.8 us where the best number of parts takes 5.4 / 12.2 / 22.9 / 62.3; eight take 7.0 / 12.5 / 35 / 104 and two 14.7 /
/// 15.3 / 22.9 / 70.3. Four loses at most 4 us to eight in small batches and wins 21 us in large ones.
pub(super) const PINNED_PARTS: u32 = 4;

/// Bytes of the row sum and the maximum of a partial state, f32 each.
pub(super) const STATE_BYTES: u64 = 8;

/// Divides the slots, sizes the partial states, and cuts the rows into windows whose states fit the cap.
pub(super) fn derive(op: &Attention, given: &Given) -> Result<Derived> {
    let slot_parts = slot_parts(op, given, Place::Alone)?;
    let scratch = if given.shares_pages() {
        let record = shared::need(lists(&op.geometry, op.grouping), op.geometry.top_k);
        given.scratch(partial_needs(op, op.geometry.top_k.into()).into_iter().chain([record]))
    } else {
        given.scratch(needs(op, &slot_parts))
    };
    derived(op, given, slot_parts, &scratch, Place::Alone)
}

/// A plan of `slot_parts` whose stages need `scratch`: of decode alone or of a step.
pub(super) fn derived(
    op: &Attention,
    given: &Given,
    slot_parts: Vec<SlotPart>,
    scratch: &Scratch,
    place: Place,
) -> Result<Derived> {
    let each = scratch.window_rows(given.rows(), given.options.cap())?;
    let (workspace, workspace_bytes) = scratch.regions(each, given.options.cap())?;
    let windows = row_windows(given.rows(), each)?;
    let decode_blocks = blocks(op, given, &slot_parts, place);
    Ok(Derived {
        batch_invariant: is_batch_invariant(given),
        slot_parts,
        decode_blocks,
        windows,
        workspace,
        workspace_bytes,
        ..Derived::default()
    })
}

/// True if the division of a request's slots does not depend on the rest of the batch: one part on a CPU, the caller's
/// number, the pinned one, or one a slot.
fn is_batch_invariant(given: &Given) -> bool {
    given.shares_pages() || given.on_cpu() || given.options.splits.is_some() || given.options.batch_invariant
}

/// The slots of every request, divided over parts.
///
/// A caller's number of parts is taken as it is. Otherwise a request with `n` slots that can hold a block gets parts of
/// equal width, no more of them than `n`; the last one takes the slots that stay empty too. Where pages are shared every
/// slot is a part. A step may be divided otherwise than decode of the same batch alone, and then its bits differ; the caller's number of
/// parts, or those of `batch_invariant`, are the same in both.
pub(super) fn slot_parts(op: &Attention, given: &Given, place: Place) -> Result<Vec<SlotPart>> {
    let k = op.geometry.top_k;
    if let Some(splits) = given.options.splits {
        require((1..=k).contains(&splits), "options.splits", format!("1 to top_k = {k}"), splits)?;
    }
    if given.shares_pages() {
        let whole = given.options.splits.is_none_or(|splits| splits == k);
        let want = format!("none, or top_k = {k}: {} makes a part of every slot", given.variant);
        require(whole, "options.splits", want, given.options.splits.unwrap_or(k))?;
        let requests = given.request_blocks(&op.geometry);
        return Ok(requests.flat_map(|(request, ..)| equal_parts(request, k, k)).collect());
    }
    let wanted = parts_that_fill(op, given, place);
    let mut parts = Vec::new();
    for (request, _, blocks) in given.request_blocks(&op.geometry) {
        let live = u32::try_from(blocks).unwrap_or(k).clamp(1, k);
        if let Some(splits) = given.options.splits {
            parts.extend(equal_parts(request, splits, k));
        } else if given.options.batch_invariant && !given.on_cpu() {
            parts.extend(wide_parts(request, k.div_ceil(PINNED_PARTS.min(k)), live, k));
        } else {
            parts.extend(wide_parts(request, live.div_ceil(wanted), live, k));
        }
    }
    Ok(parts)
}

/// Partial outputs `[rows][parts][Hq][D]` and states `[rows][parts][Hq]` of (l, m); none if no request is split.
pub(super) fn needs(op: &Attention, parts: &[SlotPart]) -> [Need; 2] {
    let most = parts.iter().map(|p| u64::from(p.part) + 1).max().unwrap_or(0);
    partial_needs(op, if most > 1 { most } else { 0 })
}

/// Needs of `states` partial states of every row and query head.
pub(super) fn partial_needs(op: &Attention, states: u64) -> [Need; 2] {
    let heads = u64::from(op.geometry.query_heads);
    let channels = u64::from(op.geometry.head_dim);
    [
        Need::per_row("partial_outputs", product(&[states, heads, channels, op.output.partial.bytes()])),
        Need::per_row("partial_states", product(&[states, heads, STATE_BYTES])),
    ]
}

/// (row, list) pairs that are worked on side by side.
fn items(op: &Attention, given: &Given) -> u64 {
    let heads = lists(&op.geometry, op.grouping).max(op.geometry.kv_heads);
    given.rows().saturating_mul(heads.into()).max(1)
}

/// The number of parts. A CPU has no idle units to fill within a row; NVIDIA devices take what [`NvidiaCost`] predicts to be
/// fastest; others what takes the fewest [`slots_in_turn`].
fn parts_that_fill(op: &Attention, given: &Given, place: Place) -> u32 {
    if given.on_cpu() {
        return 1;
    }
    let (items, k) = (items(op, given), op.geometry.top_k);
    if given.on_nvidia() {
        return NvidiaCost::of(op, place).fastest_parts(items, k, given.units());
    }
    // Two at a time for NVFP4, whose blocks take longer to decode than to load (estimated: no such GPU was at hand).
    let per_unit = if op.cache == CacheFormat::Nvfp4 { 2 } else { 1 };
    let at_once = given.units() * per_unit;
    let k = u64::from(k);
    let best = (1..=k).min_by_key(|&parts| slots_in_turn(items, parts, k, at_once));
    best.map_or(1, |parts| parts as u32)
}

/// A merge's launch, in slots: some 5 us of a graph, and 18 KiB for a unit's share of 5 TB/s (estimated as above).
const MERGE_LAUNCH: u64 = 4;

/// Slots that a unit takes one after the other where `items` rows and lists of `k` slots are divided into parts, of which
/// `at_once` run at a time, with the merge. The state of a part of several counts as a slot: 8 KiB written, read and merged,
/// beside the 18 KiB of an NVFP4 block. So the last wave of parts, which may be nearly empty, is as short as it can be.
fn slots_in_turn(items: u64, parts: u64, k: u64, at_once: u64) -> u64 {
    let width = k.div_ceil(parts);
    let state = u64::from(width < k);
    let waves = items.saturating_mul(k.div_ceil(width)).div_ceil(at_once.max(1));
    waves.saturating_mul(width + state).saturating_add(MERGE_LAUNCH * state)
}

/// How the blocks of threads of an NVIDIA device take the parts.
fn blocks(op: &Attention, given: &Given, parts: &[SlotPart], place: Place) -> DecodeBlocks {
    let most = parts.iter().map(|part| part.part + 1).max();
    match most {
        Some(most) if given.on_nvidia() => {
            let cost = NvidiaCost::of(op, place);
            cost.fastest_blocks(items(op, given), most, op.geometry.top_k, given.units()).0
        }
        _ => DecodeBlocks::None,
    }
}

fn equal_parts(request: u32, parts: u32, k: u32) -> impl Iterator<Item = SlotPart> {
    (0..parts).map(move |part| SlotPart {
        request,
        part,
        slot_begin: k * part / parts,
        slot_end: k * (part + 1) / parts,
    })
}

fn wide_parts(request: u32, width: u32, live: u32, k: u32) -> impl Iterator<Item = SlotPart> {
    let parts = live.div_ceil(width);
    (0..parts).map(move |part| SlotPart {
        request,
        part,
        slot_begin: part * width,
        slot_end: if part + 1 == parts { k } else { (part + 1) * width },
    })
}
