//! Interpreters of the vendor binaries that msa ships: they run in continuous integration without a GPU.
//!
//! An interpreter proves addressing, layout, masks, order and protocol under a declared arithmetic. It proves nothing
//! about the silicon.

pub mod gfx9;
