//! A plan with one field changed does not verify, whether or not the hash is made to fit.

use super::*;
use crate::geometry::Grouping;
use crate::op::{NanRule, Select, SelectOrder};
use crate::text::{Leaf, Node, Visitor};

/// Changes the leaf number `at` to another value that parses.
struct Mutator {
    at: usize,
    seen: usize,
    path: String,
    word: usize,
    words: usize,
}

impl Visitor for Mutator {
    fn leaf(&mut self, path: &str, leaf: &mut dyn Leaf) -> Result<()> {
        if self.seen == self.at {
            path.clone_into(&mut self.path);
            let before = leaf.print();
            let words: Vec<_> = before.split(' ').map(str::to_owned).collect();
            self.words = words.len();
            let changed = replacements(&words, self.word, leaf)
                .into_iter()
                .any(|text| leaf.parse(&text).is_ok() && leaf.print() != before);
            assert!(changed, "{path} = {before} has no other value");
        }
        self.seen += 1;
        Ok(())
    }
}

/// Texts that might be another value: a number next door, the other truth, or the names that a wrong one is told of.
fn replacements(words: &[String], at: usize, leaf: &mut dyn Leaf) -> Vec<String> {
    let word = words[at].as_str();
    let mut candidates = Vec::new();
    if let Ok(number) = str::parse::<i128>(word) {
        candidates.extend([(number + 1).to_string(), (number - 1).to_string()]);
    } else if let Ok(number) = str::parse::<f64>(word) {
        candidates.push((number + 1.0).to_string());
    } else if words.len() == 1 {
        candidates.push(format!("{word}x"));
        candidates.extend(["true", "false", "1"].map(str::to_owned));
        if let Err(names) = leaf.parse("no such value") {
            candidates.extend(names.split(", ").map(str::to_owned));
        }
    }
    candidates.push(format!("{word}x"));
    let line = |new: String| {
        let mut all = words.to_vec();
        all[at] = new;
        all.join(" ")
    };
    candidates.into_iter().map(line).collect()
}

/// The plan with leaf `at` (its word `word`) changed, the leaf's path, and the number of its words; `None` past the end.
fn mutated(plan: &Plan, at: usize, word: usize) -> Option<(Plan, String, usize)> {
    let mut plan = plan.clone();
    let mut mutator = Mutator { at, seen: 0, path: String::new(), word, words: 0 };
    plan.visit("plan", &mut mutator).unwrap();
    (mutator.words > 0).then_some((plan, mutator.path, mutator.words))
}

/// Every single-word change of every leaf of a plan.
fn for_every_mutation(plan: &Plan, mut each: impl FnMut(Plan, &str)) {
    for at in 0.. {
        let Some((changed, path, words)) = mutated(plan, at, 0) else { break };
        each(changed, &path);
        for word in 1..words {
            if let Some((changed, path, _)) = mutated(plan, at, word) {
                each(changed, &path);
            }
        }
    }
}

/// Leaves whose change can make another valid plan, each with the reason: the start of the path behind `plan.`, or, with
/// a leading dot, the end of a path in `op`.
const FREE: &[(&str, &str)] = &[
    (
        "variant",
        "the list that variants are from is the backend's, not the plan's; op and grammar are checked",
    ),
    ("options.checked", "merges have nothing to validate, and no room for it"),
    ("options.workspace_cap", "a cap that is larger or still large enough gives the same windows"),
    ("options.batch_invariant", "on a CPU, and for ops without splits, it holds anyway"),
    ("options.splits", "asking for the one part that a CPU takes anyway"),
    ("traits.units", "changes parts only where they are made to fill the units"),
    ("traits.arch", "another device without a different tile or scratch plans alike"),
    ("traits.shared_memory", "no planner reads it yet"),
    ("traits.l2", "no planner reads it yet"),
    ("traits.domains", "no planner reads it yet"),
    ("traits.launch_ns", "no planner reads it yet"),
    ("traits.hop_ns", "no planner reads it yet"),
    ("requests", "a token more in a block that is there anyway changes nothing"),
    ("op.append.geometry", "a step that does not append ignores its append"),
    ("op.append.rope", "a step that does not append ignores its append"),
    (".kv", "a format of the engine's memory; kernels are chosen by the variant's name"),
    (".index", "a format of the engine's memory"),
    (".keys", "a format of the engine's memory"),
    (".cache", "a format of the engine's memory; on a CPU, or in a full machine, no part depends on it"),
    (".query", "an element type of an argument"),
    (".index_query", "an element type of an argument"),
    (".output", "an element type of an argument"),
    (".output.dtype", "an element type of an argument"),
    (
        ".partial",
        "an element type of an argument of merge, or of states that a plan without splits does not keep",
    ),
    (".output.lse", "one more output"),
    (".lse_base", "a rounding of the result"),
    (".block_scale_shift", "a rule of the numbers"),
    (".norm.enabled", "a rule of the numbers"),
    (".norm.epsilon", "a rule of the numbers"),
    (".quantiser", "a rule of the numbers"),
    (".rounding", "a rule of the numbers"),
    (".dequantise", "a rule of the numbers"),
    (".scale_fold", "a rule of the numbers"),
    (".precision", "a rule of the numbers"),
    (".softmax_scale", "a rule of the numbers"),
    (".domain", "a rule of the numbers"),
    (".forced_priority", "a rule of the selection"),
    (".nan_rule", "a rule of the selection"),
    (".order", "a rule of the selection"),
    (".tie_rule", "a rule of the selection"),
    (".init_blocks", "a rule of the selection"),
    (".local_blocks", "a rule of the selection"),
    (".grouping", "the number of lists sizes nothing that a decode or a short selection keeps"),
    (".geometry.top_k", "k sizes nothing where no list is kept: append, merge, scores, short selections"),
    (".states", "merge keeps nothing"),
    (".world", "select_merge keeps nothing"),
];

