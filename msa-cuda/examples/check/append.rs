//! Random cases of `append`.

use half::bf16;
use msa_core::args::Role;
use msa_core::cache::{CacheFormat, IndexCache, VScaleOrder};
use msa_core::error::Result;
use msa_core::geometry::Geometry;
use msa_core::lengths::Lengths;
use msa_core::op::{Append, Norm, Op, Quantiser, Rope, Rounding};
use msa_core::plan::STATUS_BYTES;
use msa_core::tensor::DType;

use super::{Case, Input, Layout, Random};

/// What a case of `append` has beside a case of another op.
#[derive(Clone, Default)]
pub(crate) struct Extras {
    /// Pages and null page of the index cache; those of the KV cache are the case's.
    pub(crate) index_pages: u64,
    pub(crate) index_null_page: Option<u32>,
    /// Bytes of the pool before the index cache.
    pub(crate) kv_bytes: u64,
    /// The other order of V's scales than the layout's own.
    pub(crate) flips_scale_order: bool,
    /// Bytes added to the head stride of the sources and of the queries.
    pub(crate) head_pad: u64,
    pub(crate) rows: u64,
    magnitude: &'static str,
    slots: &'static str,
}

impl Extras {
    /// The order of V's scales where the layout has its own.
    pub(crate) fn scale_order(&self, own: VScaleOrder) -> VScaleOrder {
        match own {
            VScaleOrder::Linear if self.flips_scale_order => VScaleOrder::TokenQuad,
            VScaleOrder::TokenQuad if self.flips_scale_order => VScaleOrder::Linear,
            own => own,
        }
    }
}

const FORMATS: [CacheFormat; 4] =
    [CacheFormat::Bf16, CacheFormat::E4m3, CacheFormat::Nvfp4, CacheFormat::Nvfp4];
const QUERIES: [DType; 3] = [DType::Bf16, DType::E4m3, DType::F16];

impl Case {
    pub(super) fn append(random: &mut Random, geometry: Geometry) -> Self {
        let rotary_dim = random.pick(&[64, 64, 64, 64, 64, 64, 128, 32, 96, 0, 2, 6, 48, 20, 16, 80, 126]);
        let op = Append {
            geometry,
            kv: random.pick(&FORMATS),
            index: random.pick(&FORMATS),
            query: random.pick(&QUERIES),
            index_query: random.pick(&QUERIES),
            norm: Norm {
                enabled: random.chance(85),
                epsilon: random.pick(&[1e-6, 1e-6, 1e-5, 0.0, 1.0, 1e-30]),
            },
            rope: Rope { rotary_dim },
            rounding: random.pick(&[Rounding::Once, Rounding::PerStep]),
            quantiser: random.pick(&[Quantiser::Vendor, Quantiser::Reciprocal]),
            block_scale_shift: random.pick(&[0, 0, 3]),
        };
        let mut case = Self::empty(random, Op::Append(op.clone()), 1);
        let few = [1, 2, 3, 8, 33, 128, 300, 1024];
        let small = geometry.query_heads <= 16;
        let rows =
            if small { random.pick(&[1, 8, 128, 1024, 1025, 1700, 3000, 4100]) } else { random.pick(&few) };
        case.bounds = Lengths::upto(1, (rows + random.below(4)) as u32, 4096).unwrap_or_default();
        if random.chance(40) {
            // Windows of a third of the rows.
            case.options.workspace_cap = Some(STATUS_BYTES + 64 * (rows / 3 + 3).next_multiple_of(4));
        }
        case.pages = 2 + rows / 100 + random.below(4);
        case.null_page = random.chance(20).then(|| random.below(case.pages) as u32);
        case.extras = Extras {
            rows,
            index_pages: case.pages - random.below(2),
            index_null_page: random.chance(20).then(|| random.below(case.pages) as u32),
            flips_scale_order: random.chance(40),
            head_pad: random.pick(&[0, 0, 4, 16, 36]),
            ..Extras::default()
        };
        case.add_sources(random, &op, rows);
        case.add_places(random, &op, rows);
        case.add_append_scales(random);
        case.add_caches(random, &op);
        case
    }

