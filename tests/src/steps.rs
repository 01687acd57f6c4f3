//! One case from its line to a verdict: everything that is checked, in order.
//!
//! 1. The backend supports it, or the case is skipped with the backend's reasons.
//! 2. The plan verifies, prints and parses back.
//!    A case that a checked plan must refuse ends with the refusal: the same status in two runs, and no byte changed.
//! 3. Inputs stand in fresh memory: pages shuffled, unused bytes poisoned, outputs and workspace poisoned, guards around
//!    every buffer.
//! 4. The backend runs before anything is computed that it should give.
//! 5. Guards, inputs, padded rows, gaps and cache bytes of other tokens are unchanged; the status word is what the inputs
//!    call for.
//! 6. A second run in another workspace with another poison gives the same bits: nothing was left unwritten, nothing
//!    uninitialised was read.
//! 7. Outputs are within the bound of the equations, and equal the reference's execution of the same plan.

mod far;
mod recorded;
mod refused;
mod resolve;

pub use recorded::{Expected, run_case_expecting};
pub use resolve::resolve;

use std::sync::Arc;

use msa_core::args::Args;
use msa_core::backend::{Device, Prepared, Status, Stream};
use msa_core::error::{Error, Result};
use msa_core::op::Op;
use msa_core::plan::{Plan, WORKSPACE_ALIGNMENT};
use msa_core::variant::Support;

use crate::case::{CacheLayout, Case};
use crate::inputs::{self, Inputs};
use crate::memory::{Contents, Guarded, Image, Placement};
use crate::oracle::{Oracle, simulate};
use crate::rehearsal::{self, decision_hash};
use crate::report::{Check, Evidence, Failure, Verdict};

/// Poison of outputs and workspace in the first run and in the second.
const POISONS: [u8; 2] = [0xff, 0x7b];

/// Spare bytes behind the workspace that the plan asks for, which the run may use as it may not know of them.
const SPARE_WORKSPACE: u64 = 512;

/// What to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Oracles {
    /// The equations.
    pub equations: bool,
    /// The reference's execution, for devices other than the reference.
    pub reference: bool,
}

impl Oracles {
    /// Both.
    pub const ALL: Self = Self { equations: true, reference: true };
    /// Neither: only what a run shows of itself.
    pub const NONE: Self = Self { equations: false, reference: false };
}

/// Runs `case` on `device` with every check.
pub fn run_case(device: &Arc<dyn Device>, case: &Case) -> Verdict {
    run_case_with(device, case, Oracles::ALL)
}

/// Runs `case` on `device`; `oracles` says what its outputs are compared with.
pub fn run_case_with(device: &Arc<dyn Device>, case: &Case, oracles: Oracles) -> Verdict {
    match try_case(device, case, oracles) {
        Ok(verdict) => verdict,
        Err(Error::Unsupported { reasons, .. }) => Verdict::Skipped(reasons.join("; ")),
        Err(error) => Verdict::Failed(vec![Failure::new(Check::Call, error)]),
    }
}

fn try_case(device: &Arc<dyn Device>, case: &Case, oracles: Oracles) -> Result<Verdict> {
    let op = case.descriptor()?;
    if let Support::No { reasons } = device.support(&op) {
        return Ok(Verdict::Skipped(reasons.join("; ")));
    }
    let plan = device.plan(&op, &case.bounds()?, &case.plan_options())?;
    let mut failures = check_plan(&plan);
    let inputs = inputs::generate(case, &op)?;
    if let Some(bits) = refused::expected(case, &inputs) {
        failures.extend(refused::check(device, case, &plan, &inputs, bits)?);
        let evidence =
            Evidence { variant: plan.variant.clone(), plan: decision_hash(&plan), ..Evidence::default() };
        return Ok(if failures.is_empty() { Verdict::Passed(evidence) } else { Verdict::Failed(failures) });
    }
    let run = Run::start(device, case, &plan, &inputs)?;
    let first = run.placement.read()?;
    failures.extend(trespasses(&first));
    failures.extend(check_status(case, &inputs, run.status));
    failures.extend(repeat(&run, case, &first)?);
    if case.layout == CacheLayout::Far {
        failures.extend(far::check(&run, case, &first)?);
    }
    let mut evidence = Evidence { variant: plan.variant.clone(), ..Evidence::default() };
    evidence.hash = hash(&first, &run.placement.args);
    evidence.plan = decision_hash(&plan);
    if oracles.equations {
        let image = Image::new(&first);
        let oracle =
            Oracle { case, plan: &plan, batch: &inputs.batch, args: &run.placement.args, image: &image };
        let (own, wrong) = oracle.against_equations()?;
        evidence.add(&own);
        failures.extend(wrong);
    }
    let is_reference = device.name().starts_with("ref:") || device.name().starts_with(rehearsal::PREFIX);
    if oracles.reference && !is_reference {
        failures.extend(against_reference(case, &plan, &inputs, &first)?);
    }
    Ok(if failures.is_empty() { Verdict::Passed(evidence) } else { Verdict::Failed(failures) })
}

