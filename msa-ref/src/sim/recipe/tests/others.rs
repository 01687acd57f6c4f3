//! The executor against the f32 kernels and the AMD recipes, which know nothing of it.

use msa_core::arithmetic::Named;
use msa_core::error::Result;
use msa_core::format::E4m3Fnuz;
use msa_core::geometry::{Geometry, Grouping};
use msa_core::op::{LseBase, MergeDomain};
use msa_core::plan::{Schedule, SlotPart};

use super::super::Attender;
use super::*;
use crate::sim::attention::{AttentionJob, AttentionRow, ScheduledRows};
use crate::sim::batch::Row;
use crate::sim::block::{BlockSource, QuerySource};
use crate::sim::cdna::{self, Generation};
use crate::sim::merge::{Combination, State, combine};
use crate::simd::SimdLevel;

/// One request, one row.
struct Source<'a> {
    queries: &'a [f32],
    blocks: &'a [SelectedBlock],
}

impl QuerySource for Source<'_> {
    fn query(&self, _: u32, head: u32, out: &mut [f32]) -> Result<()> {
        out.copy_from_slice(&self.queries[head as usize * D..(head as usize + 1) * D]);
        Ok(())
    }
}

impl BlockSource for Source<'_> {
    fn keys(&self, _: u32, _: u32, block: u32, rows: &mut [f32]) -> Result<bool> {
        rows.copy_from_slice(&self.blocks[block as usize].keys);
        Ok(true)
    }

    fn values(&self, _: u32, _: u32, block: u32, rows: &mut [f32]) -> Result<bool> {
        rows.copy_from_slice(&self.blocks[block as usize].values);
        Ok(true)
    }
}

/// The f32 kernels over all blocks: decode cut at `cut`, or the schedule with the slots from `cut` on in KV-outer.
fn kernels(source: &Source<'_>, scale: f32, cut: u32, schedule: Option<Schedule>) -> Attended {
    let heads = (source.queries.len() / D) as u32;
    let count = source.blocks.len() as u32;
    let visible = (count - 1) * 128 + source.blocks.last().unwrap().visible as u32;
    let row = Row { request: 0, position: i64::from(visible) - 1, visible };
    let job = AttentionJob {
        geometry: Geometry {
            query_heads: heads,
            kv_heads: 1,
            index_heads: 1,
            head_dim: D as u32,
            top_k: count,
            ..Geometry::default()
        },
        grouping: Grouping::PerHead,
        scale,
        rows: &[Some(row)],
        kv_lengths: &[visible],
        lists: &(0..count as i32).collect::<Vec<_>>(),
        queries: source,
        blocks: source,
        level: SimdLevel::detect(),
    };
    let (mut output, mut lse) = (vec![0.0; source.queries.len()], vec![0.0; heads as usize]);
    let mut sink = |row: AttentionRow<'_>| {
        output[row.head as usize * D..][..D].copy_from_slice(row.output);
        lse[row.head as usize] = row.lse;
        Ok(())
    };
    let part = |part, slot_begin, slot_end| SlotPart { request: 0, part, slot_begin, slot_end };
    match schedule {
        None => job.decode(&[part(0, 0, cut), part(1, cut, count)], &mut sink).unwrap(),
        Some(schedule) => {
            let own_slots = vec![u64::MAX << cut];
            job.prefill(&[ScheduledRows { rows: 0..1, group: 0, schedule, own_slots }], &mut sink).unwrap()
        }
    };
    (output, lse)
}

#[test]
fn under_f32_it_equals_the_f32_kernels() {
    let mut random = Random(5);
    for scale in [0.088388346, 1.3] {
        let queries = random.bf16(3 * D);
        let mut blocks = random.blocks(Cache::Bf16, 5);
        blocks[1].keys[..D].fill(0.0);
        let source = Source { queries: &queries, blocks: &blocks };
        let attender = Attender::new(&Named::F32.arithmetic(), &shape(scale)).unwrap();
        for cut in 0..=4 {
            let got = attender.decode(&queries, &[blocks[..cut].to_vec(), blocks[cut..].to_vec()]).unwrap();
            assert_same(&got, &kernels(&source, scale, cut as u32, None), &format!("decode {cut}"));
            let got = attender.prefill(&queries, &blocks[..cut], &blocks[cut..]).unwrap();
            let want = kernels(&source, scale, cut as u32, Some(Schedule::Hybrid));
            assert_same(&got, &want, &format!("hybrid {cut}"));
        }
        let got = attender.prefill(&queries, &blocks, &[]).unwrap();
        assert_same(&got, &kernels(&source, scale, 0, Some(Schedule::Union)), "union");
    }
}

