//! A case: one line that says everything about one run, and parses back.
//!
//! `sparse_decode(kv=nvfp4,page=64,len=[1x128,4x4097],splits=4,seed=7)`: the operation, then what differs from the
//! defaults, which are MiniMax-M3's shape in bf16. `len` lists `query rows x tokens in the cache` of every request;
//! `64*1x1024` repeats one.

mod describe;
mod kinds;
mod line;

pub use kinds::{CacheLayout, ListKind, Poison, ValueClass, Wrong};

use std::fmt;
use std::str::FromStr;

use msa_core::cache::CacheFormat;
use msa_core::error::{Error, Result};
use msa_core::geometry::{Geometry, Grouping};
use msa_core::lengths::RequestBound;
use msa_core::op::{
    Dequantise, ForcedPriority, LseBase, MergeDomain, NanRule, OpKind, Quantiser, Rounding, ScaleFold,
    ScorePrecision, SelectOrder, TieRule,
};
use msa_core::plan::ScheduleChoice;
use msa_core::tensor::DType;
use msa_core::text::{Leaf, Node, Visitor};

/// One run of one operation, with everything that its inputs depend on.
#[derive(Clone, PartialEq)]
pub struct Case {
    /// Operation.
    pub op: OpKind,
    /// Heads, dims, block, page and k.
    pub geometry: Geometry,
    /// Query rows and cache tokens of every request, as the device holds them.
    pub lengths: Lens,
    /// Bounds that the plan is made for, the same for every request; the lengths themselves if absent.
    pub upto: Option<Bound>,
    /// Rows behind those of the requests, which nothing may touch.
    pub padded_rows: u32,
    /// Values of the inputs.
    pub values: ValueClass,
    /// Seed of everything random.
    pub seed: u64,
    /// What unused bytes hold.
    pub poison: Poison,
    /// Cache layout.
    pub layout: CacheLayout,
    /// Bytes between the rows of row tensors.
    pub gap: u32,
    /// Lists that attention is given.
    pub lists: ListKind,
    /// What a checked plan must refuse; other than nothing, the plan is checked.
    pub wrong: Wrong,
    /// True to pass tensor scales other than 1.
    pub scales: bool,
    /// Types and formats.
    pub types: Types,
    /// Fields of the descriptor.
    pub choices: Choices,
    /// Options of the plan.
    pub options: Options,
}

/// Element types and cache formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Types {
    /// Query.
    pub query: DType,
    /// Index query.
    pub index_query: DType,
    /// KV cache.
    pub kv: CacheFormat,
    /// Index cache.
    pub index: CacheFormat,
    /// Output.
    pub output: DType,
    /// Partial outputs of splits, chunks and merges.
    pub partial: DType,
}

/// Fields of the descriptors beside geometry and types.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choices {
    /// True to write the LSE.
    pub lse: bool,
    /// Its base.
    pub lse_base: LseBase,
    /// NVFP4 rule of readers.
    pub dequantise: Dequantise,
    /// Block-scale shift.
    pub shift: u32,
    /// Where tensor scales go.
    pub fold: ScaleFold,
    /// Softmax scale, 0 for `1/sqrt(D)`.
    pub softmax_scale: f32,
    /// Accumulation of index scores.
    pub precision: ScorePrecision,
    /// One list a head, or one for all.
    pub grouping: Grouping,
    /// Forced blocks at the start.
    pub init_blocks: u32,
    /// Forced blocks at the end.
    pub local_blocks: u32,
    /// Who wins among forced blocks.
    pub priority: ForcedPriority,
    /// When scores are equal.
    pub tie_rule: TieRule,
    /// Rank of NaN.
    pub nan_rule: NanRule,
    /// Order of the lists.
    pub order: SelectOrder,
    /// Rounding of norm and RoPE.
    pub rounding: Rounding,
    /// NVFP4 quantiser.
    pub quantiser: Quantiser,
    /// Norm on or off.
    pub norm: bool,
    /// Rotated channels.
    pub rotary_dim: u32,
    /// True if a step appends.
    pub appends: bool,
    /// True if a step attends as prefill.
    pub prefill: bool,
    /// States of a merge.
    pub states: u32,
    /// What they hold.
    pub domain: MergeDomain,
    /// Ranks of a selection merge.
    pub world: u32,
}

/// Options of the plan.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    /// Parts of the slots.
    pub splits: Option<u32>,
    /// Prefill schedule.
    pub schedule: ScheduleChoice,
    /// Pin splits and schedule to the request.
    pub batch_invariant: bool,
    /// Look at device-resident values before the work.
    pub checked: bool,
    /// Most bytes of workspace.
    pub workspace_cap: Option<u64>,
    /// A named arithmetic.
    pub arithmetic: Option<String>,
    /// A named variant.
    pub variant: Option<String>,
}

