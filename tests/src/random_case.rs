//! Random cases: any op, format, layout, shape and input class, from one number.
//!
//! Lengths are drawn around the borders of blocks and beyond the k blocks of a list; half of the cases that score or
//! attend have more than 16 blocks where `long` allows it.

use msa_core::cache::CacheFormat;
use msa_core::geometry::{Geometry, Grouping};
use msa_core::lengths::RequestBound;
use msa_core::op::{Dequantise, LseBase, MergeDomain, OpKind, Rounding, SelectOrder};
use msa_core::plan::ScheduleChoice;
use msa_core::tensor::DType;

use crate::case::{CacheLayout, Case, ListKind, Poison, ValueClass};
use crate::inputs::cache::layout_fits;
use crate::random::Random;

/// (Hq, Hkv, Hi): every ratio that the mapping distinguishes.
const HEADS: [(u32, u32, u32); 7] =
    [(4, 1, 1), (8, 2, 2), (8, 2, 4), (16, 4, 4), (6, 2, 2), (8, 1, 4), (16, 1, 1)];

const PAGES: [u32; 6] = [16, 32, 64, 128, 256, 512];

/// The case number `seed` of an operation; small enough for the reference to take milliseconds.
pub fn random_case(op: OpKind, seed: u64) -> Case {
    let mut random = Random::new(seed, op.name());
    let mut case = Case { seed, ..Case::new(op) };
    case.geometry = geometry(&mut random);
    case.values = pick(&mut random, ValueClass::ALL);
    case.poison = pick(&mut random, Poison::ALL);
    case.lists = pick(&mut random, ListKind::ALL);
    case.gap = pick(&mut random, &[0, 16, 64]);
    case.scales = random.one_in(3);
    case.padded_rows = if random.one_in(3) { 1 + random.below(5) as u32 } else { 0 };
    types(&mut random, &mut case);
    choices(&mut random, &mut case);
    lengths(&mut random, &mut case);
    case
}

/// The op of case number `seed` when all are drawn.
pub fn random_op(seed: u64) -> OpKind {
    pick(&mut Random::new(seed, "operation"), &OpKind::ALL)
}

fn pick<T: Copy>(random: &mut Random, list: &[T]) -> T {
    list[random.below(list.len() as u64) as usize]
}

fn geometry(random: &mut Random) -> Geometry {
    let (query_heads, kv_heads, index_heads) = pick(random, &HEADS);
    let block = pick(random, &[32, 64, 128, 256_u32]);
    let pages: Vec<u32> =
        PAGES.into_iter().filter(|p| p.is_multiple_of(block) || block.is_multiple_of(*p)).collect();
    Geometry {
        query_heads,
        kv_heads,
        index_heads,
        head_dim: pick(random, &[64, 128]),
        index_dim: pick(random, &[64, 128]),
        block,
        page: pick(random, &pages),
        top_k: pick(random, &[1, 2, 3, 4, 8, 16, 64]),
    }
}

fn types(random: &mut Random, case: &mut Case) {
    let queries = [DType::Bf16, DType::Bf16, DType::F32, DType::F16, DType::E4m3];
    case.types.query = pick(random, &queries);
    case.types.index_query = pick(random, &queries);
    case.types.kv = pick(random, &CacheFormat::ALL);
    case.types.index = pick(random, &CacheFormat::ALL);
    case.types.output = pick(random, &[DType::Bf16, DType::F32, DType::F16]);
    if case.op == OpKind::Merge {
        case.types.partial = pick(random, &[DType::F32, DType::Bf16]);
    }
    let layouts: Vec<CacheLayout> =
        CacheLayout::ALL.iter().copied().filter(|l| layout_fits(*l, case.types.kv)).collect();
    case.layout = pick(random, &layouts);
}

fn choices(random: &mut Random, case: &mut Case) {
    let k = case.geometry.top_k;
    let c = &mut case.choices;
    match random.below(6) {
        0 => c.dequantise = Dequantise::Exact,
        1 => c.dequantise = Dequantise::SixthHoisted,
        2 => c.shift = 1 + random.below(3) as u32,
        _ => {}
    }
    c.grouping = if random.one_in(5) { Grouping::Reduced } else { Grouping::PerHead };
    c.lse_base = if random.one_in(5) { LseBase::Two } else { LseBase::Natural };
    c.order = if random.one_in(5) { SelectOrder::ScoreThenOwn } else { SelectOrder::Ascending };
    if random.one_in(5) && k >= 4 {
        (c.init_blocks, c.local_blocks) = (1, 2);
    }
    c.rounding = pick(random, &[Rounding::Once, Rounding::PerStep]);
    c.norm = random.one_in(2);
    c.rotary_dim = pick(random, &[0, 16, 32, 64]);
    c.appends = random.one_in(2);
    c.prefill = random.one_in(2);
    c.states = 1 + random.below(9) as u32;
    c.domain = pick(random, &[MergeDomain::Lse, MergeDomain::SumMax]);
    c.world = pick(random, &[1, 2, 4, 8]);
    if case.op == OpKind::SparseDecode && random.one_in(2) {
        case.options.splits = Some(1 + random.below(u64::from(k.min(16))) as u32);
    }
    if attends_as_prefill(case) {
        let all =
            [ScheduleChoice::Auto, ScheduleChoice::Union, ScheduleChoice::KvOuter, ScheduleChoice::Hybrid];
        case.options.schedule = pick(random, &all);
    }
}

fn attends_as_prefill(case: &Case) -> bool {
    case.op == OpKind::SparsePrefill || (case.op == OpKind::Step && case.choices.prefill)
}

fn lengths(random: &mut Random, case: &mut Case) {
    let block = u64::from(case.geometry.block);
    let rows: &[u32] =
        if attends_as_prefill(case) { &[0, 1, 7, 33, 64, 130] } else { &[0, 1, 1, 2, 3, 4, 5, 7, 8] };
    let requests = pick(random, &[0, 1, 1, 2, 3, 5]);
    let appends = matches!(case.op, OpKind::Append | OpKind::Step);
    case.lengths.0 = (0..requests)
        .map(|_| {
            let query_len = pick(random, rows);
            let kv_len = match random.below(10) {
                0 => 0,
                1 => 1,
                2 => block - 1,
                3 => block,
                4 => block + 1,
                5 => 17 * block + random.below(28 * block),
                6 => 2 + random.below(block),
                _ => 1 + random.below(2000),
            } as u32;
            RequestBound { query_len, kv_len: if appends { kv_len.max(query_len) } else { kv_len } }
        })
        .collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_valid_and_parses_back() {
        for op in OpKind::ALL {
            for seed in 0..300 {
                let case = random_case(op, seed);
                let back: Case = case.to_string().parse().unwrap();
                assert_eq!(back, case);
                case.descriptor().unwrap();
                case.bounds().unwrap();
            }
        }
    }
}
