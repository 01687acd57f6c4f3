//! The plugin ABI, and where raw addresses become memory: the only part of this crate, with the loader, that uses
//! `unsafe`.
//!
//! A plugin exports one symbol, `msa_plugin_entry(host, out_api, diag)`, and answers with an append-only table of C
//! functions ([`table`]). Numbers cross as flat C structs; operations, options and plans cross as their stable text
//! form inside a flat header of version, hash and length: text has no position and no padding, it can be hashed,
//! stored and compared, and fields that are appended later do not move it. Whatever arrives is checked before use:
//! operations with [`Op::validated`](crate::op::Op::validated), plans by version, hash and proof.
//!
//! The sixteen policies of the border stand in `docs/ABI.md`; [`Policy`] names them.
#![allow(unsafe_code)]
// What only a host needs has no user without the loader.
#![cfg_attr(not(all(feature = "loader", unix)), allow(dead_code))]

mod arguments;
mod border;
mod describe;
mod descriptor;
mod diagnosis;
#[cfg(test)]
mod hostile;
mod numbers;
mod policy;

pub mod export;
pub mod header;
pub mod host;
pub mod layout;
pub mod owned;
pub mod privilege;
pub mod table;

pub use descriptor::amend;
pub use policy::Policy;

#[cfg(all(feature = "loader", unix))]
pub(crate) use {
    arguments::Flat,
    border::{Growing, borrow_text, read_growing, zeroed},
    descriptor::{check_plan, op_header, op_text, options_text, plan_header},
    diagnosis::{Diagnosis, plugin, status},
    numbers::Numbered,
};
