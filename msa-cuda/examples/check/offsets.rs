//! `check offsets`: every tensor of several rows spans more than 2^32 bytes, and so do the pages of the caches.

use msa_core::args::{Args, Role};
use msa_core::backend::{Device, Memory, Span, Status, Stream};
use msa_core::cache::Component;
use msa_core::error::{Error, Result};
use msa_core::op::Op;
use msa_core::plan::Plan;
use msa_core::tensor::Tensor;

use crate::cases::{Case, Input, Layout};
use crate::device::{self, Outcome};
use crate::replay::Amount;

/// Bytes over which rows, states and pages are spread.
const SPREAD: u64 = 5 << 30;

/// Most bytes of a pool: the caches of a step have the same pages, however small those of one are.
const MOST: u64 = 40 << 30;

/// Address that stands for the first page while a layout is asked for.
const BASE: u64 = 1 << 40;

/// Differing cases.
pub(crate) fn run(device: &dyn Device, amount: Amount) -> Result<u64> {
    let reference = msa_ref::device();
    let (mut failed, mut done, mut pages) = (0, 0, 0);
    for (number, mut case, mut random) in amount.cases() {
        case.layout = Layout::HeadSlot;
        case.extras.head_pad = 0;
        let mut case = case.varied(&mut random);
        case.inputs.iter_mut().chain(&mut case.outputs).for_each(|input| input.pad = 0);
        let Ok(plan) = device.plan(&case.op, &case.bounds, &case.options) else { continue };
        let want = device::run(&*reference, &device::as_reference(&plan), &case)?;
        let (got, far_pages) =
            run_far(device, &plan, &case).inspect_err(|_| println!("case {number}: {case}"))?;
        (done, pages) = (done + 1, pages + u64::from(far_pages));
        let difference = want.difference(&got);
        if difference.is_some() || (want.status.0 ^ got.status.0) & !Status::PAGE != 0 {
            failed += 1;
            let status = format!("status {} want {}", got.status, want.status);
            println!(
                "case {number} seed {}: {}: {}: {case}",
                amount.seed,
                plan.variant,
                difference.unwrap_or(status)
            );
        }
    }
    println!("{} passed, {failed} failed; {pages} with pages beyond 2^32 bytes", done - failed);
    Ok(failed)
}

/// Runs a case whose rows and pages are far apart; true if it has pages.
fn run_far(device: &dyn Device, plan: &Plan, case: &Case) -> Result<(Outcome, bool)> {
    let mut far = Far { memory: device.memory(), owned: Vec::new() };
    let pools = pools(case)?;
    let strides = || pools.iter().map(|pool| pool.stride);
    let (least, most) = (strides().min().unwrap_or(1), strides().max().unwrap_or(1));
    let spread = Spread { pages: case.pages, of: (SPREAD / least).min(MOST / most).max(case.pages) };
    let mut args = Args::new();
    for input in case.inputs.iter().chain(&case.outputs) {
        let moved = match input.role {
            Role::BlockTable => spread.table(&input.bytes),
            Role::Slots => spread.slots(&input.bytes),
            _ => input.bytes.clone(),
        };
        args = args.with(input.role, far.place(input, &moved)?);
    }
    let mut addresses = Vec::new();
    for pool in &pools {
        let address = far.allocate(spread.of * pool.stride)?;
        for (page, bytes) in pool.pages() {
            far.memory.write(address + spread.page(page) * pool.stride, bytes)?;
        }
        let moved = |pages: u64, null_page: Option<u32>| {
            (spread.page(pages - 1) + 1, null_page.map(|page| spread.page(page.into()) as u32))
        };
        args = if pool.index {
            let mut cache = case.index_cache(address - case.extras.kv_bytes)?;
            (cache.pages, cache.null_page) = moved(cache.pages, cache.null_page);
            args.with_index_cache(cache)
        } else {
            let mut cache = case.kv_cache(address)?;
            (cache.pages, cache.null_page) = moved(cache.pages, cache.null_page);
            args.with_kv_cache(cache)
        };
        addresses.push(address);
    }
    let workspace = Span { address: far.allocate(plan.workspace_bytes)?, bytes: plan.workspace_bytes };
    let prepared = device.prepare(plan)?;
    // SAFETY: every address was allocated above and is freed below.
    unsafe { prepared.enqueue(Stream(0), &args, workspace) }?;
    // SAFETY: as above.
    let status = unsafe { prepared.status(Stream(0), workspace) }?;
    let read = |output: &Input| Ok((output.role, output.dtype, far.read(&args, output)?));
    let outputs = case.outputs.iter().map(read).collect::<Result<_>>()?;
    let mut written = Vec::new();
    for (pool, address) in pools.iter().zip(addresses).filter(|_| case.writes_caches()) {
        let mut bytes = pool.bytes.to_vec();
        for (page, bytes) in (0_u64..).zip(bytes.chunks_exact_mut(pool.stride as usize)) {
            far.memory.read(address + spread.page(page) * pool.stride, bytes)?;
        }
        written.extend(bytes);
    }
    far.free()?;
    Ok((Outcome { outputs, pool: written, status }, !pools.is_empty()))
}

