//! What ranks hand over to each other: `exchange_keys`, `candidate_keys` and `gather_queries`, in the halves before and after the
//! wait.

use msa_core::backend::Status;
use msa_core::candidate::CandidateKey;
use msa_core::geometry::{Geometry, Grouping};
use msa_core::op::{ForcedPriority, NanRule, Select, SelectOrder};
use msa_ref::sim::candidates;

use super::arguments::{GatherArguments, RankKeysArguments};
use super::ranks::{Ranks, requests, visible};
use super::{Fault, Reach, parameter};
use crate::launch::Launch;

/// The number of an exchange stands in these bits of a key.
const NUMBER_SHIFT: u32 = 17;
const NUMBER_MASK: u64 = 0x3fff << NUMBER_SHIFT;

fn number_bits(epoch: u32) -> u64 {
    u64::from(epoch) << NUMBER_SHIFT & NUMBER_MASK
}

/// One (row, list).
struct Item {
    row: u64,
    list: u32,
    own: Option<u32>,
}

fn items(a: &RankKeysArguments, reach: &Reach<'_>) -> Result<Vec<Item>, Fault> {
    let mut all = Vec::new();
    for request in requests(&a.batch, reach)?.iter().flatten() {
        for i in 0..request.rows {
            let seen = visible(&a.batch, reach, request, i)?;
            let own =
                ((seen + 127) / 128).min(1 << 16).checked_sub(1).and_then(|own| u32::try_from(own).ok());
            all.extend((0..a.lists).map(|list| Item { row: (request.first + i) as u64, list, own }));
        }
    }
    Ok(all)
}

impl RankKeysArguments {
    fn op(&self) -> Select {
        let geometry = Geometry {
            query_heads: self.heads,
            kv_heads: 1,
            index_heads: self.heads,
            top_k: self.k,
            ..Geometry::M3
        };
        Select {
            geometry,
            grouping: if self.lists < self.heads { Grouping::Reduced } else { Grouping::PerHead },
            init_blocks: self.init_blocks,
            local_blocks: self.local_blocks,
            forced_priority: if self.init_first != 0 { ForcedPriority::Init } else { ForcedPriority::Local },
            nan_rule: if self.nan_highest != 0 { NanRule::Highest } else { NanRule::Lowest },
            order: if self.score_order != 0 { SelectOrder::ScoreThenOwn } else { SelectOrder::Ascending },
            ..Select::default()
        }
    }

    /// Where a list's keys stand among those of a rank, in keys.
    fn at(&self, item: &Item) -> u64 {
        (item.row * u64::from(self.lists) + u64::from(item.list)) * u64::from(self.k)
    }

    fn epoch_address(&self, item: &Item) -> u64 {
        self.epochs + 4 * (item.row * u64::from(self.lists) + u64::from(item.list))
    }

    fn place(&self, to: u32, from: u32, epoch: u32, item: &Item) -> u64 {
        let keys = u64::from(epoch & 1) * self.parity_keys + u64::from(from) * self.rank_keys + self.at(item);
        self.inboxes[to as usize] + 8 * keys
    }

    /// The best keys of this rank's blocks.
    fn keys(&self, reach: &Reach<'_>, item: &Item) -> Result<Vec<CandidateKey>, Fault> {
        let ranks = Ranks { world: self.world.into(), rank: self.rank.into() };
        let count =
            ranks.blocks(item.own.map_or(0, |own| i64::from(own) + 1)).min(self.columns.into()) as u64;
        let row = |head: u32| {
            let at = self.scores + item.row * self.scores_row + u64::from(head) * self.scores_head;
            let words = reach.words("scores", at, count)?;
            Ok::<Vec<f32>, Fault>(words.into_iter().map(f32::from_bits).collect())
        };
        let scores = if self.lists == self.heads {
            row(item.list)?
        } else {
            let mut most = vec![f32::NEG_INFINITY; count as usize];
            for head in 0..self.heads {
                most.iter_mut().zip(row(head)?).for_each(|(most, score)| *most = most.max(score));
            }
            most
        };
        Ok(candidates::local_keys(&scores, self.rank, self.world, item.own, &self.op())?)
    }
}

