//! Dense attention: every query over every key that a mask leaves visible.

use crate::spec::attend::attend_rows;
use crate::spec::positions::query_position;
use crate::spec::{SpecError, check_length, check_parameter};

/// Shape of a dense attention call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DenseShape {
    /// Query tokens `T`.
    pub q_len: usize,
    /// Keys `L`.
    pub kv_len: usize,
    /// Query heads `Hq`, a multiple of `kv_heads`.
    pub query_heads: usize,
    /// KV heads `Hkv`.
    pub kv_heads: usize,
    /// Dimension `D` of queries and keys.
    pub dim: usize,
    /// Dimension `Dv` of values.
    pub value_dim: usize,
}

/// Which keys a query sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mask<'a> {
    /// All of them.
    None,
    /// Query `i` sees the keys `0 ..= L - T + i` (bottom-right aligned).
    Causal,
    /// `[T, L]`, true where visible; the same for all heads.
    Tokens(&'a [bool]),
}

/// Result of a dense attention call.
#[derive(Debug, Clone, PartialEq)]
pub struct DenseOutput {
    /// `[T, Hq, Dv]`; 0 where nothing is visible.
    pub output: Vec<f32>,
    /// `[T, Hq]`, natural log; -inf where nothing is visible.
    pub lse: Vec<f32>,
}

/// `softmax(scale * q k^T + mask) v` for `query [T, Hq, D]`, `keys [L, Hkv, D]`, `values [L, Hkv, Dv]`. Masked keys
/// are left out rather than weighted with 0, so nothing that they hold matters. Each result is the f64 value
/// rounded once to f32. Fails on slices that do not fit the shape.
pub fn dense_attention_f32(
    query: &[f32],
    keys: &[f32],
    values: &[f32],
    shape: &DenseShape,
    mask: Mask,
    scale: f32,
) -> Result<DenseOutput, SpecError> {
    check(query, keys, values, shape, mask)?;
    let (query, keys, values) = (widen(query), widen(keys), widen(values));
    let mut result = DenseOutput { output: Vec::new(), lse: Vec::new() };
    for i in 0..shape.q_len {
        let visible: Vec<usize> = (0..shape.kv_len).filter(|&j| mask.shows(shape, i, j)).collect();
        for head in 0..shape.query_heads {
            let kv = head / (shape.query_heads / shape.kv_heads);
            let row = &query[(i * shape.query_heads + head) * shape.dim..][..shape.dim];
            let gather = |rows, width| gather_rows(rows, &visible, shape.kv_heads, kv, width);
            let (key_rows, value_rows) = (gather(&keys, shape.dim), gather(&values, shape.value_dim));
            let partial = attend_rows(row, &key_rows, &value_rows, f64::from(scale), shape.value_dim)?;
            result.output.extend(partial.output.iter().map(|&value| value as f32));
            result.lse.push(partial.lse as f32);
        }
    }
    Ok(result)
}

impl Mask<'_> {
    fn shows(&self, shape: &DenseShape, query: usize, key: usize) -> bool {
        match self {
            Mask::None => true,
            Mask::Causal => key as i64 <= query_position(shape.kv_len, shape.q_len, query),
            Mask::Tokens(visible) => visible[query * shape.kv_len + key],
        }
    }
}

/// The rows of head `head` at `tokens`, out of `rows [L, heads, width]`.
fn gather_rows<'a>(
    rows: &'a [f64],
    tokens: &[usize],
    heads: usize,
    head: usize,
    width: usize,
) -> Vec<&'a [f64]> {
    tokens.iter().map(|token| &rows[(token * heads + head) * width..][..width]).collect()
}

fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

