//! The op over tensors: layouts, ragged rows, threads, lengths.

use std::sync::Arc;

use msa_core::abi::owned::OwnedTensor;
use msa_core::args::{Args, Role};
use msa_core::backend::{Device, Status};
use msa_core::error::Result;
use msa_core::op::Op;
use msa_core::plan::RowWindow;
use msa_core::tensor::{DType, Tensor};

use super::*;
use crate::sim::select::run;
use crate::sim::test_device::{device, plan_of, run_op, run_viewed};

/// A batch: query and cache lengths of its requests, and block scores `[T, Hi, blocks]`.
struct Case {
    op: Select,
    lengths: Vec<(u32, u32)>,
    scores: Vec<f32>,
}

impl Case {
    /// Scores from a function of (row, head, block).
    fn new(op: Select, lengths: &[(u32, u32)], score: impl Fn(usize, usize, usize) -> f32) -> Self {
        let mut case = Self { op, lengths: lengths.to_vec(), scores: Vec::new() };
        let (rows, heads, blocks) = case.shape();
        case.scores = (0..rows * heads * blocks)
            .map(|i| score(i / blocks / heads, i / blocks % heads, i % blocks))
            .collect();
        case
    }

    fn shape(&self) -> (usize, usize, usize) {
        let rows: u32 = self.lengths.iter().map(|l| l.0).sum();
        let longest = self.lengths.iter().map(|l| l.1).max().unwrap();
        let geometry = &self.op.geometry;
        (rows as usize, geometry.index_heads as usize, geometry.blocks(longest.into()) as usize)
    }

    fn offsets(&self) -> Vec<i32> {
        let mut offsets = vec![0];
        self.lengths.iter().for_each(|l| offsets.push(offsets[offsets.len() - 1] + l.0 as i32));
        offsets
    }

    fn run(&self) -> (Vec<i32>, Status) {
        self.run_with(&self.offsets(), 0, Clone::clone).unwrap()
    }

    /// Lists `[T, lists, k]`, filled with 77 before the run; `padding` rows stand behind those of the requests.
    fn run_with(&self, offsets: &[i32], padding: u64, view: fn(&Args) -> Args) -> Result<(Vec<i32>, Status)> {
        let device: Arc<dyn Device> = device();
        let (rows, heads, blocks) = self.shape();
        let (all, k) = (rows as u64 + padding, u64::from(self.op.geometry.top_k));
        let mut scores = self.scores.clone();
        scores.resize(all as usize * heads * blocks, f32::NAN);
        let shape = [all, heads as u64, blocks as u64];
        let scores = OwnedTensor::from_f32s(&device, DType::F32, &shape, &scores)?;
        let kv: Vec<i32> = self.lengths.iter().map(|l| l.1 as i32).collect();
        let kv = OwnedTensor::from_i32s(&device, &[kv.len() as u64], &kv)?;
        let offsets = OwnedTensor::from_i32s(&device, &[offsets.len() as u64], offsets)?;
        let lists = u64::from(self.op.lists());
        let before = vec![77; (all * lists * k) as usize];
        let mut outputs = [(Role::BlockIndices, OwnedTensor::from_i32s(&device, &[all, lists, k], &before)?)];
        let mut plan = plan_of(Op::Select(self.op.clone()), &self.lengths);
        plan.requests[0].query_len += padding as u32;
        plan.windows =
            [(0, 3), (3, 200), (200, 100_000)].map(|(b, e)| RowWindow { row_begin: b, row_end: e }).into();
        let inputs = [(Role::Scores, &scores), (Role::KvLengths, &kv), (Role::QueryOffsets, &offsets)];
        let status = run_viewed(&device, &plan, run, view, &inputs, &mut outputs)?;
        Ok((outputs[0].1.to_i32s()?, status))
    }

