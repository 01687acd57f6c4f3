//! Operation descriptors: what is to be computed, apart from lengths, addresses and devices.
//!
//! Every point on which public implementations of MSA disagree is a field here, with the default of MiniMax-M3. A
//! descriptor that passes [`Op::validated`] cannot be inconsistent; plans carry it and kernels do not check it again.

mod append;
mod attention;
mod choices;
mod index;
mod merge;

pub use append::{Append, Norm, Rope};
pub use attention::{Attention, AttentionOutput};
pub use choices::{
    Dequantise, ForcedPriority, LseBase, NanRule, Quantiser, Rounding, ScaleFold, ScorePrecision,
    SelectOrder, TieRule,
};
pub use index::{IndexScore, Select};
pub use merge::{Merge, MergeDomain, SelectMerge};

use crate::error::{Result, require};
use crate::geometry::{Geometry, Grouping};
use crate::text::{Node, Visitor, fields, names};

/// Meaning of the operations, apart from any layout: raised when ties, roundings or defaults change.
pub const OP_REVISION: u32 = 1;

/// Kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(u32)]
pub enum OpKind {
    /// Norm, RoPE, cast or quantise, insert into the caches.
    #[default]
    Append = 1,
    /// Block maxima of index query times index key.
    IndexScore = 2,
    /// The k best blocks of each row and index head.
    Select = 3,
    /// Attention of few query rows a request over selected blocks.
    SparseDecode = 4,
    /// Attention of many query rows a request over selected blocks.
    SparsePrefill = 5,
    /// Merge of partial attention states.
    Merge = 6,
    /// Merge of candidate keys from several ranks into one selection.
    SelectMerge = 7,
    /// Append, score, select, attend under one plan.
    Step = 8,
}
names!(OpKind {
    Append = "append",
    IndexScore = "index_score",
    Select = "select",
    SparseDecode = "sparse_decode",
    SparsePrefill = "sparse_prefill",
    Merge = "merge",
    SelectMerge = "select_merge",
    Step = "step",
});

impl OpKind {
    /// Every kind.
    pub const ALL: [Self; 8] = [
        Self::Append,
        Self::IndexScore,
        Self::Select,
        Self::SparseDecode,
        Self::SparsePrefill,
        Self::Merge,
        Self::SelectMerge,
        Self::Step,
    ];
}

/// An operation.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// See [`Append`].
    Append(Append),
    /// See [`IndexScore`].
    IndexScore(IndexScore),
    /// See [`Select`].
    Select(Select),
    /// See [`Attention`].
    SparseDecode(Attention),
    /// See [`Attention`].
    SparsePrefill(Attention),
    /// See [`Merge`].
    Merge(Merge),
    /// See [`SelectMerge`].
    SelectMerge(SelectMerge),
    /// See [`Step`].
    Step(Step),
}

impl Default for Op {
    fn default() -> Self {
        Self::Append(Append::default())
    }
}

impl Op {
    /// The default descriptor of a kind.
    pub fn of(kind: OpKind) -> Self {
        match kind {
            OpKind::Append => Self::Append(Append::default()),
            OpKind::IndexScore => Self::IndexScore(IndexScore::default()),
            OpKind::Select => Self::Select(Select::default()),
            OpKind::SparseDecode => Self::SparseDecode(Attention::default()),
            OpKind::SparsePrefill => Self::SparsePrefill(Attention::default()),
            OpKind::Merge => Self::Merge(Merge::default()),
            OpKind::SelectMerge => Self::SelectMerge(SelectMerge::default()),
            OpKind::Step => Self::Step(Step::default()),
        }
    }

    /// Kind.
    pub fn kind(&self) -> OpKind {
        match self {
            Self::Append(_) => OpKind::Append,
            Self::IndexScore(_) => OpKind::IndexScore,
            Self::Select(_) => OpKind::Select,
            Self::SparseDecode(_) => OpKind::SparseDecode,
            Self::SparsePrefill(_) => OpKind::SparsePrefill,
            Self::Merge(_) => OpKind::Merge,
            Self::SelectMerge(_) => OpKind::SelectMerge,
            Self::Step(_) => OpKind::Step,
        }
    }

    /// Name, as in variant names.
    pub fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// Geometry.
    pub fn geometry(&self) -> &Geometry {
        match self {
            Self::Append(op) => &op.geometry,
            Self::IndexScore(op) => &op.geometry,
            Self::Select(op) => &op.geometry,
            Self::SparseDecode(op) | Self::SparsePrefill(op) => &op.geometry,
            Self::Merge(op) => &op.geometry,
            Self::SelectMerge(op) => &op.geometry,
            Self::Step(op) => &op.attention.geometry,
        }
    }

