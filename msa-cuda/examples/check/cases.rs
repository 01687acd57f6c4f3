//! Random cases.

mod append;

use std::collections::BTreeMap;
use std::fmt;

use msa_core::args::Role;
use msa_core::cache::{
    CacheFormat, IndexCache, KvCache, block_outer, head_slot, interleaved, planar, sglang_row,
};
use msa_core::error::Result;
use msa_core::geometry::{Geometry, Grouping};
use msa_core::lengths::{Lengths, RequestBound};
use msa_core::op::{
    Attention, AttentionOutput, Dequantise, ForcedPriority, IndexScore, LseBase, NanRule, Op, ScorePrecision,
    Select, SelectOrder,
};
use msa_core::plan::PlanOptions;
use msa_core::tensor::DType;

pub(crate) use crate::random::{Random, elements, random_list};

/// One tensor of a case.
#[derive(Clone)]
pub(crate) struct Input {
    pub(crate) role: Role,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<u64>,
    pub(crate) bytes: Vec<u8>,
    /// Bytes added to the row stride.
    pub(crate) pad: u64,
}

/// Layout of the cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Layout {
    Planar,
    HeadSlot,
    SglangRow,
    Interleaved,
    BlockOuter,
}

/// One case: op, bounds, inputs, outputs.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) op: Op,
    pub(crate) bounds: Lengths,
    pub(crate) options: PlanOptions,
    pub(crate) inputs: Vec<Input>,
    pub(crate) outputs: Vec<Input>,
    pub(crate) layout: Layout,
    pub(crate) pages: u64,
    pub(crate) null_page: Option<u32>,
    pub(crate) pool: Vec<u8>,
    /// Pages of the index cache of a step.
    pub(crate) index_pool: Vec<u8>,
    /// Of a case of append; else empty.
    pub(crate) extras: append::Extras,
    /// Rows and tokens of each request.
    pub(crate) lengths: Vec<(u32, u32)>,
    pub(crate) special: &'static str,
}

pub(crate) const PAGE: u32 = 128;

/// Mostly that of the shape; with the last ones the references of a softmax are far (`msa_core::arithmetic::is_far`).
const SOFTMAX_SCALES: [f32; 12] = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.3, 0.3, 0.01, 0.01, 2e6, 1e27];

impl Case {
    /// A case of the op called `only`, or of any.
    pub(crate) fn random(random: &mut Random, only: Option<&str>) -> Self {
        let heads = random.pick(&[
            (64, 4, 4),
            (64, 4, 4),
            (32, 2, 2),
            (16, 1, 1),
            (8, 8, 8),
            (16, 4, 8),
            (64, 8, 8),
            (64, 4, 8),
            (4, 2, 2),
        ]);
        let geometry = Geometry {
            query_heads: heads.0,
            kv_heads: heads.1,
            index_heads: heads.2,
            top_k: random.pick(&[16, 16, 16, 1, 3, 8, 32, 40, 64]),
            ..Geometry::M3
        };
        let any = random.pick(&[
            "index_score",
            "index_score",
            "index_score",
            "select",
            "append",
            "append",
            "sparse_decode",
            "sparse_decode",
            "sparse_decode",
            "merge",
            "select_merge",
            "step",
            "step",
            "step",
        ]);
        match only.unwrap_or(any) {
            "append" => Self::append(random, geometry),
            "index_score" => Self::index(random, geometry),
            "select" => Self::select(random, geometry),
            "merge" => Self::merge(random, geometry),
            "select_merge" => Self::select_merge(random, geometry),
            "step" => Self::step(random, geometry),
            _ => Self::decode(random, geometry),
        }
    }

