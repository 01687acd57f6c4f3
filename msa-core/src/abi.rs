//! Where raw addresses become memory: the only part of this crate, with the loader, that uses `unsafe`.
#![allow(unsafe_code)]

pub mod host;
pub mod owned;
