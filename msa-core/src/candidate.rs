//! 64-bit candidate keys: a block and its score as one integer whose order is the order of selection.

/// A candidate: forced blocks first, then score descending, then lower block id. Zero means "no candidate", and no
/// real candidate is zero.
///
/// Bits 63: forced. 62..31: the score's bits in ascending order. 30..1 unused but for bits 16..1: the complement of
/// the block id. Bit 0: always one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct CandidateKey(u64);

impl CandidateKey {
    /// No candidate.
    pub const EMPTY: Self = Self(0);

    /// The key of `block` (below 2^16) with `score`; NaN ranks as -inf and -0 as +0.
    pub const fn new(score: f32, block: u16, forced: bool) -> Self {
        let rank = ordered_bits(score) as u64;
        Self(((forced as u64) << 63) | (rank << 31) | (((!block) as u64) << 1) | 1)
    }

    /// From its bits, as ranks exchange them.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Its bits.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The block, `None` if empty.
    pub const fn block(self) -> Option<u16> {
        if self.0 == 0 { None } else { Some(!((self.0 >> 1) as u16)) }
    }

    /// True if the block was forced.
    pub const fn forced(self) -> bool {
        self.0 >> 63 == 1
    }
}

/// Bits of a score such that unsigned order is score order: NaN as -inf, -0 as +0.
pub const fn ordered_bits(score: f32) -> u32 {
    let score = if score.is_nan() { f32::NEG_INFINITY } else { score + 0.0 };
    let bits = score.to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 0x8000_0000 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_as_selection_orders() {
        let key = |s, b| CandidateKey::new(s, b, false);
        assert!(key(1.0, 5) > key(0.5, 0));
        assert!(key(1.0, 4) > key(1.0, 5));
        assert!(key(-0.0, 1) > key(0.0, 2) && key(0.0, 1) > key(-0.0, 2));
        assert!(key(f32::NEG_INFINITY, 3) > key(f32::NAN, 4) && key(f32::NAN, 3) > key(f32::NEG_INFINITY, 4));
        assert!(CandidateKey::new(f32::NEG_INFINITY, u16::MAX, true) > key(f32::INFINITY, 0));
        assert!(key(f32::NEG_INFINITY, u16::MAX) > CandidateKey::EMPTY);
    }

    #[test]
    fn blocks_come_back() {
        for block in [0, 1, 4095, u16::MAX] {
            for forced in [false, true] {
                let key = CandidateKey::new(-3.5, block, forced);
                assert_eq!((key.block(), key.forced()), (Some(block), forced));
            }
        }
        assert_eq!(CandidateKey::EMPTY.block(), None);
    }
}
