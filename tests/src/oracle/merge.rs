//! The merge of partial states against the equations.
//!
//! Bound, with `u = 2^-24`: a state's exponent `x = (lse - M) * log2(e)` is off by three roundings, its weight `w = 2^x`
//! so by `ln2 * 3u|x|` and the polynomial's own error; the sums by `u` times their partial sums, the reciprocal and the
//! product by `u` each, the output type by its half-spacing.

use msa_core::args::Role;
use msa_core::error::Result;
use msa_core::op::{LseBase, Merge, MergeDomain};
use msa_core::tensor::DType;
use msa_ref::spec::bound::UNIT;
use msa_ref::spec::merge::{Partial, RunningState, merge};

use super::{Oracle, spec_error};
use crate::compare::{Tally, half_spacing, smallest_step, widen};
use crate::memory::Image;
use crate::report::Evidence;

/// Relative error of the polynomial exponential of degree 5 in f32.
const EXP2_ERROR: f64 = 1.6e-7;

/// Error of the polynomial logarithm in units of u, absolute and relative.
const LOG_ERROR: f64 = 4.0;

/// Every row and head.
pub(super) fn check(oracle: &Oracle<'_>, op: &Merge) -> Result<(Tally, Evidence)> {
    let (outputs, lses) = (Image::tensor(oracle.args, Role::Output)?, Image::tensor(oracle.args, Role::Lse)?);
    let mut tally = Tally::default();
    for row in 0..outputs.extent(0) {
        let got_lse = widen(DType::F32, oracle.image.row(&lses, &[row])?);
        for head in 0..u64::from(op.geometry.query_heads) {
            let states = states(oracle, op, row, head)?;
            let want = Merged::new(op, &states)?;
            let got = widen(op.output, oracle.image.row(&outputs, &[row, head])?);
            for (d, got) in got.into_iter().enumerate() {
                let place = format!("output[t={row},h={head},d={d}]");
                let off = want.output_bound[d] + smallest_step(op.output);
                tally.within(op.output, place, got, want.exact.output[d], off);
            }
            let lse = if op.lse_base == LseBase::Two {
                want.exact.lse * std::f64::consts::LOG2_E
            } else {
                want.exact.lse
            };
            let place = format!("lse[t={row},h={head}]");
            tally.within(DType::F32, place, got_lse[head as usize], lse, want.lse_bound + UNIT * lse.abs());
        }
    }
    Ok((tally, Evidence::default()))
}

/// One partial state: `(o, l, m)`, l = 1 in the LSE domain; m is a natural logarithm.
struct State {
    output: Vec<f64>,
    sum: f64,
    max: f64,
}

fn states(oracle: &Oracle<'_>, op: &Merge, row: u64, head: u64) -> Result<Vec<State>> {
    let outputs = Image::tensor(oracle.args, Role::PartialOutputs)?;
    let lses = Image::tensor(oracle.args, Role::PartialLse)?;
    let state = |s: u64| -> Result<State> {
        let value = |role| -> Result<f64> {
            let tensor = Image::tensor(oracle.args, role)?;
            Ok(widen(DType::F32, oracle.image.row(&tensor, &[s, row])?)[head as usize])
        };
        let sum = if op.domain == MergeDomain::SumMax { value(Role::PartialSums)? } else { 1.0 };
        let natural = if op.lse_base == LseBase::Two { std::f64::consts::LN_2 } else { 1.0 };
        let output = widen(op.partial, oracle.image.row(&outputs, &[s, row, head])?);
        Ok(State { output, sum, max: value(Role::PartialLse)? * natural })
    };
    (0..lses.extent(0)).map(state).collect()
}

struct Merged {
    exact: Partial,
    output_bound: Vec<f64>,
    lse_bound: f64,
}

impl Merged {
    fn new(op: &Merge, states: &[State]) -> Result<Self> {
        let partials: Vec<Partial> = states
            .iter()
            .map(|s| match op.domain {
                MergeDomain::Lse => Partial { output: s.output.clone(), lse: s.max },
                MergeDomain::SumMax => {
                    Partial::from(&RunningState { output: s.output.clone(), sum: s.sum, max: s.max })
                }
            })
            .collect();
        let exact = merge(&partials).map_err(spec_error)?;
        let present: Vec<&State> = states.iter().filter(|s| s.max.is_finite() && s.sum != 0.0).collect();
        let dim = exact.output.len();
        if present.is_empty() {
            return Ok(Self { output_bound: vec![0.0; dim], lse_bound: 0.0, exact });
        }
        let top = present.iter().map(|s| s.max).fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = present.iter().map(|s| (s.max - top).exp()).collect();
        let total: f64 = weights.iter().zip(&present).map(|(w, s)| w * s.sum).sum();
        let count = present.len() as f64;
        let error = |s: &State| 3.0 * UNIT * (s.max - top).abs() + EXP2_ERROR;
        let output_bound = (0..dim).map(|d| {
            let o = exact.output[d];
            let (mut spread, mut chain, mut running) = (0.0, 0.0, 0.0_f64);
            for (w, s) in weights.iter().zip(&present) {
                spread += w * error(s) * (s.output[d] - o * s.sum).abs();
                running += w * s.output[d];
                chain += UNIT * running.abs();
            }
            (spread + chain) / total
                + o.abs() * UNIT * (count + 4.0)
                + o.abs() * half_spacing(op.output)
                + 1e-37
        });
        let output_bound = output_bound.collect();
        let weight_error: f64 =
            weights.iter().zip(&present).map(|(w, s)| w * s.sum * error(s)).sum::<f64>() / total;
        let log = total.ln();
        let lse_bound = weight_error + UNIT * (count + LOG_ERROR * (1.0 + log.abs()) + (top + log).abs());
        let lse_bound = if op.lse_base == LseBase::Two { 2.0 * lse_bound } else { lse_bound };
        Ok(Self { exact, output_bound, lse_bound })
    }
}