fn is_free(field: &str, pattern: &str) -> bool {
    if pattern.starts_with('.') {
        field.starts_with("op.") && field.ends_with(pattern)
    } else {
        field.starts_with(pattern)
    }
}

fn plans() -> Vec<Plan> {
    let mut plans = Vec::new();
    for traits in both_devices() {
        for op in every_op() {
            plans.push(planned(&op, &lengths(&[3, 6200], &[700, 7001]), &traits, &capped(4 << 30)).unwrap());
        }
        for schedule in [ScheduleChoice::KvOuter, ScheduleChoice::Hybrid] {
            let options = PlanOptions { schedule, ..capped(16 << 30) };
            let op = Op::of(OpKind::SparsePrefill);
            plans.push(planned(&op, &lengths(&[3, 6200], &[700, 7001]), &traits, &options).unwrap());
        }
        let checked = PlanOptions { checked: true, ..PlanOptions::default() };
        plans.push(planned(&Op::of(OpKind::Append), &lengths(&[3], &[7001]), &traits, &checked).unwrap());
        let ranks = PlanOptions { world: 4, rank: 1, ..PlanOptions::default() };
        plans.push(planned(&Op::of(OpKind::IndexScore), &lengths(&[3], &[7001]), &traits, &ranks).unwrap());
    }
    plans
}

#[test]
fn every_change_breaks_the_hash() {
    for plan in plans() {
        plan.verify().unwrap();
        for_every_mutation(&plan, |changed, path| {
            assert!(changed.verify().is_err(), "{}: {path}", plan.variant);
        });
    }
}

#[test]
fn every_change_of_consequence_is_seen_even_with_a_hash_that_fits() {
    let mut used = std::collections::BTreeSet::new();
    let mut strays = std::collections::BTreeSet::new();
    for plan in plans() {
        for_every_mutation(&plan, |mut changed, path| {
            changed.hash = changed.computed_hash();
            let field = path.trim_start_matches("plan.");
            if changed.verify().is_ok() && field != "hash" {
                let free = FREE.iter().find(|(pattern, _)| is_free(field, pattern));
                match free {
                    Some((prefix, _)) => _ = used.insert(*prefix),
                    None => _ = strays.insert(format!("{}: {path}", plan.variant)),
                }
            }
        });
    }
    assert!(strays.is_empty(), "these may change: {strays:#?}");
    let unused: Vec<_> = FREE.iter().filter(|(prefix, _)| !used.contains(prefix)).collect();
    assert!(unused.is_empty(), "these are seen after all: {unused:?}");
}

fn select_of(plan: &mut Plan) -> &mut Select {
    match &mut plan.op {
        Op::Select(op) => op,
        other => panic!("{other:?}"),
    }
}

