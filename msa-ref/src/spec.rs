//! The equations of MiniMax Sparse Attention in f64, written as plainly as possible.
//!
//! This is the second implementation that everything else is held to: no plan, no paging, no blocking, no
//! masks. Positions are explicit, keys are gathered explicitly, every sum runs in index order in f64, and `exp`,
//! `ln` and `sqrt` are those of the standard library, whose error (about one f64 unit in the last place) is part
//! of the bound between [`spec`](self) and the device models. It says whether the *algorithm* is right; it says
//! nothing about the bits of a device.
//!
//! Inputs are dense row-major slices that were already decoded to f64 (every bf16, FP8 and NVFP4 value is exact
//! in f64). Axis names: `T` query tokens, `L` cache rows, `Hq`, `Hkv`, `Hi` query, KV and index heads, `D`, `Dv`,
//! `Di` key, value and index dimension.
//!
//! Sources: the model definition is that of the MSA paper (arXiv 2606.13392) and of Hugging Face transformers
//! 5.24.0 (`modeling_minimax_m3_vl.py`); where public implementations differ, the choice is stated at the item.

pub mod append;
pub mod attend;
pub mod bound;
pub mod index_score;
pub mod merge;
pub mod ports;
pub mod positions;
pub mod request;
pub mod select;

#[cfg(test)]
mod field_problems;
#[cfg(test)]
mod random;

/// Why an equation could not be evaluated: the caller's arguments do not fit together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A slice does not have the length that the shape asks for.
    #[error("{what}: {want} elements wanted, got {got}")]
    Length {
        /// The slice.
        what: &'static str,
        /// Elements wanted.
        want: usize,
        /// Elements found.
        got: usize,
    },
    /// A parameter lies outside what the equation is defined for.
    #[error("{field} = {got}: {want}")]
    Parameter {
        /// The parameter.
        field: &'static str,
        /// What it must satisfy.
        want: &'static str,
        /// Its value.
        got: i128,
    },
}

fn check_length(what: &'static str, got: usize, want: usize) -> Result<(), SpecError> {
    if got == want { Ok(()) } else { Err(SpecError::Length { what, want, got }) }
}

fn check_at_least(what: &'static str, got: usize, want: usize) -> Result<(), SpecError> {
    if got >= want { Ok(()) } else { Err(SpecError::Length { what, want, got }) }
}

fn check_parameter(ok: bool, field: &'static str, want: &'static str, got: usize) -> Result<(), SpecError> {
    if ok { Ok(()) } else { Err(SpecError::Parameter { field, want, got: got as i128 }) }
}
