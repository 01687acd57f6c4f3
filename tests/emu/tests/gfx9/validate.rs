//! `validate`: every kind of value that a checked plan refuses, and its neighbours that are right.

use msa_core::backend::Status;
use msa_emu::gfx9::{BufferId, Kernel, Machine};
use msa_rocm::parameters::{Batch, Source, Validate};

use crate::requests::{BLOCK, Requests};
use crate::rig::{ARCHITECTURES, Random, bytes_of, integers, kernel, options, run};

/// A length that ends a block, a request without rows, rows of several.
const LENGTHS: [(u32, u32); 4] = [(1, 256), (3, 129), (0, 0), (2, 1)];
const ROWS: usize = 6;
/// Rows of the tensors: two are padding.
const ALL_ROWS: usize = 8;
const LISTS: usize = 2;
const SLOTS: usize = 8;
const KV_HEADS: usize = 2;
const CHANNELS: usize = 128;
const POSITIONS: u32 = 400;
const GROUPS: u32 = 3;
/// The index cache has fewer pages.
const FEWER: u32 = 2;
/// Tokens of this page of the KV cache are dropped.
const NULL_PAGE: u32 = 1;

/// What of the run is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Looks {
    Requests,
    Tables,
    Lists,
    Append,
    /// Without requests.
    AppendAlone,
}

struct Placed {
    machine: Machine,
    parameters: Validate,
    offsets: BufferId,
    status: BufferId,
    given: Vec<i32>,
}

impl Placed {
    fn new(looks: Looks) -> Self {
        let mut random = Random::new(5);
        let mut machine = Machine::new(1, options(5));
        let requests = Requests::new(&LENGTHS, &mut random);
        let device = requests.place(&mut machine);
        let mut place = |bytes: &[u8]| {
            let id = machine.constant(bytes);
            machine.address(id)
        };
        // Block 0 first, then what else there is, then nothing.
        let blocks = |row: usize| if row == 0 || (1..4).contains(&row) { 2 } else { 1 };
        let id = |slot: usize, row: usize| if slot < blocks(row) { slot as i32 } else { -1 };
        let lists: Vec<i32> =
            (0..ROWS).flat_map(|row| (0..LISTS * SLOTS).map(move |at| id(at % SLOTS, row))).collect();
        let slots: Vec<i64> = (0..ALL_ROWS as i64).map(|row| 2 * BLOCK as i64 + row).collect();
        let positions: Vec<i32> = (0..ALL_ROWS as i32).map(|row| 3 * row).collect();
        let values = |heads: usize| vec![0x3f80_u16; ALL_ROWS * heads * CHANNELS];
        let mut source = |heads: usize| Source {
            values: place(&bytes_of(&values(heads), u16::to_le_bytes)),
            row_stride: (heads * CHANNELS * 2) as u64,
            head_stride: (CHANNELS * 2) as u64,
        };
        let sources = [source(KV_HEADS), source(KV_HEADS), source(1)];
        let appends = matches!(looks, Looks::Append | Looks::AppendAlone);
        let lists = place(&bytes_of(&lists, i32::to_le_bytes));
        let slots = place(&bytes_of(&slots, i64::to_le_bytes));
        let positions = place(&bytes_of(&positions, i32::to_le_bytes));
        let offsets = machine.buffer(&[0x77; (LENGTHS.len() + 1) * 4]);
        let batch = Batch { rows: ALL_ROWS as u32, ..device.batch };
        let alone = Batch { status: batch.status, ..Batch::default() };
        let parameters = Validate {
            batch: if looks == Looks::AppendAlone { alone } else { batch },
            offsets: machine.address(offsets),
            lists: if looks == Looks::Lists { lists } else { 0 },
            slots: if appends { slots } else { 0 },
            positions: if appends { positions } else { 0 },
            sources: if appends { sources } else { Default::default() },
            list_row_stride: (LISTS * SLOTS) as u64,
            list_head_stride: SLOTS as u64,
            cache_pages: [requests.pages, requests.pages - FEWER],
            null_pages: [Some(NULL_PAGE), None],
            groups: GROUPS,
            rows: ALL_ROWS as u32,
            most_pages: if looks == Looks::Tables { requests.table_stride as u32 } else { 0 },
            world: 1,
            rank: 0,
            most_rows: 3,
            list_count: LISTS as u32,
            top_k: SLOTS as u32,
            table_rows: POSITIONS,
            kv_heads: KV_HEADS as u32,
        };
        let given = (0..=LENGTHS.len()).map(|request| requests.first_row(request) as i32).collect();
        Self { machine, parameters, offsets, status: device.status, given }
    }

