//! Smaller cases: what a failing random case becomes before anybody looks at it.
//!
//! [`simpler`] lists the cases that differ from one in a single step towards a small one. [`shrink`] follows it as long
//! as a failure stays; [`Shrinking`] does the same inside proptest. Every step makes [`size`] smaller, so that both end.

use msa_core::geometry::Geometry;
use msa_core::lengths::RequestBound;
use proptest::strategy::{NewTree, Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use crate::case::{Case, Lens};

/// Requests of a case whose lengths are tried one by one.
const MOST_REQUESTS: usize = 8;

/// Follows [`simpler`] from `case` while `fails` holds, over at most `tries` cases.
pub fn shrink(case: &Case, tries: usize, mut fails: impl FnMut(&Case) -> bool) -> Case {
    let (mut best, mut left) = (case.clone(), tries);
    loop {
        let mut smaller = simpler(&best).into_iter().take(left).inspect(|_| left -= 1);
        let Some(next) = smaller.by_ref().find(&mut fails) else { return best };
        drop(smaller);
        best = next;
    }
}

/// Requests, rows, tokens, heads, channels, slots, and choices other than the defaults.
pub fn size(case: &Case) -> u64 {
    let g = &case.geometry;
    let lengths: u64 = case.lengths.0.iter().map(|r| 1 + u64::from(r.query_len) + u64::from(r.kv_len)).sum();
    let heads = [g.query_heads, g.kv_heads, g.index_heads, g.head_dim, g.index_dim, g.block, g.page, g.top_k];
    let upto = case.upto.map_or(0, |b| u64::from(b.0.query_len) + u64::from(b.0.kv_len));
    let counts = u64::from(case.padded_rows) + u64::from(case.gap) + u64::from(case.seed != 1);
    lengths + upto + counts + heads.map(u64::from).iter().sum::<u64>() + case.choices_made().len() as u64
}

/// Every smaller case that one step leads to, the largest steps first.
pub fn simpler(case: &Case) -> Vec<Case> {
    let with_lengths = |lengths| Case { lengths, ..case.clone() };
    let mut all: Vec<Case> = fewer(&case.lengths, halves)
        .into_iter()
        .map(with_lengths)
        .chain(narrower(&case.geometry).into_iter().map(|geometry| Case { geometry, ..case.clone() }))
        .chain(case.choices_made().iter().map(|name| case.with_default(name)))
        .chain([Case { seed: 1, ..case.clone() }])
        .chain(fewer(&case.lengths, small_steps).into_iter().map(with_lengths))
        .collect();
    let own = size(case);
    let is_sound = |other: &Case| other.descriptor().is_ok() && other.bounds().is_ok();
    all.retain(|other| size(other) < own && is_sound(other));
    all
}

/// Fewer requests, and the first ones with each of their `steps`.
fn fewer(lengths: &Lens, steps: fn(u32) -> Vec<u32>) -> Vec<Lens> {
    let requests = &lengths.0;
    let half = requests.len() / 2;
    let mut all = Vec::new();
    if requests.len() > 1 {
        all.extend([Lens(requests[..half].to_vec()), Lens(requests[half..].to_vec())]);
    }
    for index in 0..requests.len().min(MOST_REQUESTS) {
        if requests.len() > 1 {
            let mut others = requests.clone();
            others.remove(index);
            all.push(Lens(others));
        }
        let RequestBound { query_len, kv_len } = requests[index];
        let rows = steps(query_len).into_iter().map(|query_len| RequestBound { query_len, kv_len });
        let tokens = steps(kv_len).into_iter().map(|kv_len| RequestBound { query_len, kv_len });
        for bound in rows.chain(tokens) {
            let mut other = requests.clone();
            other[index] = bound;
            all.push(Lens(other));
        }
    }
    all
}

fn halves(n: u32) -> Vec<u32> {
    vec![1, n / 2]
}

fn small_steps(n: u32) -> Vec<u32> {
    vec![n - n / 8, n - n / 32, n.saturating_sub(1)]
}

fn narrower(g: &Geometry) -> Vec<Geometry> {
    let (group, lists) = (g.group(), g.index_heads / g.kv_heads.max(1));
    let heads = |kv: u32, group: u32, lists: u32| Geometry {
        query_heads: kv * group,
        kv_heads: kv,
        index_heads: kv * lists,
        ..*g
    };
    let blocks = [32, 64, 128].map(|block| Geometry { block, page: block, ..*g });
    let lists = [
        heads(1, group, lists),
        heads(g.kv_heads, group, 1),
        heads(g.kv_heads, lists, lists),
        heads(g.kv_heads, group / 2, lists),
        Geometry { head_dim: 64, ..*g },
        Geometry { index_dim: 64, ..*g },
    ];
    let slots = [1, 2, g.top_k / 2, g.top_k.saturating_sub(1)].map(|top_k| Geometry { top_k, ..*g });
    lists.into_iter().chain(blocks).chain([Geometry { page: g.block, ..*g }]).chain(slots).collect()
}

/// A strategy whose cases shrink as [`shrink`] does, whatever they are made of.
#[derive(Debug, Clone)]
pub struct Shrinking<S>(pub S);

/// A case on its way down. What the reference refuses to plan would fail for another reason: it is left out.
#[derive(Debug)]
pub struct CaseTree {
    best: Case,
    current: Case,
    next: std::vec::IntoIter<Case>,
}

impl<S: Strategy<Value = Case>> Strategy for Shrinking<S> {
    type Tree = CaseTree;
    type Value = Case;

    fn new_tree(&self, runner: &mut TestRunner) -> NewTree<Self> {
        let case = self.0.new_tree(runner)?.current();
        Ok(CaseTree { best: case.clone(), current: case.clone(), next: plannable(&case).into_iter() })
    }
}

fn plannable(case: &Case) -> Vec<Case> {
    let device = msa_ref::device();
    let is_planned = |case: &Case| {
        let parts = case.descriptor().and_then(|op| Ok((op, case.bounds()?)));
        parts.and_then(|(op, bounds)| device.plan(&op, &bounds, &case.plan_options())).is_ok()
    };
    let mut all = simpler(case);
    if is_planned(case) {
        all.retain(is_planned);
    }
    all
}

impl ValueTree for CaseTree {
    type Value = Case;

    fn current(&self) -> Case {
        self.current.clone()
    }

    /// The current case fails: it is the best so far.
    fn simplify(&mut self) -> bool {
        if self.current != self.best {
            self.best = self.current.clone();
            self.next = plannable(&self.best).into_iter();
        }
        self.complicate()
    }

    /// The current case passes: on to the next one.
    fn complicate(&mut self) -> bool {
        let next = self.next.next();
        let more = next.is_some();
        self.current = next.unwrap_or_else(|| self.best.clone());
        more
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate;

    /// A failure of long caches with a group above 4, whatever else the case says.
    fn fails(case: &Case) -> bool {
        case.geometry.group() > 4 && case.lengths.0.iter().any(|r| r.kv_len > 700)
    }

    #[test]
    fn every_step_is_smaller_and_parses() {
        for case in generate::cases(200, 4) {
            for smaller in simpler(&case) {
                assert!(size(&smaller) < size(&case), "{smaller} of {case}");
                assert_eq!(smaller.to_string().parse::<Case>().unwrap(), smaller);
            }
        }
    }

    #[test]
    fn what_does_not_matter_goes() {
        let all = generate::cases(300, 2);
        let failing: Vec<&Case> = all.iter().filter(|case| fails(case)).collect();
        assert!(failing.len() > 50);
        for case in failing {
            let small = shrink(case, 100_000, fails);
            assert!(fails(&small));
            assert_eq!(small.lengths, Lens::of(&[(0, 701)]), "{small} of {case}");
            assert_eq!((small.geometry.kv_heads, small.geometry.index_heads), (1, 1), "{small}");
            assert_eq!((small.seed, small.choices_made().len()), (1, 0), "{small}");
        }
    }

    #[test]
    fn the_number_of_tries_is_a_limit() {
        let case = generate::cases(1, 1).remove(0);
        let mut tried = 0;
        shrink(&case, 17, |_| {
            tried += 1;
            true
        });
        assert_eq!(tried, 17);
    }
}
