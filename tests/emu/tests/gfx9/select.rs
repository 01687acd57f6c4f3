//! `select` and `candidate_keys` against the reference.

use msa_core::op::{ForcedPriority, Select as Op, SelectOrder};
use msa_emu::gfx9::{Machine, Options};
use msa_ref::sim::candidates::local_keys;
use msa_ref::sim::select::{select_reduced, select_row};
use msa_rocm::parameters::{Batch, Select};

use crate::requests::{BLOCK, Requests};
use crate::rig::{ARCHITECTURES, Random, bytes_of, integers, kernel, options, run};

/// Scores with ties, both zeros, infinities and NaN.
pub(crate) fn random_scores(count: usize, random: &mut Random) -> Vec<f32> {
    let special = [0.0, -0.0, f32::NEG_INFINITY, f32::INFINITY, f32::NAN, 1.5];
    let score = |random: &mut Random| match random.below(4) {
        0 => special[random.below(6) as usize],
        1 => random.below(8) as f32 - 4.0,
        _ => (random.below(2_000_001) as f32 - 1e6) * 1e-3,
    };
    (0..count).map(|_| score(random)).collect()
}

/// An op with these choices.
pub(crate) fn op(top_k: u32, init: u32, local: u32) -> Op {
    let mut op = Op { init_blocks: init, local_blocks: local, ..Op::default() };
    op.geometry.top_k = top_k;
    op
}

/// Parameters that do not depend on where tensors lie.
pub(crate) fn parameters(op: &Op, batch: Batch, heads: usize, columns: usize) -> Select {
    let (lists, k) = (heads as u64, u64::from(op.geometry.top_k));
    Select {
        batch,
        score_row_stride: (heads * columns) as u64,
        score_head_stride: columns as u64,
        list_row_stride: lists * k,
        list_head_stride: k,
        init_blocks: op.init_blocks,
        local_blocks: op.local_blocks,
        init_first: op.forced_priority == ForcedPriority::Init,
        top_k: op.geometry.top_k,
        heads_per_list: 1,
        world: 1,
        rank: 0,
        score_then_own: op.order == SelectOrder::ScoreThenOwn,
        score_columns: columns as u32,
        ..Select::default()
    }
}

/// Seeds from this on have positions of their own.
const POSITIONS: u64 = 100;
/// With this one the length of the last request is above its bound.
const TOO_LONG: u64 = 50;

fn check(lengths: &[(u32, u32)], heads: usize, op: &Op, reduced: bool, seed: u64) {
    for (architecture, _) in ARCHITECTURES {
        let Some(kernel) = kernel("select", "f32", architecture, "radix") else { continue };
        let mut random = Random::new(seed);
        let mut requests = Requests::new(lengths, &mut random);
        if seed >= POSITIONS {
            requests.scatter_positions(&mut random);
        }
        requests.too_long = (seed == TOO_LONG).then_some(lengths.len() - 1);
        let columns = lengths.iter().map(|(_, kv)| kv.div_ceil(BLOCK as u32)).max().unwrap() as usize;
        let scores = random_scores(requests.rows() * heads * columns, &mut random);
        let (lists, k) = (if reduced { 1 } else { heads }, op.geometry.top_k as usize);

        let mut machine = Machine::new(1, options(seed));
        let device = requests.place(&mut machine);
        let score_buffer = machine.constant(&bytes_of(&scores, f32::to_le_bytes));
        let out = machine.buffer(&vec![0xcd; requests.rows() * lists * k * 4]);
        let mut parameters = parameters(op, device.batch, heads, columns);
        (parameters.scores, parameters.lists) = (machine.address(score_buffer), machine.address(out));
        if reduced {
            (parameters.heads_per_list, parameters.list_row_stride) = (heads as u32, k as u64);
        }
        run(&mut machine, &kernel, [requests.rows() as u32, lists as u32, 1], 256, &parameters);

        let mut want = vec![-1; requests.rows() * lists * k];
        for ((request, i), out) in requests.all_rows().into_iter().zip(want.chunks_mut(lists * k)) {
            let Some(own) = requests.visible(request, i).div_ceil(BLOCK).checked_sub(1) else { continue };
            let row = requests.first_row(request) + i;
            if requests.is_lost(row) {
                out.fill(i32::from_le_bytes([0xcd; 4]));
                continue;
            }
            let heads: Vec<&[f32]> =
                scores[row * heads * columns..][..heads * columns].chunks(columns).collect();
            if reduced {
                select_reduced(&heads, own as u32, op, out).unwrap();
            } else {
                heads
                    .iter()
                    .zip(out.chunks_mut(k))
                    .for_each(|(s, out)| select_row(s, own as u32, op, out).unwrap());
            }
        }
        assert_eq!(integers(machine.bytes(out)), want, "{architecture} seed {seed} {op:?}");
        assert_eq!(machine.bytes(device.status), (u32::from(seed == TOO_LONG) << 2).to_le_bytes());
    }
}

