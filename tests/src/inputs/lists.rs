//! Lists of selected blocks, block scores, partial states and candidate keys: inputs that earlier stages would make.

use msa_core::candidate::CandidateKey;

use super::batch::Batch;
use crate::case::{Case, ListKind, ValueClass};
use crate::random::Random;

/// `[T, lists, k]` of the case's kind; padded rows hold ids out of range.
pub fn block_indices(case: &Case, batch: &Batch, rows: usize, lists: usize) -> Vec<i32> {
    let k = case.geometry.top_k as usize;
    let mut all = Vec::with_capacity(rows * lists * k);
    let mut random = Random::new(case.seed, "lists of request 0");
    let mut drawn_for = 0;
    for row in 0..rows {
        let request = batch.request_of.get(row).copied();
        if let Some(request) = request.filter(|r| *r != drawn_for) {
            random = Random::new(case.seed, &format!("lists of request {request}"));
            drawn_for = request;
        }
        for _ in 0..lists {
            let mut list = match request.map(|_| batch.position(row)) {
                Some(position) if position >= 0 => one_list(case, &mut random, position as u64),
                Some(_) => vec![0],
                None => vec![i32::MAX; k],
            };
            list.resize(k, -1);
            all.extend(list);
        }
    }
    all
}

fn one_list(case: &Case, random: &mut Random, position: u64) -> Vec<i32> {
    let (k, own) = (case.geometry.top_k as usize, (position / u64::from(case.geometry.block)) as i32);
    if case.lists == ListKind::Sink {
        return if own > 0 && k > 1 { vec![0, own] } else { vec![own] };
    }
    let mut ids = choose(random, own, k);
    match case.lists {
        ListKind::Ascending => ids.sort_unstable(),
        ListKind::Holes => punch(random, &mut ids, own, k),
        _ => random.shuffle(&mut ids),
    }
    ids
}

/// `min(k, own + 1)` distinct ids of `0..=own`, `own` among them.
fn choose(random: &mut Random, own: i32, k: usize) -> Vec<i32> {
    if own as usize <= 4 * k {
        let mut ids: Vec<i32> = (0..own).collect();
        random.shuffle(&mut ids);
        ids.truncate(k - 1);
        ids.push(own);
        return ids;
    }
    let mut ids = vec![own];
    while ids.len() < k {
        let id = random.below(own as u64) as i32;
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids
}

/// Replaces ids by -1, future ones and ones beyond any cache, and moves them about.
fn punch(random: &mut Random, ids: &mut Vec<i32>, own: i32, k: usize) {
    ids.resize(k, -1);
    let all = random.one_in(8);
    for (slot, id) in (0..).zip(ids.iter_mut()) {
        if all || random.one_in(3) {
            // Distinct ids, so that no list names a block twice.
            *id = [-1, own + 1 + slot, 9999 + slot, i32::MAX - slot, -7][random.below(5) as usize];
        }
    }
    random.shuffle(ids);
}

/// `[T, Hi, blocks]` scores for a selection.
pub fn scores(case: &Case, rows: usize, blocks: usize) -> Vec<f32> {
    let mut random = Random::new(case.seed, "scores");
    let count = rows * case.geometry.index_heads as usize * blocks;
    (0..count).map(|_| score(&mut random, case.values)).collect()
}

fn score(random: &mut Random, class: ValueClass) -> f32 {
    match class {
        ValueClass::Ties => [0.0, -0.0, 0.25, -0.25, 1.0][random.below(5) as usize],
        ValueClass::Nan if random.one_in(2) => {
            let payload = (random.bits() as u32) & 0x807f_ffff;
            f32::from_bits(0x7f80_0001 | payload)
        }
        // Differences in the last bits only, values below the range of f16, infinities.
        ValueClass::Edge => match random.below(8) {
            0 => f32::INFINITY,
            1 => f32::NEG_INFINITY,
            2 => -70000.0 - random.below(64) as f32,
            3 => -3e38,
            _ => f32::from_bits(0x3f80_0000 + random.below(1 << 12) as u32),
        },
        ValueClass::Exact => random.below(1024) as f32 - 512.0,
        _ => random.normal() * 8.0,
    }
}

/// `[W, T, Hi, k]`: the keys of every rank, where page j belongs to rank j mod W.
pub fn candidate_keys(case: &Case, batch: &Batch, rows: usize) -> Vec<u64> {
    let blocks = case.lengths.0.iter().map(|r| case.geometry.blocks(r.kv_len.into())).max().unwrap_or(0);
    let scores = scores(case, rows, blocks as usize);
    let (heads, k) = (case.geometry.index_heads as usize, case.geometry.top_k as usize);
    let mut all = Vec::new();
    for rank in 0..u64::from(case.choices.world) {
        for row in 0..rows {
            let position = if row < batch.request_of.len() { batch.position(row) } else { -1 };
            for head in 0..heads {
                let own_scores = &scores[(row * heads + head) * blocks as usize..][..blocks as usize];
                let mut keys = keys_of_rank(case, own_scores, position, rank);
                keys.sort_unstable_by(|a, b| b.cmp(a));
                keys.resize(k, CandidateKey::EMPTY);
                all.extend(keys.iter().map(|key| key.to_bits()));
            }
        }
    }
    all
}

fn keys_of_rank(case: &Case, scores: &[f32], position: i64, rank: u64) -> Vec<CandidateKey> {
    let Ok(position) = u64::try_from(position) else { return Vec::new() };
    let own = position / u64::from(case.geometry.block);
    let forced = |block: u64| {
        block < u64::from(case.choices.init_blocks) || block + u64::from(case.choices.local_blocks) > own
    };
    let held = (0..=own).filter(|block| block % u64::from(case.choices.world) == rank);
    held.map(|block| CandidateKey::new(scores[block as usize], block as u16, forced(block))).collect()
}

/// LSEs, or maxima, of `count` partial states; some stand for no key.
pub fn partial_lse(case: &Case, count: usize) -> Vec<f32> {
    let mut random = Random::new(case.seed, "partial lse");
    let empty = |random: &mut Random| if random.one_in(4) { f32::INFINITY } else { f32::NEG_INFINITY };
    let value = |random: &mut Random| match case.values {
        ValueClass::Exact => 3.0,
        ValueClass::Edge => [0.0, -0.0, -6e4, 1e6, 80.0][random.below(5) as usize],
        _ => random.normal() * 4.0,
    };
    (0..count).map(|_| if random.one_in(4) { empty(&mut random) } else { value(&mut random) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Lens;
    use msa_core::op::OpKind;

    #[test]
    fn lists_hold_the_own_block_and_no_block_twice() {
        for lists in [ListKind::Shuffled, ListKind::Ascending, ListKind::Holes] {
            let case = Case { lists, lengths: Lens::of(&[(5, 9000)]), ..Case::new(OpKind::SparseDecode) };
            let batch = Batch::new(&case).unwrap();
            let all = block_indices(&case, &batch, 5, 4);
            for list in all.chunks(16) {
                let mut ids: Vec<i32> = list.iter().copied().filter(|&id| id >= 0).collect();
                ids.sort_unstable();
                assert!(ids.windows(2).all(|w| w[0] < w[1]));
                assert!(lists == ListKind::Holes || (ids.len() == 16 && ids[15] == 70));
            }
        }
    }
}
