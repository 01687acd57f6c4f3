//! The reference's own execution of another device's plan: what that device must give bit for bit.

use msa_core::error::Result;
use msa_core::plan::{self, Plan, PlanOptions};

/// The plan with which the reference does what `plan` says: the same tables for the same device, under the same
/// arithmetic.
///
/// Errors: the reference does not do the operation, or makes other tables of the same inputs.
pub fn reference_plan(plan: &Plan) -> Result<Plan> {
    let options =
        PlanOptions { variant: None, arithmetic: Some(plan.arithmetic.name.clone()), ..plan.options.clone() };
    plan::plan(&plan.op, &plan.lengths()?, &plan.traits, msa_ref::VARIANTS, &options, "ref:0")
}
