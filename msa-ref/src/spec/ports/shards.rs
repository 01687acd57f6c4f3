//! `(o, l, m)` states over context-parallel shards, in f32.

use crate::spec::merge::{RunningState, merge_running};
use crate::spec::{SpecError, check_length, check_parameter};

/// The `(o, l, m)` states of many rows on one shard.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardStates {
    /// `[rows, Dv]`, `sum(exp(s_j - m) v_j)`: not normalised.
    pub output: Vec<f32>,
    /// `[rows]`, `sum(exp(s_j - m))`; 0 for a row without keys on this shard.
    pub sum: Vec<f32>,
    /// `[rows]`, the largest scaled logit in natural units; -inf for a row without keys on this shard.
    pub max: Vec<f32>,
}

/// Merges the states of all shards row by row: attention over the union of their keys, as one state. Rows without
/// keys on a shard are skipped without reading their output, see
/// [`merge_running`]. Each result is the f64 value rounded once to f32.
///
/// Fails without any shard, on `value_dim == 0`, and on shards of unequal shape.
pub fn merge_shards(shards: &[ShardStates], value_dim: usize) -> Result<ShardStates, SpecError> {
    check_parameter(value_dim > 0, "value dim", "at least one channel", value_dim)?;
    check_parameter(!shards.is_empty(), "shards", "at least one", shards.len())?;
    let rows = shards.first().map_or(0, |shard| shard.sum.len());
    for shard in shards {
        check_length("l", shard.sum.len(), rows)?;
        check_length("m", shard.max.len(), rows)?;
        check_length("o", shard.output.len(), rows.saturating_mul(value_dim))?;
    }
    let mut merged = ShardStates { output: Vec::new(), sum: Vec::new(), max: Vec::new() };
    for row in 0..rows {
        let states: Vec<RunningState> = shards.iter().map(|shard| shard.row(row, value_dim)).collect();
        let state = merge_running(&states)?;
        merged.output.extend(state.output.iter().map(|&value| value as f32));
        merged.sum.push(state.sum as f32);
        merged.max.push(state.max as f32);
    }
    Ok(merged)
}

impl ShardStates {
    fn row(&self, row: usize, value_dim: usize) -> RunningState {
        let output = self.output[row * value_dim..][..value_dim].iter().map(|&o| f64::from(o)).collect();
        RunningState { output, sum: f64::from(self.sum[row]), max: f64::from(self.max[row]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_merge_apart_and_empty_shards_are_neutral() {
        // Row 0: one key with logit 0 and value 2, one with logit ln 3 and value 6. Row 1: only the first shard.
        let first = ShardStates { output: vec![2.0, 5.0], sum: vec![1.0, 2.0], max: vec![0.0, 1.0] };
        let ln3 = 3f32.ln();
        let second = ShardStates {
            output: vec![6.0, f32::NAN],
            sum: vec![1.0, 0.0],
            max: vec![ln3, f32::NEG_INFINITY],
        };
        let got = merge_shards(&[first.clone(), second], 1).unwrap();
        assert!((got.output[0] / got.sum[0] - 5.0).abs() < 1e-6);
        assert!((got.max[0] + got.sum[0].ln() - 4f32.ln()).abs() < 1e-6);
        assert_eq!((got.output[1], got.sum[1], got.max[1]), (5.0, 2.0, 1.0));
        assert_eq!(merge_shards(std::slice::from_ref(&first), 1).unwrap(), first);
    }

    #[test]
    fn no_key_on_any_shard_stays_empty() {
        let none = ShardStates { output: vec![f32::NAN; 2], sum: vec![0.0], max: vec![f32::NEG_INFINITY] };
        let got = merge_shards(&[none.clone(), none], 2).unwrap();
        let empty = ShardStates { output: vec![0.0; 2], sum: vec![0.0], max: vec![f32::NEG_INFINITY] };
        assert_eq!(got, empty);
    }

    #[test]
    fn bad_shapes_are_errors() {
        let one = ShardStates { output: vec![1.0], sum: vec![1.0], max: vec![0.0] };
        let two = ShardStates { output: vec![1.0; 2], sum: vec![1.0; 2], max: vec![0.0; 2] };
        assert!(merge_shards(&[], 1).is_err());
        assert!(merge_shards(std::slice::from_ref(&one), 0).is_err());
        assert!(merge_shards(std::slice::from_ref(&one), 2).is_err());
        assert!(merge_shards(&[one, two], 1).is_err());
    }
}
