//! Plans: everything that is decided on the host before a launch, as flat data.
//!
//! A plan is a pure function of (operation, length bounds, device traits, options). It has no pointers, a stable text
//! form that parses back, a hash, and [`Plan::verify`], which proves that every unit of work is covered exactly once
//! and that the workspace holds what the stages put there.

mod append;
mod context_parallel;
mod decode;
mod decode_cost;
mod derive;
mod given;
mod index;
mod kernels;
mod merge;
mod options;
mod parts;
mod prefill;
pub mod record;
mod select;
pub mod shared;
mod step;
#[cfg(test)]
mod tests;
mod verify;
mod workspace;

pub use kernels::{AppendPlan, IndexKernel, SelectKernel};
pub use options::{PlanOptions, Schedule, ScheduleChoice};
pub use parts::{
    BlockPart, ContextParallel, DecodeBlocks, PrefillPlan, RowWindow, Segment, SegmentWindow, SlotPart,
    WorkspaceRegion,
};

use derive::Derived;

use std::fmt;

use crate::arithmetic::Arithmetic;
use crate::device::DeviceTraits;
use crate::error::{Error, Result};
use crate::lengths::{Lengths, RequestBound};
use crate::op::Op;
use crate::text::{self, Node, Visitor};
use crate::variant::{self, Variant};

/// Version of the text form and of the meaning of the fields.
pub const PLAN_VERSION: u32 = 2;

/// Bytes of the status words at the start of every workspace: one that all kernels of a run share, and 1,023 for the blocks of
/// a kernel that must not wait for another to clear it.
pub const STATUS_BYTES: u64 = 4096;

/// Alignment of the workspace and of every region in it.
pub const WORKSPACE_ALIGNMENT: u64 = 256;

/// Plans `op` for a batch within `lengths` on a device with `traits`, using the first of `variants` that takes it (or
/// the one that the options name). Pure: no device, no clock, no globals. `backend` is for messages only.
pub fn plan(
    op: &Op,
    lengths: &Lengths,
    traits: &DeviceTraits,
    variants: &[Variant],
    options: &PlanOptions,
    backend: &str,
) -> Result<Plan> {
    let op = op.clone().validated()?;
    let variant = choose_variant(&op, lengths, variants, options, backend)?;
    let arithmetic = match &options.arithmetic {
        Some(name) => crate::arithmetic::by_name(name)?,
        None => variant.arithmetic()?,
    };
    let derived = derive::derive(&op, &given::Given { lengths, traits, options, variant: variant.name })?;
    let mut plan = Plan {
        version: PLAN_VERSION,
        op_revision: crate::op::OP_REVISION,
        op,
        requests: lengths.requests().to_vec(),
        traits: traits.clone(),
        options: options.clone(),
        variant: variant.name.to_owned(),
        arithmetic,
        batch_invariant: derived.batch_invariant,
        slot_parts: derived.slot_parts,
        decode_blocks: derived.decode_blocks,
        index_kernel: derived.index_kernel,
        select_kernel: derived.select_kernel,
        append: derived.append,
        block_parts: derived.block_parts,
        prefill: derived.prefill,
        windows: derived.windows,
        context_parallel: derived.context_parallel,
        workspace: derived.workspace,
        workspace_bytes: derived.workspace_bytes,
        hash: String::new(),
    };
    plan.hash = plan.computed_hash();
    Ok(plan)
}

/// The first variant that takes the op with this many query rows a request, or the one asked for.
fn choose_variant<'a>(
    op: &Op,
    lengths: &Lengths,
    variants: &'a [Variant],
    options: &PlanOptions,
    backend: &str,
) -> Result<&'a Variant> {
    let rows = lengths.max_query_len();
    let short = |v: &Variant| v.max_query_len.is_some_and(|most| rows > most);
    let asked = options.variant.as_deref();
    let chosen = variant::choose(variants, op, asked, backend)?;
    if !short(chosen) {
        return Ok(chosen);
    }
    let most = |v: &Variant| v.max_query_len.map_or_else(|| "any number of".to_owned(), |n| n.to_string());
    let refused = |v: &Variant| format!("{}: takes at most {} query rows a request", v.name, most(v));
    let mut others =
        variants.iter().filter(|v| asked.is_none() && v.op == op.kind() && v.refusals(op).is_empty());
    others.find(|v| !short(v)).ok_or_else(|| Error::Unsupported {
        op: op.name(),
        backend: backend.to_owned(),
        reasons: variants.iter().filter(|v| v.op == op.kind() && short(v)).map(refused).collect(),
    })
}

