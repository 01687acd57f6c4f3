//! Block selection: which `k` blocks a query token attends to.
//!
//! The own block (the one that holds the query's position) is always in and uses one of the `k` slots. The others
//! rank by score, higher first, then by block id, **lower first**; -0 equals +0; NaN ranks as -inf; -inf is an
//! ordinary score. So a list always holds `min(k, own + 1)` ids.

use super::index_score::max_ignoring_nan;
use super::{SpecError, check_at_least, check_parameter};
use std::cmp::Ordering;

/// Whether every index head keeps its own list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grouping {
    /// A list per index head: the model's definition.
    PerHead,
    /// One list for all index heads, by the max of their scores.
    Reduced,
}

/// Order of the ids in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// By block id.
    Ascending,
    /// Sink blocks, then other local blocks (both by id), then by score descending, the own block last.
    ScoreThenOwn,
}

/// The selection's parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SelectRule {
    /// Slots `k`, own block included.
    pub k: usize,
    /// Sink blocks `0 .. init_blocks`, always in.
    pub init_blocks: usize,
    /// The last `local_blocks` blocks up to the own one, always in; 1 is the own block alone.
    pub local_blocks: usize,
    /// Lists per index head, or one.
    pub grouping: Grouping,
    /// Order of the output.
    pub order: Order,
}

impl SelectRule {
    /// MiniMax-M3's rule with `k` slots (the checkpoint has 16): no sink block, the own block as the only local
    /// one, a list per head, ascending.
    pub fn with_slots(k: usize) -> Self {
        Self { k, init_blocks: 0, local_blocks: 1, grouping: Grouping::PerHead, order: Order::Ascending }
    }

    /// There is at least the own block to force, and the forced blocks fit into the slots.
    fn check(&self) -> Result<(), SpecError> {
        check_parameter(
            self.local_blocks > 0,
            "local_blocks",
            "at least 1, the own block",
            self.local_blocks,
        )?;
        let forced = self.init_blocks.saturating_add(self.local_blocks);
        check_parameter(forced <= self.k, "init_blocks + local_blocks", "at most k", forced)
    }
}

/// A list of selected blocks.
#[derive(Debug, Clone, PartialEq)]
pub struct Selection {
    /// `[k]` block ids, then -1.
    pub ids: Vec<i32>,
    /// Score of the last chosen block minus that of the first dropped one, a forced block taken as +inf; 0 between
    /// equal infinities; +inf when nothing was dropped. Errors of every score below half of it cannot change the
    /// selection.
    pub gap: f64,
}

impl Selection {
    /// The ids before the padding. Their number is the one that attention consumes.
    pub fn valid(&self) -> &[i32] {
        let count = self.ids.iter().take_while(|&&id| id >= 0).count();
        &self.ids[..count]
    }
}

/// A block that can be selected.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Block id.
    pub block: usize,
    /// Its index score.
    pub score: f64,
}

/// Selects among the blocks `0 ..= own` by `scores`; entries of later blocks are not looked at.
///
/// Fails when `scores` is shorter than `own + 1`, an id does not fit an i32, no slot is left for the own block, or
/// more blocks are forced than there are slots.
pub fn select(scores: &[f64], own: usize, rule: &SelectRule) -> Result<Selection, SpecError> {
    check_at_least("block scores", scores.len(), own.saturating_add(1))?;
    let candidates: Vec<Candidate> =
        scores.iter().enumerate().take(own + 1).map(|(block, &score)| Candidate { block, score }).collect();
    select_candidates(&candidates, own, rule)
}

/// Selects for all index heads: `scores` is `[Hi][at least own + 1]`. With [`Grouping::Reduced`] all heads get the
/// same list. Errors as in [`select`].
pub fn select_heads(scores: &[Vec<f64>], own: usize, rule: &SelectRule) -> Result<Vec<Selection>, SpecError> {
    match rule.grouping {
        Grouping::PerHead => scores.iter().map(|head| select(head, own, rule)).collect(),
        Grouping::Reduced => {
            for head in scores {
                check_at_least("block scores", head.len(), own.saturating_add(1))?;
            }
            let max_of = |block: usize| max_ignoring_nan(scores.iter().map(|head| head[block]));
            let reduced: Vec<f64> =
                if scores.is_empty() { Vec::new() } else { (0..=own).map(max_of).collect() };
            scores.iter().map(|_| select(&reduced, own, rule)).collect()
        }
    }
}

