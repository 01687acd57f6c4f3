//! Indexer decode context parallelism: several GPUs share the index pages of a batch and select as one GPU would, bit for
//! bit.
//!
//! Page j belongs to rank `j mod world`. Every rank scores its pages for all index heads, and one of two [`Transport`]s
//! brings the ranks together:
//!
//! * [`Transport::Candidates`]: each rank keeps its k best blocks of every row and head as 64-bit keys, stores them in the memory
//!   of all peers, and merges what came, in one kernel. A few hundred bytes a row, whatever the context.
//! * [`Transport::Collective`]: for ranks that are not mapped into each other. The keys stand in the workspace where an
//!   all-gather of NCCL takes and leaves them ([`CollectiveLayout`]); the engine calls it between the two halves of a run.
//!
//! The first needs memory that every rank maps ([`SharedLayout`], [`PeerMemory`]) and runs in launches alone, which a CUDA graph can
//! capture: what changes from replay to replay, the numbers of the exchanges included, is on the devices. A rank that does not arrive
//! in time is named in the status word of those that waited; nobody hangs. [`Transport::Scores`] is refused here.
//!
//! Lengths, tables and positions are global: every rank has those of the whole context and looks only at the table's entries
//! of its own pages. So index keys may be replicated, or each rank may hold its own pages alone.

mod peers;
mod plan;
mod rank;
mod shared;
mod stages;

pub use msa_core::indexer::{CollectiveLayout, IndexerOptions, QuerySource, Transport};
pub use peers::PeerMemory;
pub use plan::IndexerPlan;
pub use rank::IndexerRank;
pub use shared::SharedLayout;
