//! Partial results of attention over disjoint sets of keys, and how they combine.
//!
//! The state is `(o, lse)`: `o` normalised, `lse` the **natural** logarithm of the sum of the exponentials of the
//! scaled logits. `(0, -inf)` is neutral. Other ports carry `(o, l, m)`, `o` not normalised; it converts both ways.

use super::index_score::max_ignoring_nan;
use super::{SpecError, check_length, check_parameter};
use std::f64::consts::LN_2;

/// Attention over some of the keys.
#[derive(Debug, Clone, PartialEq)]
pub struct Partial {
    /// `[Dv]`, normalised.
    pub output: Vec<f64>,
    /// Natural-log sum of exponentials; -inf when there was no key.
    pub lse: f64,
}

/// The running state of online softmax, as other ports keep it.
#[derive(Debug, Clone, PartialEq)]
pub struct RunningState {
    /// `[Dv]`, `sum(exp(s_j - max) v_j)`: not normalised.
    pub output: Vec<f64>,
    /// `sum(exp(s_j - max))`; 0 when there was no key.
    pub sum: f64,
    /// The largest scaled logit (or any other reference that was subtracted); -inf when there was no key.
    pub max: f64,
}

impl Partial {
    /// The neutral state: no key.
    pub fn empty(value_dim: usize) -> Self {
        Self { output: vec![0.0; value_dim], lse: f64::NEG_INFINITY }
    }

    /// From an implementation that keeps base-2 logarithms. A base-2 value must not reach [`merge`] as it is.
    pub fn from_base2(output: Vec<f64>, lse2: f64) -> Self {
        Self { output, lse: lse2 * LN_2 }
    }

    /// Whether the state stands for no key at all, so that its output is not looked at.
    ///
    /// Besides -inf this takes +inf for empty: some implementations write `(0, +inf)` for a row without keys (a
    /// convention of their backward pass), and a finite set of finite logits never gives +inf.
    pub fn is_empty(&self) -> bool {
        self.lse.is_infinite()
    }
}

impl From<&RunningState> for Partial {
    /// `(o / l, m + ln l)`; the empty state when `l` is 0 or `m` infinite.
    fn from(state: &RunningState) -> Self {
        if state.is_empty() {
            return Self::empty(state.output.len());
        }
        let output = state.output.iter().map(|o| o / state.sum).collect();
        Self { output, lse: state.max + state.sum.ln() }
    }
}

impl RunningState {
    /// The neutral state: no key.
    pub fn empty(value_dim: usize) -> Self {
        Self { output: vec![0.0; value_dim], sum: 0.0, max: f64::NEG_INFINITY }
    }

    /// Whether the state stands for no key at all. Ports start from `m = -inf` or from a large negative number,
    /// both with `l = 0`. An infinite `m` is empty too, as in [`Partial::is_empty`].
    pub fn is_empty(&self) -> bool {
        self.sum == 0.0 || self.max.is_infinite()
    }
}

impl From<&Partial> for RunningState {
    /// `(o, 1, lse)`: one of the many running states that mean the same; the empty state from an empty one.
    fn from(partial: &Partial) -> Self {
        if partial.is_empty() {
            return Self::empty(partial.output.len());
        }
        Self { output: partial.output.clone(), sum: 1.0, max: partial.lse }
    }
}

/// Attention over the union of the keys of `partials`: `lse = ln(sum(exp(lse_i)))`,
/// `o = sum(exp(lse_i - lse) o_i)`.
///
/// Empty states are skipped without reading their output, and so is a state whose weight is 0 beside the others:
/// an uninitialised or NaN output there does not matter. One remaining state is returned as it is, bit for bit.
/// A NaN LSE makes the result NaN. Fails without any state (the dimension is unknown) and on unequal lengths.
pub fn merge(partials: &[Partial]) -> Result<Partial, SpecError> {
    let value_dim = common_length(partials.iter().map(|partial| &partial.output))?;
    let present: Vec<&Partial> = partials.iter().filter(|partial| !partial.is_empty()).collect();
    match present.as_slice() {
        [] => Ok(Partial::empty(value_dim)),
        [only] => Ok((*only).clone()),
        several => Ok(merge_present(several, value_dim)),
    }
}

/// The same for running states: `m = max(m_i)`, `l = sum(exp(m_i - m) l_i)`, `o = sum(exp(m_i - m) o_i)`. Rules
/// and errors as in [`merge`].
pub fn merge_running(states: &[RunningState]) -> Result<RunningState, SpecError> {
    let value_dim = common_length(states.iter().map(|state| &state.output))?;
    let present: Vec<&RunningState> = states.iter().filter(|state| !state.is_empty()).collect();
    match present.as_slice() {
        [] => Ok(RunningState::empty(value_dim)),
        [only] => Ok((*only).clone()),
        several => {
            let max = max_ignoring_nan(several.iter().map(|state| state.max));
            let weights: Vec<f64> = several.iter().map(|state| (state.max - max).exp()).collect();
            let sum = weights.iter().zip(several).map(|(weight, state)| weight * state.sum).sum();
            let output = weighted_sum(&weights, several.iter().map(|state| &state.output), value_dim);
            Ok(RunningState { output, sum, max })
        }
    }
}

fn merge_present(partials: &[&Partial], value_dim: usize) -> Partial {
    let top = max_ignoring_nan(partials.iter().map(|partial| partial.lse));
    let weights: Vec<f64> = partials.iter().map(|partial| (partial.lse - top).exp()).collect();
    let mass: f64 = weights.iter().sum();
    let mut output = weighted_sum(&weights, partials.iter().map(|partial| &partial.output), value_dim);
    output.iter_mut().for_each(|sum| *sum /= mass);
    Partial { output, lse: top + mass.ln() }
}

