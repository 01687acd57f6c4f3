//! Results that a file brings along, to compare a run with.

use super::error::InputError;
use super::metadata::Metadata;
use super::source::{Axis, Form, Origin, Source};
use super::tensor::{ElementType, Tensor, ValueRule};

/// Expected results of an attention step. Every one is optional; rows are the rows of `q`.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// Selected block ids, i32 `[rows, Hi, k]`; -1 where a slot is empty, never a future block, never twice.
    pub block_indices: Option<Tensor>,
    /// Index scores before the own block is forced, f32 `[rows, Hi, blocks]`; -inf where nothing is visible.
    pub block_scores: Option<Tensor>,
    /// Score of the last chosen block minus that of the first dropped one, f32 `[rows, Hi]`; +inf if none is dropped.
    pub topk_gap: Option<Tensor>,
    /// Attention output, `[rows, Hq, D]`, or one entry for each row in `out_rows`.
    pub out: Option<Tensor>,
    /// The rows that `out` holds, ascending; `None` if it holds all of them.
    pub out_rows: Option<Vec<i32>>,
    /// Natural-log sum of exponentials, f32 `[rows, Hq]`; -inf where nothing is visible.
    pub lse: Option<Tensor>,
}

/// Reads the results for query rows at `positions` over at most `blocks` blocks.
pub(super) fn read_expected(
    source: &mut Source,
    meta: &Metadata,
    positions: &[i32],
    blocks: usize,
) -> Result<Expected, InputError> {
    // Results belong to the rows of q: a companion's are of use only if its q is.
    let origin = if source.has("q", Origin::Own) { Origin::Own } else { Origin::Either };
    let (rows, index_heads) = (Axis::Is(positions.len()), Axis::Is(meta.num_index_heads));
    let (out, out_rows) = read_out(source, meta, positions.len(), origin)?;
    let mut floats = |name, axes: &[Axis], rule| {
        let tensor = source.optional(name, origin, Form { axes, elements: &[ElementType::F32] })?;
        tensor.iter().try_for_each(|tensor: &Tensor| tensor.check(rule))?;
        Ok::<_, InputError>(tensor)
    };
    let score_axes = [rows, index_heads, Axis::Is(blocks)];
    Ok(Expected {
        block_scores: floats("block_scores", &score_axes, ValueRule::FiniteOrMinusInfinity)?,
        topk_gap: floats("topk_gap", &[rows, index_heads], ValueRule::NotNan)?,
        lse: floats("lse", &[rows, Axis::Is(meta.num_q_heads)], ValueRule::FiniteOrMinusInfinity)?,
        block_indices: read_block_indices(source, meta, positions, origin)?,
        out,
        out_rows,
    })
}

fn read_block_indices(
    source: &mut Source,
    meta: &Metadata,
    positions: &[i32],
    origin: Origin,
) -> Result<Option<Tensor>, InputError> {
    let topk = meta.demand_topk()?;
    let axes = [Axis::Is(positions.len()), Axis::Is(meta.num_index_heads), Axis::Is(topk)];
    let form = Form { axes: &axes, elements: &[ElementType::I32] };
    let Some(tensor) = source.optional("block_indices", origin, form)? else { return Ok(None) };
    let ids = tensor.to_i32().unwrap_or_default();
    for (list_number, list) in ids.chunks_exact(topk).enumerate() {
        let row = list_number / meta.num_index_heads;
        let own = positions.get(row).map_or(-1, |position| i64::from(*position) / meta.block_size as i64);
        check_list(&tensor, list_number * topk, list, own)?;
    }
    Ok(Some(tensor))
}

/// One selection list: ids from -1 (empty) to the own block, none twice.
fn check_list(tensor: &Tensor, first: usize, list: &[i32], own: i64) -> Result<(), InputError> {
    let outside = |id: &i32| *id < -1 || i64::from(*id) > own;
    if let Some(at) = list.iter().position(outside) {
        let want = format!("block ids from -1 to the row's own block {own}");
        return Err(tensor.refuse_element(first + at, &want, list.get(at).copied().unwrap_or_default()));
    }
    let mut sorted: Vec<i32> = list.iter().copied().filter(|id| *id >= 0).collect();
    sorted.sort_unstable();
    if let Some([twice, _]) = sorted.array_windows().find(|[a, b]| a == b) {
        let at = list.iter().rposition(|id| id == twice).unwrap_or_default();
        return Err(tensor.refuse_element(
            first + at,
            "every block once in a list",
            format!("{twice} again"),
        ));
    }
    Ok(())
}

/// `out` and `out_rows` come from one file: the rows that one file trimmed are not those of another.
fn read_out(
    source: &mut Source,
    meta: &Metadata,
    rows: usize,
    origin: Origin,
) -> Result<(Option<Tensor>, Option<Vec<i32>>), InputError> {
    let origin = if source.has("out", Origin::Own) { Origin::Own } else { origin };
    if !source.has("out", origin) {
        return Ok((None, None));
    }
    let out_rows = read_out_rows(source, rows, origin)?;
    let held = out_rows.as_ref().map_or(rows, Vec::len);
    let form = Form {
        axes: &[Axis::Is(held), Axis::Is(meta.num_q_heads), Axis::Is(meta.head_dim)],
        elements: &[ElementType::F32, ElementType::Bf16, ElementType::F16],
    };
    let out = source.optional("out", origin, form)?;
    out.iter().try_for_each(|tensor| tensor.check(ValueRule::Finite))?;
    Ok((out, out_rows))
}

fn read_out_rows(source: &mut Source, rows: usize, origin: Origin) -> Result<Option<Vec<i32>>, InputError> {
    let form = Form { axes: &[Axis::Named("rows of out")], elements: &[ElementType::I32] };
    let Some(tensor) = source.optional("out_rows", origin, form)? else { return Ok(None) };
    let held = tensor.to_i32().unwrap_or_default();
    let mut next = 0i64;
    for (at, row) in held.iter().enumerate() {
        if i64::from(*row) < next || i64::from(*row) >= rows as i64 {
            let want = format!("ascending rows from 0 to {}", rows.saturating_sub(1));
            return Err(tensor.refuse_element(at, &want, row));
        }
        next = i64::from(*row) + 1;
    }
    Ok(Some(held))
}