fn words64(reach: &Reach<'_>, what: &str, address: u64, count: u64) -> Result<Vec<u64>, Fault> {
    let bytes = reach.bytes(what, address, 8 * count)?;
    Ok(bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
}

fn bytes_of(words: impl IntoIterator<Item = u64>) -> Vec<u8> {
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}

fn raise(reach: &mut Reach<'_>, word: u64, bits: u32) -> Result<(), Fault> {
    let word = reach.bytes_mut("status", word, 4)?;
    word.iter_mut().zip(bits.to_le_bytes()).for_each(|(byte, bits)| *byte |= bits);
    Ok(())
}

pub(super) fn hand_over_keys(launch: &Launch, reach: &mut Reach<'_>) -> Result<(), Fault> {
    let a: &RankKeysArguments = parameter(launch)?;
    if launch.symbol == "exchange_keys_small" && a.columns > 1024 {
        return Err(Fault::new(format!("{} columns", a.columns)));
    }
    for item in items(a, reach)? {
        let epoch = reach.words("epochs", a.epoch_address(&item), 1)?[0].wrapping_add(1);
        let keys = a.keys(reach, &item)?;
        let bytes = bytes_of(keys.iter().map(|key| key.to_bits() | number_bits(epoch)));
        for to in 0..a.world {
            let place = a.place(to, a.rank, epoch, &item);
            reach.mapped_mut("inbox", place, bytes.len() as u64)?.copy_from_slice(&bytes);
        }
    }
    Ok(())
}

/// Ranks whose keys of a list are not there, of those that are merged here.
fn missing(a: &RankKeysArguments, reach: &Reach<'_>, item: &Item, epoch: u32) -> Result<Vec<u32>, Fault> {
    let mut missing = Vec::new();
    for from in 0..a.world {
        let keys = words64(reach, "inbox", a.place(a.rank, from, epoch, item), a.k.into())?;
        if keys.iter().any(|key| key & NUMBER_MASK != number_bits(epoch)) {
            missing.push(from);
        }
    }
    Ok(missing)
}

fn is_listed(a: &RankKeysArguments, item: &Item) -> bool {
    (a.first_list..a.end_list).contains(&item.list)
}

pub(super) fn keys_arrived(launch: &Launch, reach: &Reach<'_>) -> Result<bool, Fault> {
    let a: &RankKeysArguments = parameter(launch)?;
    for item in items(a, reach)?.iter().filter(|item| is_listed(a, item)) {
        let epoch = reach.words("epochs", a.epoch_address(item), 1)?[0].wrapping_add(1);
        if !missing(a, reach, item, epoch)?.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(super) fn merge_keys(launch: &Launch, reach: &mut Reach<'_>) -> Result<(), Fault> {
    let a: &RankKeysArguments = parameter(launch)?;
    for item in items(a, reach)? {
        let epoch = reach.words("epochs", a.epoch_address(&item), 1)?[0].wrapping_add(1);
        reach.bytes_mut("epochs", a.epoch_address(&item), 4)?.copy_from_slice(&epoch.to_le_bytes());
        if !is_listed(a, &item) {
            continue;
        }
        let missing = missing(a, reach, &item, epoch)?;
        for from in &missing {
            raise(reach, a.batch.status, Status::RANK | 1 << (16 + from))?;
        }
        let mut keys = Vec::new();
        for from in (0..a.world).filter(|from| !missing.contains(from)) {
            keys.extend(words64(reach, "inbox", a.place(a.rank, from, epoch, &item), a.k.into())?);
        }
        let keys = keys.into_iter().filter(|key| key & 1 == 1).map(|key| key & !NUMBER_MASK);
        let mut list = vec![-1; a.k as usize];
        candidates::merge_keys(keys.map(CandidateKey::from_bits), &a.op(), &mut list)?;
        let out = a.indices + item.row * a.indices_row + u64::from(item.list - a.first_list) * a.indices_list;
        let bytes: Vec<u8> = list.into_iter().flat_map(i32::to_le_bytes).collect();
        reach.bytes_mut("block_indices", out, bytes.len() as u64)?.copy_from_slice(&bytes);
    }
    Ok(())
}

pub(super) fn candidate_keys(launch: &Launch, reach: &mut Reach<'_>) -> Result<(), Fault> {
    let a: &RankKeysArguments = parameter(launch)?;
    for item in items(a, reach)? {
        let bytes = bytes_of(a.keys(reach, &item)?.iter().map(|key| key.to_bits()));
        reach.bytes_mut("keys", a.keys + 8 * a.at(&item), bytes.len() as u64)?.copy_from_slice(&bytes);
    }
    Ok(())
}

impl GatherArguments {
    fn live_rows(&self, reach: &Reach<'_>) -> Result<u64, Fault> {
        let last = reach.words("query_offsets", self.last_offset, 1)?[0] as i32;
        Ok(last.clamp(0, self.rows as i32) as u64)
    }

    fn owner(&self, head: u32) -> u32 {
        if self.heads >= self.world { head / self.own_heads } else { head * (self.world / self.heads) }
    }

    /// The first head of a rank.
    fn first_head(&self, rank: u32) -> u32 {
        if self.heads >= self.world { rank * self.own_heads } else { rank / (self.world / self.heads) }
    }

    fn place(&self, to: u32, from: u32, row: u64, head: u32) -> u64 {
        let head = row * u64::from(self.own_heads) + u64::from(head);
        let word = u64::from(from) * self.rank_words + head * u64::from(self.head_words);
        self.inboxes[to as usize] + 8 * word
    }

    /// The words of a head that are there; the rank that did not hand them over.
    fn head(
        &self,
        reach: &Reach<'_>,
        row: u64,
        head: u32,
        epoch: u32,
    ) -> Result<Result<Vec<u32>, u32>, Fault> {
        let from = self.owner(head);
        let place = self.place(self.rank, from, row, head - self.first_head(from));
        let words = words64(reach, "inbox", place, self.head_words.into())?;
        let there = words.iter().all(|word| (word >> 32) as u32 == epoch);
        Ok(if there { Ok(words.iter().map(|word| *word as u32).collect()) } else { Err(from) })
    }

    fn epoch(&self, reach: &Reach<'_>, row: u64) -> Result<u32, Fault> {
        Ok(reach.words("epochs", self.epochs + 4 * row, 1)?[0].wrapping_add(1))
    }
}

pub(super) fn hand_over_queries(launch: &Launch, reach: &mut Reach<'_>) -> Result<(), Fault> {
    let a: &GatherArguments = parameter(launch)?;
    reach.bytes_mut("status", a.status, 4 * u64::from(a.own_status))?.fill(0);
    if a.owner(a.first_head(a.rank)) != a.rank {
        return Ok(());
    }
    for row in 0..a.live_rows(reach)? {
        let epoch = a.epoch(reach, row)?;
        for head in 0..a.own_heads {
            let at = a.own + row * a.own_row + u64::from(head) * a.own_head;
            let words = reach.words("index_query", at, a.head_words.into())?;
            let bytes = bytes_of(words.iter().map(|word| u64::from(*word) | u64::from(epoch) << 32));
            for to in 0..a.world {
                let place = a.place(to, a.rank, row, head);
                reach.mapped_mut("inbox", place, bytes.len() as u64)?.copy_from_slice(&bytes);
            }
        }
    }
    Ok(())
}

pub(super) fn queries_arrived(launch: &Launch, reach: &Reach<'_>) -> Result<bool, Fault> {
    let a: &GatherArguments = parameter(launch)?;
    for row in 0..a.live_rows(reach)? {
        let epoch = a.epoch(reach, row)?;
        for head in 0..a.heads {
            if a.head(reach, row, head, epoch)?.is_err() {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

pub(super) fn gather_queries(launch: &Launch, reach: &mut Reach<'_>) -> Result<(), Fault> {
    let a: &GatherArguments = parameter(launch)?;
    for row in 0..a.live_rows(reach)? {
        let epoch = a.epoch(reach, row)?;
        for head in 0..a.heads {
            let words = match a.head(reach, row, head, epoch)? {
                Ok(words) => words,
                Err(from) => {
                    // The word of the first block, or the one that all kernels share.
                    let word = a.status + if a.own_status > 0 { 4 } else { 0 };
                    raise(reach, word, Status::RANK | 1 << (16 + from))?;
                    vec![0; a.head_words as usize]
                }
            };
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let at = a.queries + (row * u64::from(a.heads) + u64::from(head)) * bytes.len() as u64;
            reach.bytes_mut("queries", at, bytes.len() as u64)?.copy_from_slice(&bytes);
        }
        reach.bytes_mut("epochs", a.epochs + 4 * row, 4)?.copy_from_slice(&epoch.to_le_bytes());
    }
    Ok(())
}
