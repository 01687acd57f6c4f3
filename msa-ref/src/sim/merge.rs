//! Merging partial attention states in a fixed order.
//!
//! For every row and query head, over the states s in ascending order, in f32, each operation rounded to nearest even:
//!
//! 1. A state is **empty** if its LSE is -inf or +inf (some implementations write +inf for a row without keys); in the
//!    sum-and-maximum domain if its sum is 0 or its maximum infinite. Empty states have no weight and their outputs are
//!    not read. Without any other state the output is exactly 0 and the LSE exactly -inf.
//! 2. In the LSE domain a single other state is handed through: the same bits, or one conversion to the output type.
//! 3. `M` is the largest LSE (or maximum). `w_s = exp2((lse_s - M) * LOG2E)`, or `exp2(lse_s - M)` in base two: a
//!    subtraction, a multiplication by the f32 nearest to log2(e), and the polynomial of degree 5.
//! 4. `total = sum of w_s`, in the sum-and-maximum domain `total = fma(w_s, l_s, total)`, from +0.
//! 5. `acc[d] = fma(w_s, o_s[d], acc[d])` from +0. A state whose weight is 0 is not read: 0 * NaN is NaN.
//! 6. `o[d] = acc[d] * inverse` with `inverse = 1 / total` (IEEE division), rounded once to the output type.
//! 7. `lse = M + ln(total)`, in base two `fma(ln(total), LOG2E, M)`, with our own logarithm.
//!
//! A NaN in the LSE, maximum or sum of a state that is not empty makes the output and the LSE NaN; NaN results are
//! canonical.

#[cfg(test)]
mod tests;

use half::{bf16, f16};
use msa_core::abi::host::HostMemory;
use msa_core::args::{Args, Extents, Role};
use msa_core::backend::Status;
use msa_core::error::{Error, Result, require};
use msa_core::format::CANONICAL_NAN_F32;
use msa_core::format::round::{bf16_from_f32_rne, f16_from_f32_rne, f32_from_bf16};
use msa_core::op::{LseBase, Merge, MergeDomain, Op};
use msa_core::plan::Plan;
use msa_core::tensor::{DType, Tensor};
use rayon::prelude::*;

use super::select::row_windows;
use crate::arith::exp2::{Degree, exp2};
use crate::arith::log::ln;

/// What a partial state of one row and head says beside its output.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct State {
    /// LSE, or the maximum of the scaled logits ([`MergeDomain::SumMax`]), in the op's base.
    pub lse: f32,
    /// Sum of the exponentials relative to the maximum; not looked at in [`MergeDomain::Lse`].
    pub sum: f32,
}

/// How the states of one row and head combine.
#[derive(Debug, Clone, PartialEq)]
pub enum Combination {
    /// No state has a key: 0 and -inf.
    Empty,
    /// This state alone, handed through.
    Only(usize),
    /// A weighted sum.
    Weighted {
        /// `[S]`, exactly 0 for a state that must not be read.
        weights: Vec<f32>,
        /// Reciprocal of the weights' total.
        inverse: f32,
        /// LSE of the result.
        lse: f32,
    },
    /// Some state is not a number.
    NotANumber,
}

/// Decides how `states [S]` combine (steps 1 to 4 and 7 of the module's list).
pub fn combine(domain: MergeDomain, base: LseBase, states: &[State]) -> Combination {
    let present = |state: &&State| !is_empty(domain, state);
    let mut others = states.iter().enumerate().filter(|(_, state)| present(state));
    match (others.next(), others.next()) {
        (None, _) => Combination::Empty,
        (Some((only, _)), None) if domain == MergeDomain::Lse => Combination::Only(only),
        _ if states.iter().filter(present).any(|s| s.lse.is_nan() || is_nan_sum(domain, s)) => {
            Combination::NotANumber
        }
        _ => weigh(domain, base, states),
    }
}