    pub(crate) fn index(random: &mut Random, geometry: Geometry) -> Self {
        let op = IndexScore {
            geometry,
            query: random.pick(&[DType::Bf16, DType::E4m3, DType::E4m3]),
            keys: random.pick(&[
                CacheFormat::Bf16,
                CacheFormat::E4m3,
                CacheFormat::Nvfp4,
                CacheFormat::Nvfp4,
            ]),
            dequantise: random.pick(&[Dequantise::E4m3, Dequantise::E4m3, Dequantise::Exact]),
            precision: random.pick(&[ScorePrecision::Faithful, ScorePrecision::Fast]),
            ..IndexScore::default()
        };
        if random.chance(6) {
            return Self::long(random, op, 50_000);
        }
        let mut case = Self::empty(random, Op::IndexScore(op.clone()), 60);
        let rows = case.add_batch(random, true);
        case.add_rows(random, Role::IndexQuery, op.query, rows, geometry.index_heads);
        case.add_scales(random, &[Role::IndexQueryScale, Role::IndexKeyScale]);
        let blocks = geometry.blocks(case.bounds.max_kv_len().into()).max(1) + random.below(3);
        case.add_output(Role::Scores, DType::F32, &[rows, geometry.index_heads.into(), blocks]);
        let bytes = IndexCache::planar(&geometry, op.keys, case.pages, 4096).map_or(0, |c| c.key.page_stride)
            * case.pages;
        case.fill_pool(random, op.keys, bytes);
        case
    }

    /// As [`Case::long`] of the usual geometry.
    pub(crate) fn long_default(random: &mut Random) -> Self {
        let formats = [CacheFormat::E4m3, CacheFormat::Nvfp4, CacheFormat::Bf16];
        let op = IndexScore { query: DType::E4m3, keys: random.pick(&formats), ..IndexScore::default() };
        Self::long(random, op, 100_000)
    }

    /// Scoring of one request or two of `least` tokens and more over few pages, for the kernels of many pages.
    fn long(random: &mut Random, op: IndexScore, least: u64) -> Self {
        let geometry = op.geometry;
        let q = random.pick(&[1, 1, 2, 4]);
        let lengths = (0..1 + random.below(2)).map(|_| (q as u32, (least + random.below(7 * least)) as u32));
        let lengths = lengths.collect();
        let mut case = Self::of_lengths(random, Op::IndexScore(op.clone()), q, lengths);
        case.pages = 40;
        case.null_page = None;
        case.special = "long";
        let rows = case.add_batch(random, true);
        case.repeat_pages(random);
        case.add_rows(random, Role::IndexQuery, op.query, rows, geometry.index_heads);
        let blocks = geometry.blocks(case.bounds.max_kv_len().into());
        case.add_output(Role::Scores, DType::F32, &[rows, geometry.index_heads.into(), blocks]);
        let page = IndexCache::planar(&geometry, op.keys, 1, 4096).map_or(0, |cache| cache.key.page_stride);
        case.fill_pool(random, op.keys, page * case.pages);
        case
    }

    pub(crate) fn select(random: &mut Random, mut geometry: Geometry) -> Self {
        geometry.top_k = random.pick(&[16, 16, 4, 40, 64]);
        let local = 1 + random.below(3) as u32;
        let op = Select {
            geometry,
            grouping: random.pick(&[Grouping::PerHead, Grouping::PerHead, Grouping::Reduced]),
            init_blocks: random.pick(&[0, 0, 1, 4]),
            local_blocks: local.min(geometry.top_k),
            forced_priority: random.pick(&[ForcedPriority::Local, ForcedPriority::Init]),
            nan_rule: random.pick(&[NanRule::Lowest, NanRule::Lowest, NanRule::Highest]),
            order: random.pick(&[SelectOrder::Ascending, SelectOrder::Ascending, SelectOrder::ScoreThenOwn]),
            ..Select::default()
        };
        let most = random.pick(&[40, 300, 1024, 4096, 9000, 60_000]);
        let mut case = Self::empty(random, Op::Select(op.clone()), most);
        let rows = case.add_batch(random, false);
        let blocks = geometry.blocks(case.bounds.max_kv_len().into()).max(1);
        let scores = case.random_scores(random, rows * u64::from(geometry.index_heads), blocks);
        case.inputs.push(Input {
            role: Role::Scores,
            dtype: DType::F32,
            shape: vec![rows, geometry.index_heads.into(), blocks],
            bytes: scores,
            pad: 0,
        });
        case.add_output(Role::BlockIndices, DType::I32, &[rows, op.lists().into(), geometry.top_k.into()]);
        case
    }

