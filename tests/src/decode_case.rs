//! One small sparse decode that every language computes: the Rust path, the C program and the Python script in
//! `tests/fixtures` make the same inputs from the same formula and must get the same bits.

use std::sync::Arc;

use msa_core::abi::owned::{Buffer, OwnedTensor};
use msa_core::args::{Args, Role};
use msa_core::backend::{Device, Span, Stream};
use msa_core::cache::{CacheFormat, KvCache, contiguous};
use msa_core::error::Result;
use msa_core::geometry::Geometry;
use msa_core::lengths::Lengths;
use msa_core::op::{Attention, AttentionOutput, Op};
use msa_core::plan::{Plan, PlanOptions};
use msa_core::tensor::DType;

/// Shape of the case.
pub const GEOMETRY: Geometry = Geometry {
    query_heads: 4,
    kv_heads: 2,
    index_heads: 2,
    head_dim: 64,
    index_dim: 64,
    block: 32,
    page: 32,
    top_k: 4,
};

/// Physical pages of the cache.
pub const PAGES: u64 = 8;

/// First row of each request.
pub const QUERY_OFFSETS: [i32; 3] = [0, 1, 3];

/// Tokens in the cache of each request.
pub const KV_LENGTHS: [i32; 2] = [70, 100];

/// Physical pages of each request; -1 beyond its length.
pub const BLOCK_TABLE: [i32; 8] = [5, 2, 7, -1, 1, 6, 3, 0];

/// Selected blocks, `[3, 2, 4]`.
pub const BLOCK_INDICES: [i32; 24] =
    [0, 1, 2, -1, 0, 2, -1, -1, 0, 1, 2, 3, 1, 3, -1, -1, 1, 2, 3, -1, 0, 1, 2, 3];

/// Bytes of workspace that every plan of the case fits.
pub const WORKSPACE: u64 = 1 << 20;

/// Element `i` of the inputs that begin with `seed`: a multiple of 1/64 in [-2, 2), exact in bf16, as bf16 bytes.
pub fn element(seed: u32, i: u32) -> [u8; 2] {
    let mixed = i.wrapping_mul(2_654_435_761).wrapping_add(seed.wrapping_mul(40_503)) >> 13;
    let value = ((mixed & 0xff) as f32 - 128.0) / 64.0;
    // The lower half is zero: eight significant bits are enough.
    let [_, _, low, high] = value.to_le_bytes();
    [low, high]
}

/// `count` elements.
pub fn elements(seed: u32, count: u32) -> Vec<u8> {
    (0..count).flat_map(|i| element(seed, i)).collect()
}

/// The operation.
pub fn op() -> Op {
    let output = AttentionOutput { dtype: DType::Bf16, lse: true, ..AttentionOutput::default() };
    Op::SparseDecode(Attention { geometry: GEOMETRY, output, ..Attention::default() })
}

/// Its length bounds.
pub fn lengths() -> Result<Lengths> {
    Lengths::from_lists(&[1, 2], &KV_LENGTHS)
}

/// What a device computes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// `[3, 4, 64]` bf16.
    pub output: Vec<u8>,
    /// `[3, 4]` f32.
    pub lse: Vec<u8>,
    /// Status word.
    pub status: u32,
}

/// Plans, prepares and runs the case.
pub fn run(device: &Arc<dyn Device>) -> Result<Outcome> {
    let plan = device.plan(&op(), &lengths()?, &PlanOptions::default())?;
    run_plan(device, &plan)
}

/// Prepares and runs a plan of the case.
pub fn run_plan(device: &Arc<dyn Device>, plan: &Plan) -> Result<Outcome> {
    let prepared = device.prepare(plan)?;
    let inputs = Inputs::new(device)?;
    let mut outcome = Outcome { output: Vec::new(), lse: Vec::new(), status: 0 };
    let workspace = Buffer::new(device, WORKSPACE)?;
    let (output, lse) = inputs.outputs(device)?;
    let args = inputs.args().with(Role::Output, output.view()).with(Role::Lse, lse.view());
    let span = Span { address: workspace.span().address, bytes: WORKSPACE };
    // SAFETY: every buffer lives in this frame and belongs to this run alone.
    unsafe { prepared.enqueue(Stream::default(), &args, span)? };
    // SAFETY: the workspace was enqueued just now.
    outcome.status = unsafe { prepared.status(Stream::default(), span)? }.0;
    outcome.output = output.to_bytes()?;
    outcome.lse = lse.to_bytes()?;
    Ok(outcome)
}

/// The inputs on a device.
pub struct Inputs {
    tensors: Vec<(Role, OwnedTensor)>,
    cache: KvCache,
    _memory: Buffer,
}

impl Inputs {
    /// Allocates and fills them.
    pub fn new(device: &Arc<dyn Device>) -> Result<Self> {
        let g = GEOMETRY;
        let row = u64::from(g.head_dim);
        let tokens = (PAGES as u32) * g.kv_heads * g.page * g.head_dim;
        let mut memory = Buffer::new(device, 4 * u64::from(tokens))?;
        memory.write(0, &elements(2, tokens))?;
        memory.write(2 * u64::from(tokens), &elements(3, tokens))?;
        let base = memory.span().address;
        let cache = contiguous(&g, CacheFormat::Bf16, PAGES, base, base + 2 * u64::from(tokens))?;
        let query = elements(1, 3 * g.query_heads * g.head_dim);
        let i32s = |shape: &[u64], values: &[i32]| OwnedTensor::from_i32s(device, shape, values);
        let shape = [3, u64::from(g.query_heads), row];
        let tensors = vec![
            (Role::Query, OwnedTensor::from_bytes(device, DType::Bf16, &shape, &query)?),
            (Role::BlockIndices, i32s(&[3, 2, 4], &BLOCK_INDICES)?),
            (Role::BlockTable, i32s(&[2, 4], &BLOCK_TABLE)?),
            (Role::KvLengths, i32s(&[2], &KV_LENGTHS)?),
            (Role::QueryOffsets, i32s(&[3], &QUERY_OFFSETS)?),
        ];
        Ok(Self { tensors, cache, _memory: memory })
    }

    /// The input arguments.
    pub fn args(&self) -> Args {
        let empty = Args::new().with_kv_cache(self.cache);
        self.tensors.iter().fold(empty, |args, (role, tensor)| args.with(*role, tensor.view()))
    }

    /// Fresh outputs.
    pub fn outputs(&self, device: &Arc<dyn Device>) -> Result<(OwnedTensor, OwnedTensor)> {
        let heads = u64::from(GEOMETRY.query_heads);
        let output = OwnedTensor::zeros(device, DType::Bf16, &[3, heads, u64::from(GEOMETRY.head_dim)])?;
        Ok((output, OwnedTensor::zeros(device, DType::F32, &[3, heads])?))
    }
}
