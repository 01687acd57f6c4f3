//! One request from index scores to outputs: the equations chained, for every query row and head.

use super::attend::attend;
use super::index_score::{IndexShape, block_scores};
use super::merge::Partial;
use super::positions::{HeadCounts, Visibility, query_position};
use super::select::{SelectRule, Selection, select_heads};
use super::{SpecError, check_at_least, check_length};

/// The tensors of one request, dense, row-major, decoded to f64. Rows past `kv_len` are never read.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// `[q_len, Hq, D]`, after norm and RoPE.
    pub query: &'a [f64],
    /// `[at least kv_len, Hkv, D]`, after norm and RoPE.
    pub keys: &'a [f64],
    /// `[at least kv_len, Hkv, Dv]`.
    pub values: &'a [f64],
    /// `[q_len, Hi, Di]`, after norm and RoPE.
    pub index_query: &'a [f64],
    /// `[at least kv_len, Di]`, after norm and RoPE.
    pub index_keys: &'a [f64],
}

/// Shape and parameters of one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RequestShape {
    /// New tokens.
    pub q_len: usize,
    /// Tokens in the cache, the new ones included.
    pub kv_len: usize,
    /// Query, KV and index heads.
    pub heads: HeadCounts,
    /// Dimension `D` of queries and keys.
    pub dim: usize,
    /// Dimension `Dv` of values.
    pub value_dim: usize,
    /// Dimension `Di` of index queries and keys.
    pub index_dim: usize,
    /// Tokens in a block.
    pub block_size: usize,
    /// Softmax scale; the model's is `1 / sqrt(D)`.
    pub scale: f64,
}

/// What one query row comes to.
#[derive(Debug, Clone, PartialEq)]
pub struct RowResult {
    /// `[Hi]` selections.
    pub selections: Vec<Selection>,
    /// `[Hq]` outputs with their LSE.
    pub outputs: Vec<Partial>,
}

/// Scores, selects and attends for each of the `q_len` rows, row `i` at position `kv_len - q_len + i`. A row
/// before token 0 selects nothing and gets empty outputs. Fails on slices that do not fit the shape.
pub fn run_request(
    request: &Request,
    shape: &RequestShape,
    rule: &SelectRule,
) -> Result<Vec<RowResult>, SpecError> {
    check_request(request, shape)?;
    (0..shape.q_len).map(|row| run_row(request, shape, rule, row)).collect()
}

fn run_row(
    request: &Request,
    shape: &RequestShape,
    rule: &SelectRule,
    row: usize,
) -> Result<RowResult, SpecError> {
    let position = query_position(shape.kv_len, shape.q_len, row);
    let view = Visibility::new(position, shape.kv_len, shape.block_size)?;
    let index = IndexShape { heads: shape.heads.index(), dim: shape.index_dim, block_size: shape.block_size };
    let width = index.heads * index.dim;
    let index_query = &request.index_query[row * width..][..width];
    let scores = block_scores(index_query, request.index_keys, &index, position, shape.kv_len)?;
    let selections = match view.own_block() {
        Some(own) => select_heads(&scores, own, rule)?,
        None => vec![Selection { ids: vec![-1; rule.k], gap: f64::INFINITY }; index.heads],
    };
    let outputs =
        (0..shape.heads.query()).map(|head| attend_head(request, shape, &view, &selections, row, head));
    Ok(RowResult { outputs: outputs.collect::<Result<_, _>>()?, selections })
}

fn attend_head(
    request: &Request,
    shape: &RequestShape,
    view: &Visibility,
    selections: &[Selection],
    row: usize,
    head: usize,
) -> Result<Partial, SpecError> {
    let (dim, value_dim, kv_heads) = (shape.dim, shape.value_dim, shape.heads.kv());
    let kv = shape.heads.kv_of_query(head);
    let query = &request.query[(row * shape.heads.query() + head) * dim..][..dim];
    let key = |token: usize| &request.keys[(token * kv_heads + kv) * dim..][..dim];
    let value = |token: usize| &request.values[(token * kv_heads + kv) * value_dim..][..value_dim];
    let blocks = selections[shape.heads.index_of_query(head)].valid();
    attend(query, blocks, view, shape.scale, key, value, value_dim)
}

