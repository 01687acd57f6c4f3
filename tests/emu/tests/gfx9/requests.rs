//! Batches: requests, their pages in shuffled order, their lengths on the device.

use msa_emu::gfx9::{BufferId, Machine};
use msa_rocm::parameters::Batch;

use crate::rig::{Random, bytes_of};

/// Tokens of a block and of a page.
pub(crate) const BLOCK: usize = 128;

/// A batch.
pub(crate) struct Requests {
    /// (query rows, tokens with the new ones).
    pub(crate) lengths: Vec<(u32, u32)>,
    /// `[requests][table_stride]`.
    pub(crate) table: Vec<i32>,
    pub(crate) table_stride: usize,
    /// Physical pages; more than are used.
    pub(crate) pages: u32,
    /// Positions of all rows, if given.
    pub(crate) positions: Option<Vec<i32>>,
    /// A page that stands for none.
    pub(crate) null_page: Option<u32>,
}

/// The batch on a device.
#[derive(Clone, Copy)]
pub(crate) struct OnDevice {
    pub(crate) batch: Batch,
    pub(crate) status: BufferId,
}

impl Requests {
    /// Pages in random order; entries past a request's length name a page that does not exist.
    pub(crate) fn new(lengths: &[(u32, u32)], random: &mut Random) -> Self {
        let blocks = |kv: u32| kv.div_ceil(BLOCK as u32);
        let used: u32 = lengths.iter().map(|(_, kv)| blocks(*kv)).sum();
        let pages = used + 3;
        let mut order: Vec<i32> = (0..pages as i32).collect();
        random.shuffle(&mut order);
        let table_stride = lengths.iter().map(|(_, kv)| blocks(*kv)).max().unwrap_or(0) as usize + 2;
        let mut table = vec![i32::MAX; lengths.len() * table_stride];
        for (row, (_, kv)) in table.chunks_mut(table_stride).zip(lengths) {
            row[..blocks(*kv) as usize].iter_mut().for_each(|page| *page = order.pop().unwrap());
        }
        Self { lengths: lengths.to_vec(), table, table_stride, pages, positions: None, null_page: None }
    }

    /// Gives every row a position of its own: before the first token, inside, or past the end.
    pub(crate) fn scatter_positions(&mut self, random: &mut Random) {
        let rows = self.all_rows();
        let position =
            |(request, _): &(usize, usize)| random.below(u64::from(self.lengths[*request].1) + 12) as i32 - 3;
        self.positions = Some(rows.iter().map(position).collect());
    }

    /// Gives a request the pages of another one for its first `blocks` blocks: a prefix that both have.
    pub(crate) fn share_prefix(&mut self, from: usize, to: usize, blocks: usize) {
        for block in 0..blocks {
            self.table[to * self.table_stride + block] = self.table[from * self.table_stride + block];
        }
    }

    /// Makes the table name a page that does not exist.
    pub(crate) fn break_page(&mut self, request: usize, block: usize) {
        self.table[request * self.table_stride + block] = self.pages as i32;
    }

    pub(crate) fn rows(&self) -> usize {
        self.lengths.iter().map(|(q, _)| *q as usize).sum()
    }

    /// First row of a request.
    pub(crate) fn first_row(&self, request: usize) -> usize {
        self.lengths[..request].iter().map(|(q, _)| *q as usize).sum()
    }

    /// Rows as (request, row within it).
    pub(crate) fn all_rows(&self) -> Vec<(usize, usize)> {
        let rows = self.lengths.iter().enumerate();
        rows.flat_map(|(request, (q, _))| (0..*q as usize).map(move |i| (request, i))).collect()
    }

    /// Tokens that row `i` of a request sees.
    pub(crate) fn visible(&self, request: usize, i: usize) -> usize {
        let (q, kv) = self.lengths[request];
        let position = match &self.positions {
            Some(positions) => i64::from(positions[self.first_row(request) + i]),
            None => i64::from(kv) - i64::from(q) + i as i64,
        };
        (position + 1).clamp(0, i64::from(kv)) as usize
    }

    /// Visible tokens of one block.
    pub(crate) fn visible_in(&self, request: usize, i: usize, block: usize) -> usize {
        self.visible(request, i).saturating_sub(block * BLOCK).min(BLOCK)
    }

    pub(crate) fn page(&self, request: usize, block: usize) -> usize {
        self.table[request * self.table_stride + block] as usize
    }

    pub(crate) fn place(&self, machine: &mut Machine) -> OnDevice {
        let kv: Vec<i32> = self.lengths.iter().map(|(_, kv)| *kv as i32).collect();
        let offsets: Vec<i32> = (0..=self.lengths.len()).map(|r| self.first_row(r) as i32).collect();
        let mut constant = |values: &[i32]| {
            let id = machine.constant(&bytes_of(values, i32::to_le_bytes));
            machine.address(id)
        };
        let (block_table, kv_lengths, query_offsets) =
            (constant(&self.table), constant(&kv), constant(&offsets));
        let positions = self.positions.as_ref().map_or(0, |positions| constant(positions));
        let bounds: Vec<i32> = self.lengths.iter().flat_map(|(q, kv)| [*q as i32, *kv as i32]).collect();
        let bounds = constant(&bounds);
        let status = machine.buffer(&[0; 4]);
        let batch = Batch {
            block_table,
            kv_lengths,
            query_offsets,
            positions,
            bounds,
            status: machine.address(status),
            requests: self.lengths.len() as u32,
            table_stride: self.table_stride as u32,
            table_pages: self.table_stride as u32,
            pages: self.pages,
            rows: self.rows() as u32,
            null_page: self.null_page,
        };
        OnDevice { batch, status }
    }
}

/// The parts of a request's range, as `[request, part, begin, end]`.
pub(crate) fn parts(ends: &[u32], splits: u32) -> Vec<u32> {
    let mut all = Vec::new();
    for (request, end) in ends.iter().enumerate() {
        for part in 0..splits {
            let border = |part: u32| end * part / splits;
            all.extend([request as u32, part, border(part), border(part + 1)]);
        }
    }
    all
}
