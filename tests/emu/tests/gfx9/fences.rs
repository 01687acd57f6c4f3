//! M05 of `tests/field.toml`: a flag is not seen before the data. Numbers are those of the report.

use msa_core::candidate::CandidateKey;
use msa_emu::gfx9::census::Census;
use msa_emu::gfx9::disassemble::Disassembler;
use msa_emu::gfx9::{BufferId, EmuError, Machine, Options, rules};
use msa_rocm::parameters::{Exchange, SelectMerge};

use crate::context_parallel::Kernels;
use crate::rig::{ARCHITECTURES, Random, artifacts, bytes_of, code_object, integers, launch, options};

/// Rounds of the report, over both architectures.
const ROUNDS: usize = 10_000;

/// Rounds of one machine: each has an order of waves of its own.
const ROUNDS_OF_A_SEED: usize = 25;

/// 16-byte units that a rank hands over: every wave of the exchange has one to store.
const UNITS: usize = 256;

/// Rows whose keys are looked at: one in the part of each wave.
const ROWS: usize = 4;

/// Keys of a row: one unit.
const SLOTS: usize = 2;

/// A block that no other of 512 rounds, no other rank, row or slot has.
fn block(round: usize, rank: usize, row: usize, slot: usize) -> u16 {
    ((((round % 512) * 8 + rank) * ROWS + row) * SLOTS + slot) as u16
}

/// What a rank pushes in a round: the keys of the rows, among noise. The rank whose turn it is has the best.
fn pushed(round: usize, rank: usize, world: usize, random: &mut Random) -> Vec<u8> {
    let mut words: Vec<u64> = (0..UNITS * 2).map(|_| random.word() << 1 | 1).collect();
    let score = if (round + rank).is_multiple_of(world) { 2.0 } else { 1.0 };
    for row in 0..ROWS {
        for slot in 0..SLOTS {
            let key = CandidateKey::new(score, block(round, rank, row, slot), false);
            words[row * UNITS / ROWS * 2 + slot] = key.to_bits();
        }
    }
    bytes_of(&words, u64::to_le_bytes)
}

/// What a run leaves: lists by rank, and how much was executed, polls of flags among it.
struct Outcome {
    lists: Vec<Vec<i32>>,
    instructions: u64,
}

struct Rank {
    buffer: BufferId,
    flags: BufferId,
    status: BufferId,
    lists: BufferId,
}

/// `rounds` rounds: an exchange, and a kernel that reads what arrived, whose lists are the checksum of the report.
fn run(kernels: &Kernels, world: usize, rounds: usize, options: Options) -> Result<Outcome, EmuError> {
    let mut random = Random::new(options.seed);
    let mut machine = Machine::new(world, options);
    let ranks: Vec<Rank> = (0..world)
        .map(|_| Rank {
            buffer: machine.buffer(&vec![0; 2 * world * UNITS * 16]),
            flags: machine.buffer(&vec![0; 4 * world]),
            status: machine.buffer(&[0; 4]),
            lists: machine.buffer(&vec![0xcd; rounds * ROWS * SLOTS * 4]),
        })
        .collect();
    let table = |machine: &mut Machine, of: fn(&Rank) -> BufferId| {
        let all: Vec<u64> = ranks.iter().map(|rank| machine.address(of(rank))).collect();
        let id = machine.constant(&bytes_of(&all, u64::to_le_bytes));
        machine.address(id)
    };
    let (buffers, flags) = (table(&mut machine, |r| r.buffer), table(&mut machine, |r| r.flags));
    let mut streams = vec![Vec::new(); world];
    for round in 0..rounds {
        let epoch = machine.constant(&(round as u32 + 1).to_le_bytes());
        let epoch = machine.address(epoch);
        for (number, rank) in ranks.iter().enumerate() {
            let own = machine.constant(&pushed(round, number, world, &mut random));
            let exchange = Exchange {
                own: machine.address(own),
                buffers,
                flags,
                epoch,
                status: machine.address(rank.status),
                units: UNITS as u64,
                rank: number as u32,
                world: world as u32,
                spins: 1 << 16,
            };
            let merge = SelectMerge {
                keys: machine.address(rank.buffer),
                lists: machine.address(rank.lists) + (round * ROWS * SLOTS * 4) as u64,
                epoch,
                parity_stride: (world * UNITS * 2) as u64,
                rank_stride: UNITS as u64 * 2,
                key_row_stride: (UNITS / ROWS * 2) as u64,
                list_row_stride: SLOTS as u64,
                world: world as u32,
                top_k: SLOTS as u32,
                heads_per_list: 1,
                ..SelectMerge::default()
            };
            streams[number].push(launch(&kernels.exchange, [world as u32, 1, 1], 256, &exchange));
            streams[number].push(launch(&kernels.merge, [ROWS as u32, 1, 1], 256, &merge));
        }
    }
    let instructions = machine.run_streams(&streams)?.instructions;
    for rank in &ranks {
        assert_eq!(machine.bytes(rank.status), [0; 4], "a rank did not arrive");
    }
    let lists = ranks.iter().map(|rank| integers(machine.bytes(rank.lists))).collect();
    Ok(Outcome { lists, instructions })
}

