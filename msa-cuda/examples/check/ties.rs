//! `check ties`: lists that a step selects by faithful scores against the selection of the equations over the same cache.
//!
//! They may differ only where scores are nearer to each other than the bound of their computation. The bound of a step of 16
//! products, of which every one and the accumulator is truncated 25 bits below the largest, the sum then to 24 bits: 17 * 2^-25 of
//! the largest term and 2^-23 of the sum. That is the instruction's model, which was compared with the hardware bit for bit.

use std::collections::BTreeMap;

use half::bf16;
use msa_core::args::Role;
use msa_core::arithmetic::Steps;
use msa_core::backend::Device;
use msa_core::cache::{CacheFormat, IndexCache, View};
use msa_core::error::{Error, Result};
use msa_core::format::dequant::dequantise_e4m3;
use msa_core::format::{E2m1, E4m3};
use msa_core::geometry::Grouping;
use msa_core::op::{Op, ScorePrecision, Select, Step};
use msa_core::plan::Plan;
use msa_core::tensor::DType;
use msa_ref::spec::bound::UNIT;
use msa_ref::spec::select::{Grouping as SpecGrouping, SelectRule, select_heads};
use rayon::prelude::*;

use crate::cases::{Case, PAGE, Random};
use crate::device;
use crate::replay::Amount;

const CHANNELS: usize = 128;

/// A score and what its computation may be off by.
type Bounded = (f64, f64);

/// Lists by how they compare.
#[derive(Debug, Default, Clone, Copy)]
struct Lists {
    equal: u64,
    near: u64,
    wrong: u64,
}

/// Lists that differ where they must not, of steps that `device` runs as `plan` says.
pub(crate) fn run(device: &dyn Device, plan: &dyn Fn(&Case) -> Result<Plan>, amount: Amount) -> Result<u64> {
    let (mut all, mut variants) = (Lists::default(), BTreeMap::<String, u64>::new());
    for (number, case, mut random) in (Amount { only: Some("step"), ..amount }).cases() {
        let Some(mut case) = plain_step(case) else { continue };
        case.add_rivals(&mut random)?;
        let Op::Step(op) = &case.op else { continue };
        let plan = plan(&case)?;
        *variants.entry(plan.arithmetic.name.clone()).or_default() += 1;
        let got = device::run(device, &plan, &case)?;
        let steps = plan.arithmetic.index.steps;
        let lists = got.outputs.iter().find(|o| o.0 == Role::BlockIndices).map_or(&[][..], |o| &o.2[..]);
        let found = compare(&case, op, &steps, lists)?;
        if found.wrong > 0 {
            println!("case {number} seed {}: {} lists beyond the bound: {case}", amount.seed, found.wrong);
        }
        all = Lists {
            equal: all.equal + found.equal,
            near: all.near + found.near,
            wrong: all.wrong + found.wrong,
        };
    }
    println!("{variants:?}");
    println!("{} lists equal, {} near-ties, {} wrong", all.equal, all.near, all.wrong);
    Ok(all.wrong)
}

/// A step with faithful scores of well-formed inputs, whose lists no option changes.
fn plain_step(mut case: Case) -> Option<Case> {
    let Op::Step(op) = &mut case.op else { return None };
    op.index.precision = ScorePrecision::Faithful;
    op.select = Select { geometry: op.select.geometry, grouping: op.select.grouping, ..Select::default() };
    if op.appends {
        return None;
    }
    case.null_page = None;
    case.special.is_empty().then_some(case)
}

