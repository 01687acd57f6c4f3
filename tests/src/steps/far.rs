//! The same run with the pages of its KV cache far apart: offsets pass 2^31 bytes, and nothing else changes.

use std::sync::Arc;

use msa_core::args::Args;
use msa_core::backend::Device;
use msa_core::cache::{KvCache, View};
use msa_core::error::{Error, Result};

use super::{POISONS, Run};
use crate::case::Case;
use crate::memory::{Contents, Image};
use crate::report::{Check, Failure};

/// Bytes from a page to the next: the ninth page begins past 2^31, and 32 pages stay below 8 GiB of address space.
const STRIDE: u64 = 1 << 28;

/// Most bytes that are mapped.
const MAX_BYTES: u64 = 8 << 30;

/// Differences between the first run and one whose pages lie [`STRIDE`] apart.
pub(super) fn check(run: &Run, case: &Case, first: &[Contents<'_>]) -> Result<Vec<Failure>> {
    let compact = run.placement.args.kv_cache.ok_or(Error::Missing { op: "a far case", role: "kv_cache" })?;
    let bytes = compact.pages.saturating_mul(STRIDE);
    if bytes > MAX_BYTES || bytes <= 1 << 31 {
        return Err(Error::invalid("case.layout", "between 9 and 32 pages for `far`", compact.pages));
    }
    let memory = Mapping::new(&run.device, bytes)?;
    let image = Image::new(first);
    for page in 0..compact.pages {
        let from =
            image.bytes(compact.key.address + page * compact.key.page_stride, compact.key.page_stride)?;
        run.device.memory().write(memory.address + page * STRIDE, from)?;
    }
    let args = run.placement.args.clone().with_kv_cache(spread(compact, memory.address));
    run.placement.reset(POISONS[1])?;
    let status = run.run_with(&args, POISONS[1])?;
    let mut failures = differences(run, &args, first)?;
    if status != run.status {
        let text = format!("status {:#x}, then {:#x} ({})", run.status.0, status.0, case.op);
        failures.push(Failure::new(Check::Far, text));
    }
    Ok(failures)
}

fn differences(run: &Run, args: &Args, first: &[Contents<'_>]) -> Result<Vec<Failure>> {
    let far = run.read()?;
    let pairs = far.iter().zip(first).filter_map(|(far, near)| {
        let tensor = args.tensors().iter().find(|(role, _)| role.name() == far.name());
        far.differences(near, tensor.map(|(_, tensor)| tensor))
    });
    Ok(pairs.map(|text| Failure::new(Check::Far, text)).collect())
}

/// The planar cache `compact` with its pages spread from `base` on.
fn spread(compact: KvCache, base: u64) -> KvCache {
    let first = compact.key.address;
    let moved = |view: View| View { address: view.address - first + base, page_stride: STRIDE, ..view };
    KvCache {
        key: moved(compact.key),
        value: moved(compact.value),
        key_scale: compact.key_scale.map(moved),
        value_scale: compact.value_scale.map(moved),
        ..compact
    }
}

/// Device memory without guards: most of it is never touched, and costs address space only.
struct Mapping {
    device: Arc<dyn Device>,
    address: u64,
}

impl Mapping {
    fn new(device: &Arc<dyn Device>, bytes: u64) -> Result<Self> {
        Ok(Self { device: Arc::clone(device), address: device.memory().allocate(bytes)? })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // An address that the device gave can be freed; if not, there is nobody to tell.
        let _ = self.device.memory().free(self.address);
    }
}
