//! What a plan needs on the device beside the run's own tensors.

use msa_core::op::Op;
use msa_core::plan::Plan;

/// Tables of a plan, as bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tables {
    /// `[groups]` of (request, part, begin, end), slots for decode, else blocks of this rank; for a step the
    /// `[score_groups]` of the other; then `[requests]` of (most query rows, most tokens). Words of 32 bits.
    pub parts: Vec<u8>,
    /// NVFP4 magnitude table.
    pub magnitudes: Vec<u8>,
    /// Groups that the first parts make.
    pub groups: u32,
    /// Most parts of a request.
    pub splits: u32,
    /// Most query rows of a request, at least 1.
    pub most_rows: u32,
    /// Groups that score blocks.
    pub score_groups: u32,
    /// Offset of the parts that score blocks.
    pub scores_at: u64,
    /// Offset of the bounds.
    pub bounds_at: u64,
}

impl Tables {
    /// Of a plan.
    pub fn of(plan: &Plan) -> Self {
        let (slots, blocks) = (slot_parts(plan), block_parts(plan));
        let first = if slots.is_empty() { &blocks } else { &slots };
        let bounds = plan.requests.iter().map(|request| [request.query_len, request.kv_len]);
        let words = slots.as_flattened().iter().chain(blocks.as_flattened()).copied();
        let words = words.chain(bounds.flatten());
        Self {
            parts: words.flat_map(u32::to_le_bytes).collect(),
            magnitudes: magnitudes(plan),
            groups: first.len() as u32,
            splits: first.iter().map(|part| part[1] + 1).max().unwrap_or(1),
            most_rows: plan.requests.iter().map(|request| request.query_len).max().unwrap_or(0).max(1),
            score_groups: blocks.len() as u32,
            scores_at: slots.len() as u64 * PART_BYTES,
            bounds_at: (slots.len() + blocks.len()) as u64 * PART_BYTES,
        }
    }
}

const PART_BYTES: u64 = 16;

/// Blocks of this rank, for scores.
fn block_parts(plan: &Plan) -> Vec<[u32; 4]> {
    let (world, rank) = (plan.context_parallel.world.max(1), plan.context_parallel.rank);
    let local = |block: u32| (block + world - 1).saturating_sub(rank) / world;
    let is_last = |index: usize| {
        plan.block_parts.get(index + 1).is_none_or(|next| next.request != plan.block_parts[index].request)
    };
    let blocks = plan.block_parts.iter().enumerate().map(|(index, p)| {
        // The last part of a request also writes -inf to the end of the scores, wherever that is.
        let end = if is_last(index) { u32::MAX } else { local(p.block_end) };
        [p.request, p.part, local(p.block_begin), end]
    });
    // A request of which this rank holds nothing has rows all the same.
    let held: Vec<u32> = plan.block_parts.iter().map(|part| part.request).collect();
    let scores = matches!(plan.op, Op::IndexScore(_) | Op::Step(_));
    let requests = 0..if scores { plan.requests.len() as u32 } else { 0 };
    let without = requests.filter(|request| held.binary_search(request).is_err());
    let mut parts: Vec<_> = blocks.chain(without.map(|request| [request, 0, 0, u32::MAX])).collect();
    parts.sort_unstable();
    parts
}

/// Every request gets as many parts as the one with the most: the empty ones write empty states, so that a merge may read
/// the same number for every row.
fn slot_parts(plan: &Plan) -> Vec<[u32; 4]> {
    let mut parts: Vec<_> =
        plan.slot_parts.iter().map(|p| [p.request, p.part, p.slot_begin, p.slot_end]).collect();
    let most = parts.iter().map(|part| part[1] + 1).max().unwrap_or(1);
    let lasts: Vec<[u32; 4]> = parts
        .iter()
        .enumerate()
        .filter(|(index, part)| parts.get(index + 1).is_none_or(|next| next[0] != part[0]))
        .map(|(_, part)| *part)
        .collect();
    for [request, last, _, end] in lasts {
        parts.extend((last + 1..most).map(|part| [request, part, end, end]));
    }
    parts.sort_unstable();
    parts
}

/// gfx942 multiplies FNUZ: it holds halves, and the kernel folds the factor of two.
fn magnitudes(plan: &Plan) -> Vec<u8> {
    use msa_core::format::dequant::{magnitude_table_e4m3, magnitude_table_e4m3fnuz_half};
    let table = if plan.traits.arch.fp8_is_fnuz() {
        magnitude_table_e4m3fnuz_half(0)
    } else {
        magnitude_table_e4m3(0)
    };
    table.as_flattened().to_vec()
}

/// Device addresses of [`Tables`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TableAddresses {
    /// Parts.
    pub parts: u64,
    /// Magnitudes.
    pub magnitudes: u64,
}