fn weighted_sum<'a>(weights: &[f64], rows: impl Iterator<Item = &'a Vec<f64>>, value_dim: usize) -> Vec<f64> {
    let mut sums = vec![0.0; value_dim];
    for (&weight, row) in weights.iter().zip(rows) {
        // 0 * NaN is NaN: a state without weight must not be read.
        if weight == 0.0 {
            continue;
        }
        for (sum, value) in sums.iter_mut().zip(row) {
            *sum += weight * value;
        }
    }
    sums
}

fn common_length<'a>(rows: impl Iterator<Item = &'a Vec<f64>>) -> Result<usize, SpecError> {
    let mut length = None;
    for row in rows {
        let want = *length.get_or_insert(row.len());
        check_length("partial output", row.len(), want)?;
    }
    check_parameter(length.is_some(), "partials", "at least one", 0)?;
    Ok(length.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::attend::attend_rows;
    use crate::spec::random::Random;

    fn partial(output: f64, lse: f64) -> Partial {
        Partial { output: vec![output], lse }
    }

    #[test]
    fn weights_are_those_of_the_sums() {
        // Sums 1, 2 and 5.
        let got = merge(&[partial(8.0, 0.0), partial(4.0, 2f64.ln()), partial(-1.0, 5f64.ln())]).unwrap();
        assert!((got.output[0] - 11.0 / 8.0).abs() < 1e-15);
        assert!((got.lse - 8f64.ln()).abs() < 1e-15);
    }

    #[test]
    fn both_states_of_disjoint_shards_give_the_whole() {
        let mut random = Random::new(9);
        let (dim, count) = (5, 40);
        let keys: Vec<Vec<f64>> = (0..count).map(|_| random.normal_values(dim)).collect();
        let values: Vec<Vec<f64>> = (0..count).map(|_| random.normal_values(dim)).collect();
        let query = random.normal_values(dim);
        let rows = |rows: &'_ [Vec<f64>], keep: &dyn Fn(usize) -> bool| -> Vec<Vec<f64>> {
            rows.iter().enumerate().filter(|(j, _)| keep(*j)).map(|(_, row)| row.clone()).collect()
        };
        let attend = |keep: &dyn Fn(usize) -> bool| {
            let (keys, values) = (rows(&keys, keep), rows(&values, keep));
            let keys: Vec<&[f64]> = keys.iter().map(Vec::as_slice).collect();
            let values: Vec<&[f64]> = values.iter().map(Vec::as_slice).collect();
            attend_rows(&query, &keys, &values, 0.7, dim).unwrap()
        };
        let whole = attend(&|_| true);
        for shards in 1..=8 {
            // The keys of shard 2 stay away, so that it is empty.
            let home = |j: usize| if j % shards == 2 { 0 } else { j % shards };
            let parts: Vec<Partial> = (0..shards).map(|shard| attend(&|j| home(j) == shard)).collect();
            assert!(shards < 3 || parts[2].is_empty());
            let running: Vec<RunningState> = parts.iter().map(RunningState::from).collect();
            for got in [merge(&parts).unwrap(), Partial::from(&merge_running(&running).unwrap())] {
                assert!((got.lse - whole.lse).abs() < 1e-13);
                for (a, b) in got.output.iter().zip(&whole.output) {
                    assert!((a - b).abs() < 1e-13);
                }
            }
        }
    }

    #[test]
    fn conversions_keep_the_meaning() {
        let running = RunningState { output: vec![6.0, -2.0], sum: 4.0, max: 1.5 };
        let converted = Partial::from(&running);
        assert_eq!(converted, Partial { output: vec![1.5, -0.5], lse: 1.5 + 4f64.ln() });
        assert_eq!(Partial::from(&RunningState::from(&converted)), converted, "bit for bit");
        assert_eq!(Partial::from(&RunningState::empty(3)), Partial::empty(3));
        assert_eq!(RunningState::from(&Partial::empty(3)), RunningState::empty(3));
        let other_start = RunningState { output: vec![f64::NAN], sum: 0.0, max: -1e30 };
        assert_eq!(Partial::from(&other_start), Partial::empty(1));
    }

    #[test]
    fn infinite_weights_do_not_overflow_and_nan_is_not_hidden() {
        let got = merge(&[partial(1.0, 1e6), partial(3.0, 1e6)]).unwrap();
        assert_eq!((got.output[0], got.lse), (2.0, 1e6 + LN_2));
        assert!(merge(&[partial(1.0, f64::NAN), partial(3.0, 0.0)]).unwrap().lse.is_nan());
        assert!(merge(&[partial(1.0, f64::NAN), Partial::empty(1)]).unwrap().lse.is_nan());
        assert!(merge(&[partial(f64::NAN, 0.0), partial(3.0, 0.0)]).unwrap().output[0].is_nan());
        assert!(merge(&[partial(1.0, f64::NAN), partial(3.0, f64::NAN)]).unwrap().output[0].is_nan());
        let poisoned = RunningState { output: vec![1.0], sum: 1.0, max: f64::NAN };
        let merged =
            merge_running(&[poisoned, RunningState { output: vec![1.0], sum: 1.0, max: 0.0 }]).unwrap();
        assert!(Partial::from(&merged).lse.is_nan());
    }

    #[test]
    fn bad_shapes_are_errors() {
        assert!(merge(&[]).is_err());
        assert!(merge(&[Partial::empty(1), Partial::empty(2)]).is_err());
        assert!(merge_running(&[]).is_err());
    }
}
