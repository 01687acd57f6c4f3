use super::choices::LseBase;
use super::index::Select;
use crate::error::{Result, require};
use crate::geometry::Geometry;
use crate::tensor::DType;
use crate::text::{fields, names};

/// What the partial states hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum MergeDomain {
    /// `(o, lse)`: o normalised.
    #[default]
    Lse = 0,
    /// `(o, l, m)`: o not normalised, row sum l, maximum m of the scaled logits.
    SumMax = 1,
}
names!(MergeDomain { Lse = "lse", SumMax = "sum_max" });

/// Merges `states` partial attention states in ascending order.
///
/// Arguments: `partial_outputs [S, T, Hq, D]` f32 or bf16, `partial_lse [S, T, Hq]` f32 (in [`MergeDomain::SumMax`]
/// the maxima, and the sums in `partial_sums [S, T, Hq]`). Outputs `output [T, Hq, D]`, `lse [T, Hq]` f32.
/// `(anything, -inf)` is neutral: its output is not read; a foreign `+inf` counts as empty as well.
#[derive(Debug, Clone, PartialEq)]
pub struct Merge {
    /// Query heads and head dim.
    pub geometry: Geometry,
    /// Most states.
    pub states: u32,
    /// Meaning of the states.
    pub domain: MergeDomain,
    /// Element type of the partial outputs.
    pub partial: DType,
    /// Element type of the output.
    pub output: DType,
    /// Base of the partial LSEs and of the result.
    pub lse_base: LseBase,
}
fields!(Merge { node geometry, leaf states, leaf domain, leaf partial, leaf output, leaf lse_base });

impl Default for Merge {
    fn default() -> Self {
        Self {
            geometry: Geometry::M3,
            states: 2,
            domain: MergeDomain::Lse,
            partial: DType::F32,
            output: DType::Bf16,
            lse_base: LseBase::Natural,
        }
    }
}

impl Merge {
    pub(super) fn check(&self) -> Result<()> {
        require((1..=1024).contains(&self.states), "merge.states", "1 to 1024", self.states)?;
        require(
            matches!(self.partial, DType::Bf16 | DType::F32),
            "merge.partial",
            "f32 or bf16",
            self.partial,
        )?;
        let ok = matches!(self.output, DType::Bf16 | DType::F16 | DType::F32);
        require(ok, "merge.output", "bf16, f16 or f32", self.output)
    }
}

/// Merges the candidate keys of `world` ranks into one selection, bit-identical to the single-device one.
///
/// Argument `candidate_keys [W, T, Hi, k]` u64 ([`crate::candidate`]); outputs as [`Select`].
#[derive(Debug, Clone, PartialEq)]
pub struct SelectMerge {
    /// Index heads, block and k.
    pub geometry: Geometry,
    /// Ranks.
    pub world: u32,
    /// The selection that is reproduced.
    pub select: Select,
}
fields!(SelectMerge { node geometry, leaf world, node select });

impl Default for SelectMerge {
    fn default() -> Self {
        Self { geometry: Geometry::M3, world: 2, select: Select::default() }
    }
}

impl SelectMerge {
    pub(super) fn check(&self) -> Result<()> {
        require((1..=64).contains(&self.world), "select_merge.world", "1 to 64", self.world)?;
        let same = self.select.geometry == self.geometry;
        require(same, "select_merge.select.geometry", "the geometry of select_merge", "another")?;
        let exact = self.select.tie_rule == super::choices::TieRule::Exact;
        let want = "exact: ranks within a row's range need the scores of all ranks";
        require(exact, "select_merge.select.tie_rule", want, self.select.tie_rule)?;
        self.select.check()
    }
}
