//! Index scores under the arithmetic `f32` against the definition, bit for bit.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod f32_oracle;

use f32_oracle::{Case, Random};
use msa_core::geometry::Geometry;
use msa_ref::sim::index_score::IndexScoreJob;
use msa_ref::simd::SimdLevel;
use proptest::prelude::*;

/// One index key head, whose keys are those of KV head 0, and as many index heads as query heads.
fn case(heads: u32, dim: u32, block: u32, lengths: &[(u32, u32)], seed: u64) -> Case {
    let geometry = Geometry {
        query_heads: heads,
        kv_heads: 1,
        index_heads: heads,
        head_dim: dim,
        index_dim: dim,
        block,
        page: block,
        top_k: 1,
    };
    Case::new(geometry.validated().unwrap(), lengths, seed)
}

fn run(case: &Case, level: SimdLevel) -> Vec<(u32, u32, Vec<u32>)> {
    let job = IndexScoreJob { geometry: case.geometry, rows: &case.rows, queries: case, keys: case, level };
    let mut all = Vec::new();
    job.run(&mut |row| {
        all.push((row.row, row.head, row.scores.iter().map(|s| s.to_bits()).collect()));
        Ok(())
    })
    .unwrap();
    all
}

fn oracle(case: &Case) -> Vec<(u32, u32, Vec<u32>)> {
    let (dim, block) = (case.geometry.head_dim as usize, case.geometry.block);
    let mut all = Vec::new();
    for (index, row) in case.rows.iter().enumerate() {
        let row = row.unwrap();
        for head in 0..case.geometry.query_heads {
            let at = (index * case.geometry.query_heads as usize + head as usize) * dim;
            let mut scores = vec![f32::NEG_INFINITY; row.visible.div_ceil(block) as usize];
            for token in 0..row.visible {
                let key = case.token(&case.keys, row.request, 0, token);
                let dot = (0..dim).fold(0.0f32, |s, c| case.queries[at + c].mul_add(key[c], s));
                let score = &mut scores[(token / block) as usize];
                let larger = dot > *score || dot == *score && score.is_sign_negative();
                *score = if larger { dot } else { *score };
            }
            all.push((index as u32, head, scores.into_iter().map(f32::to_bits).collect()));
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_level_equals_the_definition(
        heads in 1..5u32,
        dim in prop_oneof![Just(64u32), Just(128)],
        block in prop_oneof![Just(32u32), Just(64), Just(128)],
        lengths in prop::collection::vec((1..9u32, 0..300u32), 1..4),
        special in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let mut case = case(heads, dim, block, &lengths, seed);
        let mut random = Random(seed);
        for value in case.keys.iter_mut().flatten().filter(|_| special) {
            let values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e38, -3e38];
            if random.below(200) == 0 {
                *value = values[random.below(5) as usize];
            }
        }
        let want = oracle(&case);
        for level in SimdLevel::available() {
            prop_assert_eq!(run(&case, level), want.clone(), "{}", level);
        }
    }
}

/// More rows than a tile and more blocks than a chunk.
#[test]
fn tiles_and_chunks_do_not_show() {
    let case = case(2, 64, 32, &[(70, 600), (1, 290), (130, 100)], 3);
    let all = run(&case, SimdLevel::detect());
    assert_eq!(all, oracle(&case));
    let mut alone = case.clone();
    for row in [0, 69, 70, 71, 200] {
        alone.rows = vec![None; 201];
        alone.rows[row] = case.rows[row];
        assert_eq!(run(&alone, SimdLevel::detect()), all[2 * row..2 * row + 2]);
    }
}

#[test]
fn zeros_have_the_sign_that_the_definition_gives_them() {
    let mut case = case(1, 64, 32, &[(1, 64)], 3);
    case.queries.fill(0.0);
    case.keys[0].fill(0.0);
    // Underflows to -0 in the last channel, where no further product restores +0.
    case.queries[63] = 1e-30;
    case.keys[0].iter_mut().skip(63).step_by(64).for_each(|k| *k = -1e-30);
    let last = case.keys[0].len() - 64;
    case.keys[0][last + 63] = 0.0;
    for level in SimdLevel::available() {
        assert_eq!(run(&case, level), [(0, 0, vec![0x8000_0000, 0])], "{level}");
    }
}

#[test]
fn b10_very_negative_scores_beat_a_missing_block() {
    for score in [-6e4f32, -1e6, -3e30] {
        let mut case = case(1, 64, 32, &[(1, 40)], 3);
        case.queries.fill(0.0);
        case.queries[0] = score;
        case.keys[0].iter_mut().step_by(64).for_each(|k| *k = 1.0);
        case.keys[0][32 * 64..].fill(f32::NAN);
        let want = vec![score.to_bits(), f32::NEG_INFINITY.to_bits()];
        assert_eq!(run(&case, SimdLevel::detect()), [(0, 0, want)]);
    }
}