fn compare(case: &Case, op: &Step, steps: &Steps, lists: &[u8]) -> Result<Lists> {
    let (heads, k) = (op.index.geometry.index_heads as usize, op.index.geometry.top_k as usize);
    let per_row = op.select.lists() as usize;
    let ids: Vec<i32> = lists.as_chunks().0.iter().map(|&id| i32::from_le_bytes(id)).collect();
    let (grouping, listed) = match op.select.grouping {
        Grouping::PerHead => (SpecGrouping::PerHead, 1),
        Grouping::Reduced => (SpecGrouping::Reduced, heads),
    };
    let rule = SelectRule { grouping, ..SelectRule::with_slots(k) };
    let queries = decode(op.index.query, case.bytes(Role::IndexQuery));
    let (mut found, mut first_row) = (Lists::default(), 0);
    for (request, &(rows, tokens)) in case.lengths.iter().enumerate() {
        let keys = keys_of(case, op.index.keys, request, tokens as usize)?;
        let factor = f64::from(case.scale(Role::IndexQueryScale) * case.scale(Role::IndexKeyScale));
        for i in 0..rows as usize {
            let visible = tokens as i64 - i64::from(rows) + i as i64 + 1;
            let row = first_row + i;
            let got = &ids[row * per_row * k..(row + 1) * per_row * k];
            let Ok(visible @ 1..) = usize::try_from(visible) else { continue };
            let keys = &keys[..visible * CHANNELS];
            let score = |h: usize| {
                let query = &queries[(row * heads + h) * CHANNELS..(row * heads + h + 1) * CHANNELS];
                keys.par_chunks(CHANNELS * PAGE as usize)
                    .map(|b| block_score(query, b, steps, factor))
                    .collect()
            };
            let scores: Vec<Vec<Bounded>> = (0..heads).map(score).collect();
            let exact: Vec<Vec<f64>> = scores.iter().map(|s| s.iter().map(|s| s.0).collect()).collect();
            let own = (visible - 1) / PAGE as usize;
            let want = select_heads(&exact, own, &rule).map_err(|e| Error::Plan(e.to_string()))?;
            for (list, got) in got.chunks_exact(k).enumerate() {
                let of_list = &scores[list * heads / per_row..list * heads / per_row + listed];
                match () {
                    () if got == want[list].ids => found.equal += 1,
                    () if is_near_tie(of_list, got, &want[list].ids) => found.near += 1,
                    () => found.wrong += 1,
                }
            }
        }
        first_row += rows as usize;
    }
    Ok(found)
}

/// The largest dot product of a block, and the largest bound of its tokens.
fn block_score(query: &[f64], keys: &[f64], steps: &Steps, factor: f64) -> Bounded {
    let each = keys.chunks_exact(CHANNELS).map(|key| dot(query, key, steps));
    let (top, off) = each.fold((f64::NEG_INFINITY, 0.0_f64), |(top, off), (s, b)| (top.max(s), off.max(b)));
    (top * factor, (off * factor.abs() + (top * factor).abs() * UNIT) * (1.0 + 1.0 / 256.0))
}

/// The exact dot product in the order of the steps, with the bound of the module's head.
fn dot(query: &[f64], key: &[f64], steps: &Steps) -> Bounded {
    const TRUNCATED: f64 = 17.0 / (1 << 25) as f64;
    const STORED: f64 = 1.0 / (1 << 23) as f64;
    let (mut sum, mut bound) = (0.0_f64, 0.0);
    for step in 0..CHANNELS as u32 / steps.width() {
        let mut largest = sum.abs() + bound;
        for channel in steps.elements(step) {
            let product = query[channel as usize] * key[channel as usize];
            largest = largest.max(product.abs());
            sum += product;
        }
        bound += TRUNCATED * largest;
        bound += STORED * (sum.abs() + bound);
    }
    (sum, bound)
}

/// True if every block that only one of the lists holds could be either within the bounds.
fn is_near_tie(scores: &[Vec<Bounded>], got: &[i32], want: &[i32]) -> bool {
    let at = |block: i32| {
        let all = scores.iter().filter_map(|s| s.get(block as usize));
        all.fold((f64::NEG_INFINITY, 0.0_f64), |(top, off), s| (top.max(s.0), off.max(s.1)))
    };
    let only = |a: &[i32], b: &[i32]| a.iter().copied().filter(|id| !b.contains(id)).collect::<Vec<_>>();
    let (taken, dropped) = (only(got, want), only(want, got));
    let ascending = got.windows(2).all(|w| w[0] < w[1] || w[1] == -1);
    let could = |a: i32, b: i32| a >= 0 && b >= 0 && at(a).0 + at(a).1 >= at(b).0 - at(b).1;
    ascending && taken.len() == dropped.len() && taken.iter().all(|&a| dropped.iter().all(|&b| could(a, b)))
}

