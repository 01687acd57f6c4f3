//! What a backend offers an engine.

use std::fmt;
use std::sync::Arc;

use crate::args::Args;
use crate::device::DeviceInfo;
use crate::error::{Result, require};
use crate::lengths::Lengths;
use crate::op::Op;
use crate::plan::{self, Plan, PlanOptions, WORKSPACE_ALIGNMENT};
use crate::variant::{self, Support, Variant};

/// A family of devices: the reference, or a vendor plugin.
pub trait Backend: Send + Sync {
    /// `ref`, `cuda`, `rocm`, ...
    fn name(&self) -> &str;

    /// Version, for reports.
    fn version(&self) -> &str;

    /// Devices that can be opened. Without a driver or a device: the reason.
    fn devices(&self) -> Result<Vec<DeviceInfo>>;

    /// Opens a device. The same ordinal may be opened several times.
    fn open(&self, ordinal: u32) -> Result<Arc<dyn Device>>;
}

/// An open device. Dropping it never synchronises.
pub trait Device: Send + Sync + fmt::Debug {
    /// Name, architecture, traits.
    fn info(&self) -> &DeviceInfo;

    /// Name for messages, `cuda:0`.
    fn name(&self) -> String;

    /// Every variant, best first within an op.
    fn variants(&self) -> &[Variant];

    /// Can this device do `op`, by which variants, or why not.
    fn support(&self, op: &Op) -> Support {
        match op.clone().validated() {
            Ok(op) => variant::support(self.variants(), &op),
            Err(error) => Support::No { reasons: vec![error.to_string()] },
        }
    }

    /// Plans `op` for a batch of these bounds. Pure: the device is not touched.
    fn plan(&self, op: &Op, lengths: &Lengths, options: &PlanOptions) -> Result<Plan> {
        plan::plan(op, lengths, &self.info().traits, self.variants(), options, &self.name())
    }

    /// Makes a plan runnable: may allocate and load code. Not to be called during graph capture.
    fn prepare(&self, plan: &Plan) -> Result<Box<dyn Prepared>>;

    /// Device memory for tools and tests; engines bring their own.
    fn memory(&self) -> &dyn Memory;
}

/// A plan ready to run.
pub trait Prepared: Send + Sync {
    /// The plan.
    fn plan(&self) -> &Plan;

    /// Enqueues the work on `stream` and returns: no allocation, on the device or the host, no synchronisation, capturable
    /// in a graph. On an error nothing was enqueued and nothing is written. The CPU reference does the work in the call, and
    /// allocates for it.
    ///
    /// # Safety
    /// Every address in `args` and `workspace` must be valid on this device for its whole span until the work is
    /// done, and no other work may write the inputs or touch the outputs and the workspace meanwhile.
    #[allow(unsafe_code)]
    // tidy: allow(unsafe-place): a declaration; raw addresses cannot be checked
    unsafe fn enqueue(&self, stream: Stream, args: &Args, workspace: Span) -> Result<()>;

    /// The status word that the last run left in `workspace`; waits for the stream.
    ///
    /// # Safety
    /// `workspace` must be the one that was enqueued and still be valid.
    #[allow(unsafe_code)]
    // tidy: allow(unsafe-place): a declaration; raw addresses cannot be checked
    unsafe fn status(&self, stream: Stream, workspace: Span) -> Result<Status>;
}

/// Plain memory calls of a device, for tools, tests and small users.
pub trait Memory: Send + Sync {
    /// Allocates; the address is aligned to 256 bytes.
    fn allocate(&self, bytes: u64) -> Result<u64>;

    /// Frees what [`Memory::allocate`] gave.
    fn free(&self, address: u64) -> Result<()>;

    /// Copies to the device; waits.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<()>;

    /// Copies from the device; waits for all work before it.
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()>;

    /// Waits for a stream.
    fn synchronize(&self, stream: Stream) -> Result<()>;
}

/// The engine's stream: a raw handle (`CUstream`, `hipStream_t`); 0 is the default stream, and the CPU ignores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Stream(pub u64);