/// Fields that [`Plan::verify_coverage`] guards without the planner's help, each with a change that it must see.
#[test]
fn coverage_stands_alone() {
    type Change = fn(&mut Plan);
    let decode: &[(&str, Change)] = &[
        ("a gap", |p| p.slot_parts[0].slot_end -= 1),
        ("an overlap", |p| p.slot_parts[1].slot_begin -= 1),
        ("a part too few", |p| _ = p.slot_parts.pop()),
        ("a part twice", |p| p.slot_parts.push(p.slot_parts[0])),
        ("parts out of order", |p| p.slot_parts.swap(0, 1)),
        ("a stray request", |p| p.slot_parts[0].request = 9),
        ("rows left out", |p| p.windows[0].row_end -= 1),
        ("an empty window", |p| p.windows.insert(0, RowWindow::default())),
        ("a small region", |p| p.workspace[1].bytes -= 256),
        ("a region beyond the end", |p| p.workspace_bytes -= 256),
        ("an overlapping region", |p| p.workspace[2].offset -= 256),
        ("a misaligned region", |p| p.workspace[2].offset += 4),
        ("a missing region", |p| drop(p.workspace.remove(1))),
        ("no status", |p| drop(p.workspace.remove(0))),
        ("a cap exceeded", |p| p.options.workspace_cap = Some(p.workspace_bytes - 1)),
        ("no blocks of threads", |p| p.decode_blocks = DecodeBlocks::None),
        ("pairs of one part", |p| {
            p.slot_parts =
                [0, 1].map(|request| SlotPart { request, slot_end: 16, ..SlotPart::default() }).to_vec();
            p.decode_blocks = DecodeBlocks::Pair;
        }),
        ("another device's", |p| p.traits.arch = Arch::Gfx942),
    ];
    let index: &[(&str, Change)] = &[
        ("a block left out", |p| p.block_parts[0].block_begin += 1),
        ("the end left out", |p| p.block_parts.iter_mut().last().unwrap().block_end -= 1),
        ("another rank's blocks", |p| p.block_parts[0].block_step = 2),
        ("a block beyond", |p| p.block_parts.iter_mut().last().unwrap().block_end += 1),
        ("no kernel", |p| p.index_kernel = IndexKernel::None),
        ("another device's", |p| p.traits.arch = Arch::Cpu),
    ];
    let prefill: &[(&str, Change)] = &[
        ("a segment less", |p| p.prefill.segments[0].count -= 1),
        ("segments shifted", |p| p.prefill.segments[1].first += 1),
        ("an entry left out", |p| p.prefill.windows.iter_mut().last().unwrap().segment_end -= 1),
        ("rows that do not fit", |p| p.prefill.windows[0].rows -= 1),
        ("tiles across segments", |p| p.prefill.tile_rows = 20),
        ("quads across tiles", |p| p.prefill.tile_rows = 6),
        ("no chunks", |p| p.prefill.chunk_rows = 0),
        ("a small record", |p| p.workspace[1].bytes /= 2),
        ("few partial states", |p| p.prefill.partial_slots -= 1),
    ];
    let select: &[(&str, Change)] = &[
        ("no kernel", |p| p.select_kernel = SelectKernel::None),
        ("attention, which is not there", |p| p.select_kernel = SelectKernel::Attention),
        ("a team of more than 1,024 blocks", |p| p.requests[0].kv_len = 1025 * 128),
        ("a team of more slots than lanes", |p| select_of(p).geometry.top_k = 33),
        ("a team that ranks by score", |p| select_of(p).order = SelectOrder::ScoreThenOwn),
        ("a team for all heads", |p| select_of(p).grouping = Grouping::Reduced),
        ("a team whose NaN wins", |p| select_of(p).nan_rule = NanRule::Highest),
        ("a team without room for what is forced", |p| select_of(p).init_blocks = 16),
        ("a small block of more than 1,024 blocks", |p| {
            (p.select_kernel, p.requests[0].kv_len) = (SelectKernel::Small, 1025 * 128);
        }),
        ("a medium block of more than 4,096 blocks", |p| {
            (p.select_kernel, p.requests[0].kv_len) = (SelectKernel::Medium, 4097 * 128);
        }),
        ("eight warps of more than 4,096 blocks", |p| {
            (p.select_kernel, p.requests[0].kv_len) = (SelectKernel::Eight, 4097 * 128);
        }),
        ("sixteen warps of more than 16,384 blocks", |p| {
            (p.select_kernel, p.requests[0].kv_len) = (SelectKernel::Sixteen, 16_385 * 128);
        }),
        ("eight warps that rank by score", |p| {
            p.select_kernel = SelectKernel::Eight;
            select_of(p).order = SelectOrder::ScoreThenOwn;
        }),
        ("a cluster whose NaN wins", |p| {
            p.select_kernel = SelectKernel::Cluster;
            select_of(p).nan_rule = NanRule::Highest;
        }),
        ("another device's", |p| p.traits.arch = Arch::Gfx950),
        ("scores of a selection", |p| p.index_kernel = IndexKernel::Eight),
        ("an append of a selection", |p| p.append.most_passes = 8),
    ];
    let append: &[(&str, Change)] = &[
        ("many rows without a table", |p| p.append.many_rows = 1024),
        ("no passes", |p| p.append.most_passes = 0),
        ("no waves", |p| p.append.pass_waves = 0),
        ("no rule", |p| p.append = AppendPlan::default()),
        ("another device's", |p| p.traits.arch = Arch::Cpu),
        ("a selection of an append", |p| p.select_kernel = SelectKernel::Large),
    ];
    let table = [
        (OpKind::SparseDecode, decode),
        (OpKind::IndexScore, index),
        (OpKind::SparsePrefill, prefill),
        (OpKind::Select, select),
        (OpKind::Append, append),
    ];
    for (kind, changes) in table {
        let all = match kind {
            OpKind::SparseDecode | OpKind::Select => lengths(&[1, 1], &[700, 7001]),
            _ => lengths(&[3, 6200], &[700, 7001]),
        };
        let good = planned(&Op::of(kind), &all, &DeviceTraits::h200(), &capped(16 << 30)).unwrap();
        good.verify_coverage().unwrap();
        for (what, change) in changes {
            let mut bad = good.clone();
            change(&mut bad);
            assert!(bad.verify_coverage().is_err(), "{kind}: {what}");
        }
    }
}
