//! Indexer context parallelism over ranks that are not mapped into each other: the keys of all ranks go through an
//! all-gather of the engine's collective library between the two halves of a run.
//!
//! The collective here is a stand-in that copies between the ranks of one process; with RCCL it is
//! `ncclAllGather(send, receive, bytes, ncclUint8, communicator, stream)` with the addresses that [`all_gather`] uses. Ranks
//! may share a GPU, so that one is enough to try it:
//!
//! ```sh
//! cargo xtask plugin rocm
//! cargo run --release -p msa-rocm --example gather
//! ```

#![allow(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use msa_core::args::{Args, Role};
use msa_core::backend::{Device, Span, Stream};
use msa_core::cache::{CacheFormat, IndexCache};
use msa_core::error::Result;
use msa_core::lengths::Lengths;
use msa_core::op::{IndexScore, Select};
use msa_core::tensor::{DType, Tensor};
use msa_rocm::hip::{self, Hip};
use msa_rocm::indexer::{IndexerOptions, IndexerPlan, IndexerRank, Transport};
use msa_rocm::{Images, backend_over};

/// Ranks, and tokens of the only request: more blocks than a list has slots.
const WORLD: u32 = 4;
const TOKENS: i32 = 3000;
const PAGES: u64 = 24;

/// One rank: its device, its half-runs, what they read and write.
struct Rank {
    device: Arc<dyn Device>,
    rank: IndexerRank,
    args: Args,
    workspace: Span,
    lists: Tensor,
}

fn main() -> ExitCode {
    let ran = Images::of_folder(Path::new("target/plugins/rocm"))
        .map_err(|error| error.to_string())
        .and_then(|images| {
            let hip = hip::runtime().map_err(|error| error.to_string())?;
            run(hip, &images, WORLD).map_err(|error| error.to_string())
        });
    match ran {
        Ok(lists) => {
            lists.iter().enumerate().for_each(|(rank, list)| println!("rank {rank}: {list:?}"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("gather: {error}");
            ExitCode::from(2)
        }
    }
}

/// The list of the first index head, as each of `world` ranks has it.
///
/// # Errors
/// The runtime's.
pub(crate) fn run(hip: &'static Hip, images: &Images, world: u32) -> Result<Vec<Vec<i32>>> {
    let backend = backend_over(hip, images.clone());
    let ranks: Vec<Rank> = (0..world)
        .map(|rank| {
            let ordinal = rank % hip.devices();
            Rank::new(hip, backend.open(ordinal)?, ordinal, images, (world, rank))
        })
        .collect::<Result<_>>()?;
    for rank in &ranks {
        // SAFETY: everything was allocated on the rank's device and stays until the end.
        unsafe { rank.rank.enqueue_keys(Stream(0), &rank.args, rank.workspace) }?;
    }
    all_gather(&ranks)?;
    for rank in &ranks {
        // SAFETY: as above, and the keys are there.
        unsafe { rank.rank.enqueue_merge(Stream(0), &rank.args, rank.workspace) }?;
    }
    ranks.iter().map(Rank::first_list).collect()
}

/// What the collective library does: every rank's keys to every rank.
fn all_gather(ranks: &[Rank]) -> Result<()> {
    for (number, from) in ranks.iter().enumerate() {
        let layout = from.rank.plan().collective();
        let mut keys = vec![0; layout.bytes as usize];
        from.device.memory().read(from.workspace.address + layout.send, &mut keys)?;
        for to in ranks {
            let layout = to.rank.plan().collective();
            let place = to.workspace.address + layout.receive + number as u64 * layout.bytes;
            to.device.memory().write(place, &keys)?;
        }
    }
    Ok(())
}

impl Rank {
    fn new(
        hip: &'static Hip,
        device: Arc<dyn Device>,
        ordinal: u32,
        images: &Images,
        (world, rank): (u32, u32),
    ) -> Result<Self> {
        let query = if device.info().traits.arch.fp8_is_fnuz() { DType::E4m3Fnuz } else { DType::E4m3 };
        let score = IndexScore { query, keys: CacheFormat::Nvfp4, ..IndexScore::default() };
        let select = Select::default();
        let lengths = Lengths::from_lists(&[1], &[TOKENS])?;
        let options = IndexerOptions { transport: Transport::Collective, ..IndexerOptions::new(world, rank) };
        let plan = IndexerPlan::new(&*device, &score, &select, &lengths, &options)?;
        let place = |bytes: &[u8]| -> Result<u64> {
            let address = device.memory().allocate(bytes.len() as u64)?;
            device.memory().write(address, bytes).map(|()| address)
        };
        let integers = |values: &[i32], shape: &[u64]| -> Result<Tensor> {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            Tensor::contiguous(place(&bytes)?, DType::I32, shape)
        };
        // Every rank has the same keys here; it looks at its own pages only.
        let size = IndexCache::planar(&score.geometry, score.keys, PAGES, 0)?.key.page_stride * PAGES;
        let bytes: Vec<u8> = (0..size).map(|at| (at * 37 % 101) as u8 & 0x77).collect();
        let cache = IndexCache::planar(&score.geometry, score.keys, PAGES, place(&bytes)?)?;
        let query_bytes: Vec<u8> = (0..4 * 128).map(|at| 0x30 + (at % 9) as u8).collect();
        let lists = integers(&[-2; 4 * 16], &[1, 4, 16])?;
        let pages: Vec<i32> = (0..PAGES as i32).rev().collect();
        let args = Args::new()
            .with_index_cache(cache)
            .with(Role::IndexQuery, Tensor::contiguous(place(&query_bytes)?, query, &[1, 4, 128])?)
            .with(Role::BlockTable, integers(&pages, &[1, PAGES])?)
            .with(Role::KvLengths, integers(&[TOKENS], &[1])?)
            .with(Role::QueryOffsets, integers(&[0, 1], &[2])?)
            .with(Role::BlockIndices, lists);
        let bytes = plan.workspace_bytes();
        let workspace = Span { address: device.memory().allocate(bytes)?, bytes };
        let rank = IndexerRank::new(hip, ordinal, images.clone(), &plan, &[])?;
        Ok(Self { device, rank, args, workspace, lists })
    }

    fn first_list(&self) -> Result<Vec<i32>> {
        let mut bytes = [0; 16 * 4];
        self.device.memory().read(self.lists.address, &mut bytes)?;
        Ok(bytes.as_chunks().0.iter().map(|id| i32::from_le_bytes(*id)).collect())
    }
}