/// A range of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Span {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Span {
    /// Checks that a workspace has at least `bytes` and an address that a workspace may have; allocates only for an error.
    ///
    /// # Errors
    /// `workspace.bytes` or `workspace.address`, with what is wanted.
    pub fn check_workspace(self, bytes: u64) -> Result<()> {
        require(self.bytes >= bytes, "workspace.bytes", format_args!("at least {bytes}"), self.bytes)?;
        let aligned = self.address != 0 && self.address.is_multiple_of(WORKSPACE_ALIGNMENT);
        let want = format_args!("a multiple of {WORKSPACE_ALIGNMENT}, not 0");
        require(aligned, "workspace.address", want, self.address)?;
        let ends = self.address.checked_add(self.bytes).is_some();
        require(
            ends,
            "workspace.address",
            format_args!("{} bytes before the end of memory", self.bytes),
            self.address,
        )
    }
}

/// The status word of a run: zero, or bits that say what device-resident values were wrong. Such values are skipped,
/// never followed; under [`PlanOptions::checked`] nothing else is done either. The numbers are part of the ABI
/// (`MSA_RUN_*` in the C header): bits are added, never moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct Status(pub u32);

impl Status {
    /// A page id was outside the cache, or the table was too narrow for the length.
    pub const PAGE: u32 = 1;
    /// A slot was outside the cache (and not -1).
    pub const SLOT: u32 = 1 << 1;
    /// A length was negative, above its bound, or offsets did not ascend.
    pub const LENGTH: u32 = 1 << 2;
    /// A selected id was out of range.
    pub const BLOCK: u32 = 1 << 3;
    /// A list named a block twice.
    pub const DUPLICATE: u32 = 1 << 4;
    /// A NaN was quantised to NVFP4.
    pub const NAN: u32 = 1 << 5;
    /// A position was negative or beyond the RoPE table.
    pub const POSITION: u32 = 1 << 6;
    /// Ranks did not arrive; bits 16..24 have one for each.
    pub const RANK: u32 = 1 << 7;
    /// The plan is checked and the other bits were found before the work: nothing but this word was written.
    pub const REFUSED: u32 = 1 << 8;
    /// An infinity was to be quantised to NVFP4; only a checked plan looks for it.
    pub const INFINITE: u32 = 1 << 9;

    /// Every bit below those of the ranks, in order: its name in the C header, and how it prints.
    pub(crate) const NAMES: [(&'static str, &'static str); 10] = [
        ("PAGE", "page out of range"),
        ("SLOT", "slot out of range"),
        ("LENGTH", "length out of range"),
        ("BLOCK", "block out of range"),
        ("DUPLICATE", "duplicate block"),
        ("NAN", "NaN quantised"),
        ("POSITION", "position out of range"),
        ("RANK", "rank did not arrive"),
        ("REFUSED", "nothing was written"),
        ("INFINITE", "infinity to be quantised"),
    ];

    /// The bits of both.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// True if nothing was amiss.
    pub fn is_clean(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::NAMES.iter().enumerate();
        let set: Vec<_> = named.filter(|(i, _)| self.0 >> i & 1 == 1).map(|(_, (_, text))| *text).collect();
        f.write_str(if set.is_empty() { "clean" } else { "" })?;
        f.write_str(&set.join(", "))?;
        let ranks: Vec<_> =
            (0..8).filter(|rank| self.0 >> (16 + rank) & 1 == 1).map(|rank| rank.to_string()).collect();
        if ranks.is_empty() { Ok(()) } else { write!(f, " ({})", ranks.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_of_the_status_word_have_their_names() {
        let bits = [
            ("PAGE", Status::PAGE),
            ("SLOT", Status::SLOT),
            ("LENGTH", Status::LENGTH),
            ("BLOCK", Status::BLOCK),
            ("DUPLICATE", Status::DUPLICATE),
            ("NAN", Status::NAN),
            ("POSITION", Status::POSITION),
            ("RANK", Status::RANK),
            ("REFUSED", Status::REFUSED),
            ("INFINITE", Status::INFINITE),
        ];
        assert_eq!(bits.map(|(name, _)| name), Status::NAMES.map(|(name, _)| name));
        // These numbers are in the header that engines compile against.
        assert_eq!(bits.map(|(_, bit)| bit), [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]);
        assert_eq!(
            Status(Status::REFUSED | Status::LENGTH).to_string(),
            "length out of range, nothing was written"
        );
        assert_eq!(Status(Status::RANK | 5 << 16).to_string(), "rank did not arrive (0, 2)");
        assert_eq!(Status::default().to_string(), "clean");
        let page = include_str!("../docs/ABI.md");
        for (bit, (name, _)) in Status::NAMES.iter().enumerate() {
            assert!(page.contains(&format!("\n| {bit} | `{name}` | ")), "ABI.md lacks {name}");
        }
    }
}
