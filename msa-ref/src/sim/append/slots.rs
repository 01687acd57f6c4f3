//! Which rows are built, and where in the caches they go.

use std::collections::HashSet;

use msa_core::abi::host::HostMemory;
use msa_core::args::{Args, Role};
use msa_core::backend::Status;
use msa_core::error::{Error, Result};
use msa_core::op::Append;

/// Where a row goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Place {
    /// Row of the RoPE tables.
    pub(super) position: u64,
    /// In the KV cache.
    pub(super) kv: Option<CachePlace>,
    /// In the index cache.
    pub(super) index: Option<CachePlace>,
}

/// A token of a paged cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CachePlace {
    pub(super) page: u64,
    /// Within the page.
    pub(super) token: u64,
}

/// Which of several rows with one slot has a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SameSlot {
    /// The last one.
    Last,
    /// Every one.
    Each,
}

/// The place of each of the first `rows` rows, `None` for a row that is skipped, and what was out of range.
pub(super) fn place_rows(
    op: &Append,
    memory: &HostMemory<'_>,
    args: &Args,
    rows: u64,
    same_slot: SameSlot,
) -> Result<(Vec<Option<Place>>, Status)> {
    let slots = memory.i64s(super::row::tensor(args, Role::Slots)?)?;
    let positions = if op.rope.rotary_dim > 0 {
        memory.i32s(super::row::tensor(args, Role::Positions)?)?
    } else {
        vec![0; slots.len()]
    };
    let table = [Role::RopeCos, Role::RopeSin].iter().filter_map(|&r| args.tensor(r)).map(|t| t.extent(0));
    let page_tokens = u64::from(op.geometry.page);
    let kv = args.kv_cache.ok_or(Error::Missing { op: "append", role: "kv_cache" })?;
    let index = args.index_cache.ok_or(Error::Missing { op: "append", role: "index_cache" })?;
    let target = Target {
        positions: table.min().unwrap_or(1),
        kv: Pages { count: kv.pages, tokens: page_tokens, null: kv.null_page.map(u64::from) },
        index: Pages { count: index.pages, tokens: page_tokens, null: index.null_page.map(u64::from) },
        same_slot,
    };
    let (Some(slots), Some(positions)) = (slots.get(..rows as usize), positions.get(..rows as usize)) else {
        return Err(Error::invalid("slots", format!("{rows} rows"), slots.len()));
    };
    Ok(target.place(slots, positions))
}

/// What slots and positions may name.
struct Target {
    positions: u64,
    kv: Pages,
    index: Pages,
    same_slot: SameSlot,
}

struct Pages {
    count: u64,
    tokens: u64,
    null: Option<u64>,
}

/// What a slot names in one cache.
enum Slot {
    Place(CachePlace),
    Dropped,
    OutOfRange,
}

impl Target {
    /// From the last row to the first, so that the first taker of a slot is the last row that has it.
    fn place(&self, slots: &[i64], positions: &[i32]) -> (Vec<Option<Place>>, Status) {
        let mut status = Status::default();
        let mut taken = HashSet::new();
        let mut places = vec![None; slots.len()];
        for ((place, &slot), &position) in places.iter_mut().zip(slots).zip(positions).rev() {
            let (kv, index) = (self.kv.find(slot), self.index.find(slot));
            if matches!(kv, Slot::OutOfRange) || matches!(index, Slot::OutOfRange) {
                status.0 |= Status::SLOT;
            }
            let Some(position) = u64::try_from(position).ok().filter(|&p| p < self.positions) else {
                status.0 |= Status::POSITION;
                continue;
            };
            let wins = slot >= 0 && (taken.insert(slot) || self.same_slot == SameSlot::Each);
            *place = Some(Place { position, kv: kv.place(wins), index: index.place(wins) });
        }
        (places, status)
    }
}

impl Pages {
    fn find(&self, slot: i64) -> Slot {
        if slot == -1 {
            return Slot::Dropped;
        }
        let Ok(slot) = u64::try_from(slot) else { return Slot::OutOfRange };
        let place = CachePlace { page: slot / self.tokens, token: slot % self.tokens };
        match place.page {
            page if page >= self.count => Slot::OutOfRange,
            page if Some(page) == self.null => Slot::Dropped,
            _ => Slot::Place(place),
        }
    }
}

impl Slot {
    fn place(self, wins: bool) -> Option<CachePlace> {
        match self {
            Self::Place(place) if wins => Some(place),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> Target {
        let pages = |count, null| Pages { count, tokens: 16, null };
        Target { positions: 10, kv: pages(4, Some(2)), index: pages(3, None), same_slot: SameSlot::Last }
    }

    fn at(page: u64, token: u64) -> Option<CachePlace> {
        Some(CachePlace { page, token })
    }

    #[test]
    fn each_cache_has_its_own_pages_and_null_page() {
        let (places, status) = target().place(&[17, 33, 49, -1], &[0; 4]);
        let both: Vec<_> = places.iter().flatten().map(|p| (p.kv, p.index)).collect();
        assert_eq!(both, [(at(1, 1), at(1, 1)), (None, at(2, 1)), (at(3, 1), None), (None, None)]);
        assert_eq!(status.0, Status::SLOT);
        assert!(target().place(&[17, 33, -1], &[0; 3]).1.is_clean());
    }

    #[test]
    fn hostile_slots_and_positions_are_reported_and_skipped() {
        for slot in [-2, i64::MIN, i64::MAX, 64] {
            let (places, status) = target().place(&[slot], &[0]);
            assert_eq!((places[0], status.0), (Some(Place::default()), Status::SLOT), "slot {slot}");
        }
        for position in [-1, i32::MIN, 10, i32::MAX] {
            let (places, status) = target().place(&[0], &[position]);
            assert_eq!((places[0], status.0), (None, Status::POSITION), "position {position}");
        }
        assert_eq!(target().place(&[-7], &[-7]).1.0, Status::SLOT | Status::POSITION);
    }

    #[test]
    fn the_last_row_with_a_valid_position_has_the_slot() {
        let (places, status) = target().place(&[7, 7, 5, 7], &[1, 2, 3, -4]);
        let kv: Vec<_> = places.iter().map(|p| p.and_then(|p| p.kv)).collect();
        assert_eq!(kv, [None, at(0, 7), at(0, 5), None]);
        assert_eq!(status.0, Status::POSITION);
        assert!(places[0].is_some() && places[3].is_none());
        let each = Target { same_slot: SameSlot::Each, ..target() };
        let kv = each.place(&[7, 7, 5, 7], &[1, 2, 3, -4]).0;
        let kv: Vec<_> = kv.iter().map(|p| p.and_then(|p| p.kv)).collect();
        assert_eq!(kv, [at(0, 7), at(0, 7), at(0, 5), None]);
    }
}