    /// What every row and head must give, from the pure function's own reference.
    fn want(&self) -> Vec<i32> {
        let (_, heads, blocks) = self.shape();
        let rows = self.lengths.iter().flat_map(|&(q, kv)| (0..q).map(move |i| (kv + i).checked_sub(q)));
        let mut scores = self.scores.chunks(blocks);
        let mut all = Vec::new();
        for position in rows {
            for _ in 0..heads {
                let row = scores.next().unwrap();
                match position {
                    Some(p) => all.extend(by_sorting(row, p / self.op.geometry.block, &self.op)),
                    None => all.extend(vec![-1; self.op.geometry.top_k as usize]),
                }
            }
        }
        all
    }
}

fn counts(lists: &[i32], k: usize) -> Vec<usize> {
    lists.chunks(k).map(|list| list.iter().filter(|&&id| id >= 0).count()).collect()
}

#[test]
fn a05_ties_at_the_cut_give_the_same_bytes_under_any_number_of_threads() {
    let draw = |row: usize, head: usize, block: usize| {
        Random((row * 4096 + head * 1024 + block) as u64).below(8) as f32 * 0.25
    };
    let case = Case::new(with_slots(16), &[(512, 512 * 128)], draw);
    let want = case.want();
    for threads in [1, 2, 3, 7] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        for _ in 0..10 {
            let (got, status) = pool.install(|| case.run());
            assert!(status.is_clean());
            assert_eq!(got, want);
        }
    }
}

/// `[H, T, ..]` in memory, seen as `[T, H, ..]` by strides.
fn transposed(args: &Args) -> Args {
    let swap = |role| {
        let t = args.tensor(role).unwrap();
        let (outer, inner) = (t.extent(0), t.extent(2) * t.dtype.bytes());
        let strides = [inner, outer * inner, t.dtype.bytes()];
        Tensor::strided(t.address, t.dtype, t.shape(), &strides).unwrap()
    };
    args.clone().with(Role::Scores, swap(Role::Scores)).with(Role::BlockIndices, swap(Role::BlockIndices))
}

#[test]
fn a06_the_layout_is_in_the_strides_not_in_the_shape() {
    // Four rows, four heads: no shape tells the axes apart. Row t, head h wants block 4t + h.
    let lengths = [(4, 20 * 128)];
    let want: Vec<i32> = (0..16).flat_map(|block| [block, 19]).collect();
    let token_major = Case::new(with_slots(2), &lengths, |t, h, b| if b == 4 * t + h { 1.0 } else { 0.0 });
    assert_eq!(token_major.run().0, want);
    let head_major = Case::new(with_slots(2), &lengths, |h, t, b| if b == 4 * t + h { 1.0 } else { 0.0 });
    let (got, _) = head_major.run_with(&[0, 4], 0, transposed).unwrap();
    let by_head: Vec<i32> = (0..4).flat_map(|h| (0..4).flat_map(move |t| [4 * t + h, 19])).collect();
    assert_eq!(got, by_head);
}

#[test]
fn a06_axes_in_the_wrong_order_are_refused_where_the_shape_tells() {
    let device = device();
    let tensor = |dtype, shape: &[u64]| OwnedTensor::zeros(&device, dtype, shape).unwrap();
    let scores = tensor(DType::F32, &[5, 4, 20]);
    let (kv, offsets) = (tensor(DType::I32, &[1]), tensor(DType::I32, &[2]));
    let mut outputs = [(Role::BlockIndices, tensor(DType::I32, &[4, 5, 2]))];
    let plan = plan_of(Op::Select(with_slots(2)), &[(5, 20 * 128)]);
    let inputs = [(Role::Scores, &scores), (Role::KvLengths, &kv), (Role::QueryOffsets, &offsets)];
    let error = run_op(&device, &plan, run, &inputs, &mut outputs).unwrap_err().to_string();
    assert_eq!(error, "block_indices.shape[0]: want 5 rows as in the tensors before, got 4");
}

