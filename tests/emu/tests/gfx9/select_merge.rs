//! `select_merge` on its own: long lists, all ranks, a block that comes twice.

use msa_core::candidate::CandidateKey;
use msa_core::op::{Select as Op, SelectOrder};
use msa_emu::gfx9::Machine;
use msa_ref::sim::candidates::merge_keys;
use msa_rocm::parameters::SelectMerge;

use crate::rig::{ARCHITECTURES, Random, bytes_of, integers, kernel, options, run};
use crate::select::op;

/// One list of `heads` index heads.
fn check(world: usize, heads: usize, op: &Op, seed: u64) {
    let (rows, k) = (3, op.geometry.top_k as usize);
    let mut random = Random::new(seed);
    // Few blocks, so that many come twice with different scores, and some with the same.
    let key = |random: &mut Random| match random.below(5) {
        0 => CandidateKey::EMPTY,
        _ => {
            CandidateKey::new(random.below(40) as f32 - 20.0, random.below(90) as u16, random.below(30) == 0)
        }
    };
    let keys: Vec<CandidateKey> = (0..world * heads * rows * k).map(|_| key(&mut random)).collect();
    for (architecture, _) in ARCHITECTURES {
        let Some(kernel) = kernel("select_merge", "u64", architecture, "count") else { continue };
        let mut machine = Machine::new(1, options(seed));
        let source = machine.constant(&bytes_of(&keys, |key: CandidateKey| key.to_bits().to_le_bytes()));
        let lists = machine.buffer(&vec![0xcd; rows * k * 4]);
        let parameters = SelectMerge {
            keys: machine.address(source),
            lists: machine.address(lists),
            key_row_stride: k as u64,
            list_row_stride: k as u64,
            world: world as u32,
            top_k: k as u32,
            score_then_own: op.order == SelectOrder::ScoreThenOwn,
            key_head_stride: (rows * k) as u64,
            rank_stride: (heads * rows * k) as u64,
            heads_per_list: heads as u32,
            ..SelectMerge::default()
        };
        run(&mut machine, &kernel, [rows as u32, 1, 1], 256, &parameters);
        let mut want = vec![-1; rows * k];
        for (row, list) in want.chunks_mut(k).enumerate() {
            // `[ranks][heads][rows][k]`.
            let lists = (0..world * heads).map(|list| list * rows + row);
            let own = lists.flat_map(|list| &keys[list * k..][..k]).copied();
            merge_keys(own, op, list).unwrap();
        }
        assert_eq!(
            integers(machine.bytes(lists)),
            want,
            "{architecture} {world} ranks, {heads} heads, k = {k}"
        );
    }
}

#[test]
fn one_list_for_all_heads() {
    check(2, 4, &op(16, 0, 1), 10);
    check(4, 4, &op(64, 0, 1), 11);
    check(3, 2, &Op { order: SelectOrder::ScoreThenOwn, ..op(5, 0, 1) }, 12);
}

#[test]
pub(crate) fn every_number_of_ranks_and_the_longest_lists() {
    for (world, k) in [(8, 64), (7, 37), (1, 64), (3, 5), (5, 1), (1, 3)] {
        check(world, 1, &op(k, 0, 1), world as u64);
    }
    check(6, 1, &Op { order: SelectOrder::ScoreThenOwn, ..op(48, 0, 1) }, 9);
}

/// Everything above, for faulty kernels.
pub(crate) fn all() {
    every_number_of_ranks_and_the_longest_lists();
    one_list_for_all_heads();
}
