//! Random cases of the operations over results of others: merges, and the step.

use msa_core::args::Role;
use msa_core::cache::{CacheFormat, IndexCache};
use msa_core::candidate::CandidateKey;
use msa_core::geometry::{Geometry, Grouping};
use msa_core::op::{
    Append, Attention, AttentionOutput, Dequantise, IndexScore, LseBase, Merge, MergeDomain, Norm, Op,
    Quantiser, Rope, Rounding, ScorePrecision, Select, SelectMerge, SelectOrder, Step,
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
        let mut case = Self::step_lengths(random, Op::Step(op.clone()));
        case.options.splits =
            random.pick(&[None, None, None, Some(1), Some(3)]).filter(|&s| s <= geometry.top_k);
        let rows = case.add_batch(random, true);
        if !op.appends && random.chance(30) {
            case.repeat_pages(random);
        }
        if op.appends {
            case.add_new_tokens(random, &op.append, rows);
        } else {
            case.add_rows(random, Role::IndexQuery, op.index.query, rows, geometry.index_heads);
            case.add_rows(random, Role::Query, op.attention.query, rows, geometry.query_heads);
        }
        let scales =
            [Role::IndexQueryScale, Role::IndexKeyScale, Role::QueryScale, Role::KeyScale, Role::ValueScale];
        case.add_scales(random, &scales);
        case.add_output(
            Role::BlockIndices,
            DType::I32,
            &[rows, op.select.lists().into(), geometry.top_k.into()],
        );
        case.add_output(Role::Output, op.attention.output.dtype, &[rows, geometry.query_heads.into(), 128]);
        if op.attention.output.lse {
            case.add_output(Role::Lse, DType::F32, &[rows, geometry.query_heads.into()]);
        }
        case.layout = random.pick(&[Layout::Planar, Layout::HeadSlot, Layout::SglangRow, Layout::BlockOuter]);
        case.fill_step(random);
        case
    }

    /// Mostly few and short requests; long ones, and many of which most are empty, for what scoring kernels select.
    fn step_lengths(random: &mut Random, op: Op) -> Self {
        match random.below(30) {
            0 => {
                let q = random.pick(&[1, 1, 1, 2]);
                let lengths = (0..1 + random.below(2)).map(|_| (q as u32, random.below(1030 * 128) as u32));
                let lengths = lengths.collect();
                Self::of_lengths(random, op, q, lengths)
            }
            1 => {
                let empty = random.pick(&[80, 90, 97]);
                let lengths = (0..100 + random.below(950)).map(|_| {
                    let tokens = if random.chance(empty) { 0 } else { random.below(300) };
                    (u32::from(random.chance(90)), tokens as u32)
                });
                let lengths = lengths.collect();
                Self::of_lengths(random, op, 1, lengths)
            }
            _ => Self::empty(random, op, 60),
        }
    }

    /// Sources, slots, positions and tables of a step that appends.
    fn add_new_tokens(&mut self, random: &mut Random, op: &Append, rows: u64) {
        let (inputs, outputs) = (self.inputs.len(), self.outputs.len());
        // A step cannot do without its queries, which an append can leave out.
        while self.outputs.len() < outputs + 2 {
            self.inputs.truncate(inputs);
            self.outputs.truncate(outputs);
            self.add_sources(random, op, rows);
        }
        // Scoring and attention read queries 16 bytes at a time.
        self.outputs.iter_mut().for_each(|output| output.pad = output.pad.next_multiple_of(16));
        let half = u64::from(op.rope.rotary_dim) / 2;
        let positions = u64::from(self.bounds.max_kv_len()) + 1;
        for role in [Role::RopeCos, Role::RopeSin] {
            let angles = floats((0..positions * half).map(|_| random.normal().clamp(-1.0, 1.0)));
            self.add_input(role, DType::F32, vec![positions, half], angles);
        }
        self.add_input(Role::Slots, DType::I64, vec![rows], vec![0; 8 * rows as usize]);
        if self.inputs.iter().all(|i| i.role != Role::Positions) {
            self.add_input(Role::Positions, DType::I32, vec![rows], vec![0; 4 * rows as usize]);
        }
        self.place_new_tokens(random);
    }

    /// The rows of a request are its last tokens; what stands in padded rows must not be followed.
    pub(crate) fn place_new_tokens(&mut self, random: &mut Random) {
        let ints = |role| -> Vec<i32> {
            let bytes = self.inputs.iter().find(|i| i.role == role).map_or(&[][..], |i| &i.bytes);
            bytes.as_chunks().0.iter().map(|&b| i32::from_le_bytes(b)).collect()
        };
        let (table, mut positions) = (ints(Role::BlockTable), ints(Role::Positions));
        let width = table.len() / self.lengths.len().max(1);
        let mut slots: Vec<i64> = positions.iter().map(|_| random.below(self.pages * 128) as i64).collect();
        let mut row = 0;
        for (request, &(rows, tokens)) in self.lengths.iter().enumerate() {
            for i in 0..rows {
                let position = i64::from(tokens) - i64::from(rows) + i64::from(i);
                let page = usize::try_from(position / 128).ok().filter(|_| position >= 0);
                let page = page.and_then(|page| table[request * width..][..width].get(page).copied());
                let in_pool = page.filter(|&page| page >= 0 && (page as u64) < self.pages);
                slots[row] = in_pool.map_or(-1, |page| i64::from(page) * 128 + position % 128);
                if self.special != "positions" {
                    positions[row] = position as i32;
                }
                row += 1;
            }
        }
        for input in &mut self.inputs {
            match input.role {
                Role::Slots => input.bytes = slots.iter().flat_map(|s| s.to_le_bytes()).collect(),
                Role::Positions => input.bytes = positions.iter().flat_map(|p| p.to_le_bytes()).collect(),
                _ => {}
            }
        }
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
    let append = Append {
        geometry,
        kv: cache,
        index: keys,
        query,
        index_query,
        norm: Norm { enabled: random.chance(85), ..Norm::default() },
        rope: Rope { rotary_dim: random.pick(&[64, 64, 128, 32]) },
        rounding: random.pick(&[Rounding::Once, Rounding::PerStep]),
        quantiser: random.pick(&[Quantiser::Vendor, Quantiser::Vendor, Quantiser::Reciprocal]),
        block_scale_shift: 0,
    };
    Step {
        appends: random.chance(60),
        append,
        index: IndexScore {
            geometry,
            query: index_query,
            keys,
            precision,
            dequantise: Dequantise::E4m3,
            ..IndexScore::default()
        },
        select: Select {
            geometry,
            grouping,
            init_blocks,
            local_blocks: random.pick(&[1, 1, 1, 2, 4]).min(geometry.top_k),
            order: random.pick(&[SelectOrder::Ascending, SelectOrder::Ascending, SelectOrder::ScoreThenOwn]),
            ..Select::default()
        },
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
