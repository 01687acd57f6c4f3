//! What of the rows of an append a checked plan refuses.

use msa_core::abi::host::HostMemory;
use msa_core::args::{Args, Role};
use msa_core::backend::Status;
use msa_core::cache::CacheFormat;
use msa_core::error::Result;
use msa_core::op::Append;

use super::row::tensor;
use super::slots::{SameSlot, place_rows};

/// Slots, positions, and the sources of NVFP4 caches of the first `rows` rows.
pub(crate) fn findings(op: &Append, memory: &HostMemory<'_>, args: &Args, rows: u64) -> Result<Status> {
    let (places, mut status) = place_rows(op, memory, args, rows, SameSlot::Each)?;
    for (row, place) in (0..).zip(&places) {
        let Some(place) = place else { continue };
        let kv = place.kv.is_some() && op.kv == CacheFormat::Nvfp4;
        let index = place.index.is_some() && op.index == CacheFormat::Nvfp4;
        let sources = [(Role::KeySource, kv), (Role::ValueSource, kv), (Role::IndexKeySource, index)];
        for (role, _) in sources.into_iter().filter(|(_, quantised)| *quantised) {
            status = status.with(not_finite(memory, args, role, row)?);
        }
    }
    Ok(status)
}

fn not_finite(memory: &HostMemory<'_>, args: &Args, role: Role, row: u64) -> Result<Status> {
    let source = tensor(args, role)?;
    let mut status = 0;
    for head in 0..source.extent(1) {
        for value in memory.row(source, &[row, head])?.as_chunks().0 {
            let magnitude = u16::from_le_bytes(*value) & 0x7fff;
            status |= match magnitude {
                BF16_INFINITY => Status::INFINITE,
                0..BF16_INFINITY => 0,
                _ => Status::NAN,
            };
        }
    }
    Ok(Status(status))
}

const BF16_INFINITY: u16 = 0x7f80;
