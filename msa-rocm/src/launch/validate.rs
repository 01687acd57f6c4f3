//! Validation: what a checked run does first.

use msa_core::args::Role;
use msa_core::cache::CacheFormat;
use msa_core::error::{Error, Result};
use msa_core::op::{self, Op};
use msa_core::plan::Plan;

use super::{KernelLaunch, Name, Run, Sink, name};
use crate::parameters::{Batch, Source, Validate};

/// Source of the kernels.
pub(crate) const SOURCE: &str = "validate";

/// The region of the plan in which the validation leaves the offsets of the run.
const OFFSETS: &str = "checked_offsets";

/// True for a plan with something to validate: merges have nothing.
pub(super) fn validates(plan: &Plan) -> bool {
    plan.options.checked && !matches!(plan.op, Op::Merge(_) | Op::SelectMerge(_))
}

/// Names of the two kernels.
pub(super) fn names(arch: &str) -> [Name; 2] {
    ["check", "gate"].map(|trick| name(format_args!("{SOURCE}.i32.{arch}.{trick}")))
}

impl Run<'_> {
    /// Where kernels find the offsets of the run: the caller's, or what the validation made of them.
    pub(super) fn query_offsets(&self) -> Result<u64> {
        if validates(self.plan) {
            return self.region(OFFSETS);
        }
        Ok(self.tensor(Role::QueryOffsets)?.address)
    }

    /// Where an append without offsets finds its number of rows; 0: the host says it.
    pub(super) fn live_rows(&self) -> Result<u64> {
        if validates(self.plan) { self.region(OFFSETS) } else { Ok(0) }
    }

    /// The two launches of a checked plan, none of another.
    pub(super) fn validate(&self, to: &mut Sink<'_>) -> Result<()> {
        if !validates(self.plan) {
            return Ok(());
        }
        let mut parameters = Validate {
            batch: self.given_batch()?,
            offsets: self.region(OFFSETS)?,
            groups: self.plan.traits.units.max(1),
            null_pages: [None; 2],
            world: self.plan.options.world.max(1),
            rank: self.plan.options.rank,
            ..Validate::default()
        };
        parameters.most_rows = self.tables.most_rows;
        match &self.plan.op {
            Op::IndexScore(_) => parameters.most_pages = self.most_pages(),
            Op::SparseDecode(_) => self.validate_lists(&mut parameters)?,
            Op::Append(op) => self.validate_append(&mut parameters, op)?,
            Op::Step(op) => {
                parameters.most_pages = self.most_pages();
                if op.appends {
                    self.validate_append(&mut parameters, &op.append)?;
                }
            }
            _ => {}
        }
        let [check, gate] = names(self.arch());
        to(KernelLaunch::new(SOURCE, check, [parameters.groups, 1, 1], &parameters))?;
        to(KernelLaunch::new(SOURCE, gate, [1, 1, 1], &parameters))
    }

    fn most_pages(&self) -> u32 {
        let tokens = self.plan.requests.iter().map(|request| request.kv_len).max().unwrap_or(0);
        self.plan.op.geometry().blocks(tokens.into()) as u32
    }

    /// The caller's batch; a page must be in every cache of the run. An append alone has no requests.
    fn given_batch(&self) -> Result<Batch> {
        if self.args.tensor(Role::QueryOffsets).is_none() {
            return Ok(Batch { status: self.workspace.address, ..Batch::default() });
        }
        let pages = [self.args.kv_cache.map(|c| c.pages), self.args.index_cache.map(|c| c.pages)];
        let pages = pages.into_iter().flatten().min().unwrap_or(0);
        let rows = [Role::IndexQuery, Role::Query, Role::Scores, Role::BlockIndices];
        let rows = rows.into_iter().find_map(|role| self.args.tensor(role)).map_or(0, |t| t.extent(0));
        let query_offsets = self.tensor(Role::QueryOffsets)?.address;
        Ok(Batch { query_offsets, ..self.batch(rows, pages, None)? })
    }

    fn validate_lists(&self, parameters: &mut Validate) -> Result<()> {
        let lists = self.tensor(Role::BlockIndices)?;
        parameters.lists = lists.address;
        parameters.list_row_stride = lists.stride(0) / 4;
        parameters.list_head_stride = lists.stride(1) / 4;
        (parameters.list_count, parameters.top_k) = (lists.extent(1) as u32, lists.extent(2) as u32);
        Ok(())
    }

    fn validate_append(&self, parameters: &mut Validate, op: &op::Append) -> Result<()> {
        let missing = |role| Error::Missing { op: "append", role };
        let kv = self.args.kv_cache.as_ref().ok_or_else(|| missing("kv_cache"))?;
        let index = self.args.index_cache.as_ref().ok_or_else(|| missing("index_cache"))?;
        parameters.slots = self.tensor(Role::Slots)?.address;
        parameters.rows = self.tensor(Role::KeySource)?.extent(0) as u32;
        parameters.kv_heads = self.tensor(Role::KeySource)?.extent(1) as u32;
        parameters.cache_pages = [kv.pages, index.pages].map(|pages| pages as u32);
        parameters.null_pages = [kv.null_page, index.null_page];
        if op.rope.rotary_dim > 0 {
            parameters.positions = self.tensor(Role::Positions)?.address;
            let (cosines, sines) = (self.tensor(Role::RopeCos)?, self.tensor(Role::RopeSin)?);
            parameters.table_rows = cosines.extent(0).min(sines.extent(0)) as u32;
        }
        let sources = [
            (Role::KeySource, op.kv == CacheFormat::Nvfp4),
            (Role::ValueSource, op.kv == CacheFormat::Nvfp4),
            (Role::IndexKeySource, op.index == CacheFormat::Nvfp4),
        ];
        for (to, (role, quantised)) in parameters.sources.iter_mut().zip(sources) {
            if quantised {
                let tensor = self.tensor(role)?;
                let (row_stride, head_stride) = (tensor.stride(0), tensor.stride(1));
                *to = Source { values: tensor.address, row_stride, head_stride };
            }
        }
        Ok(())
    }
}
