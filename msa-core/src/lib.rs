//! The core of `msa`, a library of MiniMax Sparse Attention (MSA) kernels: number formats, geometry, paged caches,
//! operation descriptors, plans, and the API that an inference engine calls.
//!
//! MSA is the attention of MiniMax-M3 and M3.1-Flash: an index branch scores 128-token KV blocks, each GQA group keeps
//! its 16 best, and exact attention runs over only those.
//!
//! # From descriptor to launch
//!
//! 1. A [`Registry`] holds backends: the CPU reference is always there, vendor plugins are loaded at run time.
//! 2. [`Device::support`] says which kernel variants take an [`Op`], or why none does.
//! 3. [`Device::plan`] decides everything on the host, from the descriptor, the [`Lengths`] and the device's traits
//!    alone. The [`Plan`] prints, parses back and says how much workspace it needs.
//! 4. [`Device::prepare`] may allocate and load code.
//! 5. [`Prepared::enqueue`] launches on the engine's stream: no allocation, no synchronisation, capturable in a graph.
//!
//! [`owned`] has a safe layer over the same calls for tools, tests and small users.
//!
//! # Where things are
//!
//! | module | what |
//! |---|---|
//! | [`mod@format`] | E2M1, E4M3 (OCP and FNUZ), bf16, f16, NVFP4: every conversion names its rounding |
//! | [`geometry`], [`cache`], [`tensor`] | shapes, paged cache views with free strides, tensors |
//! | [`op`] | descriptors of the operations with their contracts; [`args`] the tensors of a run |
//! | [`arithmetic`] | instructions, K steps, exponentials and orders of summation, as data |
//! | [`plan`], [`lengths`] | planners, `verify`, text form, schedule record |
//! | [`backend`], [`registry`], [`variant`], [`device`] | the engine API |
//! | [`candidate`], [`rope`] | 64-bit selection keys; RoPE tables |
//! | [`indexer`] | choices of indexer context parallelism |

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
pub mod indexer;
pub mod lengths;
#[cfg(all(feature = "loader", unix))]
pub mod loader;
pub mod op;
pub mod plan;
pub mod predict;
pub mod registry;
pub mod rope;
pub mod tensor;
pub mod text;
pub mod variant;

pub use abi::owned;
pub use args::{Args, Role};
pub use backend::{Backend, Device, Prepared, Span, Status, Stream};
pub use error::{Error, Result};
pub use geometry::{Geometry, shard_heads};
pub use lengths::Lengths;
pub use op::Op;
pub use plan::{Plan, PlanOptions};
pub use registry::Registry;
pub use tensor::{DType, Tensor};
pub use variant::Support;
