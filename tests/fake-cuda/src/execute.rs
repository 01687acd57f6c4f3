//! Kernels: their parameter is decoded, and the reference does what they do, in the same memory.
//!
//! An address outside the memory of the device is the illegal access that it would be. What the parameter says in two ways
//! (parts and their number, the grid and the bounds) must agree.

mod append;
/// The host's own declaration of what it passes.
#[allow(dead_code, reason = "not every field decides what the reference does")]
#[path = "../../../msa-cuda/src/arguments.rs"]
mod arguments;
mod batch;
mod decode;
mod exchange;
mod index;
mod merge;
mod ranks;
mod select;
mod validate;

use std::collections::BTreeSet;

use msa_core::args::Args;
use msa_core::backend::{Span, Stream};
use msa_core::device::{Arch, DeviceTraits};
use msa_core::error::Error;
use msa_core::lengths::Lengths;
use msa_core::op::Op;
use msa_core::plan::{Plan, PlanOptions, WORKSPACE_ALIGNMENT, plan};

use crate::code::{Code, ILLEGAL_ADDRESS, LAUNCH_FAILED};
use crate::launch::Launch;
use crate::memory::Memory;

/// How a kernel failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) code: Code,
    pub(crate) text: String,
}

impl Fault {
    fn new(text: impl std::fmt::Display) -> Self {
        Self { code: LAUNCH_FAILED, text: text.to_string() }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::new(error)
    }
}

/// Where a kernel runs.
pub(crate) struct Place<'a> {
    pub(crate) device: usize,
    pub(crate) context: usize,
    pub(crate) memory: &'a mut Memory,
    /// Pairs of contexts of which the first reaches the memory of the second.
    pub(crate) peers: &'a BTreeSet<(usize, usize)>,
}

impl Place<'_> {
    fn reach(&mut self) -> Reach<'_> {
        Reach { device: self.device, context: self.context, memory: self.memory, peers: self.peers }
    }
}

/// Runs a kernel; true if it has handed over to other devices and is now to wait for them: see [`has_arrived`] and [`finish`].
pub(crate) fn run(launch: &Launch, place: &mut Place<'_>) -> Result<bool, Fault> {
    let mut reach = place.reach();
    match launch.symbol.as_str() {
        "exchange_keys" | "exchange_keys_small" => {
            return exchange::hand_over_keys(launch, &mut reach).map(|()| true);
        }
        "gather_queries" => return exchange::hand_over_queries(launch, &mut reach).map(|()| true),
        "candidate_keys" => exchange::candidate_keys(launch, &mut reach),
        "clear_status" => {
            let a: &arguments::StatusArguments = parameter(launch)?;
            reach.bytes_mut("status", a.status, 4 * u64::from(a.words))?.fill(0);
            Ok(())
        }
        "merge" => merge::states(launch, &mut reach),
        "select_merge" => merge::candidates(launch, &mut reach),
        symbol if symbol.starts_with("index_score_") => index::run(launch, &mut reach),
        symbol if symbol.starts_with("select_") => select::run(launch, &mut reach),
        symbol if symbol.starts_with("sparse_decode") => decode::run(launch, &mut reach),
        "combine_parts" => decode::combine(launch, &mut reach),
        symbol if symbol.starts_with("append_") => append::run(launch, &mut reach),
        "clear_winners" | "find_winners" => append::find_winners(launch, &mut reach),
        "validate" => validate::run(launch, &mut reach),
        other => {
            Err(Fault::new(format!("{other} is not executed here: add it to tests/fake-cuda/src/execute.rs")))
        }
    }
    .map(|()| false)
}

/// True if everything that a kernel waits for is there.
pub(crate) fn has_arrived(launch: &Launch, place: &mut Place<'_>) -> Result<bool, Fault> {
    let reach = place.reach();
    match launch.symbol.as_str() {
        "gather_queries" => exchange::queries_arrived(launch, &reach),
        _ => exchange::keys_arrived(launch, &reach),
    }
}

