//! Block lists shared by the queries of a query block.

use crate::spec::index_score::max_ignoring_nan;
use crate::spec::select::{Order, SelectRule, Selection, select};
use crate::spec::{SpecError, check_at_least, check_length, check_parameter};

/// One list of key blocks per block of queries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueryBlockLists {
    /// Queries in a query block; the last one may hold fewer.
    pub block_q: usize,
    /// Entries per list.
    pub slots: usize,
    /// `[ceil(T / block_q), slots]`, ascending ids, then -1.
    pub ids: Vec<i32>,
}

impl QueryBlockLists {
    /// The list that query `row` attends with, none for a row beyond the lists. It may name blocks of the row's
    /// future, which attention skips.
    pub fn list_of_query(&self, row: usize) -> Option<&[i32]> {
        let first = row.checked_div(self.block_q)?.checked_mul(self.slots)?;
        self.ids.get(first..first.checked_add(self.slots)?)
    }
}

/// Selects once per query block: a block's score is its **max over the queries** of the query block that can see
/// it, and the own blocks of all these queries are forced.
///
/// `scores` is `[T][..]`, of one index head; row `t` holds at least `own_blocks[t] + 1` scores. `own_blocks [T]`
/// must not decrease. `rule` counts its local blocks back from the first query's own block, and the output is
/// always ascending.
///
/// Fails when the forced blocks do not fit into the slots (a query block can span several own blocks), and as
/// [`select`] does.
pub fn select_per_query_block(
    scores: &[Vec<f32>],
    own_blocks: &[usize],
    block_q: usize,
    rule: &SelectRule,
) -> Result<QueryBlockLists, SpecError> {
    check_rows(scores, own_blocks, block_q)?;
    let mut ids = Vec::new();
    for (rows, own) in scores.chunks(block_q).zip(own_blocks.chunks(block_q)) {
        ids.extend(select_for_block(rows, own, rule)?.ids);
    }
    Ok(QueryBlockLists { block_q, slots: rule.k, ids })
}

/// The **union** of the per-query lists `lists [T]` over each query block, as wide as the widest union. Ids of -1
/// are dropped. Nothing that a query selected is lost, but it also attends to what its neighbours selected.
///
/// Fails on a query block of 0 queries.
pub fn union_per_query_block(lists: &[Vec<i32>], block_q: usize) -> Result<QueryBlockLists, SpecError> {
    check_parameter(block_q > 0, "block_q", "at least one query", block_q)?;
    let unions: Vec<Vec<i32>> = lists.chunks(block_q).map(union).collect();
    let slots = unions.iter().map(Vec::len).max().unwrap_or(0);
    let mut ids = Vec::new();
    for mut list in unions {
        list.resize(slots, -1);
        ids.extend(list);
    }
    Ok(QueryBlockLists { block_q, slots, ids })
}

fn select_for_block(rows: &[Vec<f32>], own: &[usize], rule: &SelectRule) -> Result<Selection, SpecError> {
    let (Some(&first), Some(&last)) = (own.first(), own.last()) else {
        return Err(SpecError::Length { what: "own blocks", want: 1, got: 0 });
    };
    let score_of = |block: usize| {
        let seeing = rows.iter().zip(own).filter(|&(_, &own)| block <= own);
        max_ignoring_nan(seeing.map(|(row, _)| f64::from(row[block])))
    };
    let scores: Vec<f64> = (0..=last).map(score_of).collect();
    let local_blocks = rule.local_blocks.saturating_add(last - first);
    let order = Order::Ascending;
    select(&scores, last, &SelectRule { local_blocks, order, ..*rule })
}

