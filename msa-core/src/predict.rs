//! Predictions on paper: time, bytes and workspace of a decode step and of a prefill on named machines, for one GPU and
//! for several, so that a deployment can be sized before there is one.
//!
//! Every stage is `fixed cost + the largest of what bounds it`. The bounds are bytes and operations over the ceilings of
//! a [`Machine`]; the costs above them are a few constants, each fitted to measurements of the Hopper prototypes on an
//! H200 (2026-11-30, driver 580.159) and each with its reason beside it. On an H200 the predictions are within a
//! quarter of every measured prototype figure. On machines that were not measured the same constants are carried over:
//! latencies in seconds, instruction counts in clocks of that machine, shares of a ceiling as they are.
//!
//! Times are those of one layer on one rank; all ranks do the same amount. Workspace is that of the plan itself.
//!
//! ```
//! use msa_core::predict::{Batch, Deployment, Machine, predict_decode};
//!
//! let batch = Batch { requests: 8, context: 1 << 20, query_len: 1 };
//! let step = predict_decode(&Deployment::default(), &batch, &Machine::by_name("h200")?)?;
//! println!("{:.0} us a layer, {} bytes of workspace", 1e6 * step.seconds(), step.workspace_bytes);
//! # Ok::<(), msa_core::Error>(())
//! ```

mod cost;
mod decode;
mod deployment;
mod exchange;
mod machine;
mod pattern;
mod prefill;
#[cfg(test)]
mod tests;

pub use decode::predict_decode;
pub use deployment::{Batch, Deployment, Formats};
pub use machine::{Figure, Machine, Source};
pub use pattern::Pattern;
pub use prefill::{Prefill, predict_prefill};

use crate::text::names;

/// What a stage spends its time on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Bound {
    /// Bytes of device memory.
    Hbm = 0,
    /// Bytes from the last shared cache.
    L2 = 1,
    /// Matrix products.
    Math = 2,
    /// Exponentials.
    Ex2 = 3,
    /// Vector instructions and waits inside a workgroup.
    Issue = 4,
    /// Bytes to peers.
    Link = 5,
    /// Launches, prologues, hops and tails.
    Launch = 6,
}
names!(Bound {
    Hbm = "hbm",
    L2 = "l2",
    Math = "math",
    Ex2 = "ex2",
    Issue = "issue",
    Link = "link",
    Launch = "launch",
});

/// What a stage's cost above the ceilings rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum Basis {
    /// A prototype of this stage was measured on this machine in these formats.
    Measured = 0,
    /// The best public kernel was measured on this machine.
    Peer = 1,
    /// Nothing was measured: constants of a neighbouring stage, format or machine, or a design target.
    Extrapolated = 2,
}
names!(Basis { Measured = "measured", Peer = "peer", Extrapolated = "extrapolated" });

/// One stage of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stage {
    /// Operation, or what runs beside it.
    pub name: &'static str,
    /// Bytes read from and written to device memory; for an exchange, bytes sent.
    pub bytes: u64,
    /// Matrix operations of useful work, a multiply-add being two.
    pub flops: u64,
    /// Time, seconds.
    pub seconds: f64,
    /// What it goes to.
    pub bound: Bound,
    /// What it rests on.
    pub basis: Basis,
}

/// What is predicted of one layer on one rank.
#[derive(Debug, Clone, PartialEq)]
pub struct Prediction {
    /// Machine.
    pub machine: Machine,
    /// Stages in order.
    pub stages: Vec<Stage>,
    /// Workspace of the plan, bytes, and the candidate exchange's where pages are divided over ranks.
    pub workspace_bytes: u64,
    /// Bytes that a rank sends to its peers in all.
    pub exchange_bytes: u64,
    /// Hops between ranks, one after the other.
    pub hops: u32,
    /// Bytes of caches that a token takes in one layer on one rank.
    pub bytes_per_token: u64,
    /// Parts that a request's slots are divided into; 1 in a prefill.
    pub parts: u32,
    /// Schedule of a prefill.
    pub schedule: Option<crate::plan::Schedule>,
}

impl Prediction {
    /// Time of all stages, seconds.
    pub fn seconds(&self) -> f64 {
        self.stages.iter().map(|s| s.seconds).sum()
    }

    /// Bytes of all stages.
    pub fn bytes(&self) -> u64 {
        self.stages.iter().fold(0, |sum, s| sum.saturating_add(s.bytes))
    }

    /// Matrix operations of all stages.
    pub fn flops(&self) -> u64 {
        self.stages.iter().fold(0, |sum, s| sum.saturating_add(s.flops))
    }

    /// The stage called `name`.
    pub fn stage(&self, name: &str) -> Option<&Stage> {
        self.stages.iter().find(|s| s.name == name)
    }

    /// The weakest basis of any stage.
    pub fn basis(&self) -> Basis {
        self.stages.iter().map(|s| s.basis).max().unwrap_or(Basis::Extrapolated)
    }

    /// Tokens whose caches of `layers` layers fit `share` of the machine's memory; the rest is for weights,
    /// activations and workspace.
    pub fn tokens_that_fit(&self, layers: u32, share: f64) -> u64 {
        let each = self.bytes_per_token.saturating_mul(layers.into()).max(1);
        (self.machine.memory.value * share) as u64 / each
    }
}