/// Lengths of a batch: `[1x128,4x300,8*1x64]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Lens(pub Vec<RequestBound>);

/// One `rows x tokens`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Bound(pub RequestBound);

impl Case {
    /// The default case of an operation: M3's shape, one request.
    pub fn new(op: OpKind) -> Self {
        Self {
            op,
            geometry: Geometry::M3,
            lengths: Lens::of(&[(1, 300)]),
            upto: None,
            padded_rows: 0,
            values: ValueClass::Normal,
            seed: 1,
            poison: Poison::Ones,
            layout: CacheLayout::Planar,
            gap: 0,
            lists: ListKind::Shuffled,
            wrong: Wrong::Nothing,
            scales: false,
            types: Types::default(),
            choices: Choices::default(),
            options: Options::default(),
        }
    }

    /// True if every sum of the case is exact in f32 in any order. What norm and RoPE give is not.
    pub fn is_exact(&self) -> bool {
        self.values == ValueClass::Exact && !(self.op == OpKind::Step && self.choices.appends)
    }

    /// Rows of the requests, padded ones apart.
    pub fn rows(&self) -> u32 {
        self.lengths.0.iter().map(|r| r.query_len).sum()
    }
}

impl Default for Types {
    fn default() -> Self {
        Self {
            query: DType::Bf16,
            index_query: DType::Bf16,
            kv: CacheFormat::Bf16,
            index: CacheFormat::Bf16,
            output: DType::Bf16,
            partial: DType::F32,
        }
    }
}

impl Default for Choices {
    fn default() -> Self {
        Self {
            lse: true,
            lse_base: LseBase::Natural,
            dequantise: Dequantise::E4m3,
            shift: 0,
            fold: ScaleFold::Folded,
            softmax_scale: 0.0,
            precision: ScorePrecision::Faithful,
            grouping: Grouping::PerHead,
            init_blocks: 0,
            local_blocks: 1,
            priority: ForcedPriority::Local,
            tie_rule: TieRule::Exact,
            nan_rule: NanRule::Lowest,
            order: SelectOrder::Ascending,
            rounding: Rounding::Once,
            quantiser: Quantiser::Vendor,
            norm: true,
            rotary_dim: 64,
            appends: false,
            prefill: false,
            states: 2,
            domain: MergeDomain::Lse,
            world: 2,
        }
    }
}

impl Lens {
    /// From `(query rows, cache tokens)` pairs.
    pub fn of(pairs: &[(u32, u32)]) -> Self {
        Self(pairs.iter().map(|&(query_len, kv_len)| RequestBound { query_len, kv_len }).collect())
    }
}

impl Leaf for Lens {
    fn print(&self) -> String {
        let runs = self.0.chunk_by(|a, b| a == b).map(|run| match run {
            [one] => Bound(*one).print(),
            [first, ..] => format!("{}*{}", run.len(), Bound(*first).print()),
            [] => String::new(),
        });
        format!("[{}]", runs.collect::<Vec<_>>().join(","))
    }

    fn parse(&mut self, text: &str) -> Result<(), String> {
        let want = || "[rows x tokens, count*rows x tokens, ...], at most 65536 requests".to_owned();
        let body = text.trim().strip_prefix('[').and_then(|t| t.strip_suffix(']')).ok_or_else(want)?;
        self.0.clear();
        for word in body.split(',').filter(|w| !w.trim().is_empty()) {
            let (count, pair) = word.split_once('*').unwrap_or(("1", word));
            let count: usize = count.trim().parse().map_err(|_| want())?;
            let mut bound = Bound::default();
            bound.parse(pair)?;
            if self.0.len().saturating_add(count) > 65536 {
                return Err(want());
            }
            self.0.extend(std::iter::repeat_n(bound.0, count));
        }
        Ok(())
    }
}

impl Leaf for Bound {
    fn print(&self) -> String {
        format!("{}x{}", self.0.query_len, self.0.kv_len)
    }

    fn parse(&mut self, text: &str) -> Result<(), String> {
        let want = || "rows x tokens".to_owned();
        let (rows, tokens) = text.split_once('x').ok_or_else(want)?;
        self.0.query_len = rows.trim().parse().map_err(|_| want())?;
        self.0.kv_len = tokens.trim().parse().map_err(|_| want())?;
        Ok(())
    }
}

