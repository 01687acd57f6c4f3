//! The harness of `msa`: cases, their inputs, the steps of a run, oracles and comparison. Proptest suites, benches and
//! `msa-check` share it.
//!
//! A [`Case`] is one line. [`inputs`] makes its tensors, [`steps`] runs it on a device and checks everything that
//! can be checked, [`oracle`] says what is right.

pub mod case;
pub mod compare;
pub mod counted;
pub mod decode_case;
pub mod generate;
pub mod hits;
pub mod inputs;
pub mod memory;
pub mod oracle;
pub mod perf;
pub mod plugin_files;
pub mod random;
pub mod ranks;
pub mod rehearsal;
pub mod report;
pub mod rocm_emu;
pub mod rows;
pub mod sets;
pub mod shrink;
pub mod steps;
pub mod trial;

pub use case::Case;
