//! Proofs that a plan holds.
//!
//! Two kinds, either of which would do for most damage. [`coverage`] proves from the plan's own tables that every unit
//! of work is done exactly once and that the workspace holds it; it uses none of the planner's code. Then the plan is
//! derived again from its inputs and compared, which also catches tables that would work but are not what the planner
//! makes (two machines would not agree on them).

mod coverage;
mod kernels;
mod workspace;

use super::derive::{Derived, derive};
use super::given::Given;
use super::{PLAN_VERSION, Plan};
use crate::arithmetic::{Product, by_name};
use crate::device::Arch;
use crate::error::{Error, Result};
use crate::op::{OP_REVISION, Op};

impl Plan {
    /// Proves that the plan holds: its header, its coverage, its workspace, and that the planner would make it.
    ///
    /// Errors: [`Error::Plan`] that names what does not hold, or [`Error::Invalid`] at an invalid operation or option.
    pub fn verify(&self) -> Result<()> {
        self.verify_header()?;
        self.verify_coverage()?;
        self.verify_derivation()
    }

    /// Proves coverage and workspace from the plan's tables alone, and that the kernels it names can do it.
    pub fn verify_coverage(&self) -> Result<()> {
        coverage::check(self)?;
        kernels::check(self)?;
        workspace::check(self)
    }

    fn verify_header(&self) -> Result<()> {
        holds(self.version == PLAN_VERSION, || format!("version {} is not {PLAN_VERSION}", self.version))?;
        let revision = self.op_revision;
        holds(revision == OP_REVISION, || format!("op_revision {revision} is not {OP_REVISION}"))?;
        let hash = self.computed_hash();
        holds(self.hash == hash, || format!("hash {} is not that of the plan, {hash}", self.hash))?;
        self.op.clone().validated()?;
        self.verify_variant()?;
        self.verify_arithmetic()
    }

    /// The variant's name says op and architecture; the list that it is from is the backend's.
    fn verify_variant(&self) -> Result<()> {
        let words: Vec<_> = self.variant.split('.').collect();
        let op = words.first().is_some_and(|w| *w == self.op.name());
        holds(op, || format!("variant {} is none of {}", self.variant, self.op.name()))?;
        let arch = words.get(2).is_some_and(|w| Arch::from_name(w).is_ok());
        holds(arch && words.len() == 4, || format!("variant {} is not op.formats.arch.trick", self.variant))?;
        let asked = self.options.variant.as_ref().is_none_or(|v| *v == self.variant);
        holds(asked, || format!("variant {} is not the one asked for", self.variant))
    }

    fn verify_arithmetic(&self) -> Result<()> {
        let arithmetic = &self.arithmetic;
        let asked = self.options.arithmetic.as_ref().is_none_or(|a| *a == arithmetic.name);
        holds(asked, || format!("arithmetic {} is not the one asked for", arithmetic.name))?;
        let known = by_name(&arithmetic.name)?;
        holds(known == *arithmetic, || {
            format!("arithmetic differs from the one called {}", arithmetic.name)
        })?;
        let g = self.op.geometry();
        let partition = |what: &str, product: &Product, extent: u32| {
            holds(product.steps.partition(extent), || {
                format!("arithmetic {}: steps of {what} do not take each of {extent} once", arithmetic.name)
            })
        };
        if matches!(self.op, Op::IndexScore(_) | Op::Step(_)) {
            partition("index", &arithmetic.index, g.index_dim)?;
        }
        if matches!(self.op, Op::SparseDecode(_) | Op::SparsePrefill(_) | Op::Step(_)) {
            let attention = &arithmetic.attention;
            partition("scores", &attention.scores, g.head_dim)?;
            let parts = attention.parts;
            holds(parts > 0 && g.block.is_multiple_of(parts), || {
                format!("{parts} parts of a block of {}", g.block)
            })?;
            partition("values", &attention.values, g.block / parts)?;
        }
        Ok(())
    }

    fn verify_derivation(&self) -> Result<()> {
        let lengths = self.lengths()?;
        let (traits, options, variant) = (&self.traits, &self.options, self.variant.as_str());
        let given = Given { lengths: &lengths, traits, options, variant };
        let wanted = derive(&self.op, &given)?;
        let own = Derived {
            batch_invariant: self.batch_invariant,
            slot_parts: self.slot_parts.clone(),
            decode_blocks: self.decode_blocks,
            index_kernel: self.index_kernel,
            select_kernel: self.select_kernel,
            append: self.append,
            block_parts: self.block_parts.clone(),
            prefill: self.prefill.clone(),
            windows: self.windows.clone(),
            context_parallel: self.context_parallel,
            workspace: self.workspace.clone(),
            workspace_bytes: self.workspace_bytes,
        };
        holds(own == wanted, || {
            format!("the planner makes another plan: {}", first_difference(&own, &wanted))
        })
    }
}

/// `Ok` if `condition` holds, else the plan's error.
pub(super) fn holds(condition: bool, what: impl FnOnce() -> String) -> Result<()> {
    if condition { Ok(()) } else { Err(Error::Plan(what())) }
}

fn first_difference(own: &Derived, wanted: &Derived) -> &'static str {
    let differing = [
        ("batch_invariant", own.batch_invariant == wanted.batch_invariant),
        ("slot_parts", own.slot_parts == wanted.slot_parts),
        ("decode_blocks", own.decode_blocks == wanted.decode_blocks),
        ("index_kernel", own.index_kernel == wanted.index_kernel),
        ("select_kernel", own.select_kernel == wanted.select_kernel),
        ("append", own.append == wanted.append),
        ("block_parts", own.block_parts == wanted.block_parts),
        ("prefill", own.prefill == wanted.prefill),
        ("windows", own.windows == wanted.windows),
        ("context_parallel", own.context_parallel == wanted.context_parallel),
        ("workspace", own.workspace == wanted.workspace),
    ];
    differing.iter().find(|(_, same)| !same).map_or("workspace_bytes", |(name, _)| name)
}