/// A pool of pages, each in one piece.
struct Pool<'a> {
    bytes: &'a [u8],
    stride: u64,
    index: bool,
}

impl Pool<'_> {
    fn pages(&self) -> impl Iterator<Item = (u64, &[u8])> {
        (0..).zip(self.bytes.chunks_exact(self.stride as usize))
    }
}

fn pools(case: &Case) -> Result<Vec<Pool<'_>>> {
    let g = case.op.geometry();
    let before = case.extras.kv_bytes;
    let kv = |bytes| pool(bytes, &case.kv_cache(BASE)?.components(g), false);
    let index = |bytes| pool(bytes, &case.index_cache(BASE - before)?.components(g), true);
    match &case.op {
        Op::IndexScore(_) => Ok(vec![index(&case.pool)?]),
        Op::SparseDecode(_) => Ok(vec![kv(&case.pool)?]),
        Op::Step(_) => Ok(vec![kv(&case.pool)?, index(&case.index_pool)?]),
        Op::Append(_) => {
            let (first, second) = case.pool.split_at(before as usize);
            Ok(vec![kv(first)?, index(second)?])
        }
        _ => Ok(Vec::new()),
    }
}

fn pool<'a>(bytes: &'a [u8], components: &[Component], index: bool) -> Result<Pool<'a>> {
    let stride = components.first().map_or(0, |c| c.view.page_stride);
    let whole = components.iter().all(|c| c.view.page_stride == stride && c.view.address - BASE < stride);
    if whole {
        return Ok(Pool { bytes, stride, index });
    }
    Err(Error::invalid("layout", "pages that are one piece each", format!("{components:?}")))
}

/// Which page stands for which among many more.
struct Spread {
    pages: u64,
    of: u64,
}

impl Spread {
    /// Over all of them, the last one at the end.
    fn page(&self, page: u64) -> u64 {
        page * (self.of - 1) / (self.pages - 1).max(1)
    }

    /// Ids that are out of range stay out of range.
    fn table(&self, bytes: &[u8]) -> Vec<u8> {
        let ids = bytes.as_chunks().0.iter().map(|&id| i32::from_le_bytes(id));
        let moved = ids.map(|id| match u64::try_from(id) {
            Ok(page) if page < self.pages => self.page(page) as i32,
            _ => id,
        });
        moved.flat_map(i32::to_le_bytes).collect()
    }
}

impl Spread {
    /// Slots of no page stay out of range.
    fn slots(&self, bytes: &[u8]) -> Vec<u8> {
        let slots = bytes.as_chunks().0.iter().map(|&slot| i64::from_le_bytes(slot));
        let moved = slots.map(|slot| match u64::try_from(slot) {
            Ok(at) if at / 128 < self.pages => (self.page(at / 128) * 128 + at % 128) as i64,
            Ok(_) => slot.saturating_add(self.of as i64 * 128),
            Err(_) => slot,
        });
        moved.flat_map(i64::to_le_bytes).collect()
    }
}

struct Far<'a> {
    memory: &'a dyn Memory,
    owned: Vec<u64>,
}

impl Far<'_> {
    fn allocate(&mut self, bytes: u64) -> Result<u64> {
        let address = self.memory.allocate(bytes)?;
        self.owned.push(address);
        Ok(address)
    }

    /// A tensor whose outermost axis spans [`SPREAD`], if it has several rows of several axes.
    fn place(&mut self, input: &Input, bytes: &[u8]) -> Result<Tensor> {
        let near = Tensor::contiguous(BASE, input.dtype, &input.shape)?;
        let (rows, mut strides) = (near.extent(0), near.strides().to_vec());
        if input.shape.len() >= 3 && rows > 1 {
            strides[0] = strides[0].max((SPREAD / (rows - 1)).next_multiple_of(256));
        }
        let stride = strides.first().copied().unwrap_or(0);
        let address = self.allocate(rows * stride + bytes.len() as u64 + 256)?;
        for (row, piece) in (0_u64..).zip(pieces(input, bytes)) {
            self.memory.write(address + row * stride, piece)?;
        }
        Tensor::strided(address, input.dtype, &input.shape, &strides)
    }

    fn read(&self, args: &Args, output: &Input) -> Result<Vec<u8>> {
        let tensor =
            args.tensor(output.role).ok_or(Error::Missing { op: "check", role: output.role.name() })?;
        let mut bytes = output.bytes.clone();
        let each = pieces(output, &output.bytes).next().map_or(1, <[u8]>::len);
        for (row, piece) in (0_u64..).zip(bytes.chunks_mut(each)) {
            self.memory.read(tensor.address + row * tensor.stride(0), piece)?;
        }
        Ok(bytes)
    }

    fn free(self) -> Result<()> {
        self.owned.into_iter().try_for_each(|address| self.memory.free(address))
    }
}

/// What stands together: the bytes of one step of the outermost axis.
fn pieces<'a>(input: &Input, bytes: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let rows = input.shape.first().copied().unwrap_or(1).max(1) as usize;
    bytes.chunks((bytes.len() / rows).max(1))
}