#[test]
fn lists_equal_the_reference_with_ties_and_nan() {
    check(&[(1, 5000), (3, 300), (2, 1)], 4, &op(16, 0, 1), false, 1);
    check(&[(1, 70_000)], 1, &op(16, 0, 1), false, 2);
    check(&[(8, 2100)], 2, &op(5, 0, 1), false, 3);
    check(&[(1, 20_000)], 1, &op(64, 2, 3), false, 4);
}

#[test]
fn forced_blocks_take_slots_by_their_priority() {
    for (init, local, k) in [(2, 2, 16), (4, 4, 4), (3, 1, 3), (8, 8, 8)] {
        for priority in [ForcedPriority::Local, ForcedPriority::Init] {
            let op = Op { forced_priority: priority, ..op(k, init, local) };
            check(&[(1, 1500), (2, 260)], 2, &op, false, 5);
        }
    }
}

#[test]
fn order_by_score_and_one_list_for_all_heads() {
    let by_score = Op { order: SelectOrder::ScoreThenOwn, ..op(16, 0, 1) };
    check(&[(1, 3000), (1, 100)], 2, &by_score, false, 6);
    check(&[(1, 3000), (2, 300)], 1, &Op { order: SelectOrder::ScoreThenOwn, ..op(16, 2, 3) }, false, 9);
    check(&[(2, 3000), (1, 100)], 4, &op(16, 0, 1), true, 7);
}

#[test]
fn a_row_that_sees_nothing_selects_nothing() {
    check(&[(3, 2)], 1, &op(16, 0, 1), false, 8);
    check(&[(2, 900), (3, 300)], 1, &op(16, 0, 1), false, TOO_LONG);
    // A request without rows, beyond those that a wave looks at together for its row.
    let mut many = vec![(1, 200); 64];
    many.push((0, 300));
    check(&many, 1, &op(16, 0, 1), false, TOO_LONG);
    check(&[(4, 900), (3, 300)], 1, &op(16, 0, 1), false, POSITIONS);
}

#[test]
pub(crate) fn candidate_keys_are_the_largest_of_a_rank() {
    for (architecture, _) in ARCHITECTURES {
        let Some(kernel) = kernel("candidate_keys", "f32", architecture, "radix") else { continue };
        for (world, rank) in [(1, 0), (3, 0), (3, 2), (8, 7)] {
            let (mut random, op) = (Random::new(9), op(16, 1, 2));
            // More requests than a wave looks at together; the length of the last is above its bound.
            let mut lengths = vec![(2, 4000), (1, 200)];
            lengths.extend(vec![(0, 9); 63]);
            lengths.push((1, 300));
            let mut requests = Requests::new(&lengths, &mut random);
            requests.too_long = (world == 8).then_some(lengths.len() - 1);
            if rank == 2 {
                requests.scatter_positions(&mut random);
            }
            let columns = 4000usize.div_ceil(BLOCK).div_ceil(world as usize);
            let scores = random_scores(requests.rows() * columns, &mut random);
            let mut machine = Machine::new(1, Options::default());
            let device = requests.place(&mut machine);
            let score_buffer = machine.constant(&bytes_of(&scores, f32::to_le_bytes));
            let (out, epoch) =
                (machine.buffer(&vec![0xcd; requests.rows() * 16 * 8]), machine.buffer(&[7, 0, 0, 0]));
            let mut parameters = parameters(&op, device.batch, 1, columns);
            (parameters.scores, parameters.keys) = (machine.address(score_buffer), machine.address(out));
            (parameters.epoch, parameters.world, parameters.rank) = (machine.address(epoch), world, rank);
            run(&mut machine, &kernel, [requests.rows() as u32, 1, 1], 256, &parameters);
            let mut want = Vec::new();
            for (request, i) in requests.all_rows() {
                let own = requests.visible(request, i).div_ceil(BLOCK).checked_sub(1).map(|own| own as u32);
                let row = requests.first_row(request) + i;
                if requests.is_lost(row) {
                    want.extend([0xcd; 16 * 8]);
                    continue;
                }
                let row = &scores[row * columns..][..columns];
                let keys = local_keys(row, rank, world, own, &op).unwrap();
                want.extend(keys.into_iter().flat_map(|key| key.to_bits().to_le_bytes()));
            }
            assert_eq!(machine.bytes(out), want, "{architecture} rank {rank} of {world}");
            assert_eq!(machine.bytes(epoch), [8, 0, 0, 0]);
        }
    }
}

/// Everything about lists, for faulty kernels.
pub(crate) fn all() {
    lists_equal_the_reference_with_ties_and_nan();
    forced_blocks_take_slots_by_their_priority();
    order_by_score_and_one_list_for_all_heads();
    a_row_that_sees_nothing_selects_nothing();
}