#[test]
fn a09_contexts_shorter_than_a_block() {
    for kv_len in [1, 2, 127, 128, 129] {
        let (got, _) = Case::new(with_slots(16), &[(1, kv_len)], |_, _, b| b as f32).run();
        let blocks = kv_len.div_ceil(128) as i32;
        let mut want: Vec<i32> = (0..blocks).collect();
        want.resize(16, -1);
        assert_eq!(got, want.repeat(4), "{kv_len} tokens");
    }
}

#[test]
fn g02_ragged_rows_and_padded_ones_behind_them() {
    let lengths = [(4, 1000), (2, 2), (4, 700), (1, 129), (3, 5000)];
    let case = Case::new(with_slots(3), &lengths, |t, h, b| Random((t * 97 + h * 31 + b) as u64).signed());
    let (got, status) = case.run_with(&case.offsets(), 5, Clone::clone).unwrap();
    let want = case.want();
    assert!(status.is_clean());
    assert_eq!(got[..want.len()], want);
    assert_eq!(got.len() - want.len(), 5 * 4 * 3);
    assert!(got[want.len()..].iter().all(|&word| word == 77), "padded rows are not touched");
}

#[test]
fn g04_every_row_has_its_own_forced_block() {
    // Rows at 126, 127, 128, 129: the last two stand in block 1.
    let (got, _) = Case::new(with_slots(1), &[(4, 130)], |_, _, _| 0.0).run();
    let own: Vec<i32> = got.chunks(4).map(|heads| heads[0]).collect();
    assert_eq!(own, [0, 0, 1, 1]);
}

#[test]
fn g05_counts_are_those_of_each_request() {
    let case = Case::new(with_slots(16), &[(1, 100), (1, 5000), (1, 300)], |_, _, _| 0.0);
    let (got, status) = case.run();
    assert_eq!(counts(&got, 16).chunks(4).map(|c| c[0]).collect::<Vec<_>>(), [1, 16, 3]);
    assert!(status.is_clean());
    // Offsets that do not ascend: reported, and that request's rows are not followed.
    let (got, status) = case.run_with(&[0, 2, 1, 3], 0, Clone::clone).unwrap();
    assert_eq!(status, Status(Status::LENGTH));
    assert_eq!(got.len(), 3 * 4 * 16);
}

#[test]
fn g06_the_number_of_ids_is_that_of_the_visible_blocks() {
    for (kv_len, want) in [(5, [1, 1, 1, 1]), (129, [1, 1, 1, 2])] {
        let (got, _) = Case::new(with_slots(16), &[(4, kv_len)], |_, _, _| 0.0).run();
        let per_row: Vec<usize> = counts(&got, 16).chunks(4).map(|heads| heads[0]).collect();
        assert_eq!(per_row, want);
    }
    // More rows than tokens: the first two stand before the context and see nothing.
    let (got, _) = Case::new(with_slots(16), &[(4, 2)], |_, _, _| 0.0).run();
    assert_eq!(counts(&got, 16).chunks(4).map(|heads| heads[3]).collect::<Vec<_>>(), [0, 0, 1, 1]);
}

#[test]
fn a_reduced_list_is_one_a_row() {
    let op = Select { grouping: Grouping::Reduced, ..with_slots(3) };
    let case = Case::new(op, &[(2, 1000)], |t, h, b| if b == t + h { 9.0 - h as f32 } else { f32::NAN });
    assert_eq!(case.run().0, [0, 1, 7, 1, 2, 7]);
}

#[test]
fn a_plan_of_another_op_is_an_error() {
    let device = device();
    let plan = plan_of(Op::of(msa_core::op::OpKind::SelectMerge), &[(1, 128)]);
    let keys = OwnedTensor::zeros(&device, DType::U64, &[2, 1, 4, 16]).unwrap();
    let mut out = [(Role::BlockIndices, OwnedTensor::zeros(&device, DType::I32, &[1, 4, 16]).unwrap())];
    let error = run_op(&device, &plan, run, &[(Role::CandidateKeys, &keys)], &mut out).unwrap_err();
    assert_eq!(error.to_string(), "plan: a plan of select_merge, want select");
}