    fn word(&mut self, base: u64, index: usize, value: i32) {
        self.machine.write(base + 4 * index as u64, &value.to_le_bytes()).unwrap();
    }

    fn entry(&mut self, request: usize, page: usize, id: i32) {
        let Batch { block_table, table_stride, .. } = self.parameters.batch;
        self.word(block_table, request * table_stride as usize + page, id);
    }

    fn list(&mut self, row: usize, list: usize, slot: usize, id: i32) {
        self.word(self.parameters.lists, (row * LISTS + list) * SLOTS + slot, id);
    }

    fn slot(&mut self, row: usize, slot: i64) {
        self.machine.write(self.parameters.slots + 8 * row as u64, &slot.to_le_bytes()).unwrap();
    }

    fn value(&mut self, tensor: usize, row: usize, head: usize, channel: usize, bits: u16) {
        let Source { values, row_stride, head_stride } = self.parameters.sources[tensor];
        let at = values + row as u64 * row_stride + head as u64 * head_stride + 2 * channel as u64;
        self.machine.write(at, &bits.to_le_bytes()).unwrap();
    }

    /// One past the last slot of the KV cache.
    fn end(&self) -> i64 {
        i64::from(self.parameters.cache_pages[0]) * BLOCK as i64
    }

    /// Runs both kernels: the bits that are raised, and the offsets of the run.
    fn run(&mut self, [check, gate]: &[Kernel; 2]) -> (u32, Vec<i32>) {
        run(&mut self.machine, check, [GROUPS, 1, 1], 256, &self.parameters);
        run(&mut self.machine, gate, [1, 1, 1], 256, &self.parameters);
        let status = integers(self.machine.bytes(self.status))[0] as u32;
        (status, integers(self.machine.bytes(self.offsets)))
    }
}