fn check_request(request: &Request, shape: &RequestShape) -> Result<(), SpecError> {
    let elements = |axes: [usize; 3]| axes.into_iter().fold(1, usize::saturating_mul);
    let heads = &shape.heads;
    check_length("query", request.query.len(), elements([shape.q_len, heads.query(), shape.dim]))?;
    let index_query = elements([shape.q_len, heads.index(), shape.index_dim]);
    check_length("index query", request.index_query.len(), index_query)?;
    check_at_least("keys", request.keys.len(), elements([shape.kv_len, heads.kv(), shape.dim]))?;
    check_at_least("values", request.values.len(), elements([shape.kv_len, heads.kv(), shape.value_dim]))?;
    check_at_least("index keys", request.index_keys.len(), elements([shape.kv_len, 1, shape.index_dim]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::random::Tensors;
    use crate::spec::select::select;

    fn shape() -> RequestShape {
        RequestShape {
            q_len: 5,
            kv_len: 40,
            heads: HeadCounts::new(8, 2, 4).unwrap(),
            dim: 3,
            value_dim: 2,
            index_dim: 4,
            block_size: 4,
            scale: 0.5,
        }
    }

    /// Second formulation: one loop over all tokens per (row, head), membership tested per token.
    fn brute_force(t: &Tensors, s: &RequestShape, k: usize, row: usize, head: usize) -> (Vec<f64>, f64) {
        let position = s.kv_len - s.q_len + row;
        let (kv, index) = (head / 4, head / 2);
        let dot4 = |a: &[f64], b: &[f64]| (0..4).map(|c| a[c] * b[c]).sum::<f64>();
        let mut scores = vec![f64::NEG_INFINITY; position / 4 + 1];
        for j in 0..=position {
            let score = dot4(&t.index_query[(row * 4 + index) * 4..], &t.index_keys[j * 4..]);
            scores[j / 4] = scores[j / 4].max(score);
        }
        let chosen = select(&scores, position / 4, &SelectRule::with_slots(k)).unwrap().ids;
        let (mut sums, mut mass) = (vec![0.0; 2], 0.0);
        for j in (0..=position).filter(|j| chosen.contains(&((j / 4) as i32))) {
            let q = &t.query[(row * 8 + head) * 3..][..3];
            let key = &t.keys[(j * 2 + kv) * 3..][..3];
            let weight = (0.5 * (q[0] * key[0] + q[1] * key[1] + q[2] * key[2])).exp();
            mass += weight;
            (0..2).for_each(|c| sums[c] += weight * t.values[(j * 2 + kv) * 2 + c]);
        }
        (sums.iter().map(|sum| sum / mass).collect(), mass.ln())
    }

    #[test]
    fn equals_a_brute_force_over_rows_and_heads() {
        let shape = shape();
        let tensors = Tensors::random(&shape, 10);
        let rows = run_request(&tensors.request(), &shape, &SelectRule::with_slots(3)).unwrap();
        for (row, result) in rows.iter().enumerate() {
            for (head, got) in result.outputs.iter().enumerate() {
                let (output, lse) = brute_force(&tensors, &shape, 3, row, head);
                assert!((got.lse - lse).abs() < 1e-12, "row {row} head {head}");
                assert!(got.output.iter().zip(&output).all(|(a, b)| (a - b).abs() < 1e-12));
            }
        }
    }

    #[test]
    fn bad_shapes_are_errors() {
        let good = shape();
        let tensors = Tensors::random(&good, 11);
        let fails = |shape: &RequestShape| {
            run_request(&tensors.request(), shape, &SelectRule::with_slots(3)).is_err()
        };
        assert!(!fails(&good));
        assert!(fails(&RequestShape { q_len: 6, ..good }));
        assert!(fails(&RequestShape { kv_len: 41, ..good }));
        assert!(fails(&RequestShape { block_size: 0, ..good }));
        assert!(fails(&RequestShape { value_dim: 3, ..good }));
        assert!(fails(&RequestShape { q_len: usize::MAX, ..good }));
    }
}