/// FP8 bytes of the hardware and the numbers that they stand for, `factor` times as large.
fn bytes(generation: Generation, numbers: &[f32], factor: f32) -> Vec<cdna::Row> {
    numbers.chunks(D).map(|row| std::array::from_fn(|i| generation.fp8(row[i] * factor))).collect()
}

fn amd(generation: Generation, queries: &[f32], parts: &[Vec<SelectedBlock>], shape: &Shape) -> Attended {
    let halved = generation == Generation::Cdna3 && shape.nvfp4;
    let (factor, unhalved) = if halved { (0.5, 2.0) } else { (1.0, 1.0) };
    let scales = cdna::Scales { natural: shape.scale * unhalved, value: unhalved * shape.value };
    let (mut output, mut lse) = (Vec::new(), Vec::new());
    for query in bytes(generation, queries, 1.0) {
        let part = |blocks: &Vec<SelectedBlock>| {
            let rows = |numbers: &[f32], visible| bytes(generation, &numbers[..visible * D], factor);
            let data: Vec<_> =
                blocks.iter().map(|b| (rows(&b.keys, b.visible), rows(&b.values, b.visible))).collect();
            let blocks = data.iter().map(|(keys, values)| cdna::Block { keys, values });
            cdna::attend_partial(generation, &query, blocks, &scales)
        };
        let parts: Vec<_> = parts.iter().map(part).collect();
        let states: Vec<State> = parts.iter().map(|part| State { lse: part.lse, sum: 1.0 }).collect();
        match combine(MergeDomain::Lse, LseBase::Natural, &states) {
            Combination::Only(part) => {
                output.extend(&parts[part].output);
                lse.push(parts[part].lse);
            }
            Combination::Weighted { weights, inverse, lse: total } => {
                let sum = |d: usize| {
                    let states = weights.iter().zip(&parts);
                    states.fold(0.0, |sum, (w, part)| w.mul_add(part.output[d], sum))
                };
                output.extend((0..D).map(|d| sum(d) * inverse));
                lse.push(total);
            }
            other => panic!("{other:?}"),
        }
    }
    (output, lse)
}

#[test]
fn under_the_arithmetics_of_amd_it_equals_their_recipes() {
    let mut random = Random(942);
    let fnuz = |numbers: Vec<f32>| -> Vec<f32> {
        numbers.iter().map(|x| E4m3Fnuz::from_f32_rne_satfinite(*x).to_f32()).collect()
    };
    for (named, generation) in
        [(Named::Cdna3Decode, Generation::Cdna3), (Named::Cdna4Decode, Generation::Cdna4)]
    {
        for nvfp4 in [false, true] {
            let shape = Shape { nvfp4, value: 0.37, ..shape(0.088388346) };
            let queries = fnuz(random.fp8(2 * D));
            let mut blocks = random.blocks(if nvfp4 { Cache::Nvfp4 } else { Cache::Fp8 }, 3);
            if !nvfp4 {
                for block in &mut blocks {
                    (block.keys, block.values) = (fnuz(block.keys.clone()), fnuz(block.values.clone()));
                }
            }
            for cut in [0, 1, 3] {
                let parts = [blocks[..cut].to_vec(), blocks[cut..].to_vec()];
                let got =
                    Attender::new(&named.arithmetic(), &shape).unwrap().decode(&queries, &parts).unwrap();
                assert_same(
                    &got,
                    &amd(generation, &queries, &parts, &shape),
                    &format!("{} {cut}", named.name()),
                );
            }
        }
    }
}
