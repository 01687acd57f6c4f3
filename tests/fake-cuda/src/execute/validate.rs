//! `validate`: what a checked plan refuses, told from the kernel's parameter alone.

use msa_core::backend::Status;

use super::arguments::{ValidateArguments, ValidateSource};
use super::{Fault, Reach, parameter};
use crate::launch::Launch;

/// Blocks and pages of vendor kernels have so many tokens, heads so many channels.
const TOKENS: i64 = 128;
const CHANNELS: u64 = 128;

pub(super) fn run(launch: &Launch, reach: &mut Reach<'_>) -> Result<(), Fault> {
    let a: &ValidateArguments = parameter(launch)?;
    if launch.cluster != launch.grid[0] {
        return Err(Fault::new("validate is one cluster"));
    }
    let requests = Requests::read(a, reach)?;
    let mut bits = requests.bits;
    bits |= requests.pages(a, reach)?;
    if a.indices != 0 {
        bits |= requests.lists(a, reach)?;
    }
    if a.rows.slots != 0 {
        bits |= rows(a, reach)?;
    }
    let word = if bits == 0 { 0 } else { bits | Status::REFUSED };
    reach.bytes_mut("status", a.batch.status, 4)?.copy_from_slice(&word.to_le_bytes());
    let offsets = if a.batch.query_offsets == 0 { vec![a.rows.rows as i32] } else { requests.offsets };
    let given = if bits == 0 { offsets } else { vec![0; offsets.len()] };
    let bytes: Vec<u8> = given.iter().flat_map(|offset| offset.to_le_bytes()).collect();
    reach.bytes_mut("checked_offsets", a.offsets, bytes.len() as u64)?.copy_from_slice(&bytes);
    Ok(())
}

/// Requests that are in order: number, rows, tokens.
struct Requests {
    offsets: Vec<i32>,
    good: Vec<(u64, std::ops::Range<i64>, i64)>,
    bits: u32,
}

impl Requests {
    fn read(a: &ValidateArguments, reach: &Reach<'_>) -> Result<Self, Fault> {
        let mut all = Self { offsets: Vec::new(), good: Vec::new(), bits: 0 };
        let batch = &a.batch;
        if batch.query_offsets == 0 {
            return Ok(all);
        }
        let count = u64::from(batch.requests);
        let i32s = |what: &str, address, count| {
            Ok::<_, Fault>(
                reach.words(what, address, count)?.into_iter().map(|w| w as i32).collect::<Vec<_>>(),
            )
        };
        all.offsets = i32s("query_offsets", batch.query_offsets, count + 1)?;
        let tokens = i32s("kv_lengths", batch.kv_lengths, count)?;
        let bounds = reach.words("bounds", batch.bounds, 2 * count)?;
        let mut wrong = all.offsets[0] != 0;
        for (request, pair) in all.offsets.windows(2).enumerate() {
            let rows = i64::from(pair[0])..i64::from(pair[1]);
            let tokens = i64::from(tokens[request]);
            let good = rows.start >= 0
                && rows.start <= rows.end
                && rows.end <= i64::from(batch.rows)
                && rows.end - rows.start <= i64::from(bounds[2 * request])
                && (0..=i64::from(bounds[2 * request + 1])).contains(&tokens);
            wrong |= !good;
            if good {
                all.good.push((request as u64, rows, tokens));
            }
        }
        all.bits = if wrong { Status::LENGTH } else { 0 };
        Ok(all)
    }

    fn pages(&self, a: &ValidateArguments, reach: &Reach<'_>) -> Result<u32, Fault> {
        let mut bits = 0;
        for (request, rows, tokens) in self.good.iter().filter(|_| a.most_pages > 0) {
            let pages = if rows.is_empty() { 0 } else { (tokens + TOKENS - 1) / TOKENS };
            if pages > a.most_pages.into() {
                return Err(Fault::new("more pages than the host counted"));
            }
            for page in 0..pages {
                bits |= page_bits(a, reach, *request, page)?;
            }
        }
        Ok(bits)
    }

    fn lists(&self, a: &ValidateArguments, reach: &Reach<'_>) -> Result<u32, Fault> {
        let mut bits = 0;
        for (request, rows, tokens) in &self.good {
            for (row, list) in
                rows.clone().flat_map(|row| (0..u64::from(a.lists)).map(move |list| (row, list)))
            {
                let address = a.indices + row as u64 * a.indices_row + list * a.indices_list;
                let ids = reach.words("block_indices", address, a.k.into())?;
                for (slot, id) in ids.iter().map(|&id| i64::from(id as i32)).enumerate() {
                    let twice = id >= 0 && ids[..slot].iter().any(|&other| i64::from(other as i32) == id);
                    bits |= if twice { Status::DUPLICATE } else { 0 };
                    bits |= match id {
                        -1 => 0,
                        id if id < 0 || id * TOKENS >= *tokens => Status::BLOCK,
                        id => page_bits(a, reach, *request, id)?,
                    };
                }
            }
        }
        Ok(bits)
    }
}

fn page_bits(a: &ValidateArguments, reach: &Reach<'_>, request: u64, page: i64) -> Result<u32, Fault> {
    let batch = &a.batch;
    if page >= batch.table_width.into() {
        return Ok(Status::PAGE);
    }
    let address = batch.block_table + (request * batch.table_stride + page as u64) * 4;
    let id = reach.words("block_table", address, 1)?[0] as i32;
    Ok(if u64::try_from(id).is_ok_and(|id| id < batch.pages) { 0 } else { Status::PAGE })
}

fn rows(a: &ValidateArguments, reach: &Reach<'_>) -> Result<u32, Fault> {
    let last = match a.rows.last_offset {
        0 => a.rows.rows as i32,
        address => reach.words("query_offsets", address, 1)?[0] as i32,
    };
    let live = u64::try_from(last).unwrap_or(0).min(a.rows.rows.into());
    let mut bits = 0;
    for row in 0..live {
        let slot = reach.bytes("slots", a.rows.slots + row * 8, 8)?;
        let slot = i64::from_le_bytes(slot.try_into().map_err(|_| Fault::new("slots"))?);
        let position = match a.rows.positions {
            0 => 0,
            address => i64::from(reach.words("positions", address + row * 4, 1)?[0] as i32),
        };
        let there = a.pages.map(|pages| slot >= 0 && ((slot / TOKENS) as u64) < pages);
        let fits = (0..i64::from(a.rows.positions_end)).contains(&position);
        bits |= if slot != -1 && there != [true; 2] { Status::SLOT } else { 0 };
        bits |= if fits { 0 } else { Status::POSITION };
        for (tensor, source) in a.sources.iter().enumerate().filter(|(_, source)| source.source != 0) {
            let cache = usize::from(tensor == 2);
            if fits && there[cache] && slot / TOKENS != a.null_pages[cache] {
                bits |= heads(reach, source, row, if tensor == 2 { 1 } else { a.kv_heads.into() })?;
            }
        }
    }
    Ok(bits)
}

fn heads(reach: &Reach<'_>, source: &ValidateSource, row: u64, heads: u64) -> Result<u32, Fault> {
    let mut bits = 0;
    for head in 0..heads {
        let address = source.source + row * source.row + head * source.head;
        for value in reach.bytes("source", address, 2 * CHANNELS)?.as_chunks().0 {
            let value = half::bf16::from_le_bytes(*value);
            bits |= if value.is_nan() { Status::NAN } else { 0 };
            bits |= if value.is_infinite() { Status::INFINITE } else { 0 };
        }
    }
    Ok(bits)
}