/// The inputs and outputs of a run in memory of the device, and which of their rows it writes.
pub fn place(device: &Arc<dyn Device>, case: &Case, plan: &Plan, inputs: &Inputs) -> Result<Placement> {
    // Merges have no requests: every row is written.
    let all_rows = matches!(plan.op, Op::Merge(_) | Op::SelectMerge(_) | Op::Append(_));
    let real = if all_rows { inputs.rows } else { u64::from(case.rows()) };
    Placement::new(device, inputs, case.gap, real)
}

/// One run on fresh memory.
pub struct Run {
    /// Buffers and arguments.
    pub placement: Placement,
    /// Status word.
    pub status: Status,
    prepared: Box<dyn Prepared>,
    device: Arc<dyn Device>,
}

impl Run {
    /// Places the inputs, runs once, and waits. The workspace has guards of its own, checked here.
    pub fn start(device: &Arc<dyn Device>, case: &Case, plan: &Plan, inputs: &Inputs) -> Result<Self> {
        let prepared = device.prepare(plan)?;
        let placement = place(device, case, plan, inputs)?;
        let mut run = Self { placement, status: Status::default(), prepared, device: Arc::clone(device) };
        run.status = run.again(POISONS[0])?;
        Ok(run)
    }

    /// Restores the inputs, poisons outputs and a new workspace, runs and waits.
    pub fn again(&self, poison: u8) -> Result<Status> {
        self.placement.reset(poison)?;
        self.run_with(&self.placement.args, poison)
    }

    /// Runs on `args` in a new workspace that holds `poison`, and waits.
    fn run_with(&self, args: &Args, poison: u8) -> Result<Status> {
        let bytes = self.prepared.plan().workspace_bytes;
        let contents = vec![poison; (bytes + SPARE_WORKSPACE) as usize];
        let used = 0..bytes as usize;
        let workspace = Guarded::new(&self.device, "workspace", &contents, vec![used])?;
        workspace.reset(poison)?;
        let span = workspace.span();
        debug_assert!(span.address.is_multiple_of(WORKSPACE_ALIGNMENT));
        let given = msa_core::Span { address: span.address, bytes };
        // SAFETY: every buffer of the placement and the workspace are live allocations of this device that nothing else
        // uses; `status` waits for the stream.
        unsafe { self.prepared.enqueue(Stream::default(), args, given)? };
        // SAFETY: the workspace was enqueued just now and is alive.
        let status = unsafe { self.prepared.status(Stream::default(), given)? };
        match workspace.read()?.trespass() {
            None => Ok(status),
            Some(t) => {
                Err(Error::invalid("workspace", "no byte outside changed", format!("byte {}", t.offset)))
            }
        }
    }

    /// Contents of every buffer.
    pub fn read(&self) -> Result<Vec<Contents<'_>>> {
        self.placement.read()
    }
}