/// Selects among an explicit set of candidates, in any order, each block at most once; those after `own` are not
/// looked at. The own block is forced only where it is a candidate.
///
/// This is also the exact merge of context parallelism: each rank selects among the blocks it owns, and a second
/// selection among all the survivors gives the list of the unsharded one. Errors as in [`select`].
pub fn select_candidates(
    candidates: &[Candidate],
    own: usize,
    rule: &SelectRule,
) -> Result<Selection, SpecError> {
    rule.check()?;
    check_parameter(i32::try_from(own).is_ok(), "own block", "an i32", own)?;
    let mut ranked: Vec<Ranked> =
        candidates.iter().filter(|c| c.block <= own).map(|c| Ranked::new(c, own, rule)).collect();
    ranked.sort_by(Ranked::compare);
    let gap = gap_after(&ranked, rule.k);
    ranked.truncate(rule.k);
    if rule.order == Order::Ascending {
        ranked.sort_by_key(|r| r.block);
    } else if ranked.first().is_some_and(|r| r.block == own) {
        ranked.rotate_left(1);
    }
    let mut ids: Vec<i32> = ranked.iter().map(|r| r.block as i32).collect();
    ids.resize(rule.k, -1);
    Ok(Selection { ids, gap })
}

/// Why a block is in, the strongest reason first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reason {
    Own,
    Init,
    Local,
    Score,
}

struct Ranked {
    block: usize,
    reason: Reason,
    /// Never NaN; +inf for a forced block.
    score: f64,
}

impl Ranked {
    fn new(candidate: &Candidate, own: usize, rule: &SelectRule) -> Self {
        let block = candidate.block;
        let reason = if block == own {
            Reason::Own
        } else if block < rule.init_blocks {
            Reason::Init
        } else if own - block < rule.local_blocks {
            Reason::Local
        } else {
            Reason::Score
        };
        let score = match reason {
            Reason::Score if candidate.score.is_nan() => f64::NEG_INFINITY,
            Reason::Score => candidate.score,
            _ => f64::INFINITY,
        };
        Self { block, reason, score }
    }

    /// The better one first. `partial_cmp` makes the two zeros equal.
    fn compare(&self, other: &Self) -> Ordering {
        let by_score = other.score.partial_cmp(&self.score).unwrap_or(Ordering::Equal);
        self.reason.cmp(&other.reason).then(by_score).then(self.block.cmp(&other.block))
    }
}

