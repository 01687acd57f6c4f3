//! What executes plans.
