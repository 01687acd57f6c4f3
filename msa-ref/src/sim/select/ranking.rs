//! From a block and its score to the key that selection compares.

use msa_core::candidate::CandidateKey;
use msa_core::geometry::Grouping;
use msa_core::op::{ForcedPriority, NanRule, Select};

/// The order of the candidates of one row, as keys: the larger key is chosen first.
///
/// The key of a block that is not forced has its score (-0 as +0; NaN as -inf, or one above +inf under
/// [`NanRule::Highest`]), or the rank of its score under [`RowRange`]. The key of a forced block has in place of the
/// score how strongly it is forced, since more blocks may be forced than there are slots:
///
/// | block | in place of the score |
/// |---|---|
/// | own | +inf |
/// | local, distance d = own - block | 64 - d, plus 128 if local blocks have priority |
/// | sink | 0, plus 128 if sink blocks have priority; of two, the lower id wins |
///
/// A block that is both takes the larger number. So the nearest local blocks and the first sinks stay.
#[derive(Debug, Clone, Copy)]
pub struct Ranking {
    own: u32,
    init_blocks: u32,
    local_blocks: u32,
    priority: ForcedPriority,
    nan_is_highest: bool,
    range: Option<RowRange>,
}

impl Ranking {
    /// The order that `op` defines for a row with this own block. With a `range` scores compare by their rank in it.
    pub fn new(op: &Select, own: u32, range: Option<RowRange>) -> Self {
        Self {
            own,
            init_blocks: op.init_blocks,
            local_blocks: op.local_blocks,
            priority: op.forced_priority,
            // The maximum over heads ignores NaN, so a reduced list has no NaN to rank.
            nan_is_highest: op.nan_rule == NanRule::Highest && op.grouping == Grouping::PerHead,
            range,
        }
    }

    /// True for the own block, sinks and local blocks.
    pub fn forces(&self, block: u32) -> bool {
        block < self.init_blocks
            || block == self.own
            || self.own.checked_sub(block).is_some_and(|d| d < self.local_blocks)
    }

    /// The key of `block`; [`CandidateKey::EMPTY`] if it lies past the own block.
    #[inline]
    pub fn key(&self, block: u32, score: f32) -> CandidateKey {
        if block > self.own {
            return CandidateKey::EMPTY;
        }
        if self.forces(block) {
            return CandidateKey::new(self.force(block), block as u16, true);
        }
        match &self.range {
            None => self.scored(block, score),
            Some(range) => CandidateKey::new(range.rank(score, self.nan_is_highest), block as u16, false),
        }
    }

    #[inline]
    fn scored(&self, block: u32, score: f32) -> CandidateKey {
        if self.nan_is_highest && score.is_nan() {
            let infinite = CandidateKey::new(f32::INFINITY, block as u16, false);
            return CandidateKey::from_bits(infinite.to_bits() + LOWEST_SCORE_BIT);
        }
        CandidateKey::new(score, block as u16, false)
    }

    /// How strongly a forced block is forced.
    fn force(&self, block: u32) -> f32 {
        let distance = self.own - block;
        if distance == 0 {
            return f32::INFINITY;
        }
        let (init, local) = match self.priority {
            ForcedPriority::Local => (0, PRIORITY),
            ForcedPriority::Init => (PRIORITY, 0),
        };
        let init = (block < self.init_blocks).then_some(init);
        let local =
            (distance < self.local_blocks).then_some(local + MAX_LOCAL_BLOCKS.saturating_sub(distance));
        init.max(local).unwrap_or(0) as f32
    }
}

/// The 16-bit ranks of [`TieRule::RowRange16`](msa_core::op::TieRule::RowRange16), as MSA v1 makes them: scores nearer
/// than about 1/65534 of the row's range tie, and the lower block id wins.
///
/// `scale = 65534 / (max - min)`, `bias = 1.5 - min * scale`, `rank = trunc(v * scale + bias)`, both multiply-adds
/// fused (`m3_topk` of github.com/vllm-project/MSA, where nvcc contracts them), the division IEEE. `max` and `min` are
/// over the finite scores that compete: the own block and forced ones are not scored there. That code asks for finite
/// scores and for a range; defined here beside it: ranks are clamped to 1 ..= 65535 (the cancellation in
/// `v * scale + bias` can leave it), all ranks are 1 where the scale is not finite, -inf ranks 0, +inf 65536, and NaN
/// as -inf or above +inf.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowRange {
    scale: f32,
    bias: f32,
}

impl RowRange {
    /// The range of `scores`; infinities and NaN are left out.
    pub fn of(scores: impl Iterator<Item = f32>) -> Self {
        let (mut min, mut max) = (f32::INFINITY, f32::NEG_INFINITY);
        for score in scores.filter(|score| score.is_finite()) {
            min = if score < min { score } else { min };
            max = if score > max { score } else { max };
        }
        let scale = 65534.0 / (max - min);
        if scale.is_finite() && min.is_finite() {
            Self { scale, bias: (-min).mul_add(scale, 1.5) }
        } else {
            Self { scale: 0.0, bias: 1.0 }
        }
    }

    /// The rank of a score, a whole number from 0 to 65537.
    pub fn rank(&self, score: f32, nan_is_highest: bool) -> f32 {
        if score.is_finite() {
            return score.mul_add(self.scale, self.bias).clamp(1.0, 65535.0).trunc();
        }
        match (score.is_nan(), nan_is_highest) {
            (true, true) => 65537.0,
            (false, _) if score > 0.0 => 65536.0,
            _ => 0.0,
        }
    }
}

/// The lowest bit of the score in a key.
const LOWEST_SCORE_BIT: u64 = 1 << 31;

/// Local blocks are at most as many as slots, of which there are at most 64.
const MAX_LOCAL_BLOCKS: u32 = 64;

/// Above every number that a block without priority can get.
const PRIORITY: u32 = 128;
