//! Indexer decode context parallelism: several GPUs share the index pages of a batch and select as one GPU would, bit for
//! bit.
//!
//! Page j belongs to rank `j mod world`. Every rank scores its pages for all index heads, and one of three [`Transport`]s
//! brings the ranks together:
//!
//! * [`Transport::Candidates`]: each rank keeps its k best blocks of every row and head as 64-bit keys, pushes them to all
//!   peers, and merges what came. A few hundred bytes a row, whatever the context.
//! * [`Transport::Scores`]: each rank stores its scores into the memory of the rank that owns the head, which selects.
//! * [`Transport::Collective`]: for ranks that are not mapped into each other. The keys stand in the workspace where an
//!   all-gather of RCCL or NCCL takes and leaves them ([`CollectiveLayout`]).
//!
//! The first two need memory that every rank maps ([`SharedLayout`]) and run in launches alone, which a HIP graph can
//! capture: what changes from replay to replay, the epoch included, is on the devices. A rank that does not arrive in time is
//! named in the status word of those that waited; nobody hangs.
//!
//! Lengths, tables and positions are global: every rank has those of the whole context and looks only at the table's entries
//! of its own pages. So index keys may be replicated, or each rank may hold its own pages alone.

mod launches;
mod peers;
mod plan;
mod rank;
mod selection;
mod shared;

pub use msa_core::indexer::{CollectiveLayout, IndexerOptions, QuerySource, Transport};
pub use plan::IndexerPlan;
pub use rank::IndexerRank;
pub use shared::SharedLayout;