    pub(crate) fn decode(random: &mut Random, geometry: Geometry) -> Self {
        let op = Attention {
            geometry,
            query: random.pick(&[DType::Bf16, DType::E4m3]),
            cache: random.pick(&[
                CacheFormat::Bf16,
                CacheFormat::E4m3,
                CacheFormat::Nvfp4,
                CacheFormat::Nvfp4,
            ]),
            softmax_scale: random.pick(&SOFTMAX_SCALES),
            grouping: random.pick(&[
                Grouping::PerHead,
                Grouping::PerHead,
                Grouping::PerHead,
                Grouping::Reduced,
            ]),
            output: AttentionOutput {
                dtype: random.pick(&[DType::Bf16, DType::Bf16, DType::F16, DType::F32]),
                lse: random.chance(60),
                lse_base: random.pick(&[LseBase::Natural, LseBase::Two]),
                partial: DType::F32,
            },
            ..Attention::default()
        };
        let any = Op::SparseDecode(op.clone());
        let mut case = if random.chance(15) { Self::many(random, any) } else { Self::empty(random, any, 40) };
        case.options.splits = random
            .pick(&[None, None, None, Some(1), Some(2), Some(5), Some(16), Some(40)])
            .filter(|&s| s <= geometry.top_k);
        let rows = case.add_batch(random, true);
        case.add_rows(random, Role::Query, op.query, rows, geometry.query_heads);
        case.add_scales(random, &[Role::QueryScale, Role::KeyScale, Role::ValueScale]);
        let lists = if op.grouping == Grouping::Reduced { 1 } else { geometry.index_heads };
        case.add_lists(random, rows, lists, geometry.top_k);
        case.add_output(Role::Output, op.output.dtype, &[rows, geometry.query_heads.into(), 128]);
        if op.output.lse {
            case.add_output(Role::Lse, DType::F32, &[rows, geometry.query_heads.into()]);
        }
        let layouts =
            [Layout::Planar, Layout::HeadSlot, Layout::SglangRow, Layout::Interleaved, Layout::BlockOuter];
        case.layout = random.pick(&layouts);
        if case.layout == Layout::Interleaved && op.cache == CacheFormat::Nvfp4 {
            case.layout = Layout::HeadSlot;
        }
        let bytes = case.kv_cache(4096).map_or(0, |c| c.key.page_stride) * case.pages;
        case.fill_pool(random, op.cache, bytes);
        case
    }

    /// Many short requests: as many (row, list) pairs as an H200 takes at once and more.
    fn many(random: &mut Random, op: Op) -> Self {
        let (requests, q) = (10 + random.below(60), random.pick(&[1, 2, 4, 8]));
        let rows = |random: &mut Random| if random.chance(5) { random.below(q + 1) } else { q };
        let lengths = (0..requests).map(|_| (rows(random) as u32, random.below(400) as u32)).collect();
        Self::of_lengths(random, op, q, lengths)
    }

    pub(crate) fn empty(random: &mut Random, op: Op, most_blocks: u64) -> Self {
        let requests = 1 + random.below(5);
        let q = random.pick(&[1, 1, 2, 4, 8]);
        let mut lengths = Vec::new();
        for _ in 0..requests {
            let tokens = match random.below(6) {
                0 => random.below(3) * 128 + random.below(3),
                1 => random.below(300),
                _ => random.below(most_blocks * 128),
            };
            let rows = if random.chance(15) { random.below(q + 1) } else { q };
            lengths.push((rows as u32, tokens as u32));
        }
        Self::of_lengths(random, op, q, lengths)
    }

    /// A case of requests of these rows, `q` at most, and tokens.
    pub(crate) fn of_lengths(random: &mut Random, op: Op, q: u64, lengths: Vec<(u32, u32)>) -> Self {
        let slack = random.below(2) as u32;
        let bounds = lengths
            .iter()
            .map(|&(r, t)| RequestBound { query_len: (q as u32).max(r), kv_len: t + slack * 200 });
        let bounds = Lengths::new(bounds).unwrap_or_else(|_| Lengths::default());
        let blocks: u64 = lengths.iter().map(|l| u64::from(l.1.div_ceil(PAGE))).sum();
        Self {
            op,
            bounds,
            options: PlanOptions { workspace_cap: Some(1 << 30), ..PlanOptions::default() },
            inputs: Vec::new(),
            outputs: Vec::new(),
            layout: Layout::Planar,
            pages: blocks + 3,
            null_page: random.chance(10).then(|| random.below(blocks + 3) as u32),
            pool: Vec::new(),
            index_pool: Vec::new(),
            extras: append::Extras::default(),
            lengths,
            special: random.pick(&["", "", "", "nan", "positions", "bad page", "bad length"]),
        }
    }

