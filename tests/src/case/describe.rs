//! From a case to what the engine API takes: descriptor, bounds, options.

use msa_core::error::Result;
use msa_core::lengths::{Lengths, RequestBound};
use msa_core::op::{
    Append, Attention, AttentionOutput, IndexScore, Merge, Norm, Op, OpKind, Rope, Select, SelectMerge, Step,
};
use msa_core::plan::PlanOptions;

use super::{Case, Wrong};

impl Case {
    /// The descriptor, checked.
    pub fn descriptor(&self) -> Result<Op> {
        let op = match self.op {
            OpKind::Append => Op::Append(self.append()),
            OpKind::IndexScore => Op::IndexScore(self.index_score()),
            OpKind::Select => Op::Select(self.select()),
            OpKind::SparseDecode => Op::SparseDecode(self.attention()),
            OpKind::SparsePrefill => Op::SparsePrefill(self.attention()),
            OpKind::Merge => Op::Merge(self.merge()),
            OpKind::SelectMerge => Op::SelectMerge(SelectMerge {
                geometry: self.geometry,
                world: self.choices.world,
                select: self.select(),
            }),
            OpKind::Step => Op::Step(Step {
                appends: self.choices.appends,
                append: self.append(),
                index: self.index_score(),
                select: self.select(),
                prefill: self.choices.prefill,
                attention: self.attention(),
            }),
        };
        op.validated()
    }

    /// The bounds that the plan is made for.
    pub fn bounds(&self) -> Result<Lengths> {
        let own = self.lengths.0.iter();
        let mut bounds: Vec<RequestBound> = own.map(|r| self.upto.map_or(*r, |upto| upto.0)).collect();
        let spare: u64 = bounds.iter().map(|r| u64::from(r.query_len)).sum();
        let rows = u64::from(self.rows()) + u64::from(self.padded_rows);
        if spare < rows {
            // A request that is not there: its rows are the padded ones.
            let query_len = u32::try_from(rows - spare).unwrap_or(u32::MAX);
            bounds.push(RequestBound { query_len, kv_len: 0 });
        }
        Lengths::new(bounds)
    }

    /// The options of the plan.
    pub fn plan_options(&self) -> PlanOptions {
        let o = self.options.clone();
        PlanOptions {
            variant: o.variant,
            splits: o.splits,
            schedule: o.schedule,
            batch_invariant: o.batch_invariant,
            checked: o.checked || self.wrong != Wrong::Nothing,
            workspace_cap: o.workspace_cap,
            arithmetic: o.arithmetic,
            ..PlanOptions::default()
        }
    }

    fn append(&self) -> Append {
        let c = &self.choices;
        Append {
            geometry: self.geometry,
            kv: self.types.kv,
            index: self.types.index,
            query: self.types.query,
            index_query: self.types.index_query,
            norm: Norm { enabled: c.norm, ..Norm::default() },
            rope: Rope { rotary_dim: c.rotary_dim },
            rounding: c.rounding,
            quantiser: c.quantiser,
            block_scale_shift: c.shift,
        }
    }

    fn index_score(&self) -> IndexScore {
        let c = &self.choices;
        IndexScore {
            geometry: self.geometry,
            query: self.types.index_query,
            keys: self.types.index,
            dequantise: c.dequantise,
            block_scale_shift: c.shift,
            precision: c.precision,
            scale_fold: c.fold,
        }
    }

    fn select(&self) -> Select {
        let c = &self.choices;
        Select {
            geometry: self.geometry,
            grouping: c.grouping,
            init_blocks: c.init_blocks,
            local_blocks: c.local_blocks,
            forced_priority: c.priority,
            tie_rule: c.tie_rule,
            nan_rule: c.nan_rule,
            order: c.order,
        }
    }

    fn attention(&self) -> Attention {
        let c = &self.choices;
        Attention {
            geometry: self.geometry,
            query: self.types.query,
            cache: self.types.kv,
            dequantise: c.dequantise,
            block_scale_shift: c.shift,
            scale_fold: c.fold,
            softmax_scale: self.softmax_scale(),
            grouping: c.grouping,
            output: AttentionOutput {
                dtype: self.types.output,
                lse: c.lse,
                lse_base: c.lse_base,
                partial: self.types.partial,
            },
        }
    }

    fn merge(&self) -> Merge {
        let c = &self.choices;
        Merge {
            geometry: self.geometry,
            states: c.states,
            domain: c.domain,
            partial: self.types.partial,
            output: self.types.output,
            lse_base: c.lse_base,
        }
    }

    /// Exact weights of 0 and 1 need logits hundreds apart: scale 1 unless the case says otherwise.
    fn softmax_scale(&self) -> f32 {
        let own = self.choices.softmax_scale;
        if own == 0.0 && self.is_exact() { 1.0 } else { own }
    }
}