/// The rest of a kernel, with a status bit for every rank that did not hand over.
pub(crate) fn finish(launch: &Launch, place: &mut Place<'_>) -> Result<(), Fault> {
    let mut reach = place.reach();
    match launch.symbol.as_str() {
        "gather_queries" => exchange::gather_queries(launch, &mut reach),
        _ => exchange::merge_keys(launch, &mut reach),
    }
}

/// The kernel's one parameter.
fn parameter<T>(launch: &Launch) -> Result<&T, Fault> {
    let bytes = &launch.parameters;
    // SAFETY: every bit pattern is a value of the parameters' types, and `align_to` keeps to their alignment.
    let (before, values, after) = unsafe { bytes.align_to::<T>() };
    match values {
        [value] if before.is_empty() && after.is_empty() => Ok(value),
        _ => {
            Err(Fault::new(format!("{} bytes of parameters, the host's are {}", bytes.len(), size_of::<T>())))
        }
    }
}

/// What a kernel of a device reaches.
struct Reach<'a> {
    device: usize,
    context: usize,
    memory: &'a mut Memory,
    peers: &'a BTreeSet<(usize, usize)>,
}

impl Reach<'_> {
    fn check(&self, what: &str, address: u64, bytes: u64) -> Result<(), Fault> {
        if bytes == 0 || self.memory.holds(self.device, address, bytes) {
            return Ok(());
        }
        let text = format!("{what}: {bytes} bytes at {address:#x} are not memory of device {}", self.device);
        Err(Fault { code: ILLEGAL_ADDRESS, text })
    }

    fn bytes(&self, what: &str, address: u64, bytes: u64) -> Result<&[u8], Fault> {
        self.check(what, address, bytes)?;
        self.memory.bytes(self.device, address, bytes as usize).map_err(|_| Fault::new(what))
    }

    fn bytes_mut(&mut self, what: &str, address: u64, bytes: u64) -> Result<&mut [u8], Fault> {
        self.check(what, address, bytes)?;
        self.memory.bytes_mut(self.device, address, bytes as usize).map_err(|_| Fault::new(what))
    }

    /// Memory of any device that this one maps.
    fn mapped_mut(&mut self, what: &str, address: u64, bytes: u64) -> Result<&mut [u8], Fault> {
        let owner = self.memory.owner(address, bytes);
        let mapped = |(_, context): &(usize, usize)| {
            *context == self.context || self.peers.contains(&(self.context, *context))
        };
        let Some((device, _)) = owner.filter(mapped) else {
            let text =
                format!("{what}: {bytes} bytes at {address:#x} are not mapped on device {}", self.device);
            return Err(Fault { code: ILLEGAL_ADDRESS, text });
        };
        self.memory.bytes_mut(device, address, bytes as usize).map_err(|_| Fault::new(what))
    }

    /// Memory of the device for the time of a kernel.
    fn temporary(&mut self, bytes: &[u8]) -> Result<u64, Fault> {
        let address = self.memory.allocate(self.device, self.context, bytes.len().max(1), u64::MAX);
        let address = address.map_err(|_| Fault::new("no memory of the host"))?;
        self.bytes_mut("temporary", address, bytes.len() as u64)?.copy_from_slice(bytes);
        Ok(address)
    }

    fn free(&mut self, address: u64) -> Result<(), Fault> {
        self.memory.free(address).map_err(|_| Fault::new("temporary"))
    }

    fn words(&self, what: &str, address: u64, count: u64) -> Result<Vec<u32>, Fault> {
        let bytes = self.bytes(what, address, count * 4)?;
        Ok(bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
    }

    fn check_arguments(&self, op: &Op, args: &Args) -> Result<(), Fault> {
        let geometry = op.geometry();
        for (role, tensor) in args.tensors() {
            let bytes = tensor.span().ok_or_else(|| Fault::new(format!("{}: no span", role.name())))?;
            self.check(role.name(), tensor.address, bytes)?;
        }
        let kv = args.kv_cache.iter().flat_map(|c| c.components(geometry).into_iter().map(|k| (k, c.pages)));
        let index = args.index_cache.iter();
        let index = index.flat_map(|c| c.components(geometry).into_iter().map(|k| (k, c.pages)));
        for (component, pages) in kv.chain(index) {
            let tensor = component.tensor(pages)?;
            self.check(component.name, tensor.address, tensor.span().unwrap_or(u64::MAX))?;
        }
        Ok(())
    }
}