    /// Checks every field; the error names the first that is wrong.
    pub fn validated(self) -> Result<Self> {
        self.geometry().validated()?;
        match &self {
            Self::Append(op) => op.check()?,
            Self::IndexScore(op) => op.check()?,
            Self::Select(op) => op.check()?,
            Self::SparseDecode(op) | Self::SparsePrefill(op) => op.check()?,
            Self::Merge(op) => op.check()?,
            Self::SelectMerge(op) => op.check()?,
            Self::Step(op) => op.check()?,
        }
        Ok(self)
    }
}

impl Node for Op {
    fn visit(&mut self, path: &str, visitor: &mut dyn Visitor) -> Result<()> {
        let before = self.kind();
        let mut kind = before;
        visitor.leaf(&format!("{path}.kind"), &mut kind)?;
        if kind != before {
            *self = Self::of(kind);
        }
        match self {
            Self::Append(op) => op.visit(path, visitor),
            Self::IndexScore(op) => op.visit(path, visitor),
            Self::Select(op) => op.visit(path, visitor),
            Self::SparseDecode(op) | Self::SparsePrefill(op) => op.visit(path, visitor),
            Self::Merge(op) => op.visit(path, visitor),
            Self::SelectMerge(op) => op.visit(path, visitor),
            Self::Step(op) => op.visit(path, visitor),
        }
    }
}

/// Append, index_score, select and attention of one layer under one plan and one workspace.
///
/// The parts must agree on the geometry and on the formats of the caches. Scores are not materialised whole: the plan
/// works through the rows in windows that fit the workspace.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Step {
    /// Insert the new tokens first; `false` if the caches already hold them.
    pub appends: bool,
    /// First stage; ignored unless `appends`.
    pub append: Append,
    /// Second stage.
    pub index: IndexScore,
    /// Third stage.
    pub select: Select,
    /// True to attend with the prefill schedules, false for the decode split.
    pub prefill: bool,
    /// Last stage.
    pub attention: Attention,
}
fields!(Step { leaf appends, node append, node index, node select, leaf prefill, node attention });

impl Step {
    fn check(&self) -> Result<()> {
        self.index.check()?;
        self.select.check()?;
        self.attention.check()?;
        let same = |name: &str, geometry: &Geometry| {
            let ok = *geometry == self.attention.geometry;
            require(ok, name, "the geometry of step.attention", format!("{geometry:?}"))
        };
        same("step.index.geometry", &self.index.geometry)?;
        same("step.select.geometry", &self.select.geometry)?;
        if self.appends {
            self.append.check()?;
            same("step.append.geometry", &self.append.geometry)?;
            let (kv, index) = (self.attention.cache.name(), self.index.keys.name());
            require(self.append.kv == self.attention.cache, "step.append.kv", kv, self.append.kv.name())?;
            require(
                self.append.index == self.index.keys,
                "step.append.index",
                index,
                self.append.index.name(),
            )?;
            require(
                self.append.query == self.attention.query,
                "step.append.query",
                self.attention.query,
                self.append.query,
            )?;
            let query = self.append.index_query == self.index.query;
            require(query, "step.append.index_query", self.index.query, self.append.index_query)?;
        }
        Ok(())
    }
}

impl Node for Geometry {
    fn visit(&mut self, path: &str, visitor: &mut dyn Visitor) -> Result<()> {
        let Self { query_heads, kv_heads, index_heads, head_dim, index_dim, block, page, top_k } = self;
        let all = [
            ("query_heads", query_heads),
            ("kv_heads", kv_heads),
            ("index_heads", index_heads),
            ("head_dim", head_dim),
            ("index_dim", index_dim),
            ("block", block),
            ("page", page),
            ("top_k", top_k),
        ];
        all.into_iter().try_for_each(|(name, field)| visitor.leaf(&format!("{path}.{name}"), field))
    }
}

impl Default for Geometry {
    fn default() -> Self {
        Self::M3
    }
}

names!(Grouping { PerHead = "per_head", Reduced = "reduced" });

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text;

    #[test]
    fn every_default_is_valid_and_round_trips_as_text() {
        for kind in OpKind::ALL {
            let mut op = Op::of(kind).validated().unwrap();
            let printed = text::print(&mut op, "op").unwrap();
            let mut back = Op::default();
            text::parse(&mut back, "op", &printed).unwrap();
            assert_eq!(back, op);
        }
    }

    #[test]
    fn stages_of_a_step_must_agree() {
        let mut step = Step { appends: true, ..Step::default() };
        step.append.kv = crate::cache::CacheFormat::Nvfp4;
        let error = Op::Step(step).validated().unwrap_err();
        assert_eq!(error.to_string(), "step.append.kv: want bf16, got nvfp4");
    }
}
