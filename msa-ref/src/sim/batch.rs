//! The device-resident description of a batch: lengths, offsets, positions and page tables, read once and bounded.

use msa_core::abi::host::HostMemory;
use msa_core::args::{Args, Extents, Role};
use msa_core::backend::Status;
use msa_core::error::Result;
use msa_core::plan::Plan;

/// One query row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Its request.
    pub request: u32,
    /// Absolute position, `kv_len - q_len + i` unless the engine passed positions; negative if the row stands before
    /// the first cached token.
    pub position: i64,
    /// Tokens that it sees: those with `j <= position` and `j < kv_len`.
    pub visible: u32,
}

/// A batch. Requests whose lengths are out of range are empty and their rows are absent.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    rows: Vec<Option<Row>>,
    begin: i64,
    end: u64,
    ranges: Vec<std::ops::Range<u64>>,
    kv_lengths: Vec<u32>,
    tables: Vec<i32>,
    table_width: usize,
}

impl Batch {
    /// Reads lengths, offsets, positions and tables. Values out of range set status bits and empty their request:
    /// nothing is followed that is not in range.
    pub fn read(
        memory: &HostMemory<'_>,
        args: &Args,
        plan: &Plan,
        extents: Extents,
    ) -> Result<(Self, Status)> {
        let list = |role| args.tensor(role).map(|t| memory.i32s(t)).transpose();
        let offsets = list(Role::QueryOffsets)?.unwrap_or_default();
        let lengths = list(Role::KvLengths)?.unwrap_or_default();
        let positions = list(Role::Positions)?;
        let tables = list(Role::BlockTable)?.unwrap_or_default();
        let table_width = args.tensor(Role::BlockTable).map_or(0, |t| t.extent(1) as usize);
        let mut batch = Self {
            rows: vec![None; extents.rows as usize],
            begin: offsets.first().map_or(0, |&begin| i64::from(begin)),
            ranges: Vec::new(),
            end: offsets.last().map_or(0, |&end| u64::try_from(end).unwrap_or(0)),
            kv_lengths: Vec::new(),
            tables,
            table_width,
        };
        let mut status = Status::default();
        for (request, &length) in lengths.iter().enumerate() {
            let bound = plan.requests.get(request).copied().unwrap_or_default();
            let rows = offsets.get(request).zip(offsets.get(request + 1)).map_or((0, 0), |(&a, &b)| (a, b));
            let in_order = 0 <= rows.0 && rows.0 <= rows.1 && rows.1 as u64 <= extents.rows;
            let bounded = (0..=i64::from(bound.kv_len)).contains(&i64::from(length))
                && i64::from(rows.1) - i64::from(rows.0) <= i64::from(bound.query_len);
            if !(in_order && bounded) {
                status.0 |= Status::LENGTH;
                batch.kv_lengths.push(0);
                batch.ranges.push(0..0);
                continue;
            }
            batch.kv_lengths.push(length as u32);
            batch.ranges.push(rows.0 as u64..rows.1 as u64);
            batch.add_rows(request as u32, rows.0 as usize..rows.1 as usize, positions.as_deref());
        }
        Ok((batch, status))
    }

    fn add_rows(&mut self, request: u32, range: std::ops::Range<usize>, positions: Option<&[i32]>) {
        let kv_len = self.kv_length(request);
        let count = range.len() as i64;
        for (i, row) in range.enumerate() {
            let last = i64::from(kv_len) - count + i as i64;
            let position = positions.and_then(|p| p.get(row)).map_or(last, |&p| i64::from(p));
            let visible = (position + 1).clamp(0, i64::from(kv_len)) as u32;
            self.rows[row] = Some(Row { request, position, visible });
        }
    }

    /// Rows of the batch; `None` for padded rows, which are not touched.
    pub fn rows(&self) -> &[Option<Row>] {
        &self.rows
    }

    /// The last offset, 0 if it is negative: rows from here on are padding, whatever the offsets before it are.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The first offset.
    pub fn begin(&self) -> i64 {
        self.begin
    }

    /// The rows that the offsets give a request, none if it is out of range.
    pub fn request_rows(&self, request: u32) -> std::ops::Range<u64> {
        self.ranges.get(request as usize).cloned().unwrap_or(0..0)
    }

    /// Tokens in the cache of a request.
    pub fn kv_length(&self, request: u32) -> u32 {
        self.kv_lengths.get(request as usize).copied().unwrap_or(0)
    }

    /// Tokens in the cache of every request.
    pub fn kv_lengths(&self) -> &[u32] {
        &self.kv_lengths
    }

    /// The rows that are there, without gaps, as planners of schedules want them.
    pub fn compact(&self) -> CompactRows {
        let mut compact = CompactRows { offsets: vec![0], ..CompactRows::default() };
        for request in 0..self.requests() {
            let own = self
                .rows
                .iter()
                .enumerate()
                .filter_map(|(i, r)| r.filter(|r| r.request == request).map(|r| (i, r)));
            for (index, row) in own {
                compact.rows.push(index as u32);
                compact.positions.push(row.position as i32);
            }
            compact.offsets.push(compact.rows.len() as u32);
        }
        compact
    }

    /// Requests.
    pub fn requests(&self) -> u32 {
        self.kv_lengths.len() as u32
    }

    /// Physical page of logical page `page`; `None` beyond the table.
    pub fn page(&self, request: u32, page: u64) -> Option<i32> {
        let page = usize::try_from(page).ok().filter(|&p| p < self.table_width)?;
        self.tables.get(request as usize * self.table_width + page).copied()
    }
}

/// Rows of a batch without gaps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CompactRows {
    /// `[B+1]`, first row of each request.
    pub offsets: Vec<u32>,
    /// Absolute position of each row.
    pub positions: Vec<i32>,
    /// Row of the batch.
    pub rows: Vec<u32>,
}

impl Row {
    /// The row's own block, `None` if it sees nothing.
    pub fn own_block(&self, block: u32) -> Option<u32> {
        (self.visible > 0).then(|| (self.visible - 1) / block)
    }
}