fn check_plan(plan: &Plan) -> Vec<Failure> {
    let mut failures: Vec<Failure> =
        plan.verify().err().map(|error| Failure::new(Check::Plan, error)).into_iter().collect();
    match plan.to_text().parse::<Plan>() {
        Ok(back) if back == *plan => {}
        Ok(_) => failures.push(Failure::new(Check::Plan, "the text parses to another plan")),
        Err(error) => failures.push(Failure::new(Check::Plan, error)),
    }
    failures
}

fn trespasses(contents: &[Contents<'_>]) -> Vec<Failure> {
    let found = contents.iter().filter_map(|c| Some((c, c.trespass()?)));
    found
        .map(|(contents, t)| {
            let check = if t.outside { Check::Canary } else { Check::Trespass };
            Failure::new(check, format!("{}: byte {} changed", contents.name(), t.offset))
        })
        .collect()
}

/// A second run with other poison and another workspace.
fn repeat(run: &Run, case: &Case, first: &[Contents<'_>]) -> Result<Vec<Failure>> {
    let status = run.again(POISONS[1])?;
    let second = run.read()?;
    let mut failures = Vec::new();
    for (a, b) in first.iter().zip(&second) {
        if let Some(offset) = a.first_difference(b) {
            let text = format!("{}: byte {offset} differs between two runs of {}", a.name(), case.op);
            failures.push(Failure::new(Check::Repeat, text));
        }
    }
    if status != run.status {
        let text = format!("status {:#x}, then {:#x}", run.status.0, status.0);
        failures.push(Failure::new(Check::Repeat, text));
    }
    Ok(failures)
}

/// A clean status, but for block ids out of range.
fn check_status(case: &Case, inputs: &Inputs, status: Status) -> Option<Failure> {
    let attends = matches!(case.op.name(), "sparse_decode" | "sparse_prefill");
    let want = if attends && names_missing_blocks(case, inputs) { Status::BLOCK } else { 0 };
    (status.0 != want)
        .then(|| Failure::new(Check::Status, format!("got {:#x} ({status}), want {want:#x}", status.0)))
}

/// True if a list of a request's row names an id below -1 or beyond its cache.
fn names_missing_blocks(case: &Case, inputs: &Inputs) -> bool {
    let lists = inputs.tensors.iter().find(|t| t.role == msa_core::Role::BlockIndices);
    let Some((shape, bytes)) = lists.and_then(|t| Some((&t.shape, t.bytes.as_ref()?))) else { return false };
    let width = (shape[1] * shape[2]) as usize;
    let ids = crate::compare::i32s(bytes);
    let rows = ids.chunks(width.max(1)).zip(&inputs.batch.request_of);
    rows.into_iter().any(|(ids, request)| {
        let kv_len = inputs.batch.kv_lens[*request as usize] as u64;
        let blocks = case.geometry.blocks(kv_len) as i64;
        ids.iter().any(|&id| id < -1 || i64::from(id) >= blocks)
    })
}

fn against_reference(
    case: &Case,
    plan: &Plan,
    inputs: &Inputs,
    got: &[Contents<'_>],
) -> Result<Vec<Failure>> {
    let reference = msa_ref::device();
    let run = Run::start(&reference, case, &simulate::reference_plan(plan)?, inputs)?;
    let want = run.read()?;
    let mut failures = Vec::new();
    for ((got, want), buffer) in got.iter().zip(&want).zip(&run.placement.buffers) {
        let tensor = run.placement.args.tensors().iter().find(|(role, _)| role.name() == buffer.name);
        failures
            .extend(got.differences(want, tensor.map(|(_, t)| t)).map(|text| Failure::new(Check::Sim, text)));
    }
    Ok(failures)
}

/// First 16 hexadecimal digits of the SHA-256 of what the run wrote, every NaN of a tensor being the same.
fn hash(contents: &[Contents<'_>], args: &Args) -> String {
    use sha2::{Digest, Sha256};
    let mut hasher = Sha256::new();
    for buffer in contents {
        let tensor = args.tensors().iter().find(|(role, _)| role.name() == buffer.name());
        hasher.update(buffer.canonical(tensor.map(|(_, tensor)| tensor)));
    }
    hasher.finalize().iter().take(8).map(|b| format!("{b:02x}")).collect()
}
