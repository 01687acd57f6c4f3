//! Runs a case on any device of msa-core.

use msa_core::args::{Args, Role};
use msa_core::backend::{Device, Memory, Span, Status, Stream};
use msa_core::error::Result;
use msa_core::op::Op;
use msa_core::plan::Plan;
use msa_core::tensor::{DType, Tensor};

use crate::cases::{Case, Input};

/// What a run left.
pub(crate) struct Outcome {
    pub(crate) outputs: Vec<(Role, DType, Vec<u8>)>,
    /// The caches, where the op writes them.
    pub(crate) pool: Vec<u8>,
    pub(crate) status: Status,
}

/// The same plan for the reference: its variant, everything else unchanged.
pub(crate) fn as_reference(plan: &Plan) -> Plan {
    let variant = msa_ref::VARIANTS.iter().find(|v| v.op == plan.op.kind()).map_or("", |v| v.name);
    let mut plan = Plan { variant: variant.to_owned(), ..plan.clone() };
    plan.hash = plan.computed_hash();
    plan
}

/// Copies everything to the device, runs, copies the outputs back.
pub(crate) fn run(device: &dyn Device, plan: &Plan, case: &Case) -> Result<Outcome> {
    let placed = Placed::new(device, plan, case)?;
    let prepared = device.prepare(plan)?;
    // SAFETY: every address was allocated by `placed`, which lives until the outputs were read.
    unsafe { prepared.enqueue(Stream(0), &placed.args, placed.workspace) }?;
    // SAFETY: as above.
    let status = unsafe { prepared.status(Stream(0), placed.workspace) }?;
    let outcome = placed.outcome(case, status)?;
    placed.free()?;
    Ok(outcome)
}

/// A case in the memory of a device.
pub(crate) struct Placed<'a> {
    memory: &'a dyn Memory,
    owned: Vec<u64>,
    pools: [u64; 2],
    /// Arguments of the case.
    pub(crate) args: Args,
    /// A workspace full of rubbish.
    pub(crate) workspace: Span,
}

impl<'a> Placed<'a> {
    pub(crate) fn new(device: &'a dyn Device, plan: &Plan, case: &Case) -> Result<Self> {
        let rubbish = vec![0xee; plan.workspace_bytes as usize];
        let mut placed = Self {
            memory: device.memory(),
            owned: Vec::new(),
            pools: [0; 2],
            args: Args::new(),
            workspace: Span::default(),
        };
        placed.workspace = Span { address: placed.place(&rubbish)?, bytes: plan.workspace_bytes };
        for input in case.inputs.iter().chain(&case.outputs) {
            let (bytes, strides) = padded(input, case);
            let tensor = Tensor::strided(placed.place(&bytes)?, input.dtype, &input.shape, &strides)?;
            placed.args = placed.args.with(input.role, tensor);
        }
        placed.pools = [placed.place(&case.pool)?, placed.place(&case.index_pool)?];
        let [pool, index_pool] = placed.pools;
        placed.args = match case.op {
            Op::IndexScore(_) => placed.args.with_index_cache(case.index_cache(pool)?),
            Op::SparseDecode(_) => placed.args.with_kv_cache(case.kv_cache(pool)?),
            Op::Append(_) => {
                placed.args.with_kv_cache(case.kv_cache(pool)?).with_index_cache(case.index_cache(pool)?)
            }
            Op::Step(_) => placed
                .args
                .with_kv_cache(case.kv_cache(pool)?)
                .with_index_cache(case.index_cache(index_pool)?),
            _ => placed.args,
        };
        Ok(placed)
    }

    fn place(&mut self, bytes: &[u8]) -> Result<u64> {
        let address = self.memory.allocate(bytes.len() as u64 + 256)?;
        self.owned.push(address);
        self.memory.write(address, bytes)?;
        Ok(address)
    }

