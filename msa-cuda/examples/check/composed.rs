//! Random cases of the operations over results of others: merges, and the step.

use msa_core::args::Role;
use msa_core::cache::{CacheFormat, IndexCache};
use msa_core::candidate::CandidateKey;
use msa_core::geometry::{Geometry, Grouping};
use msa_core::op::{
    Attention, AttentionOutput, Dequantise, IndexScore, LseBase, Merge, MergeDomain, Op, ScorePrecision,
    Select, SelectMerge, SelectOrder, Step,
};
use msa_core::tensor::DType;

use crate::cases::{Case, Input, Layout, Random, elements};

impl Case {
    pub(crate) fn merge(random: &mut Random, mut geometry: Geometry) -> Self {
        geometry.head_dim = random.pick(&[128, 128, 128, 64]);
        let op = Merge {
            geometry,
            states: random.pick(&[1, 2, 2, 3, 5, 8, 16, 33, 70]),
            domain: random.pick(&[MergeDomain::Lse, MergeDomain::Lse, MergeDomain::SumMax]),
            partial: random.pick(&[DType::F32, DType::F32, DType::Bf16]),
            output: random.pick(&[DType::Bf16, DType::Bf16, DType::F16, DType::F32]),
            lse_base: random.pick(&[LseBase::Natural, LseBase::Two]),
        };
        let mut case = Self::empty(random, Op::Merge(op.clone()), 1);
        let rows = 1 + random.below(case.bounds.rows().max(1));
        let rows = rows.min(case.bounds.rows());
        let (states, heads) = (1 + random.below(op.states.into()), u64::from(geometry.query_heads));
        let per_head = states * rows * heads;
        let values = case.partial_outputs(random, op.partial, per_head * u64::from(geometry.head_dim));
        let shape = vec![states, rows, heads, geometry.head_dim.into()];
        case.add_input(Role::PartialOutputs, op.partial, shape, values);
        let lses = case.partial_lses(random, per_head);
        case.add_input(Role::PartialLse, DType::F32, vec![states, rows, heads], lses);
        if op.domain == MergeDomain::SumMax {
            let sums = case.partial_sums(random, per_head);
            case.add_input(Role::PartialSums, DType::F32, vec![states, rows, heads], sums);
        }
        case.add_output(Role::Output, op.output, &[rows, heads, geometry.head_dim.into()]);
        case.add_output(Role::Lse, DType::F32, &[rows, heads]);
        case
    }

    pub(crate) fn partial_outputs(&self, random: &mut Random, dtype: DType, count: u64) -> Vec<u8> {
        match dtype {
            DType::F32 => floats((0..count).map(|_| random.normal())),
            other => elements(random, other, count, self.special == "nan"),
        }
    }

    /// Near and far apart, empty states of both signs, sometimes NaN.
    pub(crate) fn partial_lses(&self, random: &mut Random, count: u64) -> Vec<u8> {
        let (spread, empty) = (random.pick(&[0.0, 1.0, 20.0, 200.0]), random.pick(&[0, 5, 60, 100]));
        let nan = self.special == "nan";
        floats((0..count).map(|_| match () {
            () if random.chance(empty) => random.pick(&[f32::NEG_INFINITY, f32::NEG_INFINITY, f32::INFINITY]),
            () if nan && random.chance(1) => f32::NAN,
            () => random.normal() * spread,
        }))
    }

    pub(crate) fn partial_sums(&self, random: &mut Random, count: u64) -> Vec<u8> {
        let nan = self.special == "nan";
        floats((0..count).map(|_| match () {
            () if random.chance(10) => 0.0,
            () if nan && random.chance(1) => f32::NAN,
            () => 1.0 + random.below(1000) as f32 / 300.0,
        }))
    }

    pub(crate) fn select_merge(random: &mut Random, geometry: Geometry) -> Self {
        let select = Select {
            geometry,
            grouping: random.pick(&[Grouping::PerHead, Grouping::PerHead, Grouping::Reduced]),
            order: random.pick(&[SelectOrder::Ascending, SelectOrder::Ascending, SelectOrder::ScoreThenOwn]),
            ..Select::default()
        };
        let world = random.pick(&[1, 2, 4, 8, 8, 64]);
        let op = SelectMerge { geometry, world, select: select.clone() };
        let mut case = Self::empty(random, Op::SelectMerge(op), 1);
        let rows = (1 + random.below(case.bounds.rows().max(1))).min(case.bounds.rows());
        let (heads, k) = (u64::from(geometry.index_heads), u64::from(geometry.top_k));
        let keys = candidate_keys(random, world.into(), rows * heads, k);
        case.add_input(Role::CandidateKeys, DType::U64, vec![world.into(), rows, heads, k], keys);
        case.add_output(Role::BlockIndices, DType::I32, &[rows, select.lists().into(), k]);
        case
    }