    /// Offsets, lengths, tables and sometimes positions; the number of rows, padding included.
    pub(crate) fn add_batch(&mut self, random: &mut Random, paged: bool) -> u64 {
        let mut offsets = vec![0_i32];
        for &(rows, _) in &self.lengths {
            offsets.push(offsets.last().copied().unwrap_or(0) + rows as i32);
        }
        let total = offsets.last().copied().unwrap_or(0) as u64;
        let rows = (total + random.below(3)).min(self.bounds.rows()).max(1);
        let mut tokens: Vec<i32> = self.lengths.iter().map(|l| l.1 as i32).collect();
        if self.special == "bad length" {
            let victim = random.below(tokens.len() as u64) as usize;
            tokens[victim] = random.pick(&[-5, 1 << 28]);
        }
        self.add_i32(Role::QueryOffsets, &[offsets.len() as u64], &offsets);
        self.add_i32(Role::KvLengths, &[tokens.len() as u64], &tokens);
        if self.special == "positions" {
            let longest = u64::from(self.bounds.max_kv_len());
            let positions: Vec<i32> = (0..rows).map(|_| random.below(longest + 20) as i32 - 5).collect();
            self.add_i32(Role::Positions, &[rows], &positions);
        }
        if paged {
            self.add_table(random);
        }
        rows
    }

    /// A table of few pages, so that many blocks score alike.
    pub(crate) fn repeat_pages(&mut self, random: &mut Random) {
        let few = 1 + random.below(self.pages.min(20));
        for input in self.inputs.iter_mut().filter(|input| input.role == Role::BlockTable) {
            for id in input.bytes.as_chunks_mut::<4>().0 {
                *id = (random.below(few) as i32).to_le_bytes();
            }
        }
    }

    pub(crate) fn add_table(&mut self, random: &mut Random) {
        let width = u64::from(self.bounds.max_kv_len()).div_ceil(128).max(1);
        let mut ids: Vec<i32> = (0..self.pages as i32).collect();
        for i in (1..ids.len()).rev() {
            ids.swap(i, random.below(i as u64 + 1) as usize);
        }
        let mut table = vec![-7_i32; (width * self.lengths.len() as u64) as usize];
        let mut next = ids.into_iter();
        for (request, &(_, tokens)) in self.lengths.iter().enumerate() {
            for page in 0..u64::from(tokens.div_ceil(PAGE)) {
                table[request * width as usize + page as usize] = next.next().unwrap_or(0);
            }
        }
        if self.special == "bad page" && !table.is_empty() {
            let victim = random.below(table.len() as u64) as usize;
            table[victim] = random.pick(&[-1, 1 << 30]);
        }
        self.add_i32(Role::BlockTable, &[self.lengths.len() as u64, width], &table);
    }

    pub(crate) fn add_i32(&mut self, role: Role, shape: &[u64], values: &[i32]) {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.inputs.push(Input { role, dtype: DType::I32, shape: shape.to_vec(), bytes, pad: 0 });
    }

    pub(crate) fn add_rows(&mut self, random: &mut Random, role: Role, dtype: DType, rows: u64, heads: u32) {
        let count = rows * u64::from(heads) * 128;
        let nan = self.special == "nan";
        let bytes = elements(random, dtype, count, nan);
        let pad = random.pick(&[0, 0, 16, 256]);
        self.inputs.push(Input { role, dtype, shape: vec![rows, heads.into(), 128], bytes, pad });
    }

    pub(crate) fn add_scales(&mut self, random: &mut Random, roles: &[Role]) {
        for &role in roles {
            if random.chance(30) {
                let value = 0.25 + random.below(1000) as f32 / 700.0;
                let bytes = value.to_le_bytes().to_vec();
                self.inputs.push(Input { role, dtype: DType::F32, shape: vec![1], bytes, pad: 0 });
            }
        }
    }

