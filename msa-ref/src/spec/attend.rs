//! Softmax attention of one query row and one query head over the tokens of its selected blocks.

use super::index_score::{dot, max_ignoring_nan};
use super::merge::Partial;
use super::positions::Visibility;
use super::{SpecError, check_length};

/// Attends to the tokens of `blocks` that `view` sees: gathers them, then `softmax(scale * q . k_j) v_j`.
///
/// `query` is `[D]`; `key(j)` and `value(j)` give the cached rows `[D]` and `[value_dim]` of token `j`, of the KV
/// head that the query head reads, and are called for visible tokens only. Ids of -1, of future blocks and of
/// blocks beyond the cache are skipped wherever they stand. No visible key: output 0, LSE -inf.
///
/// NaN and +inf logits of visible keys propagate. Fails on rows of another length and on a block named twice.
pub fn attend<'a>(
    query: &[f64],
    blocks: &[i32],
    view: &Visibility,
    scale: f64,
    key: impl Fn(usize) -> &'a [f64],
    value: impl Fn(usize) -> &'a [f64],
    value_dim: usize,
) -> Result<Partial, SpecError> {
    let tokens = gather_tokens(blocks, view)?;
    let keys: Vec<&[f64]> = tokens.iter().map(|&token| key(token)).collect();
    let values: Vec<&[f64]> = tokens.iter().map(|&token| value(token)).collect();
    attend_rows(query, &keys, &values, scale, value_dim)
}

/// Attends to the gathered rows `keys [n][D]` and `values [n][value_dim]`, all visible. Errors and special values
/// as in [`attend`].
pub fn attend_rows(
    query: &[f64],
    keys: &[&[f64]],
    values: &[&[f64]],
    scale: f64,
    value_dim: usize,
) -> Result<Partial, SpecError> {
    check_length("values", values.len(), keys.len())?;
    for (key, value) in keys.iter().zip(values) {
        check_length("key row", key.len(), query.len())?;
        check_length("value row", value.len(), value_dim)?;
    }
    let logits: Vec<f64> = keys.iter().map(|key| scale * dot(query, key)).collect();
    Ok(softmax_average(&logits, values, value_dim))
}

/// The visible tokens of `blocks`, in the order of the list. Fails when a block that has any is named twice.
pub fn gather_tokens(blocks: &[i32], view: &Visibility) -> Result<Vec<usize>, SpecError> {
    let mut tokens = Vec::new();
    for (slot, &block) in blocks.iter().enumerate() {
        let visible = view.tokens_of_block(block);
        if !visible.is_empty() && blocks[..slot].contains(&block) {
            let want = "each block at most once";
            return Err(SpecError::Parameter { field: "selected blocks", want, got: i128::from(block) });
        }
        tokens.extend(visible);
    }
    Ok(tokens)
}