/// A plan. Made by [`plan`]; the fields are public so that kernels and tools can read them, and [`Plan::verify`] says
/// whether a plan that was changed still holds.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    /// [`PLAN_VERSION`].
    pub version: u32,
    /// [`crate::op::OP_REVISION`].
    pub op_revision: u32,
    /// Operation.
    pub op: Op,
    /// Bounds.
    pub requests: Vec<RequestBound>,
    /// Device.
    pub traits: DeviceTraits,
    /// Options.
    pub options: PlanOptions,
    /// Kernel variant.
    pub variant: String,
    /// Its arithmetic.
    pub arithmetic: Arithmetic,
    /// True if a request's bits depend on that request alone.
    pub batch_invariant: bool,
    /// Decode: slots of each request, divided over parts.
    pub slot_parts: Vec<SlotPart>,
    /// Decode: how blocks of threads take those parts.
    pub decode_blocks: DecodeBlocks,
    /// Index scoring: the kernel.
    pub index_kernel: IndexKernel,
    /// Selection: the kernel.
    pub select_kernel: SelectKernel,
    /// Append: how launches take their rows.
    pub append: AppendPlan,
    /// Index scoring: blocks of each request, divided over parts.
    pub block_parts: Vec<BlockPart>,
    /// Prefill: segments, candidate schedules and their limits.
    pub prefill: PrefillPlan,
    /// Rows that are worked through together, in order.
    pub windows: Vec<RowWindow>,
    /// Ranks of the indexer.
    pub context_parallel: ContextParallel,
    /// Regions of the workspace.
    pub workspace: Vec<WorkspaceRegion>,
    /// Bytes of the workspace.
    pub workspace_bytes: u64,
    /// Hash of everything above.
    pub hash: String,
}

impl Plan {
    /// The bounds that the plan holds for.
    pub fn lengths(&self) -> Result<Lengths> {
        Lengths::new(self.requests.iter().copied())
    }

    /// True if a batch of these lengths may run under the plan.
    pub fn covers(&self, lengths: &Lengths) -> bool {
        self.lengths().is_ok_and(|own| own.covers(lengths))
    }

    /// The region called `name`.
    pub fn region(&self, name: &str) -> Option<&WorkspaceRegion> {
        self.workspace.iter().find(|r| r.name == name)
    }

    /// The stable text form.
    pub fn to_text(&self) -> String {
        // Printing cannot fail: no visitor error exists on this path.
        text::print(&mut self.clone(), "plan").unwrap_or_default()
    }

    /// Parses the text form. The result is well formed, not yet verified.
    ///
    /// # Errors
    /// A text of another version, by its first line; else the first line that is not as [`Plan::to_text`] writes it.
    pub fn from_text(source: &str) -> Result<Self> {
        let first = source.lines().next().and_then(|line| line.strip_prefix("plan.version = "));
        if let Some(version) = first.and_then(|text| text.trim().parse::<u32>().ok()) {
            verify::holds(version == PLAN_VERSION, || format!("version {version} is not {PLAN_VERSION}"))?;
        }
        let mut plan = Self::default();
        text::parse(&mut plan, "plan", source)?;
        Ok(plan)
    }

    /// SHA-256 of the text form without the hash itself, first 16 hexadecimal digits.
    pub fn computed_hash(&self) -> String {
        use sha2::{Digest, Sha256};
        let digest = Sha256::digest(Self { hash: String::new(), ..self.clone() }.to_text().as_bytes());
        digest.iter().take(8).map(|b| format!("{b:02x}")).collect()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_text())
    }
}

impl std::str::FromStr for Plan {
    type Err = Error;
    fn from_str(source: &str) -> Result<Self> {
        Self::from_text(source)
    }
}

impl Node for Plan {
    fn visit(&mut self, path: &str, visitor: &mut dyn Visitor) -> Result<()> {
        let name = |field: &str| format!("{path}.{field}");
        visitor.leaf(&name("version"), &mut self.version)?;
        visitor.leaf(&name("op_revision"), &mut self.op_revision)?;
        self.op.visit(&name("op"), visitor)?;
        text::visit_list(&mut self.requests, &name("requests"), visitor)?;
        self.traits.visit(&name("traits"), visitor)?;
        self.options.visit(&name("options"), visitor)?;
        visitor.leaf(&name("variant"), &mut self.variant)?;
        self.arithmetic.visit(&name("arithmetic"), visitor)?;
        visitor.leaf(&name("batch_invariant"), &mut self.batch_invariant)?;
        text::visit_list(&mut self.slot_parts, &name("slot_parts"), visitor)?;
        visitor.leaf(&name("decode_blocks"), &mut self.decode_blocks)?;
        visitor.leaf(&name("index_kernel"), &mut self.index_kernel)?;
        visitor.leaf(&name("select_kernel"), &mut self.select_kernel)?;
        self.append.visit(&name("append"), visitor)?;
        text::visit_list(&mut self.block_parts, &name("block_parts"), visitor)?;
        self.prefill.visit(&name("prefill"), visitor)?;
        text::visit_list(&mut self.windows, &name("windows"), visitor)?;
        self.context_parallel.visit(&name("context_parallel"), visitor)?;
        text::visit_list(&mut self.workspace, &name("workspace"), visitor)?;
        visitor.leaf(&name("workspace_bytes"), &mut self.workspace_bytes)?;
        visitor.leaf(&name("hash"), &mut self.hash)
    }
}
