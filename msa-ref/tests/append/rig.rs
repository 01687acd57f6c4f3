//! One `append` with everything it reads and writes, and a second way to find the bytes of a cache row.

use half::bf16;
use msa_core::abi::host::{HostAllocator, HostPrepared};
use msa_core::args::{Args, Role};
use msa_core::backend::{Memory, Prepared, Span, Status, Stream};
use msa_core::cache::{CacheFormat, IndexCache, KvCache, VScaleOrder, View, planar};
use msa_core::format::dequant::dequantise_row_exact_f32;
use msa_core::format::{E4m3, E4m3Fnuz};
use msa_core::geometry::Geometry;
use msa_core::lengths::RequestBound;
use msa_core::op::{Append, Op};
use msa_core::plan::Plan;
use msa_core::tensor::{DType, Tensor};
use msa_ref::sim::append::AppendKernel;

/// What every cache byte holds before the run.
pub(crate) const POISON: u8 = 0xa5;

/// Four query heads, two KV heads and two index heads of 128 channels; pages of 16 tokens.
pub(crate) const SMALL: Geometry = Geometry {
    query_heads: 4,
    kv_heads: 2,
    index_heads: 2,
    head_dim: 128,
    index_dim: 128,
    block: 32,
    page: 16,
    top_k: 4,
};

pub(crate) type Layout = dyn Fn(&Append, u64, u64) -> (KvCache, IndexCache);

/// Caches of `pages` pages from `address` on, the index cache behind the KV cache.
pub(crate) fn planar_caches(op: &Append, pages: u64, address: u64) -> (KvCache, IndexCache) {
    let kv = planar(&op.geometry, op.kv, pages, address).unwrap();
    let behind = address + pages * kv.key.page_stride;
    (kv, IndexCache::planar(&op.geometry, op.index, pages, behind).unwrap())
}

/// Projections of `rows` tokens, each `[rows, heads, channels]`, row-major.
#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) query: Vec<f32>,
    pub(crate) key: Vec<f32>,
    pub(crate) value: Vec<f32>,
    pub(crate) index_query: Vec<f32>,
    pub(crate) index_key: Vec<f32>,
}

impl Sources {
    /// bf16 numbers of about unit size.
    pub(crate) fn random(geometry: &Geometry, rows: usize, seed: u64) -> Self {
        let mut state = seed.wrapping_mul(2).wrapping_add(1);
        let mut values = |heads: u32, channels: u32| {
            let next = |_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                bf16::from_f32(((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * 2.0).to_f32()
            };
            (0..rows * heads as usize * channels as usize).map(next).collect()
        };
        Self {
            query: values(geometry.query_heads, geometry.head_dim),
            key: values(geometry.kv_heads, geometry.head_dim),
            value: values(geometry.kv_heads, geometry.head_dim),
            index_query: values(geometry.index_heads, geometry.index_dim),
            index_key: values(1, geometry.index_dim),
        }
    }
}

/// One run.
pub(crate) struct Rig {
    pub(crate) op: Append,
    pub(crate) kv: KvCache,
    pub(crate) index: IndexCache,
    pub(crate) args: Args,
    rows: u64,
    cache: Span,
    device: HostAllocator,
}

impl Rig {
    pub(crate) fn new(op: Append, pages: u64, slots: &[i64]) -> Self {
        Self::laid_out(op, pages, slots, &planar_caches)
    }

    /// Caches of `pages` pages full of poison, slots, and outputs for as many rows.
    pub(crate) fn laid_out(op: Append, pages: u64, slots: &[i64], layout: &Layout) -> Self {
        let device = HostAllocator::default();
        let g = op.geometry;
        let token = 4 * u64::from(g.kv_heads * g.head_dim) + 2 * u64::from(g.index_dim);
        let bytes = 4 * pages * u64::from(g.page) * token;
        let cache = Span { address: device.allocate(bytes).unwrap(), bytes };
        device.write(cache.address, &vec![POISON; bytes as usize]).unwrap();
        let (kv, index) = layout(&op, pages, cache.address);
        let args = Args::new().with_kv_cache(kv).with_index_cache(index);
        let mut rig = Self { op, kv, index, args, rows: slots.len() as u64, cache, device };
        rig.upload(Role::Slots, DType::I64, &[rig.rows], slots.iter().flat_map(|s| s.to_le_bytes()));
        let (query, index_query) = (rig.op.query, rig.op.index_query);
        rig.output(Role::Query, query, g.query_heads, g.head_dim);
        rig.output(Role::IndexQuery, index_query, g.index_heads, g.index_dim);
        rig
    }

    /// Contiguous sources.
    pub(crate) fn sources(mut self, s: &Sources) -> Self {
        let g = self.op.geometry;
        self.source(Role::QuerySource, g.query_heads, g.head_dim, &s.query);
        self.source(Role::KeySource, g.kv_heads, g.head_dim, &s.key);
        self.source(Role::ValueSource, g.kv_heads, g.head_dim, &s.value);
        self.source(Role::IndexQuerySource, g.index_heads, g.index_dim, &s.index_query);
        self.source(Role::IndexKeySource, 1, g.index_dim, &s.index_key);
        self
    }