/// Merges one row and head: `states [S]` and their outputs `outputs [S][D]`, elements of `op.partial` in little-endian
/// bytes, into `out [D]`, elements of `op.output`. Returns the LSE in the op's base.
///
/// # Errors
/// Another number of outputs than of states, another length than `out` has, another type than f32, bf16 or f16.
pub fn merge_head(op: &Merge, states: &[State], outputs: &[&[u8]], out: &mut [u8]) -> Result<f32> {
    require(outputs.len() == states.len(), "partial_outputs", states.len(), outputs.len())?;
    let channels = out.len() / op.output.bytes() as usize;
    match combine(op.domain, op.lse_base, states) {
        Combination::Empty => {
            out.fill(0);
            Ok(f32::NEG_INFINITY)
        }
        Combination::Only(state) => {
            if op.partial == op.output && outputs[state].len() == out.len() {
                out.copy_from_slice(outputs[state]);
            } else {
                store(op.output, &load(op.partial, outputs[state], channels)?, out)?;
            }
            Ok(states[state].lse)
        }
        Combination::Weighted { weights, inverse, lse } => {
            let mut sums = vec![0.0; channels];
            for (&weight, bytes) in weights.iter().zip(outputs).filter(|(weight, _)| **weight != 0.0) {
                let values = load(op.partial, bytes, channels)?;
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum = weight.mul_add(value, *sum));
            }
            sums.iter_mut().for_each(|sum| *sum *= inverse);
            store(op.output, &sums, out)?;
            Ok(lse)
        }
        Combination::NotANumber => {
            store(op.output, &vec![CANONICAL_NAN_F32; channels], out)?;
            Ok(CANONICAL_NAN_F32)
        }
    }
}

/// Runs [`Op::Merge`]: `partial_outputs [S, T, Hq, D]` with their states to `output [T, Hq, D]` and `lse [T, Hq]`. All
/// `T` rows are written.
///
/// # Errors
/// A plan of another op, a missing argument, memory outside the run.
pub fn run(plan: &Plan, memory: &mut HostMemory<'_>, args: &Args, extents: Extents) -> Result<Status> {
    let Op::Merge(op) = &plan.op else {
        return Err(Error::Plan(format!("a plan of {}, want merge", plan.op.name())));
    };
    let (output, lse) = (tensor(args, Role::Output)?, tensor(args, Role::Lse)?);
    for window in row_windows(plan, extents.rows as usize) {
        for rows in chunks(window) {
            let shared: &HostMemory<'_> = memory;
            let merged: Vec<MergedRow> = rows
                .clone()
                .into_par_iter()
                .map(|row| merge_row(op, shared, args, extents.states, row as u64))
                .collect::<Result<_>>()?;
            for (row, merged) in rows.zip(merged) {
                write_row(memory, output, lse, row as u64, &merged)?;
            }
        }
    }
    Ok(Status::default())
}

/// One row: `output [Hq, D]` as bytes, `lse [Hq]`.
struct MergedRow {
    output: Vec<u8>,
    lse: Vec<f32>,
}

/// Rows whose results are held at once: enough to keep the threads busy, 4 MiB at 64 heads of 128 f32 channels.
const ROWS_AT_ONCE: usize = 128;

fn chunks(window: std::ops::Range<usize>) -> impl Iterator<Item = std::ops::Range<usize>> {
    let end = window.end;
    window.step_by(ROWS_AT_ONCE).map(move |begin| begin..(begin + ROWS_AT_ONCE).min(end))
}

fn merge_row(op: &Merge, memory: &HostMemory<'_>, args: &Args, count: u64, row: u64) -> Result<MergedRow> {
    let partial = tensor(args, Role::PartialOutputs)?;
    let per_head = |role| -> Result<Vec<Vec<f32>>> {
        let tensor = tensor(args, role)?;
        (0..count).map(|s| load(DType::F32, memory.row(tensor, &[s, row])?, heads_of(op))).collect()
    };
    let lses = per_head(Role::PartialLse)?;
    let sums = if op.domain == MergeDomain::SumMax { Some(per_head(Role::PartialSums)?) } else { None };
    let head_bytes = op.geometry.head_dim as usize * op.output.bytes() as usize;
    let mut merged = MergedRow { output: vec![0; heads_of(op) * head_bytes], lse: Vec::new() };
    for (head, out) in merged.output.chunks_mut(head_bytes.max(1)).enumerate() {
        let state =
            |s: usize| State { lse: lses[s][head], sum: sums.as_ref().map_or(1.0, |all| all[s][head]) };
        let states: Vec<State> = (0..count as usize).map(state).collect();
        let outputs: Vec<&[u8]> =
            (0..count).map(|s| memory.row(partial, &[s, row, head as u64])).collect::<Result<_>>()?;
        merged.lse.push(merge_head(op, &states, &outputs, out)?);
    }
    Ok(merged)
}