    /// Bytes of the device.
    pub(crate) fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        self.memory.read(address, bytes)
    }

    /// The same, to be written.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        self.memory.write(address, bytes)
    }

    /// Other contents of the same shapes.
    pub(crate) fn rewrite(&self, case: &Case) -> Result<()> {
        for input in case.inputs.iter().chain(&case.outputs) {
            let address = self.args.tensor(input.role).map_or(0, |t| t.address);
            self.memory.write(address, &padded(input, case).0)?;
        }
        self.memory.write(self.pools[0], &case.pool)?;
        self.memory.write(self.pools[1], &case.index_pool)
    }

    /// What a run of the case left here.
    pub(crate) fn outcome(&self, case: &Case, status: Status) -> Result<Outcome> {
        let read = |output: &Input| {
            let mut bytes = padded(output, case).0;
            let address = self.args.tensor(output.role).map_or(0, |t| t.address);
            self.memory.read(address, &mut bytes)?;
            Ok((output.role, output.dtype, bytes))
        };
        let outputs = case.outputs.iter().map(read).collect::<Result<_>>()?;
        let mut pool = Vec::new();
        if case.writes_caches() {
            pool = [&case.pool[..], &case.index_pool].concat();
            let (first, second) = pool.split_at_mut(case.pool.len());
            self.memory.read(self.pools[0], first)?;
            self.memory.read(self.pools[1], second)?;
        }
        Ok(Outcome { outputs, pool, status })
    }

    pub(crate) fn free(self) -> Result<()> {
        self.owned.into_iter().try_for_each(|address| self.memory.free(address))
    }
}

/// Bytes with gaps between rows, and between the heads of what has rows, heads and channels; and the strides.
pub(crate) fn padded(input: &Input, case: &Case) -> (Vec<u8>, Vec<u64>) {
    let head_pad = if input.shape.len() == 3 { case.extras.head_pad } else { 0 };
    if head_pad > 0 {
        let width = input.shape[2] * input.dtype.bytes();
        let gap = vec![0xff; head_pad as usize];
        let bytes =
            input.bytes.chunks(width as usize).flat_map(|head| [head, &gap].concat()).collect::<Vec<u8>>();
        let row = (width + head_pad) * input.shape[1];
        let gap = vec![0xff; input.pad as usize];
        let bytes = bytes.chunks(row as usize).flat_map(|row| [row, &gap].concat()).collect();
        return (bytes, vec![row + input.pad, width + head_pad, input.dtype.bytes()]);
    }
    let mut strides = vec![input.dtype.bytes(); input.shape.len()];
    for axis in (0..input.shape.len().saturating_sub(1)).rev() {
        strides[axis] = strides[axis + 1] * input.shape[axis + 1];
    }
    if input.pad == 0 || input.shape.is_empty() {
        return (input.bytes.clone(), strides);
    }
    let row = strides[0] as usize;
    strides[0] += input.pad;
    let gap = vec![0xff; input.pad as usize];
    let bytes = input.bytes.chunks(row).flat_map(|row| [row, &gap].concat()).collect();
    (bytes, strides)
}

impl Outcome {
    /// The first differing element, NaN counted as equal to NaN.
    pub(crate) fn difference(&self, got: &Self) -> Option<String> {
        let differing = self.pool.iter().zip(&got.pool).filter(|(a, b)| a != b).count();
        if let Some(at) = self.pool.iter().zip(&got.pool).position(|(a, b)| a != b) {
            let (a, b) = (self.pool[at], got.pool[at]);
            return Some(format!(
                "cache byte {at} want {a:02x} got {b:02x}, {differing} of {}",
                self.pool.len()
            ));
        }
        for ((role, dtype, want), (_, _, got)) in self.outputs.iter().zip(&got.outputs) {
            let size = dtype.bytes() as usize;
            let pairs = want.chunks_exact(size).zip(got.chunks_exact(size));
            let differ = |(a, b): &(&[u8], &[u8])| canonical(*dtype, a) != canonical(*dtype, b);
            let count = pairs.clone().filter(|p| differ(p)).count();
            if let Some((at, (a, b))) = pairs.enumerate().find(|(_, p)| differ(p)) {
                let total = want.len() / size;
                return Some(format!("{}[{at}] want {a:02x?} got {b:02x?}, {count} of {total}", role.name()));
            }
        }
        None
    }
}

fn canonical(dtype: DType, bytes: &[u8]) -> u32 {
    let word = bytes.iter().rev().fold(0_u32, |word, &byte| word << 8 | u32::from(byte));
    let infinity = match dtype {
        DType::Bf16 => 0x7f80,
        DType::F16 => 0x7c00,
        DType::F32 => 0x7f80_0000,
        _ => return word,
    };
    let sign = if dtype == DType::F32 { 0x8000_0000 } else { 0x8000 };
    if word & !sign > infinity { infinity + 1 } else { word }
}