    pub(crate) fn add_sources(&mut self, random: &mut Random, op: &Append, rows: u64) {
        let g = op.geometry;
        let (without_query, without_index_query) = (random.chance(10), random.chance(10));
        self.extras.magnitude =
            random.pick(&["normal", "normal", "normal", "large", "small", "zeros", "mixed"]);
        for (source, norm, output, dtype, heads) in [
            (Role::QuerySource, Some(Role::QueryNorm), Some(Role::Query), op.query, g.query_heads),
            (
                Role::IndexQuerySource,
                Some(Role::IndexQueryNorm),
                Some(Role::IndexQuery),
                op.index_query,
                g.index_heads,
            ),
            (Role::KeySource, Some(Role::KeyNorm), None, DType::Bf16, g.kv_heads),
            (Role::ValueSource, None, None, DType::Bf16, g.kv_heads),
            (Role::IndexKeySource, Some(Role::IndexKeyNorm), None, DType::Bf16, 1),
        ] {
            if let Some(role) = norm.filter(|_| op.norm.enabled) {
                let weight = (0..128).map(|_| random.normal() * 0.3);
                let bytes = weight.flat_map(|w| bf16::from_f32(w).to_le_bytes()).collect();
                self.inputs.push(Input { role, dtype: DType::Bf16, shape: vec![128], bytes, pad: 0 });
            }
            let left_out = match source {
                Role::QuerySource => without_query,
                Role::IndexQuerySource => without_index_query,
                _ => false,
            };
            if left_out {
                continue;
            }
            let shape = vec![rows, heads.into(), 128];
            let bytes = self.source_values(random, rows * u64::from(heads));
            let pad = random.pick(&[0, 4, 16, 256]);
            self.inputs.push(Input { role: source, dtype: DType::Bf16, shape: shape.clone(), bytes, pad });
            if let Some(role) = output {
                let bytes = vec![0xa5; (rows * u64::from(heads) * 128 * dtype.bytes()) as usize];
                let pad = random.pick(&[0, 4, 16, 256]);
                self.outputs.push(Input { role, dtype, shape, bytes, pad });
            }
        }
    }

    /// Heads of 128 channels in bf16.
    pub(crate) fn source_values(&self, random: &mut Random, heads: u64) -> Vec<u8> {
        let nan = self.special == "nan";
        let mut bytes = Vec::with_capacity(256 * heads as usize);
        for _ in 0..heads {
            let scale = match self.extras.magnitude {
                "large" => 1e30,
                "small" => random.pick(&[1e-20, 1e-36, 1e-39]),
                "mixed" => random.pick(&[1.0, 1e-3, 300.0, 1e-25, 0.0]),
                _ => random.pick(&[1.0, 1.0, 8.0, 0.02]),
            };
            let spoiled = nan && random.chance(10);
            for _ in 0..128 {
                let dice = random.below(1000);
                let value = match dice {
                    0..2 if spoiled => random.pick(&[f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY]),
                    0..400 if self.extras.magnitude == "zeros" => random.pick(&[0.0, -0.0]),
                    2..4 if self.extras.magnitude == "mixed" => random.pick(&[0.0, -0.0, 1e-40, 2.0]),
                    _ => random.normal() * scale,
                };
                bytes.extend(bf16::from_f32(value).to_le_bytes());
            }
        }
        bytes
    }

    fn add_places(&mut self, random: &mut Random, op: &Append, rows: u64) {
        self.extras.slots = random.pick(&["own", "own", "own", "twice", "few", "one", "hostile"]);
        let all = self.pages * 128;
        let mut free: Vec<i64> = (0..all as i64).collect();
        for i in (1..free.len()).rev() {
            free.swap(i, random.below(i as u64 + 1) as usize);
        }
        let slots = (0..rows as usize).map(|row| {
            let own = free.get(row).copied().unwrap_or(-1);
            match self.extras.slots {
                _ if random.chance(8) => -1,
                "twice" => free[row / 2 % free.len()],
                "few" => free[random.below(7) as usize],
                "one" => free[0],
                "hostile" if random.chance(10) => {
                    random.pick(&[-2, i64::MIN, i64::MAX, all as i64, all as i64 + 77, i64::MAX - 1, 1 << 32])
                }
                _ => own,
            }
        });
        let bytes = slots.collect::<Vec<i64>>().iter().flat_map(|s| s.to_le_bytes()).collect();
        self.inputs.push(Input { role: Role::Slots, dtype: DType::I64, shape: vec![rows], bytes, pad: 0 });
        let half = u64::from(op.rope.rotary_dim) / 2;
        if half == 0 {
            return;
        }
        let known = 1 + random.below(200);
        let positions: Vec<i32> = (0..rows)
            .map(|_| match self.special {
                "positions" if random.chance(10) => random.pick(&[-1, i32::MIN, i32::MAX, known as i32]),
                _ => random.below(known) as i32,
            })
            .collect();
        self.add_i32(Role::Positions, &[rows], &positions);
        for role in [Role::RopeCos, Role::RopeSin] {
            let pad = random.pick(&[0, 0, 4, 8]);
            let extra = random.below(2);
            let bytes = (0..(known + extra) * half)
                .flat_map(|_| (random.normal().clamp(-1.0, 1.0)).to_le_bytes())
                .collect();
            self.inputs.push(Input { role, dtype: DType::F32, shape: vec![known + extra, half], bytes, pad });
        }
    }

