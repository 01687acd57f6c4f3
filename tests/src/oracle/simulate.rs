//! The reference's own execution of another device's plan: what that device must give bit for bit.

use msa_core::error::Result;
use msa_core::plan::{self, Plan, PlanOptions};
use msa_core::variant::Variant;

/// The plan with which the reference does what `plan` says: the same tables for the same device, under the same
/// arithmetic.
///
/// Errors: the reference does not do the operation, or makes other tables of the same inputs.
pub fn reference_plan(plan: &Plan) -> Result<Plan> {
    // Where pages are shared every slot is a part; the reference is asked for the same.
    let shares = Variant::shares_pages(&plan.variant);
    let splits = if shares { Some(plan.op.geometry().top_k) } else { plan.options.splits };
    let arithmetic = Some(plan.arithmetic.name.clone());
    let options = PlanOptions { variant: None, arithmetic, splits, ..plan.options.clone() };
    plan::plan(&plan.op, &plan.lengths()?, &plan.traits, msa_ref::VARIANTS, &options, "ref:0")
}