    pub(crate) fn step(random: &mut Random, geometry: Geometry) -> Self {
        let op = random_step(random, geometry);
        let mut case = Self::empty(random, Op::Step(op.clone()), 60);
        case.options.splits = random.pick(&[None, None, None, Some(1), Some(3)]).filter(|&s| s <= geometry.top_k);
        let rows = case.add_batch(random, true);
        case.add_rows(random, Role::IndexQuery, op.index.query, rows, geometry.index_heads);
        case.add_rows(random, Role::Query, op.attention.query, rows, geometry.query_heads);
        let scales = [Role::IndexQueryScale, Role::IndexKeyScale, Role::QueryScale, Role::KeyScale, Role::ValueScale];
        case.add_scales(random, &scales);
        case.add_output(Role::BlockIndices, DType::I32, &[rows, op.select.lists().into(), geometry.top_k.into()]);
        case.add_output(Role::Output, op.attention.output.dtype, &[rows, geometry.query_heads.into(), 128]);
        if op.attention.output.lse {
            case.add_output(Role::Lse, DType::F32, &[rows, geometry.query_heads.into()]);
        }
        case.layout = random.pick(&[Layout::Planar, Layout::HeadSlot, Layout::SglangRow, Layout::BlockOuter]);
        case.fill_step(random);
        case
    }

    /// Both caches of a step.
    pub(crate) fn fill_step(&mut self, random: &mut Random) {
        let Op::Step(op) = self.op.clone() else { return };
        self.op = Op::IndexScore(op.index.clone());
        let page = IndexCache::planar(&op.index.geometry, op.index.keys, self.pages, 4096);
        let bytes = page.map_or(0, |c| c.key.page_stride) * self.pages;
        self.fill_pool(random, op.index.keys, bytes);
        self.index_pool = std::mem::take(&mut self.pool);
        self.op = Op::SparseDecode(op.attention.clone());
        let bytes = self.kv_cache(4096).map_or(0, |c| c.key.page_stride) * self.pages;
        self.fill_pool(random, op.attention.cache, bytes);
        self.op = Op::Step(op);
    }

    fn add_input(&mut self, role: Role, dtype: DType, shape: Vec<u64>, bytes: Vec<u8>) {
        self.inputs.push(Input { role, dtype, shape, bytes, pad: 0 });
    }
}

/// A step under one of the arithmetics that scores and attention share.
fn random_step(random: &mut Random, geometry: Geometry) -> Step {
    let (e4m3, bf16) = (DType::E4m3, DType::Bf16);
    let small = [CacheFormat::E4m3, CacheFormat::Nvfp4, CacheFormat::Nvfp4];
    let any = [CacheFormat::Bf16, CacheFormat::E4m3, CacheFormat::Nvfp4];
    let (index_query, keys, query, cache) = match random.below(3) {
        0 => (e4m3, random.pick(&small), e4m3, random.pick(&small)),
        1 => (random.pick(&[e4m3, bf16]), random.pick(&any), bf16, random.pick(&small)),
        _ => (random.pick(&[e4m3, bf16]), random.pick(&any), random.pick(&[e4m3, bf16]), CacheFormat::Bf16),
    };
    let grouping = random.pick(&[Grouping::PerHead, Grouping::PerHead, Grouping::Reduced]);
    let precision = random.pick(&[ScorePrecision::Faithful, ScorePrecision::Faithful, ScorePrecision::Fast]);
    let init_blocks = random.pick(&[0, 0, 1]).min(geometry.top_k - 1);
    Step {
        index: IndexScore {
            geometry,
            query: index_query,
            keys,
            precision,
            dequantise: Dequantise::E4m3,
            ..IndexScore::default()
        },
        select: Select { geometry, grouping, init_blocks, ..Select::default() },
        attention: Attention {
            geometry,
            query,
            cache,
            grouping,
            output: AttentionOutput {
                dtype: random.pick(&[bf16, bf16, DType::F16, DType::F32]),
                lse: random.chance(60),
                lse_base: random.pick(&[LseBase::Natural, LseBase::Two]),
                partial: DType::F32,
            },
            ..Attention::default()
        },
        ..Step::default()
    }
}

/// Keys as ranks hand them over: of blocks `j mod world`, descending, then empty; many equal scores.
pub(crate) fn candidate_keys(random: &mut Random, world: u64, lists: u64, k: u64) -> Vec<u8> {
    let (own, levels) = (random.below(3000), random.pick(&[2, 50, 1_000_000]));
    let mut bytes = Vec::new();
    for rank in 0..world {
        for _ in 0..lists {
            let mut keys: Vec<u64> = (rank..=own)
                .step_by(world as usize)
                .map(|block| {
                    let score = random.below(levels) as f32 - 1.0;
                    CandidateKey::new(score, block as u16, block == own || block == 0 && k > 1).to_bits()
                })
                .collect();
            keys.sort_unstable_by(|a, b| b.cmp(a));
            keys.resize(k as usize, 0);
            bytes.extend(keys.iter().flat_map(|key| key.to_le_bytes()));
        }
    }
    bytes
}

fn floats(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(f32::to_le_bytes).collect()
}
