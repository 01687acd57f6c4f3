//! AMD gfx942 (CDNA3) and gfx950 (CDNA4): code objects read, counted and executed.
//!
//! Decoding is that of LLVM, whose library comes with the Rust toolchain ([`disassemble`]). The meaning of every
//! instruction is written here, from AMD's instruction set documents; one that is not written is an error that names it.

pub mod census;
pub mod code_object;
pub mod disassemble;
mod error;
#[cfg(feature = "execute")]
mod execute;
pub mod rules;
pub mod text;

pub use error::{EmuError, Fault};
#[cfg(feature = "execute")]
pub use execute::{Arguments, BufferId, Kernel, Launch, Machine, Options, Statistics};