    pub(crate) fn add_output(&mut self, role: Role, dtype: DType, shape: &[u64]) {
        let count: u64 = shape.iter().product::<u64>() * dtype.bytes();
        self.outputs.push(Input {
            role,
            dtype,
            shape: shape.to_vec(),
            bytes: vec![0xa5; count as usize],
            pad: 0,
        });
    }

    fn add_lists(&mut self, random: &mut Random, rows: u64, lists: u32, k: u32) {
        let request_of: Vec<u32> =
            self.lengths.iter().flat_map(|l| std::iter::repeat_n(l.1, l.0 as usize)).collect();
        let style = random.below(4);
        let mut all = Vec::new();
        for row in 0..rows {
            let tokens = request_of.get(row as usize).copied().unwrap_or(300);
            for _ in 0..lists {
                all.extend(random_list(random, style, tokens.div_ceil(PAGE), k));
            }
        }
        self.add_i32(Role::BlockIndices, &[rows, lists.into(), k.into()], &all);
    }

    pub(crate) fn random_scores(&self, random: &mut Random, lists: u64, blocks: u64) -> Vec<u8> {
        let style = random.below(8);
        let nan = self.special == "nan";
        let mut bytes = Vec::with_capacity((lists * blocks * 4) as usize);
        for _ in 0..lists {
            for block in 0..blocks {
                let value = match style {
                    0 => 1.0,
                    1 => (random.below(3) as f32) - 1.0,
                    2 => block as f32,
                    3 => {
                        if block % 16 == 5 {
                            1000.0 + block as f32
                        } else {
                            -1.0
                        }
                    }
                    4 => {
                        if random.chance(2) {
                            random.normal()
                        } else {
                            f32::NEG_INFINITY
                        }
                    }
                    5 => random.pick(&[f32::INFINITY, f32::NEG_INFINITY, 0.0, 1.0]),
                    // The best of a row stand 32 blocks apart.
                    6 if block % 32 == 7 => 9.0 + random.normal(),
                    _ => random.normal(),
                };
                let value = if nan && random.chance(3) { f32::NAN } else { value };
                bytes.extend((if random.chance(1) { -0.0 } else { value }).to_le_bytes());
            }
        }
        bytes
    }

    pub(crate) fn fill_pool(&mut self, random: &mut Random, format: CacheFormat, bytes: u64) {
        let dtype = format.dtype();
        let count = bytes / dtype.bytes();
        self.pool = match format {
            // Codes and scales of a pool are not told apart: every byte is a moderate scale, and any byte is two codes.
            CacheFormat::Nvfp4 => (0..count)
                .map(|_| 0x20 + random.below(40) as u8 + 0x80 * u8::from(random.chance(3)))
                .collect(),
            _ => elements(random, dtype, count, self.special == "nan"),
        };
        if self.special == "nan" && format == CacheFormat::Nvfp4 {
            for _ in 0..bytes / 3000 {
                let at = random.below(bytes) as usize;
                self.pool[at] = 0x7f;
            }
        }
        self.poison_tails(random);
    }

    /// Everything past the end of each request is NaN.
    fn poison_tails(&mut self, _: &mut Random) {
        let Some(table) = self.inputs.iter().find(|i| i.role == Role::BlockTable) else { return };
        let width = table.shape[1] as usize;
        let ids: Vec<i32> =
            table.bytes.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let geometry = *self.op.geometry();
        for (request, &(_, tokens)) in self.lengths.iter().enumerate() {
            if tokens % PAGE == 0 {
                continue;
            }
            let Some(&page) = ids.get(request * width + (tokens / PAGE) as usize) else { continue };
            if page < 0 || page as u64 >= self.pages {
                continue;
            }
            for component in self.components(&geometry) {
                let (view, row) = component;
                for head in
                    0..if matches!(self.op, Op::IndexScore(_)) { 1 } else { u64::from(geometry.kv_heads) }
                {
                    for token in u64::from(tokens % PAGE)..u64::from(PAGE) {
                        let at = view.address - 4096
                            + page as u64 * view.page_stride
                            + head * view.head_stride
                            + token * view.token_stride;
                        let at = at as usize;
                        self.pool[at..at + row as usize].fill(0xff);
                    }
                }
            }
        }
    }