fn union(lists: &[Vec<i32>]) -> Vec<i32> {
    let mut ids: Vec<i32> = lists.iter().flatten().copied().filter(|&id| id >= 0).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn check_rows(scores: &[Vec<f32>], own_blocks: &[usize], block_q: usize) -> Result<(), SpecError> {
    check_parameter(block_q > 0, "block_q", "at least one query", block_q)?;
    check_length("own blocks", own_blocks.len(), scores.len())?;
    for (row, &own) in scores.iter().zip(own_blocks) {
        check_at_least("block scores", row.len(), own.saturating_add(1))?;
    }
    for pair in own_blocks.windows(2) {
        check_parameter(pair[0] <= pair[1], "own blocks", "must not decrease", pair[1])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::random::Random;

    fn random_scores(random: &mut Random, own: &[usize]) -> Vec<Vec<f32>> {
        own.iter().map(|&own| (0..=own).map(|_| random.normal() as f32).collect()).collect()
    }

    #[test]
    fn max_over_the_queries_of_a_block() {
        let scores = vec![vec![1.0, 8.0, 2.0, 0.0], vec![9.0, 0.0, 3.0, 0.0], vec![0.0, 5.0, 6.0, 0.0]];
        let rule = SelectRule::with_slots(3);
        let lists = select_per_query_block(&scores, &[3, 3, 3], 2, &rule).unwrap();
        assert_eq!(lists.ids, [0, 1, 3, 1, 2, 3]);
        assert_eq!(lists.list_of_query(1), Some([0, 1, 3].as_slice()));
        assert_eq!(lists.list_of_query(2), Some([1, 2, 3].as_slice()));
        assert_eq!(lists.list_of_query(4), None);
    }

    #[test]
    fn all_own_blocks_are_forced_and_the_future_does_not_vote() {
        // Query 0 does not see block 2, whatever stands in its score row.
        let scores = vec![vec![1.0, -5.0, 99.0, 99.0], vec![2.0, -5.0, -9.0, 0.0]];
        let lists = select_per_query_block(&scores, &[1, 3], 2, &SelectRule::with_slots(4)).unwrap();
        assert_eq!(lists.ids, [0, 1, 2, 3]);
        let lists = select_per_query_block(&scores, &[1, 3], 2, &SelectRule::with_slots(3)).unwrap();
        assert_eq!(lists.ids, [1, 2, 3]);
        assert!(select_per_query_block(&scores, &[1, 3], 2, &SelectRule::with_slots(2)).is_err());
    }

    #[test]
    fn query_blocks_of_one_are_the_per_query_selection() {
        let mut random = Random::new(12);
        let own: Vec<usize> = (0..40).map(|t| t / 3).collect();
        let scores = random_scores(&mut random, &own);
        let rule = SelectRule::with_slots(4);
        let lists = select_per_query_block(&scores, &own, 1, &rule).unwrap();
        let per_query: Vec<Vec<i32>> = scores
            .iter()
            .zip(&own)
            .map(|(row, &own)| {
                let row: Vec<f64> = row.iter().map(|&score| f64::from(score)).collect();
                select(&row, own, &rule).unwrap().ids
            })
            .collect();
        assert_eq!(lists.ids, per_query.concat());
        let union = union_per_query_block(&per_query, 1).unwrap();
        assert_eq!(union.ids, lists.ids);
    }

    #[test]
    fn a_query_block_over_several_own_blocks_equals_a_count_of_better_blocks() {
        let mut random = Random::new(15);
        // Five queries stand in two or three blocks; every score row ends with the query's own block.
        let own: Vec<usize> = (0..60).map(|t| t / 3).collect();
        let scores = random_scores(&mut random, &own);
        let lists = select_per_query_block(&scores, &own, 5, &SelectRule::with_slots(6)).unwrap();
        for (index, list) in lists.ids.chunks(6).enumerate() {
            let rows = index * 5..index * 5 + 5;
            let (first, last) = (own[rows.start], own[rows.end - 1]);
            let past =
                |block: usize| rows.clone().map(|t| scores[t][block]).fold(f32::NEG_INFINITY, f32::max);
            let free = 6 - (last - first + 1);
            let better = |block: usize| (0..first).filter(|&b| past(b) > past(block)).count();
            let mut want: Vec<i32> =
                (0..=last).filter(|&b| b >= first || better(b) < free).map(|b| b as i32).collect();
            want.resize(6, -1);
            assert_eq!(list, want, "query block {index}");
        }
    }

    #[test]
    fn union_holds_every_id_once() {
        let lists = [vec![0, 3, -1], vec![3, 7, 9], vec![2, -1, -1]];
        let union = union_per_query_block(&lists, 2).unwrap();
        assert_eq!((union.slots, union.ids), (4, vec![0, 3, 7, 9, 2, -1, -1, -1]));
    }

    #[test]
    fn bad_arguments_are_errors() {
        let rule = SelectRule::with_slots(2);
        assert!(select_per_query_block(&[vec![1.0]], &[0], 0, &rule).is_err());
        assert!(select_per_query_block(&[vec![1.0]], &[1], 1, &rule).is_err());
        assert!(select_per_query_block(&[vec![1.0]], &[], 1, &rule).is_err());
        assert!(select_per_query_block(&[vec![1.0; 2], vec![1.0]], &[1, 0], 2, &rule).is_err());
        assert!(union_per_query_block(&[], 0).is_err());
        let none = union_per_query_block(&[], 4).unwrap();
        assert_eq!(none.list_of_query(0), Some([].as_slice()), "no slots");
    }
}