/// What is done to the inputs, what is looked at, and the bits that it calls for.
type Scenario = (&'static str, Looks, fn(&mut Placed), u32);

const OF_REQUESTS: &[Scenario] = &[
    ("nothing is wrong", Looks::Requests, |_| {}, 0),
    ("a first offset", Looks::Requests, |p| p.word(p.parameters.batch.query_offsets, 0, 1), Status::LENGTH),
    (
        "a falling offset",
        Looks::Requests,
        |p| p.word(p.parameters.batch.query_offsets, 2, -1),
        Status::LENGTH,
    ),
    ("too long", Looks::Requests, |p| p.word(p.parameters.batch.kv_lengths, 1, 130), Status::LENGTH),
    ("too long, the last", Looks::Requests, |p| p.word(p.parameters.batch.kv_lengths, 3, 2), Status::LENGTH),
    ("tables are right", Looks::Tables, |_| {}, 0),
    (
        "too long, with tables",
        Looks::Tables,
        |p| p.word(p.parameters.batch.kv_lengths, 1, 130),
        Status::LENGTH,
    ),
    ("a negative length", Looks::Tables, |p| p.word(p.parameters.batch.kv_lengths, 0, -1), Status::LENGTH),
    (
        "a page beyond the cache",
        Looks::Tables,
        |p| p.entry(1, 1, p.parameters.batch.pages as i32),
        Status::PAGE,
    ),
    ("a negative page", Looks::Tables, |p| p.entry(0, 1, -1), Status::PAGE),
    ("an entry behind the length", Looks::Tables, |p| p.entry(0, 2, -5), 0),
    ("a request without rows", Looks::Tables, without_rows, 0),
    ("a page of another rank", Looks::Tables, |p| of_rank(p, 1, 0), 0),
    ("a page of this rank", Looks::Tables, |p| of_rank(p, 1, 1), Status::PAGE),
];

const OF_LISTS: &[Scenario] = &[
    ("lists are right", Looks::Lists, |_| {}, 0),
    ("too long, with lists", Looks::Lists, |p| p.word(p.parameters.batch.kv_lengths, 1, 130), Status::LENGTH),
    ("a block twice", Looks::Lists, |p| p.list(5, 1, 7, 0), Status::DUPLICATE),
    ("a block that does not begin", Looks::Lists, |p| p.list(0, 0, 3, 2), Status::BLOCK),
    ("a block far beyond", Looks::Lists, |p| p.list(3, 1, 7, i32::MAX), Status::BLOCK),
    ("a negative block", Looks::Lists, |p| p.list(2, 1, 7, -2), Status::BLOCK),
    ("a page of a listed block", Looks::Lists, |p| p.entry(1, 1, -1), Status::PAGE),
    ("a page of no listed block", Looks::Lists, |p| p.entry(0, 2, -1), 0),
];

const OF_APPENDS: &[Scenario] = &[
    ("rows are right", Looks::Append, |_| {}, 0),
    ("a slot beyond both caches", Looks::Append, |p| p.slot(5, p.end()), Status::SLOT),
    ("a slot beyond the index cache", Looks::Append, |p| p.slot(2, p.end() - 1), Status::SLOT),
    ("a negative slot", Looks::Append, |p| p.slot(0, -2), Status::SLOT),
    ("no slot", Looks::Append, |p| p.slot(0, -1), 0),
    ("a slot of padding", Looks::Append, |p| p.slot(6, -2), 0),
    (
        "a position behind",
        Looks::Append,
        |p| p.word(p.parameters.positions, 5, POSITIONS as i32),
        Status::POSITION,
    ),
    ("a negative position", Looks::Append, |p| p.word(p.parameters.positions, 1, -1), Status::POSITION),
    ("a NaN of K", Looks::Append, |p| p.value(0, 5, 1, 127, 0x7f81), Status::NAN),
    ("a NaN of V", Looks::Append, |p| p.value(1, 0, 0, 0, 0xffff), Status::NAN),
    ("an infinity of the index", Looks::Append, |p| p.value(2, 5, 0, 64, 0xff80), Status::INFINITE),
    ("the largest number", Looks::Append, |p| p.value(0, 5, 1, 64, 0x7f7f), 0),
    ("a NaN that is not stored", Looks::Append, not_stored, 0),
    ("a NaN for the null page", Looks::Append, for_null_page, 0),
    ("a NaN without a position", Looks::Append, without_position, Status::POSITION),
    ("a NaN of padding", Looks::Append, |p| p.value(0, 6, 0, 0, 0x7fff), 0),
    ("an append alone", Looks::AppendAlone, |_| {}, 0),
    ("the last row of an append", Looks::AppendAlone, |p| p.value(1, 7, 1, 127, 0x7fff), Status::NAN),
];

fn without_rows(p: &mut Placed) {
    let offsets = p.parameters.batch.query_offsets;
    // The rows of request 1 become those of request 2, which has no tokens and no pages.
    p.word(offsets, 2, 1);
    p.word(offsets, 3, 1);
    p.word(offsets, 4, 3);
    p.given = vec![0, 1, 1, 1, 3];
    p.entry(1, 1, -1);
}

fn of_rank(p: &mut Placed, rank: u32, page: usize) {
    (p.parameters.world, p.parameters.rank) = (2, rank);
    p.entry(0, page, -1);
}

fn not_stored(p: &mut Placed) {
    p.slot(3, -1);
    (0..3).for_each(|tensor| p.value(tensor, 3, 0, 9, 0x7fff));
}

fn for_null_page(p: &mut Placed) {
    p.slot(3, i64::from(NULL_PAGE) * BLOCK as i64 + 4);
    p.value(0, 3, 1, 9, 0x7fff);
}

fn without_position(p: &mut Placed) {
    p.word(p.parameters.positions, 4, -1);
    p.value(0, 4, 0, 9, 0x7fff);
}

fn check(scenarios: &[Scenario]) {
    for (architecture, _) in ARCHITECTURES {
        let kernels = ["check", "gate"].map(|trick| kernel("validate", "i32", architecture, trick));
        let [Some(check), Some(gate)] = kernels else { continue };
        let kernels = [check, gate];
        for (name, looks, spoil, bits) in scenarios {
            let mut placed = Placed::new(*looks);
            spoil(&mut placed);
            let (status, offsets) = placed.run(&kernels);
            let want = if *bits == 0 { 0 } else { bits | Status::REFUSED };
            assert_eq!(status, want, "{architecture}: {name}: {}", Status(status));
            let alone = *looks == Looks::AppendAlone;
            let given = if alone { vec![ALL_ROWS as i32] } else { placed.given.clone() };
            let want = if *bits == 0 { given } else { vec![0; given.len()] };
            assert_eq!(offsets[..want.len()], want, "{architecture}: {name}");
        }
    }
}

#[test]
fn lengths_and_pages_that_are_wrong_are_refused() {
    check(OF_REQUESTS);
}

#[test]
fn lists_that_are_wrong_are_refused() {
    check(OF_LISTS);
}

#[test]
fn rows_that_cannot_be_appended_are_refused() {
    check(OF_APPENDS);
}

/// Everything above, for faulty kernels.
pub(crate) fn all() {
    check(OF_REQUESTS);
    check(OF_LISTS);
    check(OF_APPENDS);
}