fn gap_after(ranked: &[Ranked], k: usize) -> f64 {
    let (Some(last), Some(dropped)) = (k.checked_sub(1).and_then(|i| ranked.get(i)), ranked.get(k)) else {
        return f64::INFINITY;
    };
    let tie = last.reason == Reason::Score && last.score == dropped.score;
    match last.reason {
        Reason::Score if tie => 0.0,
        Reason::Score => last.score - dropped.score,
        _ => f64::INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::random::Random;

    const INF: f64 = f64::INFINITY;

    #[test]
    fn list_and_gap_of_a_hand_computed_row() {
        let scores = [0.5, 9.0, 3.0, 7.0, 3.5, -100.0, 99.0];
        let got = select(&scores, 5, &SelectRule::with_slots(4)).unwrap();
        assert_eq!(got.ids, [1, 3, 4, 5]);
        assert_eq!(got.gap, 0.5);
        let got = select(&scores, 2, &SelectRule::with_slots(4)).unwrap();
        assert_eq!((got.ids.as_slice(), got.gap), ([0, 1, 2, -1].as_slice(), INF));
        assert_eq!(got.valid(), [0, 1, 2]);
        let got = select(&scores, 5, &SelectRule::with_slots(1)).unwrap();
        assert_eq!((got.ids.as_slice(), got.gap), ([5].as_slice(), INF), "the own block counts as +inf");
    }

    #[test]
    fn gap_between_infinities() {
        let rule = SelectRule::with_slots(2);
        assert_eq!(select(&[-INF, -INF, 0.0], 2, &rule).unwrap().gap, 0.0);
        assert_eq!(select(&[INF, INF, 0.0], 2, &rule).unwrap().gap, 0.0);
        assert_eq!(select(&[1.0, -INF, 0.0], 2, &rule).unwrap().gap, INF);
        assert_eq!(select(&[0.0, -0.0, 0.0], 2, &rule).unwrap().gap, 0.0);
    }

    #[test]
    fn sink_and_local_blocks_are_forced_and_counted() {
        let scores = [0.0, 5.0, 1.0, 9.0, 2.0, 8.0, 3.0, 4.0];
        let rule = SelectRule { init_blocks: 1, local_blocks: 2, ..SelectRule::with_slots(5) };
        assert_eq!(select(&scores, 7, &rule).unwrap().ids, [0, 3, 5, 6, 7]);
        let rule = SelectRule { order: Order::ScoreThenOwn, ..rule };
        assert_eq!(select(&scores, 7, &rule).unwrap().ids, [0, 6, 3, 5, 7]);
        // A block that is both sink and local takes one slot.
        assert_eq!(select(&scores, 1, &rule).unwrap().ids, [0, 1, -1, -1, -1]);
        assert_eq!(select(&scores, 0, &rule).unwrap().ids, [0, -1, -1, -1, -1]);
    }

    #[test]
    fn score_then_own_is_the_same_set() {
        let mut random = Random::new(6);
        let by_score = SelectRule { order: Order::ScoreThenOwn, ..SelectRule::with_slots(16) };
        for own in 0..60 {
            let scores: Vec<f64> = (0..=own).map(|_| random.below(9) as f64).collect();
            let ascending = select(&scores, own, &SelectRule::with_slots(16)).unwrap();
            let mut other = select(&scores, own, &by_score).unwrap();
            assert_eq!(*other.valid().last().unwrap(), own as i32);
            let past = other.valid()[..other.valid().len() - 1].to_vec();
            for pair in past.windows(2) {
                let [a, b] = [scores[pair[0] as usize], scores[pair[1] as usize]];
                assert!(a > b || (a == b && pair[0] < pair[1]));
            }
            let valid = other.valid().len();
            other.ids[..valid].sort_unstable();
            assert_eq!(other, ascending);
        }
    }

    /// Second formulation: a block is chosen when fewer than `k - 1` of the past blocks beat it.
    fn chosen_by_counting(scores: &[f64], own: usize, k: usize) -> Vec<i32> {
        let key = |block: usize| if scores[block].is_nan() { -INF } else { scores[block] };
        let beats = |a: usize, b: usize| key(a) > key(b) || (key(a) == key(b) && a < b);
        let in_list = |&block: &usize| {
            block == own || (0..own).filter(|&other| other != block && beats(other, block)).count() < k - 1
        };
        (0..=own).filter(in_list).map(|block| block as i32).collect()
    }

    #[test]
    fn equals_a_count_of_better_blocks() {
        let mut random = Random::new(7);
        let palette = [0.0, -0.0, INF, -INF, f64::NAN, -f64::NAN, 1.0, -1.0, 1e-310, -70000.0];
        for round in 0..600 {
            let own = random.below(50);
            let scores: Vec<f64> = (0..=own)
                .map(|_| if round % 2 == 0 { random.normal() } else { palette[random.below(palette.len())] })
                .collect();
            for k in [1, 2, 5, 16] {
                let got = select(&scores, own, &SelectRule::with_slots(k)).unwrap();
                assert_eq!(got.ids.len(), k);
                assert_eq!(got.valid(), chosen_by_counting(&scores, own, k));
                assert_eq!(got.valid().len(), k.min(own + 1));
            }
        }
    }

    #[test]
    fn reduced_grouping_takes_the_max_over_heads() {
        let scores = vec![vec![9.0, 0.0, f64::NAN, 0.0], vec![0.0, 5.0, 7.0, 0.0]];
        let per_head = SelectRule::with_slots(2);
        let ids = |rule: &SelectRule| -> Vec<Vec<i32>> {
            select_heads(&scores, 3, rule).unwrap().into_iter().map(|s| s.ids).collect()
        };
        assert_eq!(ids(&per_head), [[0, 3], [2, 3]]);
        assert_eq!(ids(&SelectRule { grouping: Grouping::Reduced, ..per_head }), [[0, 3], [0, 3]]);
        let three = SelectRule { grouping: Grouping::Reduced, ..SelectRule::with_slots(3) };
        assert_eq!(ids(&three), [[0, 2, 3], [0, 2, 3]]);
    }

    #[test]
    fn bad_rules_are_errors() {
        let rule = SelectRule::with_slots(2);
        assert!(select(&[1.0], 1, &rule).is_err(), "too few scores");
        assert!(select(&[], usize::MAX, &rule).is_err());
        assert!(select(&[1.0], 0, &SelectRule::with_slots(0)).is_err());
        assert!(select(&[1.0], 0, &SelectRule { local_blocks: 0, ..rule }).is_err());
        assert!(select(&[1.0], 0, &SelectRule { init_blocks: 2, ..rule }).is_err());
        assert!(select_candidates(&[], usize::MAX, &rule).is_err(), "id beyond i32");
        let reduced = SelectRule { grouping: Grouping::Reduced, ..rule };
        assert!(select_heads(&[vec![1.0]], 1, &reduced).is_err());
        assert!(select_heads(&[], 1, &reduced).unwrap().is_empty());
    }
}
