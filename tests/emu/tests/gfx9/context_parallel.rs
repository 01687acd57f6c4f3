//! Indexer context parallelism over simulated GPUs: `candidate_keys`, `exchange` and `select_merge`, in launches that a
//! graph can capture, against the selection of a single device.

use msa_core::op::{Select as Op, SelectOrder};
use msa_emu::gfx9::{BufferId, EmuError, Kernel, Launch, Machine, Options};
use msa_ref::sim::select::select_row;
use msa_rocm::parameters::{Exchange, SelectMerge};

use crate::requests::{BLOCK, Requests};
use crate::rig::{ARCHITECTURES, Random, bytes_of, integers, kernel, launch, options};
use crate::select::{op, parameters, random_scores};

/// The three kernels.
#[derive(Clone)]
pub(crate) struct Kernels {
    pub(crate) keys: Kernel,
    pub(crate) exchange: Kernel,
    pub(crate) merge: Kernel,
}

impl Kernels {
    pub(crate) fn shipped(architecture: &str) -> Option<Self> {
        Some(Self {
            keys: kernel("candidate_keys", "f32", architecture, "radix")?,
            exchange: kernel("exchange", "b128", architecture, "push")?,
            merge: kernel("select_merge", "u64", architecture, "count")?,
        })
    }
}

/// Ranks, their requests and how long they run.
pub(crate) struct Case<'a> {
    pub(crate) lengths: &'a [(u32, u32)],
    pub(crate) heads: usize,
    pub(crate) world: u32,
    /// Selections one after the other, each with scores of its own.
    pub(crate) rounds: usize,
    pub(crate) op: Op,
    pub(crate) seed: u64,
    /// A rank that does not take part.
    pub(crate) absent: Option<u32>,
    /// A rank whose later waves come late.
    pub(crate) laggard: Option<usize>,
    /// Polls before a rank counts as missing.
    pub(crate) spins: u32,
    /// Wave-instructions after which a run counts as endless.
    pub(crate) most_steps: u64,
}

impl Default for Case<'_> {
    fn default() -> Self {
        Self {
            lengths: &[(1, 2000)],
            heads: 2,
            world: 2,
            rounds: 1,
            op: op(16, 0, 1),
            seed: 1,
            absent: None,
            laggard: None,
            spins: 20_000,
            most_steps: options(1).most_steps,
        }
    }
}

/// What a run leaves: lists by rank and round, status words by rank.
pub(crate) struct Outcome {
    pub(crate) lists: Vec<Vec<Vec<i32>>>,
    pub(crate) want: Vec<Vec<i32>>,
    pub(crate) status: Vec<u32>,
}

const EMPTY_STATUS: u32 = 0;
/// Where the exchange stands in a rank's stream.
const EXCHANGE_LAUNCH: usize = 1;

/// Memory of one rank.
struct Rank {
    keys: BufferId,
    buffer: BufferId,
    flags: BufferId,
    epoch: BufferId,
    status: BufferId,
    lists: Vec<BufferId>,
}

