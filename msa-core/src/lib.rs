//! The core of `msa`: formats, geometry, caches, operation descriptors, plans and the engine API.
pub mod abi;
pub mod args;
pub mod arithmetic;
pub mod backend;
pub mod cache;
pub mod candidate;
pub mod device;
pub mod error;
pub mod format;
pub mod geometry;
pub mod lengths;
#[cfg(all(feature = "loader", unix))]
pub mod loader;
pub mod op;
pub mod plan;
pub mod registry;
pub mod tensor;
pub mod text;
pub mod variant;