/// Work for the reference.
struct Job<'a> {
    op: Op,
    lengths: &'a Lengths,
    args: Args,
    /// Where the status words are.
    status: u64,
    /// Words of the run if this is its first kernel, which clears them and has one a block; else 0.
    own_status: u32,
}

impl Job<'_> {
    /// Runs under the first of `options` whose plan is accepted.
    fn run(
        self,
        launch: &Launch,
        reach: &mut Reach<'_>,
        options: &[PlanOptions],
        accept: impl Fn(&Plan) -> bool,
    ) -> Result<(), Fault> {
        reach.check_arguments(&self.op, &self.args)?;
        let arch = Arch::from_name(&launch.image.arch)?;
        let own = crate::config::units(capability(arch));
        let arithmetic = arithmetic(launch, arch)?;
        // The rows of a step may be divided as those of this operation alone are on a smaller or larger device.
        let sizes = std::iter::once(own).chain((0..=14).map(|log| 1 << log));
        let mut found = None;
        'search: for units in sizes {
            let traits = DeviceTraits { arch, units, ..DeviceTraits::h200() };
            for options in options {
                let options = PlanOptions { arithmetic: Some(arithmetic.to_owned()), ..options.clone() };
                let plan = plan(&self.op, self.lengths, &traits, msa_ref::VARIANTS, &options, "ref")?;
                if accept(&plan) {
                    found = Some(plan);
                    break 'search;
                }
            }
        }
        let plan = found.ok_or_else(|| Fault::new("parts that no plan has"))?;
        let prepared = msa_ref::device().prepare(&plan)?;
        let mut scratch = vec![0_u8; (plan.workspace_bytes + WORKSPACE_ALIGNMENT) as usize];
        let address = (scratch.as_mut_ptr() as u64).next_multiple_of(WORKSPACE_ALIGNMENT);
        let workspace = Span { address, bytes: plan.workspace_bytes };
        // SAFETY: every range was checked to be live memory of this device, which this thread holds the lock of, and the
        // scratch lives until the end.
        unsafe { prepared.enqueue(Stream(0), &self.args, workspace) }?;
        // SAFETY: as above; the reference has run.
        let status = unsafe { prepared.status(Stream(0), workspace) }?;
        reach.bytes_mut("status", self.status, 4 * u64::from(self.own_status))?.fill(0);
        // The first block's, or the one that all kernels share.
        let word = self.status + if self.own_status > 0 { 4 } else { 0 };
        let word = reach.bytes_mut("status", word, 4)?;
        word.iter_mut().zip(status.0.to_le_bytes()).for_each(|(byte, bits)| *byte |= bits);
        Ok(())
    }
}

/// What the variant of an image declares.
fn arithmetic(launch: &Launch, arch: Arch) -> Result<&'static str, Fault> {
    let image = &launch.image;
    // A rank's image is one more of the variant.
    let own = image.name.replace(".ranks.", ".");
    let of_image = |name: &str| name.replace(&format!(".{}", image.arch), "") == own;
    let variant = msa_cuda::variants(arch).iter().find(|variant| of_image(variant.name));
    variant
        .map(|variant| variant.arithmetic)
        .ok_or_else(|| Fault::new(format!("{}: no such variant", image.name)))
}

/// A device that reports this architecture.
fn capability(arch: Arch) -> crate::config::Capability {
    if arch == Arch::Sm90a { (9, 0) } else { (10, 0) }
}