pub(crate) fn run(kernels: &Kernels, case: &Case<'_>) -> Result<Outcome, EmuError> {
    let mut random = Random::new(case.seed);
    let requests = Requests::new(case.lengths, &mut random);
    let (rows, k, world) = (requests.rows(), case.op.geometry.top_k as usize, case.world as usize);
    let blocks = case.lengths.iter().map(|(_, kv)| kv.div_ceil(BLOCK as u32)).max().unwrap_or(0) as usize;
    let scores: Vec<Vec<f32>> =
        (0..case.rounds).map(|_| random_scores(rows * case.heads * blocks, &mut random)).collect();
    let mut machine = Machine::new(
        world,
        Options {
            laggard: case.laggard.map(|rank| (rank, EXCHANGE_LAUNCH)),
            most_steps: case.most_steps,
            ..options(case.seed)
        },
    );
    let batch = requests.place(&mut machine).batch;
    let row_count = machine.constant(&(rows as i32).to_le_bytes());
    let row_count = machine.address(row_count);
    let list_keys = rows * case.heads * k;
    // A slot is a whole number of 16-byte units.
    let slot_bytes = (list_keys * 8).next_multiple_of(16);
    let ranks: Vec<Rank> = (0..world)
        .map(|_| Rank {
            keys: machine.buffer(&vec![0xee; slot_bytes]),
            buffer: machine.buffer(&vec![0; 2 * world * slot_bytes]),
            flags: machine.buffer(&vec![0; 4 * world]),
            epoch: machine.buffer(&[0; 4]),
            status: machine.buffer(&[0; 4]),
            lists: (0..case.rounds).map(|_| machine.buffer(&vec![0xcd; list_keys * 4])).collect(),
        })
        .collect();
    let addresses = |machine: &mut Machine, of: fn(&Rank) -> BufferId| {
        let all: Vec<u64> = ranks.iter().map(|rank| machine.address(of(rank))).collect();
        let id = machine.constant(&bytes_of(&all, u64::to_le_bytes));
        machine.address(id)
    };
    let (buffers, flags) = (addresses(&mut machine, |r| r.buffer), addresses(&mut machine, |r| r.flags));

    let mut streams: Vec<Vec<Launch>> = Vec::new();
    for (number, rank) in ranks.iter().enumerate() {
        let mut stream = Vec::new();
        if case.absent == Some(number as u32) {
            streams.push(stream);
            continue;
        }
        for (round, scores) in scores.iter().enumerate().take(case.rounds) {
            let own = own_scores(scores, blocks, number, world);
            let columns = own.len() / (rows * case.heads);
            let own = machine.constant(&bytes_of(&own, f32::to_le_bytes));
            let mut select = parameters(&case.op, batch, case.heads, columns);
            select.scores = machine.address(own);
            (select.keys, select.epoch) = (machine.address(rank.keys), machine.address(rank.epoch));
            (select.world, select.rank) = (case.world, number as u32);
            let exchange = Exchange {
                own: machine.address(rank.keys),
                buffers,
                flags,
                epoch: machine.address(rank.epoch),
                status: machine.address(rank.status),
                units: slot_bytes as u64 / 16,
                rank: number as u32,
                world: case.world,
                spins: case.spins,
            };
            let merge = SelectMerge {
                keys: machine.address(rank.buffer),
                lists: machine.address(rank.lists[round]),
                epoch: machine.address(rank.epoch),
                parity_stride: (world * slot_bytes / 8) as u64,
                rank_stride: slot_bytes as u64 / 8,
                key_row_stride: (case.heads * k) as u64,
                key_head_stride: k as u64,
                list_row_stride: (case.heads * k) as u64,
                list_head_stride: k as u64,
                rows: row_count,
                world: case.world,
                top_k: k as u32,
                score_then_own: case.op.order == SelectOrder::ScoreThenOwn,
                heads_per_list: 1,
            };
            let grid = [rows as u32, case.heads as u32, 1];
            stream.push(launch(&kernels.keys, grid, 256, &select));
            stream.push(launch(&kernels.exchange, [case.world, 1, 1], 256, &exchange));
            stream.push(launch(&kernels.merge, grid, 256, &merge));
        }
        streams.push(stream);
    }
    machine.run_streams(&streams)?;
    let lists = |rank: &Rank| rank.lists.iter().map(|&id| integers(machine.bytes(id))).collect();
    Ok(Outcome {
        lists: ranks.iter().map(lists).collect(),
        want: scores.iter().map(|scores| single_device(&requests, scores, blocks, case)).collect(),
        status: ranks.iter().map(|rank| integers(machine.bytes(rank.status))[0] as u32).collect(),
    })
}

/// Columns `rank`, `rank + world`, ... of every row; at least one column, which is not read where a rank has no block.
fn own_scores(scores: &[f32], blocks: usize, rank: usize, world: usize) -> Vec<f32> {
    let columns = (blocks.saturating_sub(rank)).div_ceil(world).max(1);
    let column = |row: &[f32], i: usize| row.get(i * world + rank).copied().unwrap_or(f32::NAN);
    scores.chunks(blocks).flat_map(|row| (0..columns).map(move |i| column(row, i))).collect()
}