    /// Data and linear scale views with the bytes of a row, for a pool at 4096.
    fn components(&self, geometry: &Geometry) -> Vec<(msa_core::cache::View, u64)> {
        match &self.op {
            Op::IndexScore(op) => IndexCache::planar(geometry, op.keys, self.pages, 4096)
                .map(|c| c.components(geometry).iter().map(|c| (c.view, c.row_bytes)).collect())
                .unwrap_or_default(),
            _ => self
                .kv_cache(4096)
                .map(|c| {
                    let linear = c.v_scale_order == msa_core::cache::VScaleOrder::Linear;
                    c.components(geometry)
                        .iter()
                        .filter(|c| c.name != "value_scale" || linear)
                        .map(|c| (c.view, c.row_bytes))
                        .collect()
                })
                .unwrap_or_default(),
        }
    }

    pub(crate) fn kv_cache(&self, address: u64) -> Result<KvCache> {
        let (g, f) = match &self.op {
            Op::SparseDecode(op) => (&op.geometry, op.cache),
            Op::Step(step) => (&step.attention.geometry, step.attention.cache),
            Op::Append(op) => (&op.geometry, op.kv),
            _ => return planar(&Geometry::M3, CacheFormat::Bf16, 1, address),
        };
        let n = self.pages;
        let cache = match self.layout {
            Layout::Planar => planar(g, f, n, address),
            Layout::HeadSlot => head_slot(g, f, n, address),
            Layout::SglangRow => sglang_row(g, f, n, address),
            Layout::Interleaved => interleaved(g, f, n, address),
            Layout::BlockOuter => block_outer(g, f, CacheFormat::E4m3, n, address, 2, 0).map(|c| c.0),
        }?;
        let v_scale_order = self.extras.scale_order(cache.v_scale_order);
        Ok(KvCache { null_page: self.null_page, v_scale_order, ..cache })
    }

    pub(crate) fn index_cache(&self, address: u64) -> Result<IndexCache> {
        if let Op::Append(op) = &self.op {
            return self.append_index_cache(op, address);
        }
        let op = match &self.op {
            Op::IndexScore(op) => op,
            Op::Step(step) => &step.index,
            _ => return IndexCache::planar(&Geometry::M3, CacheFormat::Bf16, 1, address),
        };
        let cache = IndexCache::planar(&op.geometry, op.keys, self.pages, address)?;
        Ok(IndexCache { null_page: self.null_page, ..cache })
    }

    /// True if the caches are outputs.
    pub(crate) fn writes_caches(&self) -> bool {
        match &self.op {
            Op::Append(_) => true,
            Op::Step(step) => step.appends,
            _ => false,
        }
    }

    pub(crate) fn count(&self, hits: &mut BTreeMap<String, u64>) {
        let g = self.op.geometry();
        let mut hit = |what: String| *hits.entry(what).or_default() += 1;
        hit(format!("{} group {}", self.op.name(), g.group()));
        if let Op::Append(op) = &self.op {
            self.append_hits(op, &mut hit);
            return;
        }
        hit(format!("{} k {}", self.op.name(), g.top_k));
        hit(format!("{} q_len {}", self.op.name(), self.bounds.max_query_len()));
        hit(format!("{} special '{}'", self.op.name(), self.special));
        hit(format!("{} layout {:?}", self.op.name(), self.layout));
        hit(format!("{} longest 2^{}", self.op.name(), (self.bounds.max_kv_len() + 1).ilog2()));
        if self.lengths.iter().any(|l| l.0 == 0 || l.1 == 0) {
            hit(format!("{} with an empty request", self.op.name()));
        }
        if let Some(splits) = self.options.splits {
            hit(format!("{} splits {splits}", self.op.name()));
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} lengths {:?} layout {:?} null {:?} special '{}' options {:?}",
            self.op, self.lengths, self.layout, self.null_page, self.special, self.options.splits
        )
    }
}