fn write_row(
    memory: &mut HostMemory<'_>,
    output: &Tensor,
    lse: &Tensor,
    row: u64,
    merged: &MergedRow,
) -> Result<()> {
    let head_bytes = merged.output.len() / merged.lse.len().max(1);
    for (head, bytes) in merged.output.chunks(head_bytes.max(1)).enumerate() {
        memory.row_mut(output, &[row, head as u64])?.copy_from_slice(bytes);
    }
    store(DType::F32, &merged.lse, memory.row_mut(lse, &[row])?)
}

fn is_empty(domain: MergeDomain, state: &State) -> bool {
    state.lse.is_infinite() || (domain == MergeDomain::SumMax && state.sum == 0.0)
}

fn is_nan_sum(domain: MergeDomain, state: &State) -> bool {
    domain == MergeDomain::SumMax && state.sum.is_nan()
}

fn weigh(domain: MergeDomain, base: LseBase, states: &[State]) -> Combination {
    let present = || states.iter().filter(|state| !is_empty(domain, state));
    let most =
        present().fold(f32::NEG_INFINITY, |most, state| if state.lse > most { state.lse } else { most });
    let weight = |state: &State| match base {
        _ if is_empty(domain, state) => 0.0,
        LseBase::Natural => exp2(Degree::Five, (state.lse - most) * LOG2_E),
        LseBase::Two => exp2(Degree::Five, state.lse - most),
    };
    let weights: Vec<f32> = states.iter().map(weight).collect();
    let mut total = 0.0_f32;
    for (&weight, state) in weights.iter().zip(states).filter(|(weight, _)| **weight != 0.0) {
        total = match domain {
            MergeDomain::Lse => total + weight,
            MergeDomain::SumMax => weight.mul_add(state.sum, total),
        };
    }
    let lse = match base {
        LseBase::Natural => most + ln(total),
        LseBase::Two => ln(total).mul_add(LOG2_E, most),
    };
    Combination::Weighted { weights, inverse: 1.0 / total, lse: canonical(lse) }
}

const LOG2_E: f32 = std::f32::consts::LOG2_E;

fn canonical(x: f32) -> f32 {
    if x.is_nan() { CANONICAL_NAN_F32 } else { x }
}

/// The first `count` elements of a partial output or LSE row, exactly.
fn load(dtype: DType, bytes: &[u8], count: usize) -> Result<Vec<f32>> {
    let bytes = bytes.get(..count * dtype.bytes() as usize);
    let bytes = bytes.ok_or_else(|| Error::invalid("partial", format!("{count} elements"), "fewer"))?;
    match dtype {
        DType::F32 => Ok(bytes.as_chunks().0.iter().map(|&c| f32::from_le_bytes(c)).collect()),
        DType::Bf16 => {
            Ok(bytes.as_chunks().0.iter().map(|&c| f32_from_bf16(bf16::from_le_bytes(c))).collect())
        }
        other => Err(Error::invalid("merge.partial", "f32 or bf16", other)),
    }
}

/// Rounds `values` to `dtype`, once; NaN becomes canonical.
fn store(dtype: DType, values: &[f32], out: &mut [u8]) -> Result<()> {
    match dtype {
        DType::F32 => store_as(values, out, |x| canonical(x).to_le_bytes()),
        DType::Bf16 => store_as(values, out, |x| bf16_from_f32_rne(x).to_le_bytes()),
        DType::F16 => store_as(values, out, |x| f16::to_le_bytes(f16_from_f32_rne(x))),
        other => return Err(Error::invalid("merge.output", "bf16, f16 or f32", other)),
    }
    Ok(())
}

fn store_as<const N: usize>(values: &[f32], out: &mut [u8], bytes_of: impl Fn(f32) -> [u8; N]) {
    out.as_chunks_mut().0.iter_mut().zip(values).for_each(|(out, &value)| *out = bytes_of(value));
}

fn tensor(args: &Args, role: Role) -> Result<&Tensor> {
    args.tensor(role).ok_or(Error::Missing { op: "merge", role: role.name() })
}

fn heads_of(op: &Merge) -> usize {
    op.geometry.query_heads as usize
}
