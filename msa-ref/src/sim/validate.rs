//! What a checked plan refuses, before any of the work: see [`msa_core::plan::PlanOptions::checked`] for the list.

use std::ops::Range;

use msa_core::abi::host::HostMemory;
use msa_core::args::{Args, Extents, Role};
use msa_core::backend::Status;
use msa_core::error::{Error, Result};
use msa_core::op::Op;
use msa_core::plan::Plan;

use super::append;
use super::batch::Batch;

/// The findings among everything that the run is given; none for the merges.
pub fn findings(plan: &Plan, memory: &HostMemory<'_>, args: &Args, extents: Extents) -> Result<Status> {
    match &plan.op {
        Op::Merge(_) | Op::SelectMerge(_) => Ok(Status::default()),
        Op::Append(op) => append::findings(op, memory, args, extents.rows),
        Op::Select(_) => Given::read(plan, memory, args, extents).map(|given| given.status),
        Op::IndexScore(_) => {
            let given = Given::read(plan, memory, args, extents)?;
            Ok(given.status.with(given.pages()))
        }
        Op::SparseDecode(_) | Op::SparsePrefill(_) => {
            let given = Given::read(plan, memory, args, extents)?;
            Ok(given.status.with(given.lists(memory, args)?))
        }
        Op::Step(op) => {
            let given = Given::read(plan, memory, args, extents)?;
            let found = given.status.with(given.pages());
            if !op.appends {
                return Ok(found);
            }
            let rows = given.batch.end().min(extents.rows);
            Ok(found.with(append::findings(&op.append, memory, args, rows)?))
        }
    }
}

/// The batch and what of it is in order.
struct Given<'a> {
    plan: &'a Plan,
    batch: Batch,
    /// Rows of every request, none of one that is out of order.
    rows: Vec<Range<u64>>,
    /// Ids of pages are below it in every cache of the run.
    page_count: u64,
    status: Status,
}

impl<'a> Given<'a> {
    fn read(plan: &'a Plan, memory: &HostMemory<'_>, args: &Args, extents: Extents) -> Result<Self> {
        let (batch, mut status) = Batch::read(memory, args, plan, extents)?;
        if batch.begin() != 0 {
            status.0 |= Status::LENGTH;
        }
        let counts = [args.kv_cache.map(|cache| cache.pages), args.index_cache.map(|cache| cache.pages)];
        let page_count = counts.into_iter().flatten().min().unwrap_or(0);
        let rows = (0..batch.requests()).map(|request| batch.request_rows(request)).collect();
        Ok(Self { plan, batch, rows, page_count, status })
    }

    fn page(&self, request: u32, page: u64) -> Status {
        let id = self.batch.page(request, page).and_then(|id| u64::try_from(id).ok());
        Status(if id.is_some_and(|id| id < self.page_count) { 0 } else { Status::PAGE })
    }

    /// Every page of the requests that have rows; of several ranks, this one's.
    fn pages(&self) -> Status {
        let tokens = u64::from(self.plan.op.geometry().page);
        let (world, rank) = (u64::from(self.plan.options.world.max(1)), u64::from(self.plan.options.rank));
        let mut status = Status::default();
        for (request, _) in (0..).zip(&self.rows).filter(|(_, rows)| !rows.is_empty()) {
            let pages = u64::from(self.batch.kv_length(request)).div_ceil(tokens);
            let own = (rank..pages).step_by(world as usize);
            status = own.map(|page| self.page(request, page)).fold(status, Status::with);
        }
        status
    }

    /// Ids of the lists of every row.
    fn lists(&self, memory: &HostMemory<'_>, args: &Args) -> Result<Status> {
        let role = Role::BlockIndices;
        let tensor = args.tensor(role).ok_or(Error::Missing { op: "the run", role: role.name() })?;
        let (lists, k) = (tensor.extent(1), tensor.extent(2) as usize);
        let ids = memory.i32s(tensor)?;
        let width = lists as usize * k;
        let mut status = Status::default();
        for (request, rows) in (0..).zip(&self.rows) {
            let ids = ids.get(rows.start as usize * width..rows.end as usize * width).unwrap_or_default();
            status = ids.chunks(k.max(1)).map(|list| self.list(request, list)).fold(status, Status::with);
        }
        Ok(status)
    }

    fn list(&self, request: u32, list: &[i32]) -> Status {
        let geometry = self.plan.op.geometry();
        let (block, page) = (u64::from(geometry.block), u64::from(geometry.page));
        let kv_len = u64::from(self.batch.kv_length(request));
        let mut status = Status::default();
        for (slot, &id) in list.iter().enumerate() {
            let Ok(named) = u64::try_from(id) else {
                status.0 |= if id < -1 { Status::BLOCK } else { 0 };
                continue;
            };
            if list[..slot].contains(&id) {
                status.0 |= Status::DUPLICATE;
            }
            let (first, end) = (named * block, kv_len.min((named + 1) * block));
            if first >= kv_len {
                status.0 |= Status::BLOCK;
                continue;
            }
            let pages = first / page..end.div_ceil(page);
            status = pages.map(|page| self.page(request, page)).fold(status, Status::with);
        }
        status
    }
}