fn single_device(requests: &Requests, scores: &[f32], blocks: usize, case: &Case<'_>) -> Vec<i32> {
    let k = case.op.geometry.top_k as usize;
    let mut lists = vec![-1; requests.rows() * case.heads * k];
    for (row, (request, i)) in requests.all_rows().into_iter().enumerate() {
        let Some(own) = requests.visible(request, i).div_ceil(BLOCK).checked_sub(1) else { continue };
        for head in 0..case.heads {
            let at = row * case.heads + head;
            let scores = &scores[at * blocks..][..blocks];
            select_row(scores, own as u32, &case.op, &mut lists[at * k..][..k]).unwrap();
        }
    }
    lists
}

fn check(case: &Case<'_>) {
    ARCHITECTURES.iter().for_each(|(architecture, _)| check_on(architecture, case));
}

fn check_on(architecture: &str, case: &Case<'_>) {
    let Some(kernels) = Kernels::shipped(architecture) else { return };
    let outcome = run(&kernels, case).unwrap_or_else(|error| panic!("{error}"));
    for (rank, lists) in outcome.lists.iter().enumerate() {
        assert_eq!(outcome.status[rank], EMPTY_STATUS, "{architecture} rank {rank}");
        for (round, (got, want)) in lists.iter().zip(&outcome.want).enumerate() {
            assert_eq!(got, want, "{architecture} rank {rank} of {} round {round}", case.world);
        }
    }
}

#[test]
fn every_world_selects_what_one_device_selects() {
    for world in 1..=8 {
        let lengths = [(2, 1700), (1, 300), (3, 2), (1, 129)];
        check(&Case { lengths: &lengths, world, seed: u64::from(world), ..Case::default() });
    }
}

#[test]
fn fast_ranks_do_not_overwrite_what_slow_ones_still_read() {
    for seed in 0..12 {
        check(&Case { world: 3, rounds: 5, heads: 1, seed, ..Case::default() });
    }
    // So many keys that every wave of the exchange has some to store.
    for laggard in 0..2 {
        let case = Case { lengths: &[(8, 300)], world: 2, heads: 4, ..Case::default() };
        check(&Case { laggard: Some(laggard), spins: 1 << 18, ..case });
    }
}

#[test]
fn forced_blocks_small_lists_and_order_by_score() {
    for (k, init, local) in [(4, 2, 2), (1, 0, 1), (3, 1, 1)] {
        check(&Case { world: 5, op: op(k, init, local), seed: 40, ..Case::default() });
    }
    let by_score = Op { order: SelectOrder::ScoreThenOwn, ..op(16, 0, 1) };
    check(&Case { world: 4, op: by_score, seed: 41, ..Case::default() });
    let forced = Op { order: SelectOrder::ScoreThenOwn, ..op(16, 2, 3) };
    check(&Case { world: 3, op: forced, seed: 42, ..Case::default() });
}

#[test]
pub(crate) fn a_rank_that_does_not_arrive_is_named_and_nobody_hangs() {
    for (architecture, _) in ARCHITECTURES {
        let Some(kernels) = Kernels::shipped(architecture) else { continue };
        let case = Case { world: 3, absent: Some(2), heads: 1, ..Case::default() };
        let outcome = run(&kernels, &case).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(outcome.status, [1 << 7 | 1 << 18, 1 << 7 | 1 << 18, 0], "{architecture}");
    }
}

#[test]
fn m03_45_requests_of_30k_to_210k_tokens() {
    let lengths: Vec<(u32, u32)> = (0..45).map(|i| (1 + i % 2 * 3, 30_000 + i * 180_000 / 44)).collect();
    for (architecture, worlds) in [("gfx950", [2, 8]), ("gfx942", [1, 4])] {
        for world in worlds {
            let seed = 60 + u64::from(world);
            let long = Case { spins: 1 << 22, most_steps: 1 << 28, ..Case::default() };
            let case = Case { lengths: &lengths, heads: 4, world, seed, ..long };
            check_on(architecture, &case);
        }
    }
}

/// Everything with all ranks present, for faulty kernels.
pub(crate) fn all() {
    every_world_selects_what_one_device_selects();
    fast_ranks_do_not_overwrite_what_slow_ones_still_read();
    forced_blocks_small_lists_and_order_by_score();
}