    /// Norm weights `[D]` or `[Di]`: query, key, index query, index key.
    pub(crate) fn weights(mut self, weights: [&[f32]; 4]) -> Self {
        let roles = [Role::QueryNorm, Role::KeyNorm, Role::IndexQueryNorm, Role::IndexKeyNorm];
        for (role, w) in roles.into_iter().zip(weights) {
            self.upload(role, DType::Bf16, &[w.len() as u64], bf16_bytes(w));
        }
        self
    }

    /// RoPE tables `[_, rotary_dim/2]` and the positions of the rows.
    pub(crate) fn rope(mut self, cos: &[f32], sin: &[f32], positions: &[i32]) -> Self {
        let pairs = u64::from(self.op.rope.rotary_dim) / 2;
        for (role, table) in [(Role::RopeCos, cos), (Role::RopeSin, sin)] {
            let shape = [table.len() as u64 / pairs, pairs];
            self.upload(role, DType::F32, &shape, table.iter().flat_map(|x| x.to_le_bytes()));
        }
        let bytes = positions.iter().flat_map(|p| p.to_le_bytes());
        self.upload(Role::Positions, DType::I32, &[positions.len() as u64], bytes);
        self
    }

    pub(crate) fn scale(mut self, role: Role, scale: f32) -> Self {
        self.upload(role, DType::F32, &[1], scale.to_le_bytes());
        self
    }

    /// A source tensor with strides of its own: `[rows, heads, channels]` inside `buffer`, from element `offset` on.
    pub(crate) fn strided_source(
        mut self,
        role: Role,
        buffer: u64,
        offset: u64,
        row: u64,
        heads: u32,
        channels: u32,
    ) -> Self {
        let shape = [self.rows, u64::from(heads), u64::from(channels)];
        let tensor =
            Tensor::strided(buffer + 2 * offset, DType::Bf16, &shape, &[2 * row, 2 * u64::from(channels), 2]);
        self.args = self.args.with(role, tensor.unwrap());
        self
    }

    /// Memory that holds `values` in bf16.
    pub(crate) fn buffer(&self, values: &[f32]) -> u64 {
        let bytes: Vec<u8> = bf16_bytes(values).collect();
        let address = self.device.allocate(bytes.len() as u64).unwrap();
        self.device.write(address, &bytes).unwrap();
        address
    }

    /// Runs to the end and hands back the status word.
    pub(crate) fn run(&self) -> Status {
        let plan = Plan {
            op: Op::Append(self.op.clone()),
            requests: vec![RequestBound { query_len: self.rows as u32, kv_len: self.rows as u32 }],
            workspace_bytes: 256,
            ..Plan::default()
        };
        let prepared = HostPrepared::new(AppendKernel::new(plan).unwrap()).unwrap();
        let workspace = Span { address: self.device.allocate(256).unwrap(), bytes: 256 };
        // SAFETY: everything that the arguments name was allocated by `self.device`, which outlives the call.
        // tidy: allow(unsafe-place): an engine's call of the unsafe entry point, which is what these tests are about
        unsafe { prepared.enqueue(Stream::default(), &self.args, workspace) }.unwrap();
        // SAFETY: as above.
        // tidy: allow(unsafe-place): the same
        let status = unsafe { prepared.status(Stream::default(), workspace) }.unwrap();
        self.device.free(workspace.address).unwrap();
        status
    }

    /// Every byte around and in the caches.
    pub(crate) fn cache_bytes(&self) -> Vec<u8> {
        self.read(self.cache.address, self.cache.bytes)
    }

    /// The bytes of an output, row-major.
    pub(crate) fn bytes_of(&self, role: Role) -> Vec<u8> {
        let tensor = self.args.tensor(role).unwrap();
        self.read(tensor.address, tensor.span().unwrap())
    }

    /// A cache row: data bytes, and scales in the order of their groups.
    pub(crate) fn stored(&self, what: Stored, slot: i64, head: u64) -> (Vec<u8>, Vec<u8>) {
        let cache = self.cache_bytes();
        let at = |addresses: Vec<u64>| {
            addresses.iter().map(|a| cache[(a - self.cache.address) as usize]).collect()
        };
        (at(self.data_addresses(what, slot, head)), at(self.scale_addresses(what, slot, head)))
    }

    /// The same as numbers, tensor scale not applied.
    pub(crate) fn values(&self, what: Stored, slot: i64, head: u64) -> Vec<f32> {
        let (data, scales) = self.stored(what, slot, head);
        let format = if what == Stored::IndexKey { self.op.index } else { self.op.kv };
        match format {
            CacheFormat::Bf16 => {
                data.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
            }
            CacheFormat::E4m3 => data.iter().map(|&b| E4m3::from_bits(b).to_f32()).collect(),
            CacheFormat::E4m3Fnuz => data.iter().map(|&b| E4m3Fnuz::from_bits(b).to_f32()).collect(),
            CacheFormat::Nvfp4 => {
                let mut values = vec![0.0; 2 * data.len()];
                dequantise_row_exact_f32(&data, &scales, &mut values).unwrap();
                values
            }
        }
    }

