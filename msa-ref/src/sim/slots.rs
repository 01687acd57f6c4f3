use msa_core::backend::Status;

use super::batch::Row;

/// A slot of a list that a row attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) slot: u32,
    pub(super) block: u32,
    /// Tokens, at least 1.
    pub(super) visible: u32,
}

/// Tokens that `row` sees of block `block` of `block_tokens` tokens: always the first ones of the block. 0 for
/// negative ids, blocks of the future and blocks beyond the cache.
pub(super) fn visible(row: &Row, block: i32, block_tokens: u32) -> u32 {
    let Ok(block) = u32::try_from(block) else { return 0 };
    let first = u64::from(block) * u64::from(block_tokens);
    // At most a block, so that the conversion loses nothing.
    u64::from(row.visible).saturating_sub(first).min(u64::from(block_tokens)) as u32
}

/// The slots of `list` with a visible token, in order, each block once; and the status bits of the others. `kv_len`:
/// tokens in the row's cache.
pub(super) fn live_slots(row: &Row, kv_len: u32, list: &[i32], block_tokens: u32) -> (Vec<Slot>, Status) {
    let mut live: Vec<Slot> = Vec::with_capacity(list.len());
    let mut status = 0;
    let cached = kv_len.div_ceil(block_tokens.max(1));
    for (slot, &id) in (0..).zip(list) {
        if id < -1 || u32::try_from(id).is_ok_and(|id| id >= cached) {
            status |= Status::BLOCK;
        }
        let visible = visible(row, id, block_tokens);
        if visible == 0 {
            continue;
        }
        let block = id.unsigned_abs();
        if live.iter().any(|earlier| earlier.block == block) {
            status |= Status::DUPLICATE;
        } else {
            live.push(Slot { slot, block, visible });
        }
    }
    (live, Status(status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_tokens_are_those_of_the_causal_rule() {
        for seen in [0, 1, 10, 31, 32, 33, 64, 70] {
            let row = Row { request: 0, position: i64::from(seen) - 1, visible: seen };
            for block in -3..5 {
                let tokens = (0..32).map(|t| i64::from(block) * 32 + t);
                let want = tokens.filter(|&t| block >= 0 && t < i64::from(seen)).count();
                assert_eq!(visible(&row, block, 32) as usize, want, "{row:?} {block}");
            }
            assert_eq!(visible(&row, i32::MAX, 256), 0);
        }
    }

    #[test]
    fn slots_are_skipped_wherever_they_stand_and_copies_are_reported() {
        let row = Row { request: 0, position: 69, visible: 70 };
        let blocks = |list: &[i32]| {
            let (live, status) = live_slots(&row, 128, list, 32);
            (live.into_iter().map(|slot| (slot.slot, slot.block, slot.visible)).collect::<Vec<_>>(), status.0)
        };
        assert_eq!(blocks(&[-1, 2, -1, 0, 3, 3]), (vec![(1, 2, 6), (3, 0, 32)], 0));
        assert_eq!(blocks(&[4, 1]), (vec![(1, 1, 32)], Status::BLOCK));
        assert_eq!(blocks(&[i32::MIN, i32::MAX]), (vec![], Status::BLOCK));
        assert_eq!(blocks(&[1, 0, 1, 1]), (vec![(0, 1, 32), (1, 0, 32)], Status::DUPLICATE));
    }
}