fn check(q: &[f32], k: &[f32], v: &[f32], shape: &DenseShape, mask: Mask) -> Result<(), SpecError> {
    let fits = shape.kv_heads > 0 && shape.query_heads.is_multiple_of(shape.kv_heads);
    check_parameter(fits, "query heads", "a multiple of kv heads, which are not 0", shape.query_heads)?;
    let elements = |axes: [usize; 3]| axes.into_iter().fold(1, usize::saturating_mul);
    check_length("query", q.len(), elements([shape.q_len, shape.query_heads, shape.dim]))?;
    check_length("keys", k.len(), elements([shape.kv_len, shape.kv_heads, shape.dim]))?;
    check_length("values", v.len(), elements([shape.kv_len, shape.kv_heads, shape.value_dim]))?;
    match mask {
        Mask::Tokens(visible) => {
            check_length("mask", visible.len(), elements([shape.q_len, shape.kv_len, 1]))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::ports::causal_mask::causal_mask;
    use crate::spec::random::Random;

    fn shape(q_len: usize, kv_len: usize) -> DenseShape {
        DenseShape { q_len, kv_len, query_heads: 4, kv_heads: 2, dim: 3, value_dim: 2 }
    }

    fn normal(random: &mut Random, count: usize) -> Vec<f32> {
        random.normal_values(count).into_iter().map(|value| value as f32).collect()
    }

    #[test]
    fn equals_an_unstabilised_sum_over_the_mask() {
        let mut random = Random::new(13);
        for (q_len, kv_len) in [(3, 9), (6, 6), (5, 2)] {
            let s = shape(q_len, kv_len);
            let (q, k) = (normal(&mut random, q_len * 12), normal(&mut random, kv_len * 6));
            let v = normal(&mut random, kv_len * 4);
            let visible = causal_mask(q_len, kv_len);
            let got = dense_attention_f32(&q, &k, &v, &s, Mask::Causal, 0.6).unwrap();
            assert_eq!(got, dense_attention_f32(&q, &k, &v, &s, Mask::Tokens(&visible), 0.6).unwrap());
            for (i, head) in (0..q_len).flat_map(|i| (0..4).map(move |head| (i, head))) {
                let (mut sums, mut mass) = ([0f64; 2], 0f64);
                for j in (0..kv_len).filter(|j| visible[i * kv_len + j]) {
                    let at = |c: usize| {
                        f64::from(q[(i * 4 + head) * 3 + c]) * f64::from(k[(j * 2 + head / 2) * 3 + c])
                    };
                    let weight = ((at(0) + at(1) + at(2)) * f64::from(0.6f32)).exp();
                    mass += weight;
                    (0..2).for_each(|c| sums[c] += weight * f64::from(v[(j * 2 + head / 2) * 2 + c]));
                }
                let (output, lse) = (&got.output[(i * 4 + head) * 2..][..2], got.lse[i * 4 + head]);
                if mass == 0.0 {
                    assert_eq!((output, lse), ([0.0, 0.0].as_slice(), f32::NEG_INFINITY));
                    continue;
                }
                assert!((f64::from(lse) - mass.ln()).abs() < 1e-6);
                assert!((0..2).all(|c| (f64::from(output[c]) - sums[c] / mass).abs() < 1e-6));
            }
        }
    }

    #[test]
    fn masked_keys_are_never_read() {
        let nan = f32::NAN;
        let s = DenseShape { q_len: 1, kv_len: 2, query_heads: 1, kv_heads: 1, dim: 1, value_dim: 1 };
        let run = |mask| dense_attention_f32(&[1.0], &[0.5, nan], &[3.0, nan], &s, mask, 1.0).unwrap();
        assert_eq!(run(Mask::Tokens(&[true, false])), DenseOutput { output: vec![3.0], lse: vec![0.5] });
        assert!(run(Mask::None).output[0].is_nan());
    }

    #[test]
    fn bad_shapes_are_errors() {
        let run = |s: &DenseShape, mask| dense_attention_f32(&[0.0; 12], &[0.0; 6], &[0.0; 4], s, mask, 1.0);
        assert!(run(&shape(1, 1), Mask::None).is_ok());
        assert!(run(&shape(2, 1), Mask::None).is_err());
        assert!(run(&shape(1, 2), Mask::None).is_err());
        assert!(run(&shape(1, 1), Mask::Tokens(&[])).is_err());
        assert!(run(&DenseShape { kv_heads: 0, ..shape(1, 1) }, Mask::None).is_err());
        assert!(run(&DenseShape { kv_heads: 3, ..shape(1, 1) }, Mask::None).is_err());
    }
}
