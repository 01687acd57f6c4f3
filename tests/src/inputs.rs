//! From a case to the bytes of its tensors and caches: the same on every machine.
//!
//! Which tensors there are follows from the operation's contract. What a request holds depends on the seed and on its
//! number in the batch alone, so that it can be compared with itself among other requests.

pub mod batch;
pub mod cache;
pub mod lists;
pub mod values;
mod wrong;

pub use batch::Batch;
pub use cache::CacheMemory;

use msa_core::args::{Access, ArgSpec, Axis, Role, contract};
use msa_core::error::{Error, Result};
use msa_core::op::Op;
use msa_core::rope::RopeTables;
use msa_core::tensor::DType;

use crate::case::{Case, ValueClass};
use crate::random::Random;
use values::{Part, encode, row};

/// Base of the RoPE frequencies of M3.
const ROPE_THETA: f64 = 5e6;

/// A tensor of a case.
#[derive(Debug, Clone)]
pub struct TensorData {
    /// Role.
    pub role: Role,
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Vec<u64>,
    /// Row-major elements of an input; `None` for an output.
    pub bytes: Option<Vec<u8>>,
}

/// Everything that a run of a case takes.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// Lengths, tables, positions.
    pub batch: Batch,
    /// Rows of the row tensors, padded ones included.
    pub rows: u64,
    /// Tensors, by role.
    pub tensors: Vec<TensorData>,
    /// Cache allocations.
    pub caches: Vec<CacheMemory>,
}

/// The inputs of `case` for its descriptor `op`.
pub fn generate(case: &Case, op: &Op) -> Result<Inputs> {
    let batch = Batch::new(case)?;
    let bounds = case.bounds()?;
    let rows = u64::from(case.rows()) + u64::from(case.padded_rows);
    let appends = matches!(op, Op::Append(_)) || matches!(op, Op::Step(s) if s.appends);
    let (kv, index) = match op {
        Op::Append(_) | Op::Step(_) => (true, true),
        Op::IndexScore(_) => (false, true),
        Op::SparseDecode(_) | Op::SparsePrefill(_) => (true, false),
        _ => (false, false),
    };
    let caches = cache::allocations(case, &batch, kv, index, appends)?;
    let maker = Maker { case, batch: &batch, rows };
    let mut tensors = Vec::new();
    for spec in contract(op, &bounds) {
        if !spec.required && !maker.passes(spec.role) {
            continue;
        }
        let shape = maker.shape(&spec, bounds.max_kv_len());
        let bytes = match spec.access {
            Access::In => Some(maker.bytes(&spec, &shape)?),
            Access::Out => None,
        };
        tensors.push(TensorData { role: spec.role, dtype: spec.dtype, shape, bytes });
    }
    let mut inputs = Inputs { batch, rows, tensors, caches };
    wrong::spoil(case, op, &mut inputs)?;
    Ok(inputs)
}

/// Tensor scales of cases that pass them: the exact class gets powers of two.
pub fn scale_of(case: &Case, role: Role) -> f32 {
    if !case.scales {
        return 1.0;
    }
    let (plain, exact) = match role {
        Role::QueryScale => (0.75, 0.5),
        Role::KeyScale => (1.25, 2.0),
        Role::ValueScale => (0.375, 0.5),
        Role::IndexQueryScale => (1.5, 2.0),
        Role::IndexKeyScale => (0.625, 0.25),
        _ => (1.0, 1.0),
    };
    if case.values == ValueClass::Exact { exact } else { plain }
}

struct Maker<'a> {
    case: &'a Case,
    batch: &'a Batch,
    rows: u64,
}