fn want(world: usize, rounds: usize) -> Vec<i32> {
    let of_round = |round: usize| {
        let best = (0..world).find(|rank| (round + rank).is_multiple_of(world)).unwrap();
        (0..ROWS * SLOTS).map(move |at| block(round, best, at / SLOTS, at % SLOTS).into())
    };
    (0..rounds).flat_map(of_round).collect()
}

/// `rounds` rounds of each architecture's shipped or faulty kernels.
fn check(rounds: usize) {
    let machines = rounds / ROUNDS_OF_A_SEED / ARCHITECTURES.len();
    for (architecture, _) in ARCHITECTURES {
        let Some(kernels) = Kernels::shipped(architecture) else { continue };
        for seed in 0..machines {
            let world = [2, 2, 3, 4][seed % 4];
            let most_steps = 1 << 26;
            let laggard = (seed % 5 == 0).then_some((seed % world, seed % ROUNDS_OF_A_SEED * 2));
            let options = Options { most_steps, laggard, ..options(seed as u64) };
            let outcome = run(&kernels, world, ROUNDS_OF_A_SEED, options);
            let outcome = outcome.unwrap_or_else(|error| panic!("{error}"));
            for (rank, lists) in outcome.lists.iter().enumerate() {
                assert!(
                    *lists == want(world, ROUNDS_OF_A_SEED),
                    "{architecture} seed {seed}: rank {rank} of {world}"
                );
            }
        }
    }
}

/// A tenth of it, for faulty kernels.
pub(crate) fn all() {
    check(ROUNDS / 10);
}

#[test]
fn m05_no_flag_is_seen_before_the_data_in_10000_rounds() {
    check(ROUNDS);
}

#[test]
fn a_seed_decides_the_order_of_gpus_and_waves() {
    for (architecture, _) in ARCHITECTURES {
        let Some(kernels) = Kernels::shipped(architecture) else { continue };
        let executed = |seed| run(&kernels, 3, 4, options(seed)).unwrap().instructions;
        let counts: Vec<u64> = (1..9).map(executed).collect();
        assert_eq!(counts, (1..9).map(executed).collect::<Vec<u64>>(), "{architecture}");
        let different: std::collections::BTreeSet<_> = counts.iter().collect();
        assert!(different.len() > 4, "{architecture}: polls in eight orders: {counts:?}");
    }
}

#[test]
fn m05_every_flag_is_released_and_acquired_and_only_the_exchange_has_flags() {
    for (architecture, _) in ARCHITECTURES {
        let disassembler = Disassembler::new(architecture).unwrap();
        let mut flags = 0;
        for path in std::fs::read_dir(artifacts()).into_iter().flatten().map(|entry| entry.unwrap().path()) {
            if !path.to_string_lossy().ends_with(&format!(".{architecture}.hsaco")) {
                continue;
            }
            for kernel in code_object(&path).unwrap().kernels().values() {
                let listing = disassembler.listing(&kernel.code).unwrap();
                let name = rules::variant_name(&kernel.name, architecture).unwrap();
                assert_eq!(rules::check(&name, &Census::of(kernel, &listing), &listing), Ok(()));
                flags += usize::from(rules::has_flags(&name));
            }
        }
        assert!(flags == 1 || Kernels::shipped(architecture).is_none(), "{architecture}: {flags} with flags");
    }
}
