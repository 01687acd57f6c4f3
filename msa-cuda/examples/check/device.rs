//! Runs a case on any device of msa-core.

use msa_core::args::{Args, Role};
use msa_core::backend::{Device, Span, Status, Stream};
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
    let memory = device.memory();
    let mut owned = Vec::new();
    let mut place = |bytes: &[u8]| -> Result<u64> {
        let address = memory.allocate(bytes.len() as u64 + 256)?;
        owned.push(address);
        memory.write(address, bytes)?;
        Ok(address)
    };
    let mut args = Args::new();
    for input in case.inputs.iter().chain(&case.outputs) {
        let (bytes, strides) = padded(input, case);
        let address = place(&bytes)?;
        args = args.with(input.role, Tensor::strided(address, input.dtype, &input.shape, &strides)?);
    }
    let pool = place(&case.pool)?;
    match case.op {
        Op::IndexScore(_) => args = args.with_index_cache(case.index_cache(pool)?),
        Op::SparseDecode(_) => args = args.with_kv_cache(case.kv_cache(pool)?),
        Op::Append(_) => {
            args = args.with_kv_cache(case.kv_cache(pool)?).with_index_cache(case.index_cache(pool)?);
        }
        _ => {}
    }
    let workspace =
        Span { address: place(&vec![0xee; plan.workspace_bytes as usize])?, bytes: plan.workspace_bytes };
    let prepared = device.prepare(plan)?;
    // SAFETY: every address was allocated above and lives until the end of this function.
    unsafe { prepared.enqueue(Stream(0), &args, workspace) }?;
    // SAFETY: as above.
    let status = unsafe { prepared.status(Stream(0), workspace) }?;
    let mut outputs = Vec::new();
    for output in &case.outputs {
        let mut bytes = padded(output, case).0;
        let address = args.tensor(output.role).map_or(0, |t| t.address);
        memory.read(address, &mut bytes)?;
        outputs.push((output.role, output.dtype, bytes));
    }
    let mut written = if matches!(case.op, Op::Append(_)) { case.pool.clone() } else { Vec::new() };
    memory.read(pool, &mut written)?;
    owned.into_iter().try_for_each(|address| memory.free(address))?;
    Ok(Outcome { outputs, pool: written, status })
}

/// Bytes with gaps between rows, and between the heads of what has rows, heads and channels; and the strides.
fn padded(input: &Input, case: &Case) -> (Vec<u8>, Vec<u64>) {
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