/// `sum(exp(s_j) v_j) / sum(exp(s_j))` and `ln(sum(exp(s_j)))`, shifted by the largest logit so that nothing
/// overflows. Without any mass (no key, or every logit -inf) the state is empty.
fn softmax_average(logits: &[f64], values: &[&[f64]], value_dim: usize) -> Partial {
    let top = max_ignoring_nan(logits.iter().copied());
    let any_nan = logits.iter().any(|logit| logit.is_nan());
    if top == f64::NEG_INFINITY && !any_nan {
        return Partial::empty(value_dim);
    }
    let weights: Vec<f64> = logits.iter().map(|logit| (logit - top).exp()).collect();
    let mass: f64 = weights.iter().sum();
    let mut output = vec![0.0; value_dim];
    for (weight, value) in weights.iter().zip(values) {
        for (sum, v) in output.iter_mut().zip(*value) {
            *sum += weight * v;
        }
    }
    output.iter_mut().for_each(|sum| *sum /= mass);
    Partial { output, lse: top + mass.ln() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::random::Random;

    /// Attends with one-channel keys and values.
    fn attend_scalars(
        query: f64,
        blocks: &[i32],
        view: &Visibility,
        keys: &[f64],
        values: &[f64],
    ) -> Partial {
        attend(&[query], blocks, view, 1.0, |j| &keys[j..j + 1], |j| &values[j..j + 1], 1).unwrap()
    }

    #[test]
    fn a_hand_computed_row() {
        // Weights 1 and 3.
        let view = Visibility::new(1, 2, 4).unwrap();
        let got = attend_scalars(1.0, &[0], &view, &[0.0, 3f64.ln()], &[4.0, 8.0]);
        assert!((got.output[0] - 7.0).abs() < 1e-15);
        assert!((got.lse - 4f64.ln()).abs() < 1e-15);
    }

    #[test]
    fn equals_an_unstabilised_sum_over_positions() {
        let mut random = Random::new(8);
        let (kv_len, dim, block) = (50usize, 6, 8);
        let (keys, values) = (random.normal_values(kv_len * dim), random.normal_values(kv_len * dim));
        let scale = (dim as f64).sqrt().recip();
        for position in 0..kv_len {
            let query = random.normal_values(dim);
            let blocks = [2, -1, 5, 0, 6];
            let view = Visibility::new(position as i64, kv_len, block).unwrap();
            let row = |rows: &'static str, j: usize| {
                let from = if rows == "key" { &keys } else { &values };
                &from[j * dim..(j + 1) * dim]
            };
            let got =
                attend(&query, &blocks, &view, scale, |j| row("key", j), |j| row("value", j), dim).unwrap();
            let (mut sums, mut mass) = (vec![0.0; dim], 0.0);
            for j in (0..=position).filter(|j| blocks.contains(&((j / block) as i32))) {
                let logit: f64 = (0..dim).map(|c| query[c] * keys[j * dim + c]).sum();
                let weight = (logit * scale).exp();
                mass += weight;
                (0..dim).for_each(|c| sums[c] += weight * values[j * dim + c]);
            }
            assert!((got.lse - mass.ln()).abs() < 1e-12);
            for (out, sum) in got.output.iter().zip(&sums) {
                assert!((out - sum / mass).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn a_large_spread_of_logits_neither_overflows_nor_vanishes() {
        let view = Visibility::new(1, 2, 4).unwrap();
        for (keys, out, lse) in [([1e5, 0.0], 3.0, 1e5), ([-1e300, 1e300], 5.0, 1e300)] {
            let got = attend_scalars(1.0, &[0], &view, &keys, &[3.0, 5.0]);
            assert_eq!((got.output[0], got.lse), (out, lse));
        }
    }

    #[test]
    fn special_logits() {
        let view = Visibility::new(1, 2, 4).unwrap();
        let minus = f64::NEG_INFINITY;
        assert_eq!(attend_scalars(1.0, &[0], &view, &[minus, minus], &[3.0, 5.0]), Partial::empty(1));
        assert_eq!(attend_scalars(1.0, &[0], &view, &[minus, 2.0], &[3.0, 5.0]).output, [5.0]);
        for bad in [f64::NAN, f64::INFINITY] {
            assert!(attend_scalars(1.0, &[0], &view, &[bad, 0.0], &[3.0, 5.0]).lse.is_nan());
        }
        assert!(attend_scalars(1.0, &[0], &view, &[f64::NAN, f64::NAN], &[3.0, 5.0]).output[0].is_nan());
    }

    #[test]
    fn bad_arguments_are_errors() {
        let view = Visibility::new(3, 4, 2).unwrap();
        let row: &[f64] = &[1.0];
        let run = |blocks: &[i32], key_dim: &'static [f64]| {
            attend(&[1.0], blocks, &view, 1.0, |_| key_dim, |_| row, 1)
        };
        assert!(run(&[0, 1, -1, -1, 9, 9], &[1.0]).is_ok(), "repeated ids that are skipped anyway");
        assert!(run(&[1, 0, 1], &[1.0]).is_err(), "a duplicate");
        assert!(run(&[0], &[1.0, 2.0]).is_err(), "a key of another length");
        assert!(attend(&[1.0], &[0], &view, 1.0, |_| row, |_| row, 2).is_err(), "a value of another length");
        assert!(attend_rows(&[1.0], &[row], &[], 1.0, 1).is_err());
    }
}