    /// Offsets in [`Rig::cache_bytes`] of every byte that belongs to `slot`.
    pub(crate) fn offsets_of(&self, slot: i64) -> Vec<usize> {
        let heads = u64::from(self.op.geometry.kv_heads);
        let all = (0..heads)
            .flat_map(|h| [(Stored::Key, h), (Stored::Value, h)])
            .chain([(Stored::IndexKey, 0)])
            .flat_map(|(w, h)| [self.data_addresses(w, slot, h), self.scale_addresses(w, slot, h)].concat());
        all.map(|a| (a - self.cache.address) as usize).collect()
    }

    /// Asserts that no cache byte outside `slots` changed.
    pub(crate) fn assert_only(&self, slots: &[i64]) {
        let mut bytes = self.cache_bytes();
        slots.iter().flat_map(|&s| self.offsets_of(s)).for_each(|o| bytes[o] = POISON);
        let changed = bytes.iter().filter(|b| **b != POISON).count();
        assert_eq!(changed, 0, "bytes outside the slots {slots:?}");
    }

    fn data_addresses(&self, what: Stored, slot: i64, head: u64) -> Vec<u64> {
        let g = &self.op.geometry;
        let (view, row) = match what {
            Stored::Key => (self.kv.key, self.kv.format.row_bytes(g.head_dim)),
            Stored::Value => (self.kv.value, self.kv.format.row_bytes(g.head_dim)),
            Stored::IndexKey => (self.index.key, self.index.format.row_bytes(g.index_dim)),
        };
        let (base, token) = self.base(view, slot, head);
        (0..row).map(|byte| base + token * view.token_stride + byte).collect()
    }

    fn scale_addresses(&self, what: Stored, slot: i64, head: u64) -> Vec<u64> {
        let (view, channels) = match what {
            Stored::Key => (self.kv.key_scale, self.op.geometry.head_dim),
            Stored::Value => (self.kv.value_scale, self.op.geometry.head_dim),
            Stored::IndexKey => (self.index.key_scale, self.op.geometry.index_dim),
        };
        let Some(view) = view else { return Vec::new() };
        let groups = u64::from(channels) / 16;
        let (base, token) = self.base(view, slot, head);
        let quad = what == Stored::Value && self.kv.v_scale_order == VScaleOrder::TokenQuad;
        let offset = |group| {
            if quad {
                token / 4 * 4 * groups + group * 4 + token % 4
            } else {
                token * view.token_stride + group
            }
        };
        (0..groups).map(|group| base + offset(group)).collect()
    }

    fn base(&self, view: View, slot: i64, head: u64) -> (u64, u64) {
        let (slot, page) = (slot as u64, u64::from(self.op.geometry.page));
        (view.address + slot / page * view.page_stride + head * view.head_stride, slot % page)
    }

    fn source(&mut self, role: Role, heads: u32, channels: u32, values: &[f32]) {
        let shape = [self.rows, u64::from(heads), u64::from(channels)];
        self.upload(role, DType::Bf16, &shape, bf16_bytes(values));
    }

    fn output(&mut self, role: Role, dtype: DType, heads: u32, channels: u32) {
        let shape = [self.rows, u64::from(heads), u64::from(channels)];
        let bytes = shape.iter().product::<u64>() * dtype.bytes();
        self.upload(role, dtype, &shape, vec![POISON; bytes as usize]);
    }

    fn upload(&mut self, role: Role, dtype: DType, shape: &[u64], bytes: impl IntoIterator<Item = u8>) {
        let bytes: Vec<u8> = bytes.into_iter().collect();
        let address = self.device.allocate(bytes.len() as u64).unwrap();
        self.device.write(address, &bytes).unwrap();
        let tensor = Tensor::contiguous(address, dtype, shape).unwrap();
        assert_eq!(tensor.span(), Some(bytes.len() as u64), "{role:?}");
        self.args = std::mem::take(&mut self.args).with(role, tensor);
    }

    fn read(&self, address: u64, bytes: u64) -> Vec<u8> {
        let mut all = vec![0; bytes as usize];
        self.device.read(address, &mut all).unwrap();
        all
    }
}

/// A tensor of the caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored {
    Key,
    Value,
    IndexKey,
}

/// Asserts what every test of an insertion must have: slots that are distinct, in more than one page, and not in order.
pub(crate) fn assert_scattered(slots: &[i64], page: u32) {
    let mut sorted = slots.to_vec();
    sorted.sort_unstable();
    assert_ne!(sorted, slots, "slots in order");
    sorted.dedup();
    assert_eq!(sorted.len(), slots.len(), "repeated slots");
    assert_ne!(sorted[0] / i64::from(page), sorted[sorted.len() - 1] / i64::from(page), "one page");
}

/// `|a - b| / |b|`.
pub(crate) fn relative_error(a: &[f32], b: &[f32]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|v| v * v).sum::<f64>().sqrt();
    let difference = norm(&mut a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    difference / norm(&mut b.iter().map(|b| f64::from(*b)))
}

pub(crate) fn bf16_bytes(values: &[f32]) -> impl Iterator<Item = u8> {
    values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes())
}
