//! Problems that users of similar kernels reported, as far as the equations alone decide them.
//!
//! A test is named after the entry's id and uses the entry's own numbers. One expectation differs from the report:
//! a NaN block fills a slot here, as a block of score -inf.

mod attention;
mod context_parallel;
mod selection;

use super::random::{Random, Tensors};
use super::request::{RequestShape, RowResult, run_request};
use super::select::SelectRule;

/// Runs random tensors through the whole request with `k` slots.
fn run(tensors: &Tensors, shape: &RequestShape, k: usize) -> Vec<RowResult> {
    run_request(&tensors.request(), shape, &SelectRule::with_slots(k)).unwrap()
}

/// A request of one KV head, blocks of 128 tokens, and small dimensions.
fn shape(q_len: usize, kv_len: usize) -> RequestShape {
    RequestShape {
        q_len,
        kv_len,
        heads: super::positions::HeadCounts::new(2, 1, 1).unwrap(),
        dim: 4,
        value_dim: 3,
        index_dim: 2,
        block_size: 128,
        scale: 0.5,
    }
}

fn assert_near(got: &[f64], want: &[f64], bound: f64) {
    assert_eq!(got.len(), want.len());
    for (a, b) in got.iter().zip(want) {
        assert!((a - b).abs() <= bound, "{a} and {b}");
    }
}