    fn add_append_scales(&mut self, random: &mut Random) {
        for role in [Role::KeyScale, Role::ValueScale, Role::IndexKeyScale] {
            if random.chance(50) {
                continue;
            }
            let odd = [0.0, -0.75, 1e-40, f32::INFINITY, f32::NAN, 3e38, 1e-37];
            let value = if random.chance(15) {
                random.pick(&odd)
            } else {
                random.pick(&[1.0, 0.01]) * (0.25 + random.below(1000) as f32 / 700.0)
            };
            let bytes = value.to_le_bytes().to_vec();
            self.inputs.push(Input { role, dtype: DType::F32, shape: vec![1], bytes, pad: 0 });
        }
    }

    fn add_caches(&mut self, random: &mut Random, op: &Append) {
        let layouts =
            [Layout::Planar, Layout::HeadSlot, Layout::SglangRow, Layout::Interleaved, Layout::BlockOuter];
        self.layout = random.pick(&layouts);
        if self.layout == Layout::Interleaved && op.kv == CacheFormat::Nvfp4 {
            self.layout = Layout::HeadSlot;
        }
        self.size_caches(op);
    }

    /// A pool for the layout.
    pub(crate) fn size_caches(&mut self, op: &Append) {
        let stride = self.kv_cache(4096).map_or(0, |cache| cache.key.page_stride);
        let index =
            IndexCache::planar(&op.geometry, op.index, 1, 4096).map_or(0, |cache| cache.key.page_stride);
        self.extras.kv_bytes = stride * self.pages;
        self.pool = vec![0xa5; (self.extras.kv_bytes + index * self.extras.index_pages) as usize];
    }

    /// The index cache behind the KV cache of the pool at `address`.
    pub(super) fn append_index_cache(&self, op: &Append, address: u64) -> Result<IndexCache> {
        let address = address + self.extras.kv_bytes;
        let cache = IndexCache::planar(&op.geometry, op.index, self.extras.index_pages, address)?;
        Ok(IndexCache { null_page: self.extras.index_null_page, ..cache })
    }

    pub(super) fn append_hits(&self, op: &Append, hit: &mut impl FnMut(String)) {
        hit(format!("append kv {} index {}", op.kv.name(), op.index.name()));
        hit(format!("append query {} index query {}", op.query, op.index_query));
        hit(format!("append {} {}", op.rounding, op.quantiser));
        hit(format!("append rotary {}", op.rope.rotary_dim));
        hit(format!("append norm {}", op.norm.enabled));
        hit(format!("append rows {}", self.extras.rows));
        hit(format!("append slots {}", self.extras.slots));
        hit(format!("append magnitude {}", self.extras.magnitude));
        hit(format!("append head pad {}", self.extras.head_pad));
        hit(format!(
            "append null pages {:?} {:?}",
            self.null_page.is_some(),
            self.extras.index_null_page.is_some()
        ));
        hit(format!(
            "append scale order flipped {}",
            self.extras.flips_scale_order && op.kv == CacheFormat::Nvfp4
        ));
        hit(format!("append windows {}", self.options.workspace_cap.is_some_and(|cap| cap < 1 << 20)));
        for role in [Role::Query, Role::IndexQuery] {
            if self.outputs.iter().all(|output| output.role != role) {
                hit(format!("append without {}", role.name()));
            }
        }
    }
}