impl Node for Case {
    fn visit(&mut self, _: &str, visitor: &mut dyn Visitor) -> Result<()> {
        let Self { geometry: g, types: t, choices: c, options: o, .. } = self;
        let leaves: Vec<(&str, &mut dyn Leaf)> = vec![
            ("q", &mut t.query),
            ("iq", &mut t.index_query),
            ("kv", &mut t.kv),
            ("ik", &mut t.index),
            ("out", &mut t.output),
            ("partial", &mut t.partial),
            ("hq", &mut g.query_heads),
            ("hkv", &mut g.kv_heads),
            ("hi", &mut g.index_heads),
            ("d", &mut g.head_dim),
            ("di", &mut g.index_dim),
            ("block", &mut g.block),
            ("page", &mut g.page),
            ("k", &mut g.top_k),
            ("len", &mut self.lengths),
            ("upto", &mut self.upto),
            ("pad", &mut self.padded_rows),
            ("layout", &mut self.layout),
            ("gap", &mut self.gap),
            ("lists", &mut self.lists),
            ("wrong", &mut self.wrong),
            ("scales", &mut self.scales),
            ("lse", &mut c.lse),
            ("base", &mut c.lse_base),
            ("deq", &mut c.dequantise),
            ("shift", &mut c.shift),
            ("fold", &mut c.fold),
            ("scale", &mut c.softmax_scale),
            ("precision", &mut c.precision),
            ("grouping", &mut c.grouping),
            ("init", &mut c.init_blocks),
            ("local", &mut c.local_blocks),
            ("priority", &mut c.priority),
            ("tie", &mut c.tie_rule),
            ("nan", &mut c.nan_rule),
            ("order", &mut c.order),
            ("rounding", &mut c.rounding),
            ("quantiser", &mut c.quantiser),
            ("norm", &mut c.norm),
            ("rotary", &mut c.rotary_dim),
            ("appends", &mut c.appends),
            ("prefill", &mut c.prefill),
            ("states", &mut c.states),
            ("domain", &mut c.domain),
            ("world", &mut c.world),
            ("splits", &mut o.splits),
            ("schedule", &mut o.schedule),
            ("invariant", &mut o.batch_invariant),
            ("checked", &mut o.checked),
            ("cap", &mut o.workspace_cap),
            ("arith", &mut o.arithmetic),
            ("variant", &mut o.variant),
            ("poison", &mut self.poison),
            ("in", &mut self.values),
            ("seed", &mut self.seed),
        ];
        leaves.into_iter().try_for_each(|(name, leaf)| visitor.leaf(name, leaf))
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&line::print(self.op.name(), &mut self.clone(), &mut Self::new(self.op)))
    }
}

impl fmt::Debug for Case {
    /// The line, which is what repeats the case.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Case {
    type Err = Error;

    /// Parses a line as `Display` prints it. The result names no impossible geometry; whether a backend takes it is
    /// another question.
    fn from_str(text: &str) -> Result<Self> {
        let (op, body) = line::split(text)?;
        let names = || OpKind::ALL.map(OpKind::name).join(", ");
        let kind = OpKind::ALL.into_iter().find(|k| k.name() == op.trim());
        let mut case = Self::new(kind.ok_or_else(|| Error::invalid("case.op", names(), op))?);
        line::parse(body, &mut case)?;
        case.geometry.validated()?;
        Ok(case)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_parses_back_and_leaves_defaults_out() {
        let line = "sparse_decode(kv=nvfp4,page=64,len=[1x128,3*4x4097],splits=4,in=exact,seed=7)";
        let case: Case = line.parse().unwrap();
        assert_eq!(case.lengths, Lens::of(&[(1, 128), (4, 4097), (4, 4097), (4, 4097)]));
        assert_eq!(case.to_string(), line);
        assert_eq!(Case::new(OpKind::Merge).to_string(), "merge()");
    }

    #[test]
    fn bad_lines_say_what_was_wanted() {
        let error = |line: &str| line.parse::<Case>().unwrap_err().to_string();
        assert!(error("attend(k=1)").starts_with("case.op: want append, index_score"));
        assert!(error("merge(heads=1)").contains("got heads"));
        assert!(error("merge(k=1,k=2)").contains("want one value"));
        assert!(error("merge(k=one)").contains("case.k: want a u32"));
        assert!(error("merge(page=48)").contains("geometry.page"));
        assert!(error("merge").contains("op(name=value,...)"));
        assert!(error("merge(len=[99999999999*1x1])").contains("at most 65536"));
        assert!(error("merge(in=odd)").contains("normal, exact, edge, ties, nan"));
    }
}