impl Maker<'_> {
    /// Optional arguments: queries of append always, scales where the case says so, positions never (they are derived).
    fn passes(&self, role: Role) -> bool {
        match role {
            Role::Positions => false,
            Role::QueryScale
            | Role::KeyScale
            | Role::ValueScale
            | Role::IndexQueryScale
            | Role::IndexKeyScale => self.case.scales,
            _ => true,
        }
    }

    fn shape(&self, spec: &ArgSpec, max_kv_len: u32) -> Vec<u64> {
        let g = &self.case.geometry;
        let extent = |axis: &Axis| match (*axis, spec.role) {
            (Axis::Rows, _) => self.rows,
            (Axis::Requests, _) => self.batch.requests().into(),
            (Axis::Offsets, _) => u64::from(self.batch.requests()) + 1,
            (Axis::Exactly(n), _) => n,
            (Axis::AtLeast(n), Role::Scores) => n.max(g.blocks(max_kv_len.into())) + self.case.seed % 3,
            (Axis::AtLeast(_), Role::BlockTable) => self.batch.width.into(),
            (Axis::AtLeast(n), _) => n.max(u64::from(max_kv_len)),
            (Axis::States(_), _) => self.case.choices.states.into(),
        };
        spec.axes.iter().map(extent).collect()
    }

    fn bytes(&self, spec: &ArgSpec, shape: &[u64]) -> Result<Vec<u8>> {
        let count = shape.iter().product::<u64>() as usize;
        let last = shape.last().copied().unwrap_or(1) as usize;
        let i32s = |values: &[i32]| values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let f32s = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Ok(match spec.role {
            Role::Query => self.row_tensor(spec, shape, Part::Query),
            Role::IndexQuery => self.row_tensor(spec, shape, Part::IndexQuery),
            Role::QuerySource
            | Role::KeySource
            | Role::ValueSource
            | Role::IndexQuerySource
            | Role::IndexKeySource => self.row_tensor(spec, shape, Part::Source),
            Role::QueryNorm | Role::KeyNorm | Role::IndexQueryNorm | Role::IndexKeyNorm => {
                let mut random = Random::new(self.case.seed, spec.role.name());
                let weights: Vec<f32> = (0..count).map(|_| 0.25 + 0.1 * random.normal()).collect();
                encode(spec.dtype, &weights)
            }
            Role::RopeCos => f32s(self.rope(shape)?.cosines()),
            Role::RopeSin => f32s(self.rope(shape)?.sines()),
            Role::Positions => i32s(&self.positions()),
            Role::Slots => self.slots().iter().flat_map(|s| s.to_le_bytes()).collect(),
            Role::KvLengths => i32s(&self.batch.kv_lens),
            Role::QueryOffsets => i32s(&self.batch.offsets),
            Role::BlockTable => i32s(&self.batch.tables),
            Role::Scores => f32s(&lists::scores(self.case, self.rows as usize, last)),
            Role::BlockIndices => {
                i32s(&lists::block_indices(self.case, self.batch, self.rows as usize, shape[1] as usize))
            }
            Role::PartialOutputs => self.partial_outputs(spec, shape),
            Role::PartialLse => f32s(&lists::partial_lse(self.case, count)),
            Role::PartialSums => self.partial_sums(count),
            Role::CandidateKeys => {
                let keys = lists::candidate_keys(self.case, self.batch, self.rows as usize);
                keys.iter().flat_map(|k| k.to_le_bytes()).collect()
            }
            Role::QueryScale
            | Role::KeyScale
            | Role::ValueScale
            | Role::IndexQueryScale
            | Role::IndexKeyScale => f32s(&[scale_of(self.case, spec.role)]),
            Role::Output | Role::Lse => {
                return Err(Error::invalid(spec.role.name(), "an input", "an output"));
            }
        })
    }

    /// `[T, heads, channels]`: values of a request depend on its number; padded rows are all ones, a NaN.
    fn row_tensor(&self, spec: &ArgSpec, shape: &[u64], part: Part) -> Vec<u8> {
        let channels = shape[2] as usize;
        let mut all = Vec::new();
        for (request, bound) in self.case.lengths.0.iter().enumerate() {
            let mut random =
                Random::new(self.case.seed, &format!("{} of request {request}", spec.role.name()));
            for _ in 0..u64::from(bound.query_len) * shape[1] {
                all.extend(encode(spec.dtype, &row(&mut random, self.case.values, part, channels, 0)));
            }
        }
        let bytes = shape.iter().product::<u64>() * spec.dtype.bytes();
        all.resize(bytes as usize, 0xff);
        all
    }

    fn partial_outputs(&self, spec: &ArgSpec, shape: &[u64]) -> Vec<u8> {
        let mut random = Random::new(self.case.seed, "partial outputs");
        let rows = shape[..3].iter().product::<u64>() as usize;
        let lse = lists::partial_lse(self.case, rows);
        let channels = shape[3] as usize;
        let state = |lse: &f32| {
            // What an empty state holds must not be read.
            let empty = vec![f32::NAN; channels];
            let values = if lse.is_finite() {
                row(&mut random, self.case.values, Part::Value, channels, 0)
            } else {
                empty
            };
            encode(spec.dtype, &values)
        };
        lse.iter().flat_map(state).collect()
    }

    fn partial_sums(&self, count: usize) -> Vec<u8> {
        let mut random = Random::new(self.case.seed, "partial sums");
        let exact = self.case.values == ValueClass::Exact;
        let sums = (0..count).map(|_| if exact { 2.0 } else { 1.0 + 100.0 * random.unit() });
        sums.flat_map(f32::to_le_bytes).collect()
    }

    fn rope(&self, shape: &[u64]) -> Result<RopeTables> {
        RopeTables::new(ROPE_THETA, 2 * shape[1] as u32, shape[0] as u32)
    }

    fn positions(&self) -> Vec<i32> {
        let own = (0..self.batch.request_of.len()).map(|row| self.batch.position(row).max(0) as i32);
        let mut all: Vec<i32> = own.collect();
        all.resize(self.rows as usize, 0);
        all
    }

    /// Rows before the first token and padded rows have slot -1.
    fn slots(&self) -> Vec<i64> {
        let slot = |row: usize| {
            let token = u64::try_from(self.batch.position(row)).ok()?;
            let (page, offset) = self.batch.place(self.batch.request_of[row], token);
            Some((page * u64::from(self.case.geometry.page) + offset) as i64)
        };
        let mut all: Vec<i64> = (0..self.batch.request_of.len()).map(|row| slot(row).unwrap_or(-1)).collect();
        all.resize(self.rows as usize, -1);
        all
    }
}