/// Index keys of a request, `[tokens][128]`.
fn keys_of(case: &Case, format: CacheFormat, request: usize, tokens: usize) -> Result<Vec<f64>> {
    let cache: IndexCache = case.index_cache(0x1000)?;
    let table = case.bytes(Role::BlockTable);
    let width = table.len() / 4 / case.lengths.len().max(1);
    let mut keys = Vec::with_capacity(tokens * CHANNELS);
    for token in 0..tokens {
        let at = (request * width + token / PAGE as usize) * 4;
        let page = table[at..at + 4].try_into().map_or(0, i32::from_le_bytes) as u64;
        let row = |view: View, bytes: usize| {
            let start =
                view.address - 0x1000 + page * view.page_stride + (token as u64 % 128) * view.token_stride;
            &case.index_pool[start as usize..start as usize + bytes]
        };
        match (format, cache.key_scale) {
            (CacheFormat::Nvfp4, Some(scale)) => {
                let scales = row(scale, CHANNELS / 16);
                keys.extend(row(cache.key, CHANNELS / 2).iter().enumerate().flat_map(|(i, &byte)| {
                    let scale = E4m3::from_bits(scales[i / 8]);
                    E2m1::unpack(byte).map(|code| f64::from(dequantise_e4m3(code, scale, 0).to_f32()))
                }));
            }
            (CacheFormat::Bf16, _) => keys.extend(decode(DType::Bf16, row(cache.key, CHANNELS * 2))),
            _ => keys.extend(decode(DType::E4m3, row(cache.key, CHANNELS))),
        }
    }
    Ok(keys)
}

fn decode(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        DType::Bf16 => bytes.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b).to_f64()).collect(),
        _ => bytes.iter().map(|&b| f64::from(E4m3::from_bits(b).to_f32())).collect(),
    }
}

/// A key of 2 in all channels, with the signs of a query, or the next code where the query is small: terms of which 14 bits lose
/// the end, so that they often rank blocks otherwise.
fn rival(random: &mut Random, format: CacheFormat, query: &[f64]) -> Vec<u8> {
    let (two, sign) = match format {
        CacheFormat::Bf16 => (0x4000_u16, 15),
        CacheFormat::Nvfp4 => (4, 3),
        _ => (0x40, 7),
    };
    let small = query.iter().fold(0.0_f64, |top, q| top.max(q.abs())) / 10.0;
    let mut next = |q: f64| if q.abs() < small { random.below(2) as u16 } else { 0 };
    let codes = query.iter().map(|q| (two + next(*q)) | u16::from(*q < 0.0) << sign);
    match format {
        CacheFormat::Bf16 => codes.flat_map(u16::to_le_bytes).collect(),
        CacheFormat::Nvfp4 => codes.collect::<Vec<_>>().chunks(2).map(|c| (c[0] | c[1] << 4) as u8).collect(),
        _ => codes.map(|code| code as u8).collect(),
    }
}

impl Case {
    /// In every block one key for each row and head that makes its score: near those of the other blocks.
    fn add_rivals(&mut self, random: &mut Random) -> Result<()> {
        let Op::Step(op) = &self.op else { return Ok(()) };
        let (format, heads, cache) =
            (op.index.keys, op.index.geometry.index_heads, self.index_cache(0x1000)?);
        let queries = decode(op.index.query, self.bytes(Role::IndexQuery));
        let table = self.bytes(Role::BlockTable).to_vec();
        let width = table.len() / 4 / self.lengths.len().max(1);
        let mut first = 0;
        for (request, (rows, tokens)) in self.lengths.clone().into_iter().enumerate() {
            let queries = &queries[first * CHANNELS..];
            first += (rows * heads) as usize;
            for (block, pair) in (0..tokens.div_ceil(PAGE) as usize)
                .flat_map(|block| (0..(rows * heads).min(PAGE) as usize).map(move |pair| (block, pair)))
            {
                let at = (request * width + block) * 4;
                let page = table[at..at + 4].try_into().map_or(0, i32::from_le_bytes) as u64;
                let mut put = |view: View, bytes: &[u8]| {
                    let start =
                        view.address - 0x1000 + page * view.page_stride + pair as u64 * view.token_stride;
                    self.index_pool[start as usize..start as usize + bytes.len()].copy_from_slice(bytes);
                };
                put(cache.key, &rival(random, format, &queries[pair * CHANNELS..(pair + 1) * CHANNELS]));
                if let Some(scale) = cache.key_scale {
                    put(scale, &[0x38; CHANNELS / 16]);
                }
            }
        }
        Ok(())
    }

    fn bytes(&self, role: Role) -> &[u8] {
        self.inputs.iter().find(|i| i.role == role).map_or(&[], |i| &i.bytes)
    }

    fn scale(&self, role: Role) -> f32 {
        self.bytes(role).try_into().map_or(1.0, f32::from_le_bytes)
    }
}
